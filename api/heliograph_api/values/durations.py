"""Durations as people write them: ``500ms``, ``90s``, ``15m``, ``3h``, ``7d``, ``1w``, ``0``, ``-1`` or ``infinite``.

Units are in small letters. A number without a unit is refused (but for 0 and -1): some of Pulsar's settings count
seconds, others minutes or milliseconds, and a guess would be wrong for somebody.
"""

from __future__ import annotations

import re
from fractions import Fraction

from .quoting import quoted

UNLIMITED = -1
MAX_DURATION_MS = 2**63 - 1
VALID = "500ms, 90s, 15m, 3h, 7d, 1w, 0, -1 or infinite"

UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(0|[1-9][0-9]{0,18})(\.[0-9]{1,9})?(ms|s|m|h|d|w)", re.ASCII)


class InvalidDuration(ValueError):
    """The value is not a duration; the message says what would be one."""


def parse_duration(value: object) -> int:
    """Return milliseconds, or -1 for no limit. A fraction of a ms is dropped. Raises :class:`InvalidDuration`."""
    if isinstance(value, int) and not isinstance(value, bool) and value in (0, UNLIMITED):
        return int(value)
    if not isinstance(value, str):
        raise _invalid(value)
    if value in ("infinite", "-1"):
        return UNLIMITED
    if value == "0":
        return 0
    match = _DURATION.fullmatch(value)
    if match is None:
        raise _invalid(value)
    whole, fraction, unit = match.groups()
    duration = int(Fraction(whole + (fraction or "")) * UNITS[unit])
    if duration > MAX_DURATION_MS:
        raise InvalidDuration(
            f"{quoted(value)} is too long a duration; valid: at most {MAX_DURATION_MS}ms, or infinite"
        )
    return duration


def format_duration(duration_ms: int) -> str:
    """Return the shortest text :func:`parse_duration` reads back as exactly ``duration_ms`` (-1: ``infinite``).

    Days are the largest unit: people write a week of retention as ``7d``.
    """
    if duration_ms < 0:
        return "infinite"
    for unit in ("d", "h", "m", "s"):
        if duration_ms and duration_ms % UNITS[unit] == 0:
            return f"{duration_ms // UNITS[unit]}{unit}"
    return f"{duration_ms}ms" if duration_ms else "0"


def _invalid(value: object) -> InvalidDuration:
    return InvalidDuration(f"{quoted(value)} is not a duration; valid: {VALID}")
