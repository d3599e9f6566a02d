"""The process that holds a node: started in namespaces of its own, identified by later commands, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from scripts.kubernetes.machine import ClusterError

NODE = Path(__file__).resolve().with_name("node.py")
READY_WITHIN_S = 240


def start_time(pid: int) -> str | None:
    """Return the start of a process, in the kernel's ticks; ``None`` if it has ended.

    With its id this identifies a process: another one may have the id by now.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(") ")[2].split()
    return None if fields[0] == "Z" else fields[19]


class NodeProcess:
    """The process of the node whose state is in one directory, whether it runs or not."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def pid(self) -> int | None:
        """Return the id of the process that holds the node; ``None`` if there is none or it has ended."""
        try:
            pid, start = (self.state / "pid").read_text("utf-8").split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if start_time(int(pid)) == start else None

    def is_ready(self) -> bool:
        """Whether pods can run on the node."""
        return self.pid() is not None and (self.state / "ready").exists()

    def start(self, network_namespace: Path, arguments: Sequence[str | Path]) -> None:
        """Start the node and wait until it is ready. Raises :class:`ClusterError` with the end of its log."""
        command: list[str | Path] = ["nsenter", f"--net={network_namespace}"]
        command += ["unshare", "--mount", "--propagation", "private", "--pid", "--mount-proc"]
        command += ["--fork", "--kill-child", sys.executable, NODE, *arguments]
        (self.state / "ready").unlink(missing_ok=True)
        with (self.state / "log" / "node.log").open("wb") as log:
            # A session of its own: it outlives this process and its terminal.
            node = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        (self.state / "pid").write_text(f"{node.pid} {start_time(node.pid)}\n", "utf-8")
        end = time.monotonic() + READY_WITHIN_S
        while not (self.state / "ready").exists():
            if self.pid() is None:
                text = (self.state / "log" / "node.log").read_text("utf-8", "replace")
                raise ClusterError("\n".join(text.splitlines()[-25:]))
            if time.monotonic() > end:
                raise ClusterError(f"it is not ready after {READY_WITHIN_S} s")
            time.sleep(0.3)

    def images(self, *arguments: str) -> str:
        """Run ``ctr images`` with ``arguments`` on the node's images and return what it prints.

        Raises :class:`subprocess.CalledProcessError`.
        """
        command = ["ctr", "-a", str(self.state / "run" / "containerd.sock"), "-n", "k8s.io", "images", *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    def kill(self) -> None:
        """End the node and everything that runs on it, as a power cut does."""
        pid = self.pid()
        if pid is None:
            return
        # unshare's child is the first process of the process namespace: all others end with it, before it is gone.
        with suppress(FileNotFoundError, ProcessLookupError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()
            os.kill(int(children[0]) if children else pid, signal.SIGKILL)
        while self.pid() is not None:
            time.sleep(0.1)


def remove_groups(directories: Sequence[Path]) -> None:
    """Remove the control groups of a node that has ended."""
    for directory in directories:
        for path, _, _ in os.walk(directory, topdown=False):
            Path(path).rmdir()
