"""The status of a User that tells of its clients, and when it is worth a write.

It changes all the time, and each change would be a request to the API server. So the first and the last connection
are written at once, other changes at most once a minute, and that the role is still there every ten minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from heliograph_api.resources.broker_state import BrokerState

from heliograph_operator.objects.conditions import timestamp

_QUIET_S: Final = 60.0
_STILL_THERE_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class Activity:
    """The clients of a role, as a broker tells of them. Times are wall-clock ms, -1: unknown."""

    connections: int
    last_seen_ms: int
    denied_last_hour: int
    since_ms: int

    @classmethod
    def of(cls, role: str, state: BrokerState) -> Activity | None:
        """Return the activity of a role; None: the broker does not tell."""
        found = (state.roles or {}).get(role)
        if found is None:
            return None
        return cls(found.connections, found.last_seen_ms, found.denied_last_hour, state.started_ms)

    @classmethod
    def of_new(cls, state: BrokerState) -> Activity:
        """Return the activity of a role that a broker does not know yet."""
        return cls(0, -1, 0, state.started_ms)


def worth_writing(written: Activity | None, now: Activity | None, age_s: float) -> bool:
    """Whether the activity has to be written, given that which was written ``age_s`` ago."""
    if written is None or now is None:
        return written is not now
    if bool(written.connections) != bool(now.connections) or written.since_ms != now.since_ms:
        return True
    if age_s < _QUIET_S:
        return False
    counts = written.connections, written.denied_last_hour
    return (
        counts != (now.connections, now.denied_last_hour) or now.last_seen_ms - written.last_seen_ms >= _STILL_THERE_MS
    )


def activity_fields(activity: Activity | None) -> dict[str, Any]:
    """Return the fields of the status. That of when a client was there last stays while the broker knows of none."""
    if activity is None:
        return {"connections": None, "deniedLastHour": None, "countedSince": None}
    fields: dict[str, Any] = {"connections": activity.connections, "deniedLastHour": activity.denied_last_hour}
    if activity.last_seen_ms >= 0:
        fields["lastSeen"] = _time(activity.last_seen_ms)
    if activity.since_ms >= 0:
        fields["countedSince"] = _time(activity.since_ms)
    return fields


def _time(ms: int) -> str:
    return timestamp(datetime.fromtimestamp(ms // 1000, UTC))
