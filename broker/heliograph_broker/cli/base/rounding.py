"""Numbers for people to read: rounded, unlike the exact sizes and durations of manifests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def readable_size(size: int) -> str:
    """Return a size in bytes in binary units with one decimal, as in ``1.2 MiB``."""
    if size < 1024:
        return f"{size} B"
    exponent = min((size.bit_length() - 1) // 10, len(_UNITS))
    return f"{size / (1 << 10 * exponent):.1f} {_UNITS[exponent - 1]}"


def readable_age(milliseconds: int) -> str:
    """Return an age in its two largest units, as in ``3h 12m``; ``-`` for a negative one (nothing to be old)."""
    if milliseconds < 0:
        return "-"
    seconds = milliseconds // 1000
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m {seconds}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h {minutes}m"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h"


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
