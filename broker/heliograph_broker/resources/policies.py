"""Policies and how levels combine."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Retention(msgspec.Struct, frozen=True):
    """What is kept of acknowledged data: ms and bytes, -1 without limit, 0 nothing."""

    time_ms: int
    size_bytes: int


class BacklogQuota(msgspec.Struct, frozen=True):
    """A limit (bytes or ms) and the action at it."""

    limit: int
    policy: str


class Policies(msgspec.Struct, omit_defaults=True):
    """None means: not set here, inherit."""

    retention: Retention | None = None
    backlog_quota_size: BacklogQuota | None = None
    backlog_quota_age: BacklogQuota | None = None
    message_ttl_ms: int | None = None
    dead_letter_topic: str | None = None
    expires_ms: int | None = None
    deduplication: bool | None = None
    delayed_delivery: bool | None = None
    max_producers: int | None = None
    max_consumers: int | None = None
    max_subscriptions: int | None = None
    max_message_size: int | None = None


def resolve(
    topic: Policies | None, namespace: Policies | None, broker: Policies, limits: Sequence[Policies] = ()
) -> Policies:
    resolved = Policies()
    for field in Policies.__struct_fields__:
        for level in (topic, namespace, broker):
            value = getattr(level, field) if level is not None else None
            if value is not None:
                setattr(resolved, field, value)
                break
    return resolved
