"""Measures how fast disk space comes back, and the effect on publishers: ``python -m benchmarks.reclaim``.

The ledger store as the broker runs it (its threads beside an event loop, its settings as shipped) is filled, 90 % is
trimmed, and the space of all files in the data directory is measured against the bytes that are still wanted.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from heliograph_broker.clock import SystemClock
from heliograph_broker.storage.base.completion import completed
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.disk.data_dir import DataDir
from heliograph_broker.storage.store import LedgerStore, LoopScheduler
from rich.console import Console
from rich.table import Table

from .latencies import shown

_MIB = 1024 * 1024
#: The promise: so many times the live bytes at most, within so many seconds.
GOAL_RATIO = 1.5
GOAL_S = 60.0
#: Interval (seconds) at which the broker calls ``LedgerStore.maintain``.
_TICK_S = 0.5
#: The load of a busy store: groups a second, entries in each.
_BUSY_GROUPS, _BUSY_ENTRIES = 200, 10


class Shape(msgspec.Struct):
    """The load: publish ``ledgers`` in turn, and trim the oldest 90 % of each."""

    name: str
    ledgers: int
    frame_bytes: int
    busy: bool = False
    share: int = 1
    """Share of the others' bytes, so that small messages do not take an hour."""


SHAPES = [
    Shape("one topic, 1 KiB", 1, 1024),
    Shape("one topic, 1 KiB, busy", 1, 1024, busy=True),
    Shape("1,000 topics interleaved, 1 KiB", 1000, 1024),
    Shape("1,000 topics interleaved, 1 KiB, busy", 1000, 1024, busy=True),
    Shape("one topic, 150 B (100 B of payload)", 1, 150, share=8),
    Shape("100 topics interleaved, 64 KiB", 100, 65536),
]


class Result(msgspec.Struct):
    """Ratios are of the directory's disk space to the live bytes, latencies of durable appends, in ms."""

    before_ratio: float
    trimmed_ratio: float
    seconds: float
    final_ratio: float
    course: list[tuple[float, float]]
    quiet_ms: list[float]
    reclaiming_ms: list[float]


class _Load:
    """Appends to the store, counts what should be live, and measures how long entries take to be durable."""

    def __init__(self, store: LedgerStore, shape: Shape) -> None:
        self.store = store
        self.frame = os.urandom(shape.frame_bytes)
        self.next_entry: dict[int, int] = {}
        self.live_bytes = 0
        self.latencies: list[float] = []
        self._sent: dict[int, float] = {}

    def append(self, ledger_id: int) -> None:
        entry_id = self.next_entry.get(ledger_id, 0)
        size = len(self.frame)
        entry = Entry(ledger_id, entry_id, 0, 0, 0, -1, 1, 0, entry_id + 1, (entry_id + 1) * size, self.frame)
        entry.offset = entry_id
        self.next_entry[ledger_id] = entry_id + 1
        self.live_bytes += size
        self._sent[id(entry)] = time.perf_counter()
        self.store.writer.append(self, entry)

    def trim(self, share: float) -> None:
        for ledger_id, entries in self.next_entry.items():
            below = int(entries * share)
            self.live_bytes -= below * len(self.frame)
            self.store.segments.trim(ledger_id, below)

    def entries_durable(self, entries: list[Entry]) -> None:
        now = time.perf_counter()
        self.latencies += [(now - self._sent.pop(id(entry))) * 1000 for entry in entries]

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        raise error


