"""The times of a schedule, as CronJobs read it, in a time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_NAMED: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class ScheduleError(Exception):
    """A schedule has no times, or its time zone is not known; the text names the field."""


def next_time(schedule: str, time_zone: str, after: datetime) -> datetime:
    """Return the first time (UTC) of a schedule after ``after``. Raises :class:`ScheduleError`."""
    return _time(schedule, time_zone, after, reverse=False)


def last_time(schedule: str, time_zone: str, until: datetime) -> datetime:
    """Return the last time (UTC) of a schedule before ``until``, or at it. Raises :class:`ScheduleError`."""
    # Backwards, the search begins before the time it is given.
    return _time(schedule, time_zone, until.replace(microsecond=0) + timedelta(seconds=1), reverse=True)


def _time(schedule: str, time_zone: str, around: datetime, *, reverse: bool) -> datetime:
    try:
        zone = ZoneInfo(time_zone)
    except (KeyError, OSError, ValueError) as error:
        raise ScheduleError(
            f"spec.timeZone: {time_zone!r} is not a time zone that the operator knows; valid: a name of the IANA"
            " database, such as UTC or Europe/Berlin"
        ) from error
    try:
        found: datetime = next(CronSim(_NAMED.get(schedule, schedule), around.astimezone(zone), reverse=reverse))
    except (CronSimError, StopIteration) as error:
        raise ScheduleError(
            f"spec.schedule: {schedule!r} has no times; valid: days that exist, such as 1-28"
        ) from error
    return found.astimezone(UTC)
