"""The memory of sink, reading and archive by the number of messages.

Run it with ``benchmarks/run-memory``, after ``scripts/setup spark``; see its ``--help``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tests.support.broker_process import BrokerProcess
from tests.support.clients import rest

from .kept_topics import keeping_broker
from .peak import Peak

_HERE = Path(__file__).parents[1]
_COMMAND = str(Path(sys.executable).with_name("heliograph-spark"))


def ran(command: Sequence[str], log: Path) -> tuple[str, float, Peak]:
    """Run a command: its last line of output, its seconds, and the memory of its processes."""
    began = time.monotonic()
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=_HERE)
        with Peak(process.pid) as peak:
            output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {log.read_text()[-2000:]}")
    return output.strip().splitlines()[-1], time.monotonic() - began, peak


def measured(broker: BrokerProcess, messages: int, directory: Path) -> list[str]:
    """Return the cells of one row. Raises :class:`RuntimeError` if a step did not have every message."""
    topic = f"persistent://public/default/of-{messages}"
    urls = [broker.service_url, broker.http_url]
    step = [sys.executable, "-m", "benchmarks.memory_steps"]
    archived = directory / "archive"
    options = ["--service-url", urls[0], "--admin-url", urls[1], "--path", str(archived), "--file-size", "64Mi"]
    commands = {
        "sink": [*step, "write", *urls, topic, str(messages)],
        "read": [*step, "read", *urls, topic, str(messages)],
        "archive": [_COMMAND, "archive", "--topic", topic, *options],
    }
    cells = [f"{messages:,}"]
    for name, command in commands.items():
        last, seconds, peak = ran(command, directory / f"{name}.log")
        count = json.loads(last)["rows"] if name == "archive" else int(last.removeprefix("messages "))
        if count != messages:
            raise RuntimeError(f"{name} had {count} of {messages} messages")
        cells.append(f"{peak.java:,.0f} + {peak.python:,.0f} ({seconds:,.0f} s)")
        print(f"{messages:,} messages: {name}: {cells[-1]}", file=sys.stderr, flush=True)
    stored = rest(broker, "GET", topic.replace("://", "/") + "/stats")["msgInCounter"]
    if stored != messages:
        raise RuntimeError(f"the broker has {stored} of {messages} messages")
    shutil.rmtree(archived)
    return cells


def main(
    messages: Annotated[
        list[int] | None, typer.Option(min=1000, help="Repeat it; default: 1, 10 and 100 million.")
    ] = None,
    directory: Annotated[Path | None, typer.Option(help="Where topics go: 130 bytes a message, each kept.")] = None,
) -> None:
    """Measure the largest resident memory (MiB) of Java and of any one Python, each step in processes of its own.

    The sink fills a topic, which is read into nothing and archived then; every step has to have every message.
    """
    with keeping_broker(directory) as (broker, scratch):
        print("| messages of 100 B | sink | reading | archive |\n|---|---|---|---|", flush=True)
        for count in messages or (1_000_000, 10_000_000, 100_000_000):
            print("|", " | ".join(measured(broker, count, scratch)), "|", flush=True)


if __name__ == "__main__":
    typer.run(main)
