"""docs/cluster.md and docs/install.md: every command as written, and what the text around it promises."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_fixtures import APP_VERSION, Images, add_diagnosis, only_operator

from .guide import Shell, commands, script
from .release import NAMESPACE, remove
from .waiting import uid, wait_ready

pytestmark = pytest.mark.whole_cluster

GUIDE = "docs/install.md"
#: The file that the guide writes.
ADMIN_TOKEN = Path("/tmp/heliograph-admin.token")


@pytest.fixture
def shell(cluster: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    with only_operator(cluster, everywhere=True):
        remove(cluster)
        yield Shell(cluster.environment | {"REGISTRY": "images.example"}, tmp_path)
        add_diagnosis(request.node, cluster, NAMESPACE)
        remove(cluster)
    for target in ("operator", "broker", "client"):
        Path(f"/tmp/{target}.tar").unlink(missing_ok=True)
    ADMIN_TOKEN.unlink(missing_ok=True)


def test_the_guides_lead_from_nothing_to_a_broker_and_back_to_nothing(cluster: Cluster, shell: Shell) -> None:
    here = ("-n", NAMESPACE)
    prepare, at_last, _ = script("docs/cluster.md", "A Kubernetes on this machine").rpartition("scripts/cluster down\n")
    assert at_last, "what the guide ends with would end the tests' cluster"
    assert f":{APP_VERSION}" in prepare
    assert "kubectl get pods" in prepare
    shell.run(prepare, timeout_s=900)
    install, *further = commands(GUIDE, "Install on Kubernetes")
    for command in (install, *further):
        shell.run(command)
    output = "".join(shell.run(command) for command in commands(GUIDE, "A first client"))
    assert "hello, world" in output
    shell.run(script(GUIDE, "An administrator"), timeout_s=600)
    assert ADMIN_TOKEN.stat().st_mode & 0o077 == 0
    command = "HELIOGRAPH_TOKEN_FILE=/dev/stdin heliograph tenants list"
    asked = f"kubectl exec -i -n {NAMESPACE} default-0 -c broker -- sh -c '{command}' <{ADMIN_TOKEN}"
    assert "public" in shell.run(asked)
    for heading, expected in (
        ("Images", "image: images.example/operator:"),
        ("Which Kubernetes namespaces are served", "--namespace=shop"),
    ):
        (command,) = commands(GUIDE, heading)
        assert expected in shell.run(command.replace("helm install", "helm template", 1))

    broker = uid(cluster, NAMESPACE, "pod/default-0")
    shell.run("helm uninstall heliograph -n heliograph --wait")
    assert "deployment" not in cluster.kubectl("get", "deployments", *here, "-o", "name")
    shell.run(install)
    wait_ready(cluster, NAMESPACE, "brokercluster/default")
    assert uid(cluster, NAMESPACE, "pod/default-0") == broker

    for command in commands(GUIDE, "Upgrade"):
        shell.run(command)
    wait_ready(cluster, NAMESPACE, "brokercluster/default")
    going_on, without = commands(GUIDE, "Close a broker that was open")[0], "helm upgrade heliograph charts/heliograph"
    for command in (going_on, f"{without} -n {NAMESPACE}"):
        shell.run(command)
        wait_ready(cluster, NAMESPACE, "brokercluster/default")

    *uninstall, remove_finalizers = commands(GUIDE, "Uninstall")
    delete_volumes = uninstall.pop()
    for command in uninstall:
        shell.run(command)
    claim = "persistentvolumeclaim/data-default-0"
    assert cluster.kubectl("get", "pvc,statefulsets,deployments", *here, "-o", "name").split() == [claim]
    shell.run(delete_volumes)
    assert cluster.kubectl("get", "pvc", *here, "-o", "name").split() == []
    _without_operator(cluster)
    shell.run(remove_finalizers)
    assert cluster.kubectl("get", "brokercluster", *here, "-o", "name").split() == []


def _without_operator(cluster: Cluster) -> None:
    """A resource that was deleted when nobody was there to do it."""
    left = {
        "apiVersion": "heliograph.dev/v1alpha1",
        "kind": "BrokerCluster",
        "metadata": {"name": "default", "namespace": NAMESPACE, "finalizers": ["heliograph.dev/broker-data"]},
        "spec": {},
    }
    cluster.apply(left)
    cluster.kubectl("delete", "brokercluster", "default", "-n", NAMESPACE, "--wait=false")
    assert cluster.kubectl("get", "brokercluster", "-n", NAMESPACE, "-o", "name").split()


def test_the_kubernetes_namespace_of_the_operator_can_be_deleted_with_all_that_is_in_it(
    cluster: Cluster, images: Images, shell: Shell
) -> None:
    for target in ("operator", "broker"):
        assert images[target].startswith("heliograph/")
    install, wait, *_ = commands(GUIDE, "Install on Kubernetes")
    for command in (install, wait, f"kubectl apply -n {NAMESPACE} -f examples/"):
        shell.run(command)
    wait_ready(cluster, NAMESPACE, "htopic/orders")
    follow = ["kubectl", "logs", "-f", "--tail=1", "-n", NAMESPACE, "deployment/heliograph-operator"]
    with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True, env=cluster.environment) as logs:
        # The operator may end at once: its log is followed before it is asked to.
        assert logs.stdout is not None
        assert logs.stdout.readline(), "the operator has logged nothing"
        cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=250s")
        output, _ = logs.communicate(timeout=120)
    assert "released all resources" in output
