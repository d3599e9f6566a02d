"""A running Kubernetes, as ``scripts/cluster`` brings it up: kubectl, helm, and processes inside its network."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from .polling import eventually

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = PROJECT / "scripts" / "cluster"

#: Timeout of one command of kubectl or helm; what waits longer says so with ``timeout_s``.
COMMAND_WITHIN_S = 300.0
_POLL_S = 0.25

T = TypeVar("T")


class ClusterCommandError(Exception):
    """A command failed; its text is the command and what it wrote."""


def run(command: Iterable[str], *, environment: Mapping[str, str], given: str | None, timeout_s: float) -> str:
    """Return a command's standard output. Raises :class:`ClusterCommandError` for any other end than 0."""
    arguments = list(command)
    try:
        done = subprocess.run(
            arguments,
            input=given,
            capture_output=True,
            text=True,
            env=dict(environment),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterCommandError(f"{' '.join(arguments)}: not done after {timeout_s:g} s") from error
    if done.returncode:
        raise ClusterCommandError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}{done.stdout}")
    return done.stdout


class Cluster:
    """The cluster that ``scripts/cluster env`` describes. Raises :class:`ClusterCommandError` if it is not up."""

    def __init__(self) -> None:
        exports = run([str(SCRIPT), "env"], environment=os.environ, given=None, timeout_s=120)
        shell = ["bash", "-c", exports + "exec env -0"]
        listed = run(shell, environment=os.environ, given=None, timeout_s=120)
        #: The environment in which kubectl, helm and other clients find the cluster.
        self.environment = dict(line.split("=", 1) for line in listed.split("\0") if line)
        self.kubeconfig = Path(self.environment["KUBECONFIG"])
        #: The directory of everything that is the cluster's.
        self.state = self.kubeconfig.parent

    @property
    def is_kind(self) -> bool:
        """Whether kind made it; else it is one node in namespaces of this host."""
        return (self.state / "kind").exists()

    @property
    def netns(self) -> Path:
        """The node's network namespace, for nsenter, which needs root."""
        return Path(f"/proc/{self._node_process()}/ns/net")

    def kubectl(self, *arguments: str, input: str | None = None, timeout_s: float = COMMAND_WITHIN_S) -> str:
        """Return the output of ``kubectl ARGUMENTS``. Raises :class:`ClusterCommandError` with what it complains of."""
        return run(["kubectl", *arguments], environment=self.environment, given=input, timeout_s=timeout_s)

    def kubectl_json(self, *arguments: str, input: str | None = None) -> Any:
        """The object or list that ``kubectl ARGUMENTS -o json`` prints."""
        return json.loads(self.kubectl(*arguments, "-o", "json", input=input))

    def helm(self, *arguments: str, timeout_s: float = 300.0) -> str:
        """Return the output of ``helm ARGUMENTS``. Raises :class:`ClusterCommandError` with what it complains of."""
        return run(["helm", *arguments], environment=self.environment, given=None, timeout_s=timeout_s)

    def apply(self, *manifests: str | Mapping[str, Any], namespace: str | None = None) -> None:
        """Applies YAML texts and objects, in order, into a namespace unless they name one themselves."""
        where = [] if namespace is None else ["-n", namespace]
        for manifest in manifests:
            text = manifest if isinstance(manifest, str) else json.dumps(manifest)
            self.kubectl("apply", *where, "-f", "-", input=text)

    def load_image(self, archive: Path) -> None:
        """Makes an image, an OCI or Docker archive, known to the node under the name it carries."""
        run([str(SCRIPT), "load", str(archive)], environment=self.environment, given=None, timeout_s=400)

    def run_in_netns(self, *command: str, input: str | None = None, timeout_s: float = COMMAND_WITHIN_S) -> str:
        """Return the output of a command of this host that uses the cluster's network and DNS. Needs root."""
        return run(self._entering(command), environment=self.environment, given=input, timeout_s=timeout_s)

    def command_in_netns(self, *command: str) -> list[str]:
        """The command line that runs a command of this host with the cluster's network and DNS. Needs root."""
        return self._entering(command)

    def popen_in_netns(
        self, *command: str, output: IO[str] | int | None = None, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts such a command; its standard output and error go to ``output``. End it yourself."""
        env = self.environment | dict(environment or {})
        return subprocess.Popen(self._entering(command), stdout=output, stderr=subprocess.STDOUT, text=True, env=env)

    def wait_for(self, what: str, check: Callable[[], T], *, within_s: float = 60.0, namespace: str | None = None) -> T:
        """Calls ``check`` until it returns something true, and returns that.

        ``AssertionError`` and :class:`ClusterCommandError` mean "not yet". At the deadline an ``AssertionError``
        tells the last of them, or the last value, and what the pods and events of ``namespace`` say.
        """
        not_yet = (AssertionError, ClusterCommandError)
        try:
            return eventually(check, within_s=within_s, what=what, every_s=_POLL_S, not_yet=not_yet)
        except AssertionError as late:
            diagnosis = "" if namespace is None else f"\n{self.diagnosis(namespace)}"
            raise AssertionError(f"{late}{diagnosis}") from None

    def wait_until_ready(self, namespace: str, pod: str, *, within_s: float = 120.0) -> dict[str, Any]:
        """The pod, once it is Ready and is not being deleted."""

        def ready() -> dict[str, Any] | None:
            found: dict[str, Any] = self.kubectl_json("get", "pod", pod, "-n", namespace)
            conditions = {each["type"]: each["status"] for each in found["status"].get("conditions", [])}
            return found if conditions.get("Ready") == "True" and "deletionTimestamp" not in found["metadata"] else None

        found = self.wait_for(f"pod {pod} is Ready", ready, within_s=within_s, namespace=namespace)
        assert found is not None
        return found

    def diagnosis(self, namespace: str) -> str:
        """Events, pods and the ends of their logs, for a failed test's report."""
        parts = []
        for command in (
            ("get", "pods,pvc,services,statefulsets", "-o", "wide"),
            ("get", "events", "--sort-by=.metadata.creationTimestamp"),
            # The finalizers that keep it, if it is being deleted.
            ("get", "namespace", namespace, "-o", "jsonpath={.status}{'\\n'}"),
        ):
            parts.append(self._output(*command, "-n", namespace))
        for pod in self._output("get", "pods", "-n", namespace, "-o", "name").split():
            logs = ("logs", pod, "-n", namespace, "--all-containers", "--tail=60")
            parts.append(f"{pod}:\n{self._output(*logs)}")
        return "\n".join(parts)

    def _output(self, *arguments: str) -> str:
        try:
            return self.kubectl(*arguments, timeout_s=120)
        except ClusterCommandError as error:
            return f"{error}\n"

    def _node_process(self) -> str:
        if self.is_kind:
            inspect = ["docker", "inspect", "-f", "{{.State.Pid}}", "heliograph-control-plane"]
            return run(inspect, environment=self.environment, given=None, timeout_s=120).strip()
        pid = (self.state / "pid").read_text().split()[0]
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]

    def _entering(self, command: Iterable[str]) -> list[str]:
        process = self._node_process()
        if self.is_kind:
            # Another file system than this host's: only its network, and its DNS by its cluster address.
            inside = 'mount --bind <(echo nameserver 10.96.0.10) /etc/resolv.conf && exec "$@"'
            return ["nsenter", f"--net=/proc/{process}/ns/net", "unshare", "-m", "bash", "-c", inside, "-", *command]
        namespaces = [f"--{kind}=/proc/{process}/ns/{of}" for kind, of in (("net", "net"), ("mount", "mnt"))]
        return ["nsenter", *namespaces, f"--wd={Path.cwd()}", "--", *command]
