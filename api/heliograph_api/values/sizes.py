"""Sizes as people write them: ``10G``, ``512M``, ``10Gi``, ``1.5Gi``, a number of bytes, ``-1`` or ``infinite``.

Units are powers of 1024, with or without ``i``: Pulsar's ``10G`` and Kubernetes' ``10Gi`` are the same size. The letter
may be in either case, as in Pulsar; the ``i`` is small.
"""

from __future__ import annotations

import re
from fractions import Fraction

from .quoting import quoted

UNLIMITED = -1
MAX_SIZE = 2**63 - 1
VALID = "10G, 512M, 10Gi, bytes as a number, -1 or infinite"

UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_SIZE = re.compile(r"(0|[1-9][0-9]{0,18})(\.[0-9]{1,9})?([KMGTkmgt]?)(i?)", re.ASCII)


class InvalidSize(ValueError):
    """The value is not a size; the message says what would be one."""


def parse_size(value: object) -> int:
    """Return bytes, or -1 for no limit. A fraction of a byte is dropped. Raises :class:`InvalidSize`."""
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str):
        if value in ("infinite", "-1"):
            return UNLIMITED
        match = _SIZE.fullmatch(value)
        if match is None:
            raise _invalid(value)
        whole, fraction, unit, binary = match.groups()
        if not unit and (fraction or binary):
            raise _invalid(value)
        number = int(Fraction(whole + (fraction or "")) * UNITS[unit.upper()])
    else:
        raise _invalid(value)
    if number > MAX_SIZE:
        raise InvalidSize(f"{quoted(value)} is too large a size; valid: at most {MAX_SIZE} bytes, or infinite")
    if number < UNLIMITED:
        raise _invalid(value)
    return number


def format_size(size: int) -> str:
    """Return the shortest text :func:`parse_size` reads back as exactly ``size`` bytes (-1: ``infinite``)."""
    if size < 0:
        return "infinite"
    for unit in ("T", "G", "M", "K"):
        if size and size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]}{unit}i"
    return str(size)


def _invalid(value: object) -> InvalidSize:
    return InvalidSize(f"{quoted(value)} is not a size; valid: {VALID}")
