"""A second node of the cluster on this machine: what a drain and the loss of a node are tried with.

It is reached through the first node, whose API server it uses. It ends as by a power cut. Its state and the volumes
on it stay, so that it can come back, until the cluster ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from scripts.kubernetes import machine
from scripts.kubernetes.machine import ClusterError
from scripts.kubernetes.node_process import NodeProcess, remove_groups

NAME = f"{machine.NAME}-2"
NETWORK_NAMESPACE = Path("/run/netns") / NAME
_LINK = "node2"
#: The first node's address on the link between them, the second node's, and the range of its pods.
_GATEWAY, _ADDRESS, _PODS = "198.18.66.254", "198.18.66.1", "198.18.67.0/24"


class SecondNode:
    """The second node of the cluster whose state is in a directory."""

    def __init__(self, cluster: Path, programs: Path) -> None:
        self._cluster = cluster
        self._programs = programs
        self._node = NodeProcess(cluster / NAME)

    def is_up(self) -> bool:
        """Whether pods can run on it."""
        return self._node.is_ready()

    def up(self, first: str, services: str) -> None:
        """Bring it up, with the images that the first node has; ``first`` is the address of that one.

        Raises :class:`ClusterError` if it does not start.
        """
        if self.is_up():
            print(f"{NAME} is up already")
            return
        self.down()
        state = self._node.state
        # A machine that starts has nothing in /run.
        shutil.rmtree(state / "run", ignore_errors=True)
        for name in ("log", "pki"):
            (state / name).mkdir(parents=True, exist_ok=True)
        for name in ("kubeconfig", "pause.tar", "pki/ca.crt"):
            shutil.copy(self._cluster / name, state / name)
        for directory in machine.control_groups(NAME):
            directory.mkdir(exist_ok=True)
        for command in (
            f"ip netns add {NAME}",
            f"ip -n {machine.NAME} link add {_LINK} type veth peer name node0 netns {NAME}",
            f"ip -n {machine.NAME} address add {_GATEWAY}/24 dev {_LINK}",
            f"ip -n {machine.NAME} link set {_LINK} up",
            f"ip -n {NAME} link set lo up",
            f"ip -n {NAME} address add {_ADDRESS}/24 dev node0",
            f"ip -n {NAME} link set node0 up",
            f"ip -n {NAME} route add default via {_GATEWAY}",
            f"ip -n {machine.NAME} route add {_PODS} via {_ADDRESS}",
        ):
            subprocess.run(command.split(), check=True)
        self._node.start(NETWORK_NAMESPACE, [state, self._programs, _ADDRESS, _PODS, services, first])
        self._copy_images()
        print(f"{NAME} is up")

    def down(self) -> None:
        """End it as a power cut does. What it stored stays, and the API server still has its Node."""
        if os.geteuid() != 0:
            raise ClusterError("run it as root")
        self._node.kill()
        remove_groups(machine.control_groups(NAME))
        if NETWORK_NAMESPACE.exists():
            # The link of both nodes ends with the namespace of one of them.
            subprocess.run(["ip", "netns", "delete", NAME], check=True)

    def load(self, archive: Path) -> None:
        """Make an image known to it."""
        self._node.images("import", str(archive))

    def _copy_images(self) -> None:
        first = NodeProcess(self._cluster)
        names = [name for name in first.images("list", "-q").split() if "sha256:" not in name]
        archive = self._node.state / "images.tar"
        try:
            first.images("export", str(archive), *names)
            self.load(archive)
        finally:
            archive.unlink(missing_ok=True)
