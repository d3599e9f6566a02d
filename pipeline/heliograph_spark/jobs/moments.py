"""Moments as a person writes them: ISO 8601, or milliseconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from heliograph_spark.errors import OptionError


def parse_moment(option: str, text: str) -> int:
    """Milliseconds since 1970, UTC if no zone is said. Raises :class:`OptionError`, naming ``option``."""
    if re.fullmatch(r"\d{1,15}", text.strip()):
        return int(text)
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise OptionError(
            f"{option}: {text!r} is neither ISO 8601, such as 2026-03-01T12:00:00Z, nor milliseconds since 1970"
        ) from error
    # Not by timestamp(): its fractions are rounded.
    since = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


def write_moment(at_ms: int) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
