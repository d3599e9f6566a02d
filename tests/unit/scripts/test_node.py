"""The node of scripts/cluster: its settings, and what it does when a part of it ends."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from scripts.kubernetes.node import Plan

ROOT = Path(__file__).resolve().parents[3]
PLAN = Plan(Path("/state"), Path("/programs"), "198.18.64.1", "198.18.65.0/24", "198.18.72.0/21")


def test_the_settings_of_containerd_the_network_and_the_kubelet_can_be_read() -> None:
    files = PLAN.files()
    containerd = tomllib.loads(files["containerd.toml"])
    assert containerd["root"] == "/state/containerd"
    assert containerd["plugins"]["io.containerd.grpc.v1.cri"]["cni"]["conf_dir"] == "/state/cni/conf"
    (bridge, _) = json.loads(files["cni/conf/10-pods.conflist"])["plugins"]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "198.18.65.0/24"}]]
    kubelet = yaml.safe_load(files["kubelet.yaml"])
    assert kubelet["clusterDNS"] == [kubelet["address"]] == ["198.18.64.1"]
    assert kubelet["authentication"]["x509"] == {"clientCAFile": "/state/pki/ca.crt"}
    assert "    kubeconfig /state/kubeconfig\n" in files["Corefile"]
    assert files["resolv.conf"] == "nameserver 198.18.64.1\n"


def test_a_second_node_has_settings_of_its_own_and_the_dns_server_of_the_first() -> None:
    second = PLAN._replace(address="198.18.66.1", first="198.18.64.1")
    kubelet = yaml.safe_load(second.files()["kubelet.yaml"])
    assert kubelet["address"] == "198.18.66.1"
    assert kubelet["clusterDNS"] == ["198.18.64.1"]
    assert (yaml.safe_load(PLAN.files()["kubelet.yaml"])["cgroupRoot"], kubelet["cgroupRoot"]) == (
        "/heliograph",
        "/heliograph-2",
    )
    assert "--hostname-override=heliograph-2" in second.part("kubelet")
    assert second.files()["resolv.conf"] == "nameserver 198.18.64.1\n"


def test_the_api_servers_certificate_names_the_node_and_the_first_service() -> None:
    (names, usage) = PLAN.api_certificate().splitlines()
    assert {"IP:198.18.64.1", "IP:127.0.0.1", "IP:198.18.72.1", "DNS:kubernetes.default.svc"} <= set(
        names.partition("=")[2].split(",")
    )
    assert usage == "extendedKeyUsage=serverAuth"


def test_kubectl_trusts_the_authority_and_has_the_token() -> None:
    settings = yaml.safe_load(PLAN.client_settings(b"certificate", "secret"))
    (cluster,) = settings["clusters"]
    assert cluster["cluster"]["server"] == "https://198.18.64.1:6443"
    assert base64.b64decode(cluster["cluster"]["certificate-authority-data"]) == b"certificate"
    assert settings["users"] == [{"name": "admin", "user": {"token": "secret"}}]
    assert settings["contexts"][0]["context"] == {"cluster": "heliograph", "user": "admin"}


def test_every_part_has_the_ranges_and_files_it_serves() -> None:
    assert PLAN.part("containerd") == ["containerd", "-c", "containerd.toml"]
    assert "--service-cluster-ip-range=198.18.72.0/21" in PLAN.part("kube-apiserver")
    assert "--cluster-cidr=198.18.65.0/24" in PLAN.part("kube-proxy")
    assert "--kubeconfig=/state/kubeconfig" in PLAN.part("kubelet")


def node(directory: Path, program: str) -> subprocess.CompletedProcess[str]:
    """A process with parts of its own: it reaps every child, so it cannot be the one that runs the tests."""
    given = (
        f"from scripts.kubernetes.node import Parts; from pathlib import Path; parts = Parts(Path({str(directory)!r}))"
    )
    return subprocess.run(
        [sys.executable, "-c", f"{given}\n{program}"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_command_is_repeated_until_it_succeeds(tmp_path: Path) -> None:
    done = node(
        tmp_path,
        f'parts.start("etcd", ["sleep", "600"])\n'
        f'parts.succeed_within(30, "sh", "-c", "echo . >>{tmp_path}/tries; test $(wc -l <{tmp_path}/tries) -ge 3")\n'
        f"import os, signal; os.kill(next(iter(parts._running)), signal.SIGKILL)",
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tries").read_text() == ".\n" * 3


def test_waiting_ends_when_a_part_does_and_says_which(tmp_path: Path) -> None:
    done = node(
        tmp_path,
        'parts.start("etcd", ["sh", "-c", "seq 30; exit 7"])\nparts.succeed_within(600, "false")',
    )
    assert done.returncode == 1
    assert done.stderr == "etcd ended:\n" + "\n".join(map(str, range(11, 31))) + "\n"


def test_a_command_that_never_succeeds_ends_it_with_what_it_said(tmp_path: Path) -> None:
    done = node(tmp_path, 'parts.succeed_within(0, "sh", "-c", "echo refused; exit 1")')
    assert done.returncode == 1
    assert done.stderr == "not within 0 s: sh -c echo refused; exit 1\nrefused\n"


@pytest.mark.parametrize(("ends", "code"), [("exit 7", 7), ("kill -9 $$", -signal.SIGKILL)])
def test_orphans_are_reaped_until_a_part_ends(tmp_path: Path, ends: str, code: int) -> None:
    done = node(
        tmp_path,
        "import subprocess; orphan = subprocess.Popen(['true'])\n"
        f'parts.start("kubelet", ["sh", "-c", "sleep 0.2; echo gone; {ends}"])\n'
        "parts.end(*parts.wait_for_an_end())",
    )
    assert done.returncode == 1
    assert done.stderr.endswith(f"kubelet ended with {code}:\ngone\n")
