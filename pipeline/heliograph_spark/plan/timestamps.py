"""Moments as a person writes them: ISO 8601, or milliseconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from .errors import OptionError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_moment(option: str, text: str) -> int:
    """Return milliseconds since 1970, UTC if no zone is given. Raises :class:`OptionError`, naming ``option``.

    Raises :class:`OptionError`, naming ``option``.
    """
    if re.fullmatch(r"\d{1,15}", text.strip()):
        at_ms = int(text)
    else:
        try:
            found = datetime.fromisoformat(text.strip())
        except ValueError as error:
            raise OptionError(
                f"{option}: {text!r} is neither ISO 8601, such as 2026-03-01T12:00:00Z, nor milliseconds since 1970"
            ) from error
        at_ms = since_1970(found if found.tzinfo is not None else found.replace(tzinfo=UTC))
    if not 0 <= at_ms <= _LATEST_MS:
        raise OptionError(f"{option}: {text!r} is not between the years 1970 and 9999")
    return at_ms


def since_1970(moment: datetime) -> int:
    """Return whole milliseconds since 1970 of a time with a zone, rounded down."""
    # Not by timestamp(): its fractions are rounded.
    return (moment - _EPOCH) // timedelta(milliseconds=1)


_LATEST_MS = since_1970(datetime.max.replace(tzinfo=UTC))


def write_moment(at_ms: int) -> str:
    """Format a time as ISO 8601 in UTC, to the millisecond."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
