"""A Kubernetes of one node on this machine, for the tests and for people: its life, from ``up`` to ``down``."""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.kubernetes import machine, second_node
from scripts.kubernetes.machine import NAME, ClusterError
from scripts.kubernetes.node_process import NodeProcess, remove_groups
from scripts.kubernetes.second_node import SecondNode

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LINK = f"{NAME}0"
NETWORK = "198.18.64.0/20"
HOST, NODE = "198.18.64.254", "198.18.64.1"
PODS, SERVICES = "198.18.65.0/24", "198.18.72.0/21"
#: On the host, for the node's own mounts.
MOUNTPOINTS = tuple(
    map(Path, ("/run/containerd", "/var/lib/cni", "/var/log/pods", "/var/log/containers", "/opt/containerd"))
)
NETWORK_NAMESPACE = Path("/run/netns") / NAME
DESCRIPTION = f"""\
A Kubernetes of one node, or two, on this machine, for the tests and for people.

  up                  brings it up; says so if it is up already
  down                ends it, and leaves nothing of it; also after a failed start
  env                 prints what a shell sets to use it: eval "$(scripts/cluster env)"
  load IMAGE.tar...   makes images (OCI or Docker archives) known to the node
  status              up (0) or not (1)
  second-node-up      brings up a second node, heliograph-2, with the images that the first one has
  second-node-down    ends it as a power cut does; its volumes stay until it comes back, or until `down`
  build               makes what `up` needs, ahead of time; 3: no Go, 4: it cannot be fetched
  check               says why there can be none on this machine (1), or nothing (0)

With Docker and kind on the machine it is a kind cluster. Without, it is Kubernetes built from its Go
modules, once, into .cache/kubernetes-VERSION (needs Go; about 10 minutes on 2 cores), on Debian's
etcd, containerd and runc, in namespaces of its own (needs root; installs the packages that are
missing). The host reaches its API server, pods and Services at {NETWORK}. State is in .cache/cluster,
or in the directory HELIOGRAPH_CLUSTER_DIR names. HELIOGRAPH_KUBERNETES_VERSION=1.32.2 chooses an
older Kubernetes; default: 1.34.4."""


def kubernetes_versions() -> list[str]:
    """Return the versions that can be built, the default first."""
    return re.findall(r"^(?:older_)?kubernetes=(\S+)$", (HERE / "versions").read_text("utf-8"), re.MULTILINE)


def kubernetes_version() -> str:
    """Return the version that the environment chooses, or else the default.

    Raises :class:`ClusterError` for one that cannot be built.
    """
    known = kubernetes_versions()
    wanted = os.environ.get("HELIOGRAPH_KUBERNETES_VERSION") or known[0]
    if wanted not in known:
        raise ClusterError(f"HELIOGRAPH_KUBERNETES_VERSION is {wanted!r}; valid are {' and '.join(known)}")
    return wanted


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


