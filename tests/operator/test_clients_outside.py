"""A client outside the cluster's network reaches a broker by a listener, and by nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_fixtures import Images, only_operator

from .in_network import SPEC, Brokers, OperatorInNetwork
from .resources import Resources

_NODE_SIDE, _OUTSIDE_SIDE = "198.19.77.1", "198.19.77.2"
_WITHIN_S: Final = 90
#: A user that no image knows.
USER: Final = 1_000_650_000
ASSIGNED: Final = {"spec": {"securityContext": {"runAsUser": USER, "runAsGroup": 0, "fsGroup": USER}}}

#: Publishes and receives over the service URL and the listener's name given, if any.
_EXCHANGE: Final = """
import sys, pulsar
url, name, topic = sys.argv[1:4]
client = pulsar.Client(url, listener_name=name or None, operation_timeout_seconds=30)
consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
client.create_producer(topic).send(b"from outside")
print("received", consumer.receive(30_000).data().decode())
client.close()
"""
_REACHES: Final = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5).close()
    print("reached")
except OSError as error:
    print("unreachable", error)
"""


class Outside:
    """A network namespace with a route to the node's address and to nothing else of the cluster."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.netns = f"hg-outside-{os.getpid()}"
        link = f"hgout{os.getpid() % 100_000}"
        self._ip("netns", "add", self.netns)
        try:
            self._ip("-n", self.netns, "link", "add", "eth0", "type", "veth", "peer", "name", link)
            pid = cluster.netns.parts[2]
            self._ip("-n", self.netns, "link", "set", link, "netns", pid)
            inside = f"ip addr add {_NODE_SIDE}/30 dev {link} && ip link set {link} up"
            cluster.run_in_netns("sh", "-c", inside)
            self._ip("-n", self.netns, "addr", "add", f"{_OUTSIDE_SIDE}/30", "dev", "eth0")
            for name in ("lo", "eth0"):
                self._ip("-n", self.netns, "link", "set", name, "up")
            self._ip("-n", self.netns, "route", "add", f"{node}/32", "via", _NODE_SIDE)
        except BaseException:
            self.remove()
            raise

    def run(self, program: str, *arguments: str) -> str:
        """Return the output of a Python program that is run outside."""
        command = ["ip", "netns", "exec", self.netns, sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def remove(self) -> None:
        """Remove it; its end of the link takes the node's with it."""
        subprocess.run(["ip", "netns", "del", self.netns], check=False)

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def brokers(
    cluster: Cluster, images: Images, definitions: None, kube_namespace: str, tmp_path: Path
) -> Iterator[Brokers]:
    """BrokerCluster main with a port of the nodes, and a user as OpenShift assigns it.

    Pod Security `restricted` is enforced in its Kubernetes namespace. The pod template stands in for the admission of
    OpenShift, which sets the user and the group of the volumes where a pod names none; the group of such users is root.
    """
    site = ("--broker-image", images["broker"], "--operator-namespace", kube_namespace, "--no-fixed-user")
    enforced = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", kube_namespace, enforced, "--overwrite")
    resources = Resources(cluster, kube_namespace)
    with only_operator(cluster, everywhere=False):
        process = OperatorInNetwork(tmp_path / "operator.log", cluster, kube_namespace, *site, "--lease", "operator")
        process.launch()
        try:
            more = {"listeners": [{"name": "outside", "type": "NodePort"}], "podTemplate": ASSIGNED}
            resources.apply("BrokerCluster", "main", {**SPEC, **more})
            found = Brokers(resources)
            found.wait_observed()
            yield found
        finally:
            process.close()
            resources.remove_finalizers()


@pytest.mark.timeout(420)
def test_a_client_outside_the_network_of_pods_publishes_and_consumes(cluster: Cluster, brokers: Brokers) -> None:
    status = brokers.get("bcl")["status"]
    [listener] = status["listeners"]
    [url] = listener["urls"]
    node = brokers.get("pod", "main-0")["status"]["hostIP"]
    assert url == f"pulsar://{node}:{listener['nodePort']}"
    outside = Outside(cluster, node)
    try:
        # Neither the pod nor the Services inside can be reached from there, so it is the listener that leads in.
        pod = brokers.get("pod", "main-0")["status"]["podIP"]
        service = brokers.get("service", "main")["spec"]["clusterIP"]
        for host in (pod, service):
            assert outside.run(_REACHES, host, "6650").startswith("unreachable")
        # The admin API has no port of the nodes.
        assert all(each["spec"]["type"] == "ClusterIP" for each in _others(cluster, brokers))
        for name, topic in (("outside", "by-name"), ("", "by-port")):
            assert "received from outside" in outside.run(_EXCHANGE, url, name, topic)
    finally:
        outside.remove()
    found = cluster.kubectl("exec", "-n", brokers.resources.namespace, "main-0", "--", "id")
    assert found.startswith(f"uid={USER} gid=0(root)"), found


def _others(cluster: Cluster, brokers: Brokers) -> list[dict[str, dict[str, str]]]:
    namespace = brokers.resources.namespace
    found: list[dict[str, dict[str, str]]] = cluster.kubectl_json(
        "get", "services", "-n", namespace, "-l", "heliograph.dev/service!=listener"
    )["items"]
    return found
