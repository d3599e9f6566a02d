"""One installation, made as README says, in which all tests of this package work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.client_pod import USER, ClientPod
from tests.e2e.guide import Shell, commands
from tests.e2e.release import NAMESPACE, remove
from tests.e2e.waiting import wait_ready
from tests.support.cluster import Cluster
from tests.support.cluster_fixtures import Images, add_diagnosis, only_operator
from tests.support.pod_logs import secrets_in_logs

HOST = "default.heliograph.svc.cluster.local"
ADMIN_HOST = "default-admin.heliograph.svc.cluster.local"
#: Its role is a superuser: tests change and delete what resources stand for.
TESTER = {
    "apiVersion": "heliograph.dev/v1alpha1",
    "kind": "User",
    "metadata": {"name": USER},
    "spec": {"clusterRef": {"name": "default"}, "authentication": [{"token": {}}]},
}


@dataclass(frozen=True)
class Installation:
    """The release, the broker ``default`` with the examples in it, and a client in a pod."""

    cluster: Cluster
    shell: Shell
    client: ClientPod
    namespace: str = NAMESPACE

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl(*arguments, "-n", self.namespace)


@pytest.fixture(scope="package")
def installation(cluster: Cluster, images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Run README's commands for installation. The operator serves all Kubernetes namespaces as long as it is there."""
    directory = tmp_path_factory.mktemp("installation")
    with only_operator(cluster, everywhere=True):
        try:
            remove(cluster)
            for target in ("operator", "broker", "client"):
                assert images[target].startswith("heliograph/")
            shell = Shell(cluster.environment, directory)
            for command in commands("README.md", "Install on Kubernetes"):
                shell.run(command)
            # Nobody but the operator may use the admin API: by the broker's grants, and by a policy if it is enforced.
            peers = [{"podSelector": {"matchLabels": {"app": "client"}}}]
            patch = {"networkPolicy": {"admin": peers}, "authentication": {"superusers": [f"{NAMESPACE}/{USER}"]}}
            changed = json.dumps({"spec": patch})
            cluster.kubectl("patch", "bcl", "default", "-n", NAMESPACE, "--type=merge", "-p", changed)
            cluster.apply(TESTER, namespace=NAMESPACE)
            wait_ready(cluster, NAMESPACE, f"huser/{USER}")
            wait_ready(cluster, NAMESPACE, "brokercluster/default")
            client = ClientPod(cluster, NAMESPACE, f"pulsar://{HOST}:6650", f"http://{ADMIN_HOST}:8080")
            client.start(images["client"], shows_token=True)
            yield Installation(cluster, shell, client)
            assert secrets_in_logs(cluster, NAMESPACE) == []
        except AssertionError as error:
            error.add_note(cluster.diagnosis(NAMESPACE))
            raise
        finally:
            remove(cluster)


@pytest.fixture(autouse=True)
def _diagnosis(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    add_diagnosis(request.node, cluster, NAMESPACE)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The installation's operator serves all Kubernetes namespaces."""
    for item in items:
        if "installation" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.whole_cluster)