class Cluster:
    """The cluster whose state is in one directory, whether it is up or not."""

    def __init__(self, state: Path, programs: Path, version: str) -> None:
        self.state = state
        self.programs = programs
        self._version = version
        self._node = NodeProcess(state)
        self.second = SecondNode(state, programs)

    @property
    def is_kind(self) -> bool:
        """Whether it was brought up as a kind cluster."""
        return (self.state / "kind").exists()

    def is_up(self) -> bool:
        """Whether pods can run."""
        if self.is_kind:
            names = subprocess.run(["kind", "get", "clusters"], capture_output=True, text=True, check=False).stdout
            return NAME in names.splitlines()
        return self._node.is_ready()

    def require_up(self) -> None:
        """Raise :class:`ClusterError` if it is not up."""
        if not self.is_up():
            raise ClusterError("it is not up: scripts/cluster up")

    def impossible(self) -> str | None:
        """Return the reason why there can be none on this machine; ``None`` if there can be one."""
        if machine.has_kind():
            return None
        lacking = machine.missing(built=(self.programs / ".built").exists())
        return f"no {', '.join(lacking)}, and no Docker with kind" if lacking else None

    def build(self) -> None:
        """Make what :meth:`up` needs. Raises :class:`CalledProcessError` with the exit code of the build."""
        if machine.has_kind():
            if shutil.which("helm") is None:
                print("scripts/cluster: kind is used; install helm for the tests of the chart", file=sys.stderr)
            return
        subprocess.run([HERE / "build", self.programs, self._version], check=True)
        if os.geteuid() == 0:
            machine.install_packages()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other ``up`` or ``down`` of the same state run meanwhile."""
        self.state.parent.mkdir(parents=True, exist_ok=True)
        with self.state.with_name(f"{self.state.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def up(self) -> None:
        """Bring it up. A start that fails or is interrupted leaves nothing but its logs."""
        if self.is_up():
            print("it is up already; scripts/cluster down ends it")
            return
        if self.state.exists():
            self.down()
        self._refuse()
        (self.state / "log").mkdir(parents=True)
        try:
            if machine.has_kind():
                (self.state / "kind").touch()
                _run("kind", "create", "cluster", "--name", NAME, "--kubeconfig", self._kubeconfig, "--wait", "180s")
            else:
                self._start_node()
        except BaseException as error:
            if isinstance(error, ClusterError):
                print(f"scripts/cluster: {error}", file=sys.stderr)
            failed = self.state.with_name(f"{self.state.name}.failed")
            shutil.rmtree(failed, ignore_errors=True)
            shutil.copytree(self.state / "log", failed)
            self.down()
            raise ClusterError(f"it did not start; its logs are in {failed}") from error
        print('it is up: eval "$(scripts/cluster env)" && kubectl get pods -A')

    @property
    def _kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    def _refuse(self) -> None:
        why = self.impossible()
        if why is not None:
            raise ClusterError(f"there can be none on this machine: {why}")
        if machine.has_kind():
            return
        if any(machine.has_processes(name) for name in (NAME, second_node.NAME)):
            raise ClusterError("another one runs on this machine, from another directory")
        # One that was killed with its session, or whose directory was deleted, leaves its network behind.
        self._remove_network()
        command = ["ip", "-4", "-o", "route", "show", "to", "match", NODE]
        routes = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
        if any("default" not in route for route in routes.splitlines()):
            raise ClusterError(f"this host's network uses {NETWORK}")

    def _start_node(self) -> None:
        self.build()
        self._make_pause_image()
        # From here on there is something to remove.
        with (self.state / "made").open("w", encoding="utf-8") as made:
            for directory in MOUNTPOINTS:
                if not directory.is_dir():
                    print(directory, file=made, flush=True)
                    directory.mkdir(parents=True)
        for directory in machine.control_groups():
            directory.mkdir(exist_ok=True)
        for command in (
            f"ip netns add {NAME}",
            f"ip link add {LINK} type veth peer name node0 netns {NAME}",
            f"ip address add {HOST}/24 dev {LINK}",
            f"ip link set {LINK} up",
            f"ip -n {NAME} link set lo up",
            f"ip -n {NAME} address add {NODE}/24 dev node0",
            f"ip -n {NAME} link set node0 up",
            f"ip -n {NAME} route add default via {HOST}",
            f"ip route add {NETWORK} via {NODE}",
        ):
            _run(*command.split())
        self._node.start(NETWORK_NAMESPACE, [self.state, self.programs, NODE, PODS, SERVICES])

    def _make_pause_image(self) -> None:
        """Make the image of the process that holds a pod's namespaces: a sleep that never ends."""
        with (self.state / "log" / "pause-image.log").open("wb") as log:
            made = subprocess.run(["buildah", "from", "scratch"], stdout=subprocess.PIPE, text=True, check=True)
            container = made.stdout.strip()
            entrypoint = '["/bin/busybox", "sleep", "2147483647"]'
            archive = f"oci-archive:{self.state}/pause.tar:localhost/pause:1"
            for command in (
                ["buildah", "copy", "-q", container, "/bin/busybox", "/bin/busybox"],
                ["buildah", "config", "--entrypoint", entrypoint, container],
                ["buildah", "commit", "-q", "--rm", container, archive],
            ):
                subprocess.run(command, stdout=log, check=True)

    def down(self) -> None:
        """End it and remove all of it."""
        if not self.state.is_dir():
            print("it is not up")
            return
        if self.is_kind:
            _run("kind", "delete", "cluster", "--name", NAME, "--kubeconfig", self._kubeconfig)
        else:
            self._stop_node()
        shutil.rmtree(self.state)

    def _stop_node(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("run it as root")
        self._node.kill()
        made = self.state / "made"
        # Another directory's cluster is not ours to remove.
        if not made.exists():
            return
        self._remove_network()
        for line in made.read_text("utf-8").splitlines():
            directory = Path(line)
            if directory.is_dir() and not any(directory.iterdir()):
                directory.rmdir()

    def _remove_network(self) -> None:
        """Remove both nodes' control groups and network, also what ended nodes of another directory left."""
        self.second.down()
        remove_groups(machine.control_groups())
        if Path(f"/sys/class/net/{LINK}").exists():
            _run("ip", "link", "delete", LINK)
        if NETWORK_NAMESPACE.exists():
            _run("ip", "netns", "delete", NAME)

    def environment(self) -> str:
        """Return the shell commands that make a shell use it. Raises :class:`ClusterError` if it is not up."""
        self.require_up()
        text = f"export KUBECONFIG='{self._kubeconfig}'\n"
        if not self.is_kind:
            text += f"export PATH='{self.programs}':\"$PATH\"\n"
            without_proxy = (f'{name}="${{{name}:+${name},}}{NETWORK}"' for name in ("NO_PROXY", "no_proxy"))
            text += f"export {' '.join(without_proxy)}\n"
        return text

    def load(self, archives: Sequence[Path]) -> None:
        """Make images known to the node. Raises :class:`ClusterError` if it is not up or refuses one."""
        self.require_up()
        for archive in archives:
            if self.is_kind:
                _run("kind", "load", "image-archive", archive, "--name", NAME)
            else:
                self._node.images("import", str(archive))
                if self.second.is_up():
                    self.second.load(archive)

    def bring_up_second_node(self) -> None:
        """Bring up a second node. Raises :class:`ClusterError` if the cluster is not up, or is a kind cluster."""
        self._require_own_nodes()
        self.second.up(NODE, SERVICES)

    def end_second_node(self) -> None:
        """End the second node as a power cut does. Raises :class:`ClusterError` if the cluster is not up."""
        self._require_own_nodes()
        self.second.down()

    def _require_own_nodes(self) -> None:
        self.require_up()
        if self.is_kind:
            raise ClusterError("it is a kind cluster, which gets its nodes when it is made")


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/cluster",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = ("up", "down", "env", "load", "status", "second-node-up", "second-node-down", "build", "check")
    parser.add_argument("command", choices=commands, metavar="COMMAND", help=", ".join(commands))
    parser.add_argument("archives", metavar="IMAGE.tar", type=Path, nargs="*", help="for load")
    options = parser.parse_args(arguments)
    if options.archives and options.command != "load":
        parser.error(f"{options.command} takes no arguments")
    os.chdir(root)
    os.environ["PATH"] += ":/usr/local/sbin:/usr/sbin:/sbin"
    state = Path(os.environ.get("HELIOGRAPH_CLUSTER_DIR") or ".cache/cluster").resolve()
    try:
        version = kubernetes_version()
        cluster = Cluster(state, root / ".cache" / f"kubernetes-{version}", version)
        return run(cluster, options.command, options.archives)
    except ClusterError as error:
        print(f"scripts/cluster: {error}", file=sys.stderr)
        return error.code


def run(cluster: Cluster, command: str, archives: Sequence[Path] = ()) -> int:
    """Run one command and return its exit code. Raises :class:`ClusterError` if it fails."""
    if command == "up":
        with cluster.locked():
            cluster.up()
    elif command == "down":
        with cluster.locked():
            cluster.down()
    elif command == "second-node-up":
        with cluster.locked():
            cluster.bring_up_second_node()
    elif command == "second-node-down":
        with cluster.locked():
            cluster.end_second_node()
    elif command == "build":
        cluster.build()
    elif command == "load":
        cluster.load(archives)
    elif command == "env":
        print(cluster.environment(), end="")
    elif command == "status":
        up = cluster.is_up()
        print(f"up, state in {cluster.state}" if up else "not up")
        return 0 if up else 1
    elif command == "check":
        why = cluster.impossible()
        if why is not None:
            print(why)
            return 1
    return 0
