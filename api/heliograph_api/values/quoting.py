"""Quotes a user's value in an error: as in the manifest, on one line, shortened if it is long."""

from __future__ import annotations

import reprlib
from itertools import islice

_MAX_LENGTH = 80
_FEWEST = 4


def quoted(value: object) -> str:
    """Return ``value`` for a message: texts in quotes, ``true``, ``false`` and ``null`` as YAML writes them."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        cut = value if len(value) <= _MAX_LENGTH else f"{value[: _MAX_LENGTH - 3]}..."
        return f"'{cut}'" if cut.isprintable() else ascii(cut)
    if isinstance(value, int) and value.bit_length() > 256:
        # Python refuses to write out numbers of thousands of digits.
        return "a number of more than 77 digits"
    if isinstance(value, dict):
        keys = ", ".join(quoted(key) for key in islice(value, _FEWEST))
        return f"a mapping with {keys}{', ...' if len(value) > _FEWEST else ''}" if value else "an empty mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return reprlib.repr(value)
