"""Lists as settings write them: values separated by commas."""

from __future__ import annotations


def comma_separated(text: str) -> list[str]:
    """Return the values of ``text`` in their order, without blanks around them and without empty ones."""
    return [value for value in map(str.strip, text.split(",")) if value]
