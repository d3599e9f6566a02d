"""The table, for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from .scenarios import Figures, Scenario

HEADINGS = (
    "scenario",
    "what",
    "publish msg/s",
    "end to end msg/s",
    "MB/s",
    "publish ms p50 / p99 / max",
    "end to end ms p50 / p99 / max",
    "broker CPU µs/msg",
    "load CPU µs/msg",
    "goal",
)


def cells(scenario: Scenario, figures: Figures) -> list[str]:
    """Return one row, a text for each heading."""

    def rate(value: float) -> str:
        return f"{value:,.0f}" if value and scenario.kind != "rate" else ""

    def times(value: tuple[float, float, float] | None) -> str:
        return " / ".join(f"{ms:.1f}" for ms in value) if value else ""

    return [
        scenario.name,
        scenario.kind,
        rate(figures.publish_rate),
        rate(figures.end_to_end_rate),
        f"{figures.megabytes:,.0f}",
        times(figures.publish_ms),
        times(figures.end_to_end_ms),
        f"{figures.broker_cpu_us:.1f}",
        f"{figures.load_cpu_us:.1f}",
        scenario.target,
    ]


def table(rows: Iterable[tuple[Scenario, Figures]], title: str) -> Table:
    """Return the table for a terminal."""
    made = Table(*HEADINGS, title=title)
    for scenario, figures in rows:
        made.add_row(*cells(scenario, figures))
    return made


def markdown(rows: Iterable[tuple[Scenario, Figures]]) -> str:
    """Return the same as a Markdown table."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(cells(scenario, figures)) + " |" for scenario, figures in rows]
    return "\n".join(lines) + "\n"
