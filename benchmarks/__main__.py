"""``benchmarks/run``: see its ``--help``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .report import markdown, table
from .scenarios import median, run, scenarios


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the messages, and one run each.")] = False,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each scenario; results are their medians.")] = 3,
    only: Annotated[str, typer.Option(help="Scenarios whose name or kind holds this text.")] = "",
    directory: Annotated[Path | None, typer.Option(help="Data directory of the brokers.")] = None,
    output: Annotated[Path | None, typer.Option("--markdown", help="Write the table to this file too.")] = None,
) -> None:
    """Measure throughput, latency and CPU of a broker with every receipt synced to disk.

    The load comes from another process on the same machine: a raw client of the wire protocol on uvloop, and the
    official Python client where the scenario says so.
    """
    console = Console(width=None if Console().is_terminal else 220)
    if quick:
        runs = 1
    rows = []
    for scenario in scenarios(quick=quick):
        if only not in f"{scenario.name} {scenario.kind}":
            continue
        measured = []
        for number in range(runs):
            console.print(f"{scenario.name}, {scenario.kind}: run {number + 1} of {runs}", style="dim")
            with tempfile.TemporaryDirectory(prefix="heliograph-benchmark-", dir=directory) as scratch:
                measured.append(run(scenario, Path(scratch)))
        rows.append((scenario, median(measured)))
    times = "one run" if runs == 1 else f"medians of {runs} runs"
    console.print(table(rows, f"Heliograph on {os.cpu_count()} cores, sync on, {times}"))
    if output is not None:
        output.write_text(markdown(rows))


if __name__ == "__main__":
    typer.run(main)
