"""Displays the run: a progress bar each on a terminal (plain lines elsewhere), and the table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Self

from heliograph_api.admin.admin_client import oldest_age_ms
from heliograph_api.tables import new_table, readable_age
from heliograph_api.values.durations import format_duration
from heliograph_api.values.readable import readable_size
from heliograph_api.values.sizes import format_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_LINE_EVERY_S = 5.0


class ProgressDisplay(AbstractContextManager["ProgressDisplay"]):
    """Shows how far each of ``names`` is on its way to ``total``."""

    def __init__(self, names: list[str], total: int) -> None:
        self._total = total
        self._next_line = time.monotonic() + _LINE_EVERY_S
        self._bars: Progress | None = None
        if sys.stdout.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bars = Progress(*columns)
            self._tasks = {name: self._bars.add_task(name, total=total) for name in names}

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, done: Mapping[str, int]) -> None:
        if self._bars is not None:
            for name, count in done.items():
                self._bars.update(self._tasks[name], completed=count)
        elif time.monotonic() >= self._next_line:
            self._next_line += _LINE_EVERY_S
            print(", ".join(f"{name} {count:,}" for name, count in done.items()) + f" of {self._total:,}", flush=True)


class Retention(NamedTuple):
    """The broker's retention of acknowledged messages, as its admin API states it; -1 means no limit."""

    minutes: int
    mebibytes: int


def print_result(
    topic: str,
    stats: dict[str, Any],
    retention: Retention,
    delivered: Mapping[str, tuple[str, int]],
    now_ms: int,
) -> None:
    """Print a topic, what its policies leave, and its subscriptions.

    ``stats`` are the broker's; ``delivered`` is what clients received: subscription -> (type, messages).
    """
    partitions = stats["partitions"].values()
    # Both limits hold for each partition by itself, so the fullest one says what is left.
    backlog = max(partition["backlogSize"] for partition in partitions)
    kept = max(partition["storageSize"] - partition["backlogSize"] for partition in partitions)
    quota = stats["backlogQuotaLimitSize"]
    print(
        f"\n{topic} ({len(partitions)} partitions)\n"
        f"  received   {stats['msgInCounter']:,} messages, {readable_size(stats['bytesInCounter'])} bytes; "
        f"stored {readable_size(stats['storageSize'])} bytes\n"
        f"  retention  acknowledged messages stay {format_duration(_scaled(retention.minutes, 60_000))}, up to "
        f"{format_size(_scaled(retention.mebibytes, 1 << 20))} a partition; "
        f"{_left(kept, _scaled(retention.mebibytes, 1 << 20))} left\n"
        f"  quota      unacknowledged messages may take {format_size(quota)} a partition; "
        f"{_left(backlog, quota)} left, then producers wait\n"
    )
    table = new_table("SUBSCRIPTION", "TYPE", ">DELIVERED", ">BACKLOG", ">BYTES", ">OLDEST", ">QUOTA LEFT")
    for name, totals in sorted(stats["subscriptions"].items()):
        kind, count = delivered.get(name, ("-", 0))
        largest = max(partition["subscriptions"][name]["backlogSize"] for partition in partitions)
        table.add_row(
            name,
            kind,
            f"{count:,}",
            f"{totals['msgBacklog']:,}",
            readable_size(totals["backlogSize"]),
            readable_age(oldest_age_ms(totals, now_ms)),
            _left(largest, quota),
        )
    (Console() if sys.stdout.isatty() else Console(width=160)).print(table)


def _scaled(limit: int, factor: int) -> int:
    return limit * factor if limit >= 0 else limit


def _left(used: int, limit: int) -> str:
    if limit < 0:
        return "all"
    return f"{max(0.0, 1 - used / limit):.0%}" if limit else "0%"
