"""The NetworkPolicy that the operator makes, enforced between a real broker and its peers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from heliograph_api.resources.model import BrokerCluster
from heliograph_operator.decide.cluster_objects import manifests
from heliograph_operator.decide.stateful_set import BROKER_PORT, HTTP_PORT, METRICS_PORT, Site

from tests.support.broker_process import BrokerProcess
from tests.support.network_policies import Pod, PodNetwork, missing, pod_network

SITE = Site("broker", operator_namespace="operators")
NAMESPACE = "shop"
PORTS = (BROKER_PORT, HTTP_PORT, METRICS_PORT)
#: The name of the broker, which is advertised to clients.
NAME = "main-0"
NOWHERE = (False, False, False)
#: Ports of a pod that a broker might connect to: DNS, DNS on OpenShift, HTTPS.
OUTSIDE_PORTS = (53, 5353, 443)

PODS: dict[str, tuple[str, dict[str, str]]] = {
    "operator": (
        "operators",
        {
            "app.kubernetes.io/name": "heliograph",
            "app.kubernetes.io/instance": "main",
            "app.kubernetes.io/component": "operator",
        },
    ),
    "impostor": (NAMESPACE, {"app.kubernetes.io/name": "heliograph", "app.kubernetes.io/component": "operator"}),
    "archive": (NAMESPACE, {"app.kubernetes.io/name": "heliograph-archive"}),
    "prometheus": ("monitoring", {"app.kubernetes.io/name": "prometheus"}),
    "client": (NAMESPACE, {"app": "orders"}),
    "admin": (NAMESPACE, {"app": "tools"}),
    "stranger": ("elsewhere", {"app": "orders"}),
}

LISTEN = """
import socket, sys, threading
def serve(listening):
    while True:
        listening.accept()[0].close()
for port in map(int, sys.argv[1:]):
    listening = socket.create_server(("0.0.0.0", port))
    threading.Thread(target=serve, args=(listening,), daemon=True).start()
