"""A broker on a second node: the node is drained, and lost. Its messages stay, and the status says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client_pod import ClientPod
from tests.e2e.guide import commands
from tests.e2e.release import NAMESPACE
from tests.e2e.waiting import conditions, wait_ready
from tests.support.cluster import Cluster

from .conftest import Installation

NODE = "heliograph-2"
TOPIC = "persistent://public/default/far"
FAR = {
    "apiVersion": "heliograph.dev/v1alpha1",
    "kind": "BrokerCluster",
    "metadata": {"name": "far"},
    "spec": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}
                    ]
                }
            }
        }
    },
}


UP, NODES, DOWN, FORGET = commands("docs/cluster.md", "A second node")


@pytest.fixture
def far(installation: Installation) -> Iterator[ClientPod]:
    """A client of the BrokerCluster ``far``, whose broker runs on a second node."""
    cluster = installation.cluster
    if cluster.is_kind:
        pytest.skip("a kind cluster gets its nodes when it is made: no second one is added")
    shell = installation.shell
    shell.run(UP)
    try:
        assert NODE in shell.run(NODES)
        cluster.apply(FAR, namespace=NAMESPACE)
        wait_ready(cluster, NAMESPACE, "brokercluster/far", within_s=180)
        yield ClientPod(cluster, NAMESPACE, f"pulsar://far.{NAMESPACE}.svc.cluster.local:6650")
    finally:
        cluster.kubectl("uncordon", NODE)
        cluster.kubectl("delete", "brokercluster", "far", "-n", NAMESPACE, "--timeout=120s", timeout_s=150)
        shell.run(DOWN)
        shell.run(FORGET)


def not_ready(cluster: Cluster, message: str, *, within_s: float) -> None:
    """Wait until the BrokerCluster says that it is not ready, and why."""

    def reported() -> bool:
        found: dict[str, Any] = cluster.kubectl_json("get", "brokercluster", "far", "-n", NAMESPACE)
        ready = conditions(found)["Ready"]
        assert ready["status"] == "False", ready
        assert message in ready["message"], ready
        return True

    cluster.wait_for(f"the status says {message!r}", reported, within_s=within_s, namespace=NAMESPACE)


def test_messages_survive_a_drain_and_the_loss_of_the_node(installation: Installation, far: ClientPod) -> None:
    cluster = installation.cluster
    far.subscribe(TOPIC, "reader")
    far.publish(TOPIC, ["before the drain"])

    # A broker keeps nothing but temporary files outside of its volume.
    cluster.kubectl("drain", NODE, "--delete-emptydir-data", "--timeout=120s", timeout_s=150)
    # The volume is a directory of the node: no other node can run the broker.
    not_ready(cluster, "Unschedulable", within_s=60)
    cluster.kubectl("uncordon", NODE)
    wait_ready(cluster, NAMESPACE, "brokercluster/far", within_s=120)
    far.publish(TOPIC, ["before the loss"])

    installation.shell.run(DOWN)
    # Kubernetes notices the loss of a node after 50 s at the latest.
    not_ready(cluster, f"NodeNotReady: node {NODE} does not report", within_s=180)
    installation.shell.run(UP)
    wait_ready(cluster, NAMESPACE, "brokercluster/far", within_s=240)
    far.publish(TOPIC, ["after the loss"])
    expected = ["before the drain", "before the loss", "after the loss"]
    assert far.consume(TOPIC, "reader", 3, acknowledge=True) == expected