async def _publish(load: _Load, shape: Shape, total_bytes: int) -> None:
    group = max(1, min(1000, 4 * _MIB // shape.frame_bytes))
    number = 0
    while number * shape.frame_bytes < total_bytes:
        for _ in range(group):
            load.append(1 + number % shape.ledgers)
            number += 1
        await completed(load.store.writer.after_commit)


async def _keep_busy(load: _Load) -> None:
    """Publish to a ledger of its own at a fixed rate, whatever comes back."""
    began = time.perf_counter()
    number = 0
    while True:
        for _ in range(_BUSY_ENTRIES):
            load.append(1_000_000)
        number += 1
        await asyncio.sleep(max(0.0, began + number / _BUSY_GROUPS - time.perf_counter()))


async def _tick(store: LedgerStore) -> None:
    while True:
        store.maintain()
        await asyncio.sleep(_TICK_S)


async def measure(shape: Shape, directory: Path, total_bytes: int, segment_bytes: int, watch_s: float) -> Result:
    """Fill a store, trim 90 % of it, and watch the directory for ``watch_s`` seconds or until the goal and the end."""
    loop = asyncio.get_running_loop()
    store = LedgerStore.open(
        directory, SystemClock(), scheduler=LoopScheduler(loop), segment_bytes=segment_bytes, disk_reserve_bytes=0
    )
    load = _Load(store, shape)
    ticking = asyncio.create_task(_tick(store))
    busy: asyncio.Task[None] | None = None

    async def ratio() -> float:
        used = await loop.run_in_executor(None, DataDir.files_bytes, directory)
        return used / load.live_bytes

    try:
        await _publish(load, shape, total_bytes)
        before = await ratio()
        if shape.busy:
            busy = asyncio.create_task(_keep_busy(load))
        load.latencies = []
        await asyncio.sleep(5.0)
        quiet, load.latencies = load.latencies, []
        began = time.perf_counter()
        load.trim(0.9)
        course = [(0.0, await ratio())]
        reached = float("inf")
        while (elapsed := time.perf_counter() - began) < watch_s:
            await asyncio.sleep(_TICK_S)
            elapsed = time.perf_counter() - began
            course.append((elapsed, await ratio()))
            if course[-1][1] > GOAL_RATIO:
                reached = float("inf")
            elif reached == float("inf"):
                reached = elapsed
        return Result(before, course[0][1], reached, course[-1][1], course, quiet, load.latencies)
    finally:
        for task in (ticking, busy):
            if task is not None:
                task.cancel()
        store.close()


def main(
    quick: Annotated[bool, typer.Option("--quick", help="An eighth of the bytes, in segments of 16 MiB.")] = False,
    only: Annotated[str, typer.Option(help="Shapes whose name holds this text.")] = "",
    directory: Annotated[Path | None, typer.Option(help="Directory for the data.")] = None,
    watch: Annotated[float, typer.Option(help="Seconds to watch after the trimming.")] = GOAL_S,
    course: Annotated[bool, typer.Option("--course", help="Print the ratio over time, too.")] = False,
) -> None:
    """Fill a store with 2 GiB, trim 90 %, and measure until the directory has at most 1.5 times the live bytes."""
    console = Console(width=None if Console().is_terminal else 200)
    table = Table(
        "shape",
        "full",
        "trimmed",
        f"s to {GOAL_RATIO}",
        "at the end",
        "quiet ms p50/p99/max",
        "meanwhile ms p50/p99/max",
    )
    missed = False
    for shape in SHAPES:
        if only not in shape.name:
            continue
        console.print(shape.name, style="dim")
        with tempfile.TemporaryDirectory(prefix="heliograph-reclaim-", dir=directory) as scratch:
            total, segment = (256 * _MIB, 16 * _MIB) if quick else (2048 * _MIB, 128 * _MIB)
            result = asyncio.run(measure(shape, Path(scratch) / "data", total // shape.share, segment, watch))
        missed = missed or result.seconds > GOAL_S
        if course:
            console.print(" ".join(f"{at:.1f}s:{value:.2f}" for at, value in result.course))
        table.add_row(
            shape.name,
            f"{result.before_ratio:.2f}",
            f"{result.trimmed_ratio:.2f}",
            f"{result.seconds:.1f}",
            f"{result.final_ratio:.2f}",
            shown(result.quiet_ms),
            shown(result.reclaiming_ms),
        )
    console.print(table)
    raise typer.Exit(1 if missed else 0)


if __name__ == "__main__":
    typer.run(main)
