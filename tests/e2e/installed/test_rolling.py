"""Changes of a BrokerCluster while official clients publish and consume: pods are replaced, nothing is lost."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.e2e.guide import commands
from tests.e2e.waiting import conditions, uid, wait_ready, wait_replaced
from tests.support.cluster import PROJECT
from tests.support.cluster_fixtures import Images

from .conftest import Installation

TOPIC = "persistent://shop/payments/rolling"


def patch(installation: Installation, spec: dict[str, Any]) -> None:
    installation.kubectl("patch", "brokercluster", "default", "--type=merge", "-p", json.dumps({"spec": spec}))


def rolled(installation: Installation, pod: str) -> None:
    """Wait until the broker is another pod than ``pod`` (a uid), and every resource is reported ready."""
    wait_replaced(installation.cluster, installation.namespace, "default-0", pod)
    resource = wait_ready(installation.cluster, installation.namespace, "brokercluster/default")
    assert conditions(resource)["Progressing"]["reason"] == "RolledOut"


def test_clients_lose_nothing_receipted_while_pods_are_rolled_for_resources_settings_and_an_upgrade(
    installation: Installation, images: Images
) -> None:
    cluster, namespace = installation.cluster, installation.namespace
    images.tagged("broker", "next")
    with installation.client.load(TOPIC, "reader") as load:
        pod = uid(cluster, namespace, "pod/default-0")
        with subprocess.Popen(
            ["kubectl", "logs", "-f", "-n", namespace, "default-0", "--tail=1"],
            stdout=subprocess.PIPE,
            text=True,
            env=cluster.environment,
        ) as logs:
            # The broker may be gone within a tenth of a second: follow its log before it is asked to stop.
            assert logs.stdout is not None
            assert logs.stdout.readline(), "the broker has logged nothing"
            patch(installation, {"resources": {"requests": {"memory": "96Mi"}}})
            rolled(installation, pod)
            output, _ = logs.communicate(timeout=120)
        assert '"event": "stopped"' in output, "the broker was not drained, or did not end by itself"
        load.goes_on()

        pod = uid(cluster, namespace, "pod/default-0")
        patch(installation, {"config": {"max_message_size": 1048576}})
        # The process that ordered it need not live until it is done.
        operator = ("pod", "-l", "app.kubernetes.io/component=operator", "--grace-period=0", "--force")
        installation.kubectl("delete", *operator)
        rolled(installation, pod)
        load.goes_on()

        pod = uid(cluster, namespace, "pod/default-0")
        cluster.helm(
            "upgrade", "heliograph", str(PROJECT / "charts" / "heliograph"), "-n", namespace,
            "--reuse-values", "--set", "broker.image.tag=next", "--wait", "--timeout=3m",
        )  # fmt: skip
        rolled(installation, pod)
        running = cluster.kubectl_json("get", "pod", "default-0", "-n", namespace)
        assert running["spec"]["containers"][0]["image"] == "heliograph/broker:next"
        load.goes_on()
        load.assert_nothing_lost()


def test_a_volume_grows_with_its_broker_running(installation: Installation) -> None:
    cluster, namespace = installation.cluster, installation.namespace
    if cluster.is_kind:
        pytest.skip("kind's StorageClass does not let volumes grow")
    pod = uid(cluster, namespace, "pod/default-0")
    patch(installation, {"storage": {"size": "12Gi"}})

    def grown() -> bool:
        claim = cluster.kubectl_json("get", "pvc", "data-default-0", "-n", namespace)
        return bool(claim["status"]["capacity"]["storage"] == "12Gi")

    cluster.wait_for("the volume is larger", grown, within_s=180, namespace=namespace)
    wait_ready(cluster, namespace, "brokercluster/default")
    assert uid(cluster, namespace, "pod/default-0") == pod


def test_an_upgrade_as_the_guide_shows_brings_the_definitions_up_to_date_first(installation: Installation) -> None:
    definition = ("crd", "tenants.heliograph.dev")
    described = "{.spec.versions[0].schema.openAPIV3Schema.description}"
    current = installation.kubectl("get", *definition, "-o", f"jsonpath={described}")
    older = [{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/description", "value": "older"}]
    installation.kubectl("patch", *definition, "--type=json", "-p", json.dumps(older))
    assert installation.kubectl("get", *definition, "-o", f"jsonpath={described}") == "older"
    for command in commands("docs/install.md", "Upgrade"):
        installation.shell.run(command)
    assert installation.kubectl("get", *definition, "-o", f"jsonpath={described}") == current
    wait_ready(installation.cluster, installation.namespace, "brokercluster/default", within_s=240)
