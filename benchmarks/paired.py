"""``benchmarks/run-paired``: processor time a message of two checkouts, in turn; see its ``--help``."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .scenarios import Scenario, run

_HERE = Path(__file__).parents[1]
_BATCH = 100
#: Name, kind, messages of a run, messages in a batch, window.
_SCENARIOS = (
    ("unbatched 1 KiB", "publish", 60_000, 1, 1000),
    ("unbatched 1 KiB", "end to end", 60_000, 1, 1000),
    ("batched 1 KiB", "publish", 400_000, _BATCH, 32),
    ("batched 1 KiB", "end to end", 400_000, _BATCH, 32),
)


def main(
    other: Annotated[Path, typer.Argument(help="Another checkout, such as a git worktree of a release.")],
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of runs of each scenario.")] = 5,
    directory: Annotated[Path | None, typer.Option(help="Data directory of the brokers.")] = None,
) -> None:
    """Compare the broker's processor time a message with that of another checkout.

    Both run in turn, with the same load and the same Python environment; which comes first changes from pair to pair.
    Processor time does not count what other processes take, and the ratio of a pair hardly feels how fast the
    machine is in that moment: read the median of the ratios.
    """
    if not (other / "broker" / "heliograph_broker").is_dir():
        raise typer.BadParameter(f"{other} holds no broker/heliograph_broker", param_hint="OTHER")
    console = Console(width=None if Console().is_terminal else 160)
    table = Table(title=f"Broker's processor time in µs a message, medians of {pairs} pairs, against {other}")
    for column in ("", "kind", "other", "here", "here / other", "from", "to"):
        table.add_column(column, justify="left" if column in ("", "kind") else "right")
    for name, kind, messages, batch, window in _SCENARIOS:
        scenario = Scenario(name, kind, 1024, messages, batch, window=window)
        here: list[float] = []
        there: list[float] = []
        for number in range(pairs):
            console.print(f"{name}, {kind}: pair {number + 1} of {pairs}", style="dim")
            both = ((_HERE, here), (other, there))
            for checkout, measurements in both if number % 2 else reversed(both):
                with tempfile.TemporaryDirectory(prefix="heliograph-paired-", dir=directory) as scratch:
                    measurements.append(run(scenario, Path(scratch), checkout).broker_cpu_us)
        ratios = [mine / theirs for mine, theirs in zip(here, there, strict=True)]
        table.add_row(
            name,
            kind,
            f"{statistics.median(there):.2f}",
            f"{statistics.median(here):.2f}",
            f"{statistics.median(ratios):.3f}",
            f"{min(ratios):.3f}",
            f"{max(ratios):.3f}",
        )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
