"""When the brokers of a BrokerCluster may be replaced for an upgrade."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from heliograph_api.values.durations import format_duration
from heliograph_api.values.quoting import quoted

from .cel import DURATION, InSchema, Rule
from .fields import Duration, Model, Unique

Day = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
DAYS: Final[tuple[Day, ...]] = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

_MINUTE_MS: Final = 60_000
_MAX_MS: Final = 7 * 24 * 60 * _MINUTE_MS
_MAX_WINDOWS: Final = 20
_START: Final = "([01][0-9]|2[0-3]):[0-5][0-9]"
_ZONE: Final = "[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*"

_NO_DURATION = "is not the length of a window; valid: from 1m to 7d"
_NO_START = "not a time of day; valid: hours and minutes, such as 02:30"
_NO_ZONE = "not a time zone; valid: a name of the IANA database, such as UTC or Europe/Berlin"


def _length(duration_ms: int) -> int:
    if not _MINUTE_MS <= duration_ms <= _MAX_MS:
        raise ValueError(f"{format_duration(duration_ms)} {_NO_DURATION}")
    return duration_ms


def _start(text: str) -> str:
    if not re.fullmatch(_START, text):
        raise ValueError(f"{quoted(text)} is {_NO_START}")
    return text


def _zone(text: str) -> str:
    if not re.fullmatch(_ZONE, text):
        raise ValueError(f"{quoted(text)} is {_NO_ZONE}")
    return text


TimeZone = Annotated[
    str, AfterValidator(_zone), InSchema({"maxLength": 64}), Rule(f"self.matches('^{_ZONE}$')", _NO_ZONE)
]
"""The name of a time zone."""


class MaintenanceWindow(Model):
    """A time in which brokers may be replaced."""

    days: Unique[Day] = Field(default_factory=list)
    """Days on which the window opens; left out: every day."""
    start: Annotated[
        str, AfterValidator(_start), InSchema({"maxLength": 5}), Rule(f"self.matches('^{_START}$')", _NO_START)
    ]
    """Time of day at which it opens, such as 02:30."""
    duration: Annotated[
        Duration,
        AfterValidator(_length),
        Rule(DURATION.where("self", f"v >= {_MINUTE_MS} && v <= {_MAX_MS}"), _NO_DURATION),
    ]
    """Time for which it is open, such as 2h. A rollout that begins in it is finished also after it."""
    time_zone: TimeZone = "UTC"
    """Time zone of `start`, such as Europe/Berlin."""


MaintenanceWindows = Annotated[list[MaintenanceWindow], Field(max_length=_MAX_WINDOWS)]
