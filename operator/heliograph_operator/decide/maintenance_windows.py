"""The times in which brokers may be replaced for an upgrade."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from heliograph_api.resources.rollout_spec import DAYS, MaintenanceWindow


class WindowError(Exception):
    """A window has a time zone that nobody knows; the text names its field."""


def is_open(windows: Sequence[MaintenanceWindow], now: datetime) -> bool:
    """Whether one of ``windows`` is open; without any, always. Raises :class:`WindowError`."""
    return not windows or any(
        opens <= now < opens + _length(window)
        for index, window in enumerate(windows)
        for opens in _openings(window, index, now)
    )


def next_opening(windows: Sequence[MaintenanceWindow], now: datetime) -> datetime:
    """Return when (UTC) the next of ``windows`` opens after ``now``; there is one. Raises :class:`WindowError`."""
    return min(opens for index, window in enumerate(windows) for opens in _openings(window, index, now) if opens > now)


def _openings(window: MaintenanceWindow, index: int, now: datetime) -> Iterator[datetime]:
    """Yield the openings around ``now``: all that may still be open, and those of more than a week after it."""
    try:
        zone = ZoneInfo(window.time_zone)
    except (KeyError, OSError, ValueError) as error:
        # There is no file of that name, or it is not one of a time zone.
        raise WindowError(_unknown(window, index)) from error
    start = time.fromisoformat(window.start)
    day = (now.astimezone(zone) - _length(window)).date() - timedelta(days=1)
    last = now.astimezone(zone).date() + timedelta(days=8)
    while day <= last:
        if not window.days or DAYS[day.weekday()] in window.days:
            # A time that the clock change skips is that much later, one that comes twice is the first.
            yield datetime.combine(day, start, zone).astimezone(UTC)
        day += timedelta(days=1)


def _length(window: MaintenanceWindow) -> timedelta:
    return timedelta(milliseconds=window.duration)


def _unknown(window: MaintenanceWindow, index: int) -> str:
    return (
        f"spec.maintenanceWindows[{index}].timeZone: {window.time_zone!r} is not a time zone that the operator knows;"
        " valid: a name of the IANA database, such as UTC or Europe/Berlin"
    )
