"""Tables, and what only tables have: ages and times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from heliograph_api.values.readable import readable_duration

if TYPE_CHECKING:
    from rich.table import Table


def readable_age(milliseconds: int) -> str:
    """Return an age; ``-`` for a negative one (nothing to be old)."""
    return readable_duration(milliseconds) if milliseconds >= 0 else "-"


def readable_time(wall_ms: int) -> str:
    """Return a wall-clock time (ms) in UTC, to the second."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def new_table(*columns: str) -> Table:
    """Return a table without lines, as kubectl prints; columns whose name starts with ``>`` hold numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return table