print("listening", flush=True)
sys.stdin.read()
"""

#: Runs a command with another file of hosts; $0 is the file.
WITH_HOSTS = 'mount --bind "$0" /etc/hosts; exec "$@"'
PRODUCE = """
import sys, pulsar
quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
client = pulsar.Client(sys.argv[1], logger=quiet, operation_timeout_seconds=60)
print(client.create_producer("orders").send(b"an order"))
client.close()
"""


def objects(**policy: Any) -> dict[str, dict[str, Any]]:
    """The objects that the operator makes of a BrokerCluster with this ``networkPolicy``, by kind and name."""
    body = {
        "apiVersion": "heliograph.dev/v1alpha1",
        "kind": "BrokerCluster",
        "metadata": {"name": "main", "namespace": NAMESPACE, "uid": "1"},
        "spec": {"networkPolicy": policy, "archives": {"enabled": True}},
    }
    made = manifests(BrokerCluster.model_validate(body), body, SITE)
    return {f"{each['kind']} {each['metadata']['name']}": each for each in made}


def policies(**policy: Any) -> list[dict[str, Any]]:
    return [each for each in objects(**policy).values() if each["kind"] == "NetworkPolicy"]


class InPod(BrokerProcess):
    """A broker with the ports of a pod, in the network of one."""

    pod: Pod

    @property
    def command(self) -> list[str]:
        program, module, name, verb = super().command[:4]
        ports = ["--broker-port", str(BROKER_PORT), "--http-port", str(HTTP_PORT)]
        own = ["--data-dir", str(self.data_dir), *ports, "--bind", "*", "--insecure"]
        return self.pod.command(program, module, name, verb, *own)


class Place:
    """The broker and the pods around it."""

    def __init__(self, network: PodNetwork, broker: Pod) -> None:
        self.network = network
        self.broker = broker

    def reached(self) -> dict[str, tuple[bool, ...]]:
        """Return, by pod, which of the broker's ports it reaches: binary, HTTP and metrics, by IPv4 and by IPv6."""
        with ThreadPoolExecutor(len(PODS)) as threads:
            return dict(zip(PODS, threads.map(self._reached_from, PODS), strict=True))

    def _reached_from(self, name: str) -> tuple[bool, ...]:
        targets = [(address, port) for address in self.broker.addresses for port in PORTS]
        answers = tuple(self.network.pods[name].reaches(targets))
        assert answers[: len(PORTS)] == answers[len(PORTS) :], f"{name}: IPv4 and IPv6 differ: {answers}"
        return answers[: len(PORTS)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if why := missing():
        pytest.skip(why)
    with ExitStack() as stack:
        network = stack.enter_context(pod_network())
        template = objects()["StatefulSet main"]["spec"]["template"]
        broker = network.add("broker", NAMESPACE, template["metadata"]["labels"])
        for name, (namespace, labels) in PODS.items():
            network.add(name, namespace, labels, **({"team": "shop"} if namespace == NAMESPACE else {}))
        outside = network.add("outside", "kube-system", {"k8s-app": "dns"})
        listener = stack.enter_context(
            subprocess.Popen(
                outside.command(sys.executable, "-c", LISTEN, *map(str, OUTSIDE_PORTS)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"
        directory: Path = tmp_path_factory.mktemp("broker")
        [container] = template["spec"]["containers"]
        assert container["args"][:3] == ["standalone", "--bind", "*"]
        variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        variables["HELIOGRAPH_ADVERTISED_HOST"] = NAME
        process = InPod(directory / "data", environment=variables)
        process.pod = broker
        stack.enter_context(process)
        yield Place(network, broker)
        listener.kill()


def test_without_a_policy_every_port_is_open(place: Place) -> None:
    place.network.enforce(policies(enabled=False))
    assert place.reached() == dict.fromkeys(PODS, (True, True, True))


def test_the_admin_api_is_the_operators_and_metrics_are_prometheus_by_default(place: Place) -> None:
    place.network.enforce(policies())
    binary_only = (True, False, False)
    assert place.reached() == dict.fromkeys(PODS, binary_only) | {
        "operator": (True, True, False),
        "archive": (True, True, False),
        "prometheus": (True, False, True),
    }


def test_only_named_peers_come_in_and_a_client_publishes(place: Place, tmp_path: Path) -> None:
    orders = {"namespaceSelector": {"matchLabels": {"team": "shop"}}, "podSelector": {"matchLabels": {"app": "orders"}}}
    tools = {"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["tools"]}]}}
    place.network.enforce(policies(clients=[orders], admin=[tools], metrics=[]))
    assert place.reached() == {
        "operator": (False, True, False),
        "impostor": NOWHERE,
        "archive": (True, True, False),
        "prometheus": NOWHERE,
        "client": (True, False, False),
        "admin": (False, True, False),
        "stranger": NOWHERE,
    }
    hosts = tmp_path / "hosts"
    for address in place.broker.addresses:
        hosts.write_text(f"{address} {NAME}\n")
        produce = (sys.executable, "-c", PRODUCE, f"pulsar://{NAME}:{BROKER_PORT}")
        command = place.network.pods["client"].command("unshare", "-m", "sh", "-ec", WITH_HOSTS, str(hosts), *produce)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{address}: {done.stderr}"


def test_addresses_may_be_named_and_empty_lists_let_nobody_in(place: Place) -> None:
    addresses = place.network.pods["stranger"].addresses
    blocks = [{"ipBlock": {"cidr": f"{addresses[0]}/32"}}, {"ipBlock": {"cidr": f"{addresses[1]}/128"}}]
    place.network.enforce(policies(clients=[], admin=[], metrics=blocks))
    assert place.reached() == dict.fromkeys(PODS, NOWHERE) | {
        "operator": (False, True, False),
        "archive": (True, True, False),
        "stranger": (False, False, True),
    }


def test_a_broker_connects_to_dns_and_nothing_else(place: Place) -> None:
    outside = [(place.network.pods["outside"].addresses[0], port) for port in OUTSIDE_PORTS]
    place.network.enforce(policies(enabled=False))
    assert place.broker.reaches(outside) == [True, True, True]
    place.network.enforce(policies())
    assert place.broker.reaches(outside) == [True, True, False]
