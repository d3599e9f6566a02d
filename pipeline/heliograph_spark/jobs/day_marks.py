"""When a day of an archived topic is complete.

A run notes the time and then asks each partition for its last message. When it has archived all of them it has read
everything that the broker had stored at that time. A day is complete if that time is at least a grace period after the
day's end in UTC: what is missing then was stored later than the grace period after it was published, or has a publish
time from a clock that is slow by that much. Publish times are the producers', so no wait excludes such a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date

from heliograph_spark.plan.positions import Position

_DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Asked:
    """The last message of each partition that is not empty, as the broker said after ``at_ms`` (ms since 1970)."""

    at_ms: int
    ends: Mapping[str, Position] = field(default_factory=dict)

    def covered_by(self, read: Mapping[str, Position]) -> bool:
        """Whether all messages that were stored at ``at_ms`` are archived, by the end of what is in each partition."""
        return all(topic in read and end <= read[topic] for topic, end in self.ends.items())

    def complete(self, days: Iterable[str], read: Mapping[str, Position], grace_ms: int) -> list[str]:
        """Return those of the days (``YYYY-MM-DD``) that are complete, sorted; a grace below zero has no end."""
        if grace_ms < 0 or not self.covered_by(read):
            return []
        return sorted(day for day in days if (end := day_end_ms(day)) is not None and end + grace_ms <= self.at_ms)


def older_days(days: Iterable[str], at_ms: int) -> list[str]:
    """Return those of the days (``YYYY-MM-DD``) that had ended at a time (ms since 1970), sorted."""
    return sorted(day for day in days if (end := day_end_ms(day)) is not None and end <= at_ms)


def day_end_ms(day: str) -> int | None:
    """Return when a day ends in UTC (ms since 1970); None for another text, or a year of more than four digits."""
    try:
        found = date.fromisoformat(day)
    except ValueError:
        return None
    return ((found - _EPOCH).days + 1) * _DAY_MS if found.isoformat() == day else None
