"""The operator's process, a real broker's and a real API server; no pods are needed for what is tested here."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_operator.objects.kinds import KINDS

from tests.support.broker_process import BrokerProcess
from tests.support.cluster import PROJECT, Cluster
from tests.support.operator_process import OperatorProcess

from .resources import Resources


@pytest.fixture(scope="session")
def definitions(cluster: Cluster) -> None:
    """The custom resource definitions, and the API server serves them."""
    files = sorted((PROJECT / "crds").glob("*.yaml"))
    for file in files:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    for kind in KINDS.values():
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{kind.plural}.heliograph.dev", "--timeout=60s")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker on this host."""
    with BrokerProcess(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def operator(
    cluster: Cluster, resources: Resources, kube_namespace: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[OperatorProcess]:
    """An operator on this host, for the test's Kubernetes namespace; ``start`` it again after ``kill9``.

    A test may give it more arguments, by indirect parametrization. It ends before the resources lose their
    finalizers, or it would hold them again.
    """
    arguments = ("--refresh", "2", *getattr(request, "param", ()))
    process = OperatorProcess(tmp_path / "operator.log", kube_namespace, cluster.environment, arguments=arguments)
    process.launch()
    yield process
    process.close()
    if "Traceback" in process.log_tail(100_000):
        raise AssertionError(f"the operator logged an unexpected error:\n{process.log_tail(120)}")


@pytest.fixture
def resources(cluster: Cluster, definitions: None, kube_namespace: str) -> Iterator[Resources]:
    """The test's resources; whatever is left of them at the end loses its finalizers, so that nothing hangs."""
    found = Resources(cluster, kube_namespace)
    yield found
    found.remove_finalizers()


@pytest.fixture
def served(resources: Resources, broker: BrokerProcess) -> Resources:
    """Resources, with a BrokerCluster that says the broker's process is its own."""
    with urllib.request.urlopen(f"{broker.http_url}/health/ready", timeout=60) as answer:
        assert answer.status == 200
    resources.cluster_at("main", broker.http_url, broker.service_url)
    return resources
