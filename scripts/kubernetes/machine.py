"""Checks this machine's means for a Kubernetes of its own, and installs missing packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

#: Name of the cluster, its network namespace and its control group.
NAME = "heliograph"
#: Debian's.
PACKAGES = (
    *("etcd-server", "containerd", "runc", "containernetworking-plugins", "iptables", "conntrack", "iproute2"),
    *("busybox-static", "openssl", "buildah", "debootstrap"),
)


class ClusterError(Exception):
    """Why a command of ``scripts/cluster`` failed, and its exit code."""

    def __init__(self, reason: str, code: int = 1) -> None:
        super().__init__(reason)
        self.code = code


def succeeds(*command: str) -> bool:
    """Whether a command can be run and exits with 0. Nothing of what it prints is shown."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def has_kind() -> bool:
    """Whether a kind cluster can be made: kind is there, and a Docker answers."""
    return shutil.which("kind") is not None and succeeds("docker", "info")


def has_go() -> bool:
    """Whether Go is there, also where its own archive puts it."""
    return shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin") is not None


def control_groups(name: str = NAME) -> list[Path]:
    """Return the directories that hold a node's control groups: one, or one for each controller of version 1."""
    mounted = Path("/sys/fs/cgroup")
    if (mounted / "cgroup.controllers").exists():
        return [mounted / name]
    return [path.parent / name for path in sorted(mounted.glob("*/cgroup.procs"))]


def can_make_control_groups() -> bool:
    """Whether this process may make control groups, which root in a container often may not."""
    groups = control_groups()
    if not groups:
        return False
    try:
        # A directory of its own: several processes may check at once.
        Path(tempfile.mkdtemp(prefix=f"{NAME}-check-", dir=groups[0].parent)).rmdir()
    except OSError:
        return False
    return True


def has_processes(network_namespace: str) -> bool:
    """Whether a process runs in a named network namespace; not, if there is none of that name."""
    command = ["ip", "netns", "pids", network_namespace]
    return bool(subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip())


def missing(built: bool) -> list[str]:
    """Return the tools that this machine lacks for a node without Docker; ``built``: Kubernetes is built already."""
    lacking = []
    if os.geteuid() != 0:
        lacking.append("root")
    elif not succeeds("unshare", "--mount", "--pid", "--net", "--fork", "true"):
        lacking.append("leave to make namespaces")
    elif not can_make_control_groups():
        lacking.append("leave to make control groups")
    if shutil.which("apt-get") is None:
        lacking.append("Debian's packages")
    if not built and not has_go():
        lacking.append("Go")
    return lacking


def _installed(package: str) -> bool:
    command = ["dpkg-query", "-W", "-f", "${Status}", package]
    return "ok installed" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


def install_packages() -> None:
    """Install those of :data:`PACKAGES` that are missing. Raises :class:`ClusterError` if that fails."""
    absent = [package for package in PACKAGES if not _installed(package)]
    if not absent:
        return
    print(f"installing {' '.join(absent)}", file=sys.stderr)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", *absent]):
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode != 0:
            last = "\n".join(done.stdout.splitlines()[-3:])
            raise ClusterError(f"could not install {' '.join(absent)}: {last}", code=4)
