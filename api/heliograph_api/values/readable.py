"""Sizes and durations for people to read: ``1.2Mi``, ``42s``, ``1.5d``; rounded down to one decimal.

What can be read back exactly is written by :mod:`.sizes` and :mod:`.durations`.
"""

from __future__ import annotations

from . import durations, sizes

_SIZE_UNITS = tuple((f"{unit}i", sizes.UNITS[unit]) for unit in "TGMK")
_DURATION_UNITS = tuple((unit, durations.UNITS[unit]) for unit in "dhms")


def readable_size(size: int) -> str:
    """Return bytes in the largest unit that fits (-1: ``infinite``)."""
    return "infinite" if size < 0 else _in_units(size, _SIZE_UNITS, "")


def readable_duration(ms: int) -> str:
    """Return milliseconds in the largest unit that fits (-1: ``infinite``)."""
    return "infinite" if ms < 0 else _in_units(ms, _DURATION_UNITS, "ms")


def _in_units(value: int, units: tuple[tuple[str, int], ...], smallest: str) -> str:
    for unit, factor in units:
        if value >= factor:
            whole, tenth = divmod(value * 10 // factor, 10)
            return f"{whole}.{tenth}{unit}" if tenth else f"{whole}{unit}"
    return f"{value}{smallest}"
