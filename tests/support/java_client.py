"""Pulsar's own Java client: compiles and runs the cases in ``tests/integration/java/client``, and pulsar-perf."""

from __future__ import annotations

import base64
import os
import re
import subprocess
from pathlib import Path

from tests.support import java_tools
from tests.support.clients import RunningBroker
from tests.support.closed_broker import FACTS, ClosedBroker

_CASES = java_tools.SOURCES / "client" / "cases"
#: The class path of the client.
JARS = f"{java_tools.FETCHED}/client/*"
PERF = (*java_tools.QUICK, f"{java_tools.FETCHED}/perf/*", "org.apache.pulsar.testclient.PulsarPerfTestTool")
#: Most cases take less than two seconds, and twelve run at a time; a machine busy with other tests gets more.
_CASE_WITHIN_S = 300
_ALL_WITHIN_S = 1200.0
_CASE = re.compile(r"@Case\s+static void (\w+)\(Broker broker\)")


def missing() -> str | None:
    """Return what keeps the Java client from running here, None if nothing does."""
    return java_tools.missing("client")


def case_names() -> list[str]:
    """Return the names of all cases, ``Class.method``, as the sources have them."""
    return [
        f"{source.stem}.{method}"
        for source in sorted(_CASES.glob("*.java"))
        for method in _CASE.findall(source.read_text(encoding="utf-8"))
    ]


def run_cases(broker: RunningBroker, closed: ClosedBroker, directory: Path) -> dict[str, str]:
    """Compile and run every case; return the outcome of each by its name: ``passed`` or a stack trace."""
    _compile(directory)
    classes = sorted({name.partition(".")[0] for name in case_names()})
    done = subprocess.run(
        [
            *(*java_tools.QUICK, f"{directory}:{JARS}", "cases.ClientCases"),
            *(broker.service_url, broker.http_url, str(_CASE_WITHIN_S), *classes),
        ],
        env=os.environ | {FACTS: str(closed.facts)},
        capture_output=True,
        text=True,
        timeout=_ALL_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: _outcome(outcome) for name, outcome in (line.split("\t") for line in done.stdout.splitlines())}


def program(directory: Path, name: str) -> list[str]:
    """Compile the program of this name, a class beside the cases; return the beginning of its command."""
    _compile(directory)
    return [*java_tools.QUICK, f"{directory}:{JARS}", f"cases.{name}"]


def _compile(directory: Path) -> None:
    compiled = subprocess.run(
        ["javac", "-d", str(directory), "-cp", JARS, *map(str, sorted(_CASES.glob("*.java")))],
        capture_output=True,
        text=True,
        timeout=_ALL_WITHIN_S,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr


def _outcome(text: str) -> str:
    return text if text == "passed" else base64.b64decode(text).decode()


def start_perf(broker: RunningBroker, directory: Path, command: str) -> subprocess.Popen[str]:
    """Start pulsar-perf with the words of a command line; what it says comes on its standard output."""
    settings = java_tools.write_client_conf(directory, broker.http_url, broker.service_url)
    return subprocess.Popen(
        [*PERF, str(settings), *command.split()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
