"""Expectations: everything confirmed exists, and messages that have had time to expire may be gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.topic.topic import Topic

from .model import Violation

if TYPE_CHECKING:
    from .world import World

#: Time within which the broker accepts that the wall clock was set.
_BELIEVED_AFTER_MS = 70_000


def check_promised(world: World) -> None:
    """Everything confirmed is there: tenants, namespaces, topics, subscriptions, policies."""
    broker = world.machine.broker
    for tenant in world.tenants:
        if tenant not in broker.directory.tenants:
            raise Violation("confirmed and gone", f"tenant {tenant}")
    for namespace in world.namespaces:
        if namespace not in broker.directory.namespaces:
            raise Violation("confirmed and gone", f"namespace {namespace}")
    for topic in world.topics.values():
        if not topic.confirmed or topic.unknown:
            continue
        found = broker.directory.topics.get(topic.name)
        if not isinstance(found, Topic):
            raise Violation("confirmed and gone", f"topic {topic.name}")
        for subscription in topic.owed():
            if subscription.name not in found.subscriptions:
                raise Violation("confirmed and gone", f"subscription {subscription!r}")
        if found.policies not in topic.policies:
            raise Violation("confirmed and gone", f"policies of {topic.name}: {found.policies}")


def note_expired(world: World) -> None:
    """Note which messages may have expired by now."""
    now = world.machine.clock.now_ms()
    world.expired_noted_ms = world.machine.clock.passed_ms
    for topic in world.topics.values():
        for message in topic.messages:
            if topic.evicts:
                message.may_have_expired = True
            ttl = message.ttl_ms if topic.ttl_ms < 0 else topic.ttl_ms
            if 0 <= message.ttl_ms < ttl:
                ttl = message.ttl_ms
            # By the wall clock, or by the time that really passed.
            age = max(now - message.earliest_ms, world.machine.clock.passed_ms - message.passed_ms)
            if ttl >= 0 and message.times_sent and age >= ttl - 1:
                message.may_have_expired = True


def earliest_ms(world: World) -> int:
    """Return the earliest wall-clock time that the broker may take it to be now.

    A clock that is set is believed a minute later, or at the next start: then what was stamped by the old one
    ages by the difference.
    """
    clock = world.machine.clock
    world.offsets = [(until, offset) for until, offset in world.offsets if until >= clock.passed_ms]
    return clock.passed_ms + min([clock.offset_ms, *(offset for _, offset in world.offsets)])


def note_started(world: World) -> None:
    """The broker has started: what is stamped later than it is now counts as received now."""
    earliest = earliest_ms(world)
    for topic in world.topics.values():
        for message in topic.messages:
            message.earliest_ms = min(message.earliest_ms, earliest)


def set_wall_clock(world: World, offset_ms: int) -> None:
    """Set the wall clock: so far (ms) it is ahead of virtual time from now on."""
    note_expired(world)
    clock = world.machine.clock
    world.stepped = True
    world.offsets.append((clock.passed_ms + _BELIEVED_AFTER_MS, clock.offset_ms))
    clock.offset_ms = offset_ms
    note_expired(world)
