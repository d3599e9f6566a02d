"""Enforces NetworkPolicies between network namespaces of this machine, as the network plugin of a Kubernetes does.

Each pod is a network namespace with addresses of IPv4 and IPv6 on one bridge. The policies that select a pod become
nftables rules in its network namespace. What they refuse is answered at once, so that a test need not wait for a
timeout to know it.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

Manifest = Mapping[str, Any]
NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
_NETWORKS: Final = ("10.111.0", "fd00:111:")
_TIMEOUT_S: Final = 120

_REACHES: Final = """
import json, socket, sys
def accepted(host, port):
    try:
        socket.create_connection((host, port), timeout=20).close()
    except OSError:
        return False
    return True
print(json.dumps([accepted(*target) for target in json.loads(sys.argv[1])]))
"""


def missing() -> str:
    """Return why there can be no such network on this machine, or nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if absent := [program for program in ("ip", "nft", "unshare") if shutil.which(program) is None]:
        return f"no program {' and '.join(absent)}"
    probe = f"hg-probe-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"no network namespaces: {tried.stderr.strip()}"
    try:
        table = ["ip", "netns", "exec", probe, "nft", "add", "table", "inet", "probe"]
        tried = subprocess.run(table, capture_output=True, text=True, check=False)
        return f"no nftables: {tried.stderr.strip()}" if tried.returncode else ""
    finally:
        subprocess.run(["ip", "netns", "del", probe], check=False)


@dataclass(frozen=True)
class Pod:
    """A pod: its labels, those of its Kubernetes namespace, its network namespace and its addresses."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    netns: str
    addresses: tuple[str, str]

    def command(self, *command: str) -> list[str]:
        """Return a command line that runs ``command`` in the pod's network."""
        return ["ip", "netns", "exec", self.netns, *command]

    def reaches(self, targets: Sequence[tuple[str, int]]) -> list[bool]:
        """Return, for each host and port, whether a TCP connection to it is accepted."""
        command = self.command(sys.executable, "-c", _REACHES, json.dumps(targets))
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        reached: list[bool] = json.loads(done.stdout)
        return reached


class PodNetwork:
    """The pods of one test, and the labels of their Kubernetes namespaces."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._node = f"{prefix}-node"
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self.pods: dict[str, Pod] = {}
        _run("ip", "netns", "add", self._node)
        _run("ip", "-n", self._node, "link", "add", "pods", "type", "bridge")
        _run("ip", "-n", self._node, "link", "set", "pods", "up")

    def add(self, name: str, namespace: str, labels: Mapping[str, str], **of_namespace: str) -> Pod:
        """Add a pod; ``of_namespace`` are labels of its Kubernetes namespace beside its name."""
        self._namespaces[namespace] = {NAMESPACE_NAME: namespace, **of_namespace}
        number = len(self.pods) + 1
        pod = Pod(
            name, namespace, labels, f"{self._prefix}-{name}", (f"{_NETWORKS[0]}.{number}", f"{_NETWORKS[1]}:{number}")
        )
        self.pods[name] = pod
        _run("ip", "netns", "add", pod.netns)
        port = f"pod{number}"
        _run("ip", "-n", self._node, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", pod.netns)
        _run("ip", "-n", self._node, "link", "set", port, "master", "pods", "up")
        _run("ip", "-n", pod.netns, "link", "set", "lo", "up")
        _run("ip", "-n", pod.netns, "addr", "add", f"{pod.addresses[0]}/24", "dev", "eth0")
        _run("ip", "-n", pod.netns, "addr", "add", f"{pod.addresses[1]}/64", "dev", "eth0", "nodad")
        _run("ip", "-n", pod.netns, "link", "set", "eth0", "up")
        return pod

    def enforce(self, policies: Sequence[Manifest]) -> None:
        """Let these policies, and no others, hold for all pods."""
        for pod in self.pods.values():
            _run(*pod.command("nft", "-f", "-"), given="\n".join(self._rules(pod, policies)))

    def remove(self) -> None:
        """Remove the network; processes in it must have ended."""
        for netns in (*(pod.netns for pod in self.pods.values()), self._node):
            subprocess.run(["ip", "netns", "del", netns], check=False)

    def _rules(self, pod: Pod, policies: Sequence[Manifest]) -> Iterator[str]:
        """Yield the nftables commands of a pod. A direction of which no policy speaks is open."""
        own = [
            policy["spec"]
            for policy in policies
            if policy["metadata"]["namespace"] == pod.namespace and selects(policy["spec"]["podSelector"], pod.labels)
        ]
        yield "table inet policies {}"
        yield "delete table inet policies"
        yield "table inet policies {"
        for kind, hook, side, peers in (("Ingress", "input", "saddr", "from"), ("Egress", "output", "daddr", "to")):
            limiting = [spec for spec in own if kind in spec["policyTypes"]]
            if not limiting:
                continue
            yield f"chain {hook} {{ type filter hook {hook} priority 0; policy accept;"
            yield f'meta {"iifname" if hook == "input" else "oifname"} "lo" accept'
            yield "ct state established,related accept"
            # Neighbours are found by ICMPv6, which policies do not concern.
            yield "meta l4proto ipv6-icmp accept"
            for spec in limiting:
                for rule in spec.get(kind.lower(), ()):
                    yield from self._accepted(rule, pod.namespace, side, rule.get(peers))
            yield "reject with icmpx admin-prohibited"
            yield "}"
        yield "}"

    def _accepted(self, rule: Manifest, namespace: str, side: str, peers: Sequence[Manifest] | None) -> Iterator[str]:
        # An empty list of peers or ports means all of them.
        whence = (
            [f"{family} {side} {network}" for family, network in self._networks(peers, namespace)] if peers else [""]
        )
        ports = [f"{port['protocol'].lower()} dport {port['port']}" for port in rule.get("ports", ())] or [""]
        for one in whence:
            for port in ports:
                yield f"{one} {port} accept"

    def _networks(self, peers: Sequence[Manifest], namespace: str) -> Iterator[tuple[str, str]]:
        for peer in peers:
            if "ipBlock" in peer:
                network = ipaddress.ip_network(peer["ipBlock"]["cidr"], strict=False)
                yield ("ip" if network.version == 4 else "ip6"), str(network)
                continue
            for pod in self.pods.values():
                if "namespaceSelector" in peer:
                    inside = selects(peer["namespaceSelector"], self._namespaces[pod.namespace])
                else:
                    inside = pod.namespace == namespace
                if inside and selects(peer.get("podSelector", {}), pod.labels):
                    yield "ip", pod.addresses[0]
                    yield "ip6", pod.addresses[1]


def selects(selector: Manifest, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects an object with these labels; an empty one selects all."""
    wanted: Mapping[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items() and all(
        _meets(expression, labels) for expression in selector.get("matchExpressions", ())
    )


def _meets(expression: Manifest, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values", ())
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None


def _run(*command: str, given: str | None = None) -> None:
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}\n{given or ''}"


@contextmanager
def pod_network() -> Iterator[PodNetwork]:
    """A network of its own, removed at the end."""
    network = PodNetwork(f"hg-{os.getpid()}")
    try:
        yield network
    finally:
        network.remove()
