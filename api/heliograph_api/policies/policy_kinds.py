"""The kinds of policies: what says "none at all" in a value, and what a limit makes of it.

Everything else that a kind decides (how a manifest, the REST API and a command write it) is looked up by the kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from .policy_values import BacklogQuota, Rate, Retention


def _never(value: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Defines how the values of a kind of policy combine across levels and limits."""

    name: str
    #: Whether a value removes the inherited one: there is no such policy then.
    is_none: Callable[[Any], bool] = _never
    #: Caps an own value (None: there is none) by a limit; None where limits do not cap the kind.
    capped: Callable[[Any, Any], Any] | None = None


def _not_positive(value: int) -> bool:
    return value <= 0


def _lower(own: int | None, cap: int) -> int | None:
    return own if cap <= 0 or (own is not None and own <= cap) else cap


def _lower_or_zero(own: int | None, cap: int) -> int | None:
    return own if cap < 0 or (own is not None and own <= cap) else cap


def _lower_quota(own: BacklogQuota | None, cap: BacklogQuota) -> BacklogQuota | None:
    # If both name the same limit, the topic's own action stays.
    return own if cap.limit < 0 or (own is not None and own.limit <= cap.limit) else cap


def _lower_retention(own: Retention | None, cap: Retention) -> Retention | None:
    def lower(one: int, other: int) -> int:
        if one < 0:
            return other
        return one if other < 0 else min(one, other)

    if own is None:
        return None
    return msgspec.structs.replace(
        own, time_ms=lower(own.time_ms, cap.time_ms), size_bytes=lower(own.size_bytes, cap.size_bytes)
    )


def is_unlimited(rate: Rate) -> bool:
    """Whether a rate limits neither messages nor bytes."""
    return rate.messages <= 0 and rate.bytes <= 0


def lower_rate(own: Rate | None, cap: Rate) -> Rate | None:
    """Return the lower of both, messages and bytes each for itself, in the period of ``own``."""
    if own is None:
        return None if is_unlimited(cap) else cap

    def lower(mine: int, other: int) -> int:
        scaled = other * own.period_s // cap.period_s if other > 0 else -1
        return scaled if mine <= 0 else mine if scaled <= 0 else min(mine, scaled)

    return Rate(lower(own.messages, cap.messages), lower(own.bytes, cap.bytes), own.period_s)


SWITCH: Final = Kind("switch")
COUNT: Final = Kind("count", _not_positive, _lower)
"""A maximum number; 0: no limit."""
SIZE_LIMIT: Final = Kind("size limit", _not_positive, _lower)
"""Bytes; -1 for no limit, and 0 in the REST API."""
THRESHOLD: Final = Kind("threshold", _not_positive, _lower)
"""Bytes; 0 for never."""
DURATION: Final = Kind("duration", lambda ms: ms < 0, _lower_or_zero)
"""Milliseconds; 0 is at once, -1 never."""
DURATION_LIMIT: Final = Kind("duration limit", _not_positive, _lower)
"""Milliseconds; -1 for no limit, and 0 in the REST API."""
UNUSED_FOR: Final = Kind("unused for", lambda ms: ms < 0, _lower_or_zero)
"""Milliseconds after which something that nobody uses is deleted; -1 never."""
UNUSED_FOR_OR_ZERO: Final = Kind("unused for, or zero", _not_positive, _lower)
"""As UNUSED_FOR; 0, which manifests refuse, is never too, as in Pulsar."""
RETENTION: Final = Kind("retention", capped=_lower_retention)
SIZE_QUOTA: Final = Kind("size quota", lambda quota: quota.limit < 0, _lower_quota)
AGE_QUOTA: Final = Kind("age quota", lambda quota: quota.limit < 0, _lower_quota)
RATE: Final = Kind("rate", is_unlimited, lower_rate)
SUBSCRIBE_RATE: Final = Kind("subscribe rate", lambda rate: rate.per_consumer <= 0)
INACTIVE_TOPIC: Final = Kind("inactive topic", lambda inactive: not inactive.delete)
AUTO_TOPIC_CREATION: Final = Kind("automatic creation of topics")
TOPIC_NAME: Final = Kind("topic name", lambda name: not name)
"""A full name; the empty text for none."""
SUBSCRIPTION_TYPES: Final = Kind("subscription types")
SCHEMA_COMPATIBILITY: Final = Kind("schema compatibility")
TICK: Final = Kind("tick")
KEPT: Final = Kind("kept", lambda values: True)
"""Settings that have no effect, by name: shown level by level, never part of what holds for a topic."""
BY_SUBSCRIPTION: Final = Kind("values by subscription")
