"""The table, for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from .scenarios import Measurement, Scenario

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


def cells(scenario: Scenario, measurement: Measurement) -> list[str]:
    """Return one row, a text for each heading."""

    def rate(value: float) -> str:
        return f"{value:,.0f}" if value and scenario.kind != "rate" else ""

    def times(value: tuple[float, float, float] | None) -> str:
        return " / ".join(f"{ms:.1f}" for ms in value) if value else ""

    return [
        scenario.name,
        scenario.kind,
        rate(measurement.publish_rate),
        rate(measurement.end_to_end_rate),
        f"{measurement.megabytes:,.0f}",
        times(measurement.publish_ms),
        times(measurement.end_to_end_ms),
        f"{measurement.broker_cpu_us:.1f}",
        f"{measurement.load_cpu_us:.1f}",
        scenario.target,
    ]


def table(rows: Iterable[tuple[Scenario, Measurement]], title: str) -> Table:
    """Return the table for a terminal."""
    made = Table(*HEADINGS, title=title)
    for scenario, measurement in rows:
        made.add_row(*cells(scenario, measurement))
    return made


def markdown(rows: Iterable[tuple[Scenario, Measurement]]) -> str:
    """Return the same as a Markdown table."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(cells(scenario, measurement)) + " |" for scenario, measurement in rows]
    return "\n".join(lines) + "\n"
