"""Reading a topic from its beginning to its end, side by side: this data source, other clients, and the bare wire.

Run it with ``benchmarks/run-reading``, after ``scripts/setup spark`` and ``scripts/java-tools``; see its ``--help``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tests.support.broker_process import BrokerProcess

from .kept_topics import Shape, keeping_broker, publish, shapes_of
from .processor_time import processor_s
from .read_requests import READY, Reading
from .reading_stages import print_stages
from .spark_reader import VALUES

_HERE = Path(__file__).parents[1]
_JAVA_CLIENT = _HERE / ".cache" / "java-tools" / "client"


@dataclass(frozen=True, slots=True)
class Measured:
    """One reading, with the processor time (s) that reader and broker took for it."""

    reading: Reading
    reader_cpu_s: float
    broker_cpu_s: float

    @property
    def rate(self) -> float:
        """Messages a second: from the first message to the last where the first is seen, else of the whole query."""
        reading = self.reading
        return reading.messages / (reading.whole_s if reading.from_first_s is None else reading.from_first_s)


class ReaderProcess:
    """A process that reads when it is asked."""

    def __init__(self, name: str, command: Sequence[str], broker_pid: int, log: Path, splits: int = 1) -> None:
        self.name = name
        self.splits = splits
        self.start_s = 0.0
        self._command = command
        self._broker_pid = broker_pid
        self._log = log

    @contextmanager
    def running(self) -> Iterator[ReaderProcess]:
        """Start it, and end it afterwards. Raises :class:`RuntimeError` with its log if it does not start."""
        began = time.monotonic()
        with self._log.open("w") as log:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=_HERE
            )
        assert process.stdin is not None
        assert process.stdout is not None
        self._pid, self._input, self._output = process.pid, process.stdin, process.stdout
        try:
            self._answer(READY)
            self.start_s = time.monotonic() - began
            yield self
        finally:
            self._input.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def read(self, shape: Shape) -> Measured:
        """Read a topic. Raises :class:`RuntimeError` if not every message arrived, once and whole."""
        before = processor_s(self._pid), processor_s(self._broker_pid)
        print(shape.request(self.splits).line(), file=self._input, flush=True)
        reading = Reading(**json.loads(self._answer("{")))
        after = processor_s(self._pid), processor_s(self._broker_pid)
        bytes_wanted = None if reading.payload_bytes is None else shape.messages * shape.payload
        if (reading.messages, reading.payload_bytes) != (shape.messages, bytes_wanted):
            raise RuntimeError(f"{self.name}: {reading} of {shape}")
        return Measured(reading, after[0] - before[0], after[1] - before[1])

    def _answer(self, beginning: str) -> str:
        """Return the next line that begins so: Spark prints others, too."""
        for line in self._output:
            if line.startswith(beginning):
                return line
        raise RuntimeError(f"{self.name} has ended: {self._log.read_text()[-2000:]}")


def readers(broker: BrokerProcess, scratch: Path, connector: tuple[Path, Path] | None) -> list[ReaderProcess]:
    """Return the readers, not yet started: the bare wire first, this data source after it."""
    url, admin = broker.service_url, broker.http_url
    module = [sys.executable, "-m"]
    spark = [*module, "benchmarks.spark_reader", url, admin]
    subprocess.run(
        ["javac", "-cp", f"{_JAVA_CLIENT}/*", "-d", str(scratch), str(_HERE / "benchmarks/java/TopicReader.java")],
        check=True,
    )
    java = ["java", "-cp", f"{_JAVA_CLIENT}/*:{scratch}", "TopicReader", url]
    commands: list[tuple[str, list[str], int]] = [
        ("the bare wire: frames counted", [*module, "benchmarks.client_readers", "wire", url], 1),
        ("this data source, one split", spark, 1),
        ("this data source, two splits", spark, 2),
        ("this data source, one split, values alone", [*spark, VALUES], 1),
        ("this data source, two splits, values alone", [*spark, VALUES], 2),
        ("Java client, queue of 1,000", [*java, "1000"], 1),
        ("Java client, queue of 20,000", [*java, "20000"], 1),
        ("Python client", [*module, "benchmarks.client_readers", "python", url], 1),
    ]
    if connector is not None:
        python, jar = map(str, connector)
        commands.append(("Scala connector, Spark 3.5", [python, "-m", "benchmarks.spark_reader", url, admin, jar], 1))
    return [
        ReaderProcess(name, command, broker.pid, scratch / f"reader-{at}.log", splits)
        for at, (name, command, splits) in enumerate(commands)
    ]


def cell(measured: Sequence[Measured]) -> str:
    """Return the median rate, with the processor time a message of reader and broker."""
    messages = measured[0].reading.messages
    reader, broker = (
        statistics.median(cpu) / messages * 1e6
        for cpu in ([each.reader_cpu_s for each in measured], [each.broker_cpu_s for each in measured])
    )
    return f"{statistics.median(each.rate for each in measured):,.0f} ({reader:.2f} + {broker:.2f})"


def compare(broker: BrokerProcess, shapes: Sequence[Shape], runs: int, connector: tuple[Path, Path] | None) -> None:
    """Print both tables: the rates, and what a reader takes however few messages there are."""
    with tempfile.TemporaryDirectory(prefix="heliograph-readers-") as scratch, ExitStack() as stack:
        few = Shape(100, 1, 2)
        publish(broker, few)
        started = [stack.enter_context(each.running()) for each in readers(broker, Path(scratch), connector)]
        cold = {each.name: each.read(few).reading.whole_s for each in started}
        print("| messages a second (reader's + broker's CPU, µs) |", " | ".join(each.name for each in shapes), "|")
        print("|---" * (len(shapes) + 1) + "|", flush=True)
        found: dict[str, list[str]] = {each.name: [] for each in started}
        for shape in shapes:
            publish(broker, shape)
            measured: dict[str, list[Measured]] = {each.name: [] for each in started}
            for run in range(runs + 1):
                for each in started:
                    done = each.read(shape)
                    # The first one shows a JVM what to compile.
                    if run:
                        measured[each.name].append(done)
            for name, of in measured.items():
                found[name].append(cell(of))
                print(f"{shape.name}: {name}: {found[name][-1]}", file=sys.stderr, flush=True)
        for name, cells in found.items():
            print(f"| {name} |", " | ".join(cells), "|", flush=True)
        print("\n| | start s | two messages ms, at first | later |\n|---|---|---|---|")
        for each in started:
            later = statistics.median(each.read(few).reading.whole_s for _ in range(5))
            print(
                f"| {each.name} | {each.start_s:.1f} | {1000 * cold[each.name]:,.0f} | {1000 * later:,.0f} |",
                flush=True,
            )


def main(
    messages: Annotated[
        int, typer.Option(min=1000, help="Messages in batches; not batched it is a fifth.")
    ] = 1_000_000,
    runs: Annotated[int, typer.Option(min=1, help="Readings of each topic that count; one more comes before.")] = 3,
    stages: Annotated[
        bool, typer.Option("--stages", help="Where the processor's time goes, in place of rates.")
    ] = False,
    connector_python: Annotated[
        Path | None, typer.Option(help="A Python with the PySpark of the Scala connector, which is measured, too.")
    ] = None,
    connector_jar: Annotated[Path | None, typer.Option(help="The connector's JAR.")] = None,
) -> None:
    """Measure, on this machine, with the broker beside the readers; they read in turn.

    Every reading is checked: a reader that missed a message or a byte ends the command.
    """
    if (connector_python is None) != (connector_jar is None):
        raise typer.BadParameter("the Scala connector needs both its Python and its JAR")
    connector = (connector_python, connector_jar) if connector_python and connector_jar else None
    shapes = shapes_of(messages)
    with keeping_broker() as (broker, _):
        if not stages:
            compare(broker, shapes, runs, connector)
            return
        for shape in shapes:
            publish(broker, shape)
            print_stages(broker, shape, runs)


if __name__ == "__main__":
    typer.run(main)
