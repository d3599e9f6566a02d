"""An Apache Pulsar for tests to compare with, where it has been fetched: ``scripts/java-tools standalone``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support import java_tools
from tests.support.ports import free_ports

_FETCHED = java_tools.FETCHED / ".installed-standalone"


class RealPulsar(NamedTuple):
    """A running Pulsar; ``directory`` has its data, its log and its secrets."""

    service_url: str
    http_url: str
    directory: Path


def missing() -> str | None:
    """Return what keeps Pulsar from running here, None if nothing does."""
    if shutil.which("java") is None:
        return "no Java on this machine"
    if not _FETCHED.exists():
        return "Apache Pulsar is not in .cache/java-tools: scripts/java-tools standalone fetches it"
    return None


@contextmanager
def real_pulsar(directory: Path, *settings: str, tokens: bool = False) -> Iterator[RealPulsar]:
    """Run a Pulsar of one process with further settings (``name=value``); with ``tokens`` it asks for one."""
    port, http = free_ports(2)
    command = [str(java_tools.ROOT / "scripts" / "pulsar-standalone"), *(["--tokens"] if tokens else [])]
    process = subprocess.Popen(
        [*command, str(port), str(http), str(directory), *settings],
        stdout=subprocess.PIPE,
        text=True,
        # In a group of its own, so that its Java process ends at the same moment.
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        # The script waits for two minutes, and ends then.
        assert process.stdout.readline() == "ready\n", (directory / "log").read_text()[-4000:]
        yield RealPulsar(f"pulsar://127.0.0.1:{port}", f"http://127.0.0.1:{http}", directory)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
