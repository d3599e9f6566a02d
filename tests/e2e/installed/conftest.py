"""One installation, made as README says, in which all tests of this package work."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.client_pod import ClientPod
from tests.e2e.guide import Shell, commands
from tests.support.cluster import Cluster
from tests.support.cluster_fixtures import Images, add_diagnosis

#: As README calls it.
NAMESPACE = "heliograph"
HOST = "default.heliograph.svc.cluster.local"
KINDS = ("topics", "namespaces", "tenants", "brokerclusters")


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
    """What README's commands install. The operator serves all Kubernetes namespaces as long as it is there."""
    remove(cluster)
    for target in ("operator", "broker", "client"):
        assert images[target].startswith("heliograph/")
    directory = tmp_path_factory.mktemp("installation")
    shell = Shell(cluster.environment, directory)
    try:
        for command in commands("README.md", "On Kubernetes"):
            shell.run(command)
        client = ClientPod(cluster, NAMESPACE, f"pulsar://{HOST}:6650", f"http://{HOST}:8080")
        client.start(images["client"])
        yield Installation(cluster, shell, client)
    except AssertionError as error:
        error.add_note(cluster.diagnosis(NAMESPACE))
        raise
    finally:
        remove(cluster)
        shutil.rmtree(directory)


@pytest.fixture(autouse=True)
def _diagnosis(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    add_diagnosis(request.node, cluster, NAMESPACE)


def remove(cluster: Cluster) -> None:
    """Remove the release and everything in its Kubernetes namespace, of a session that was interrupted too."""
    if not cluster.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name"):
        return
    if cluster.helm("list", "-n", NAMESPACE, "-q").split():
        for kind in KINDS:
            cluster.kubectl("delete", f"{kind}.heliograph.dev", "-n", NAMESPACE, "--all", "--timeout=100s")
        cluster.helm("uninstall", "heliograph", "-n", NAMESPACE, "--wait")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=100s")
