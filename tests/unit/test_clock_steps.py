"""The wall clock is set: what is stored keeps its age, and nothing that comes later is poisoned. The real core."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from heliograph_api.policies.policies import BacklogQuota, Policies, Retention
from heliograph_broker.clock import CONFIRM_S
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core
from tests.support.subscription_types import SHARED

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
YEAR = 365 * 24 * HOUR
LONG = round(CONFIRM_S * 1000) + SECOND
TTL = 10 * MINUTE


def _pass(core: Core, ms: int) -> None:
    """Let time pass in steps of a second, as ticks see it."""
    for _ in range(ms // SECOND):
        core.advance(SECOND)


def _sub(core: Core) -> Subscription:
    return core.topic().subscription("s")


def _nothing(core: Core) -> None:
    """The broker goes on."""


def _restart(core: Core) -> None:
    core.restart()


def _crash(core: Core) -> None:
    core.crash()


Between = Callable[[Core], None]
BETWEEN = pytest.mark.parametrize("between", [_nothing, _restart, _crash])
STEPS = pytest.mark.parametrize("step", [-HOUR, YEAR, HOUR, -YEAR])


def _with_ttl(core: Core) -> None:
    topic = core.topic()
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=TTL))
    topic.create_subscription("s")
    core.commit()


@STEPS
def test_machinery_goes_on_while_the_clock_is_set(core: Core, step: int) -> None:
    topic = core.topic()
    core.broker.policies.set_topic(topic.name, Policies(retention=Retention(0, 0)))
    subscription = topic.create_subscription("s")
    core.publish_all(core.topic(), count=50)
    core.clock.step_wall_ms(step)
    for entry in range(50):
        subscription.acks.acknowledge(None, [AckId(*topic.log.position(entry))], None)
    core.commit()
    core.advance(500)
    core.advance(500)
    assert topic.statistics.stored_messages == 0
    core.crash()
    assert _sub(core).acks.backlog_messages == 0


@STEPS
def test_one_message_published_meanwhile_is_like_the_others(core: Core, step: int) -> None:
    _with_ttl(core)
    core.publish_all(core.topic())
    core.clock.step_wall_ms(step)
    core.advance(50)
    core.publish_all(core.topic())
    core.clock.step_wall_ms(-step)
    core.advance(50)
    core.publish_all(core.topic(), count=99)
    _pass(core, TTL - MINUTE)
    assert _sub(core).acks.backlog_messages == 101
    _pass(core, 2 * MINUTE)
    assert _sub(core).acks.backlog_messages == 0


@BETWEEN
@STEPS
def test_ttl_holds_when_the_clock_stays_set(core: Core, step: int, between: Between) -> None:
    _with_ttl(core)
    core.publish_all(core.topic())
    _pass(core, 4 * MINUTE)
    core.clock.step_wall_ms(step)
    _pass(core, LONG)
    between(core)
    core.publish_all(core.topic())
    assert _sub(core).acks.backlog_messages == 2
    _pass(core, 4 * MINUTE)
    assert _sub(core).acks.backlog_messages == 2
    _pass(core, 2 * MINUTE)
    assert _sub(core).acks.backlog_messages == 1
    between(core)
    _pass(core, 5 * MINUTE)
    assert _sub(core).acks.backlog_messages == 0
    # And set back again.
    core.publish_all(core.topic())
    core.clock.step_wall_ms(-step)
    _pass(core, LONG)
    between(core)
    assert _sub(core).acks.backlog_messages == 1
    _pass(core, TTL)
    assert _sub(core).acks.backlog_messages == 0


@pytest.mark.parametrize("step", [-HOUR, -YEAR])
def test_ttl_holds_when_the_broker_starts_with_its_clock_set_back(core: Core, step: int) -> None:
    """Nobody can tell by how much it was: what is stored may stay longer, by at most its age; never shorter."""
    _with_ttl(core)
    core.publish_all(core.topic())
    _pass(core, 4 * MINUTE)
    core.clock.step_wall_ms(step)
    core.restart()
    core.publish_all(core.topic(), count=5)
    _pass(core, 5 * MINUTE)
    assert _sub(core).acks.backlog_messages == 6
    core.restart()
    _pass(core, 6 * MINUTE)
    assert _sub(core).acks.backlog_messages == 0
    # It is put right while the broker runs, and the broker starts again.
    core.publish_all(core.topic())
    core.clock.step_wall_ms(-step)
    _pass(core, LONG)
    core.restart()
    core.publish_all(core.topic())
    _pass(core, TTL - 3 * MINUTE)
    assert _sub(core).acks.backlog_messages == 2
    _pass(core, 4 * MINUTE)
    assert _sub(core).acks.backlog_messages == 0


def test_a_topic_dated_a_year_ahead_is_healed_by_a_restart(core: Core) -> None:
    _with_ttl(core)
    core.publish_all(core.topic())
    topic = core.topic()
    # As a broker left it whose clock was a year ahead when it started.
    topic.log.last_receive_ms = core.broker.clock.now_ms() + YEAR
    core.publish_all(core.topic())
    core.publish_all(core.topic(), count=99)
    core.restart()
    core.publish_all(core.topic())
    assert _sub(core).acks.oldest_unacked_age_ms() == 0
    topic = core.topic()
    header = topic.log.header(topic.log.end_offset - 1)
    assert header is not None
    assert header.receive_ms == core.clock.now_ms()
    _pass(core, TTL - MINUTE)
    assert _sub(core).acks.backlog_messages == 102
    core.crash()
    _pass(core, 2 * MINUTE)
    assert _sub(core).acks.backlog_messages == 0


@BETWEEN
@STEPS
def test_retention_by_time_holds(core: Core, step: int, between: Between) -> None:
    topic = core.topic()
    core.broker.policies.set_topic(topic.name, Policies(retention=Retention(TTL, -1)))
    core.publish_all(core.topic())
    _pass(core, 4 * MINUTE)
    core.clock.step_wall_ms(step)
    _pass(core, LONG)
    between(core)
    core.publish_all(core.topic())
    _pass(core, 4 * MINUTE)
    assert core.topic().statistics.stored_messages == 2
    _pass(core, 2 * MINUTE)
    assert core.topic().statistics.stored_messages == 1
    between(core)
    _pass(core, 5 * MINUTE)
    assert core.topic().statistics.stored_messages == 0


@BETWEEN
@STEPS
def test_a_quota_by_age_holds(core: Core, step: int, between: Between) -> None:
    topic = core.topic()
    quota = BacklogQuota(TTL, "consumer_backlog_eviction")
    core.broker.policies.set_topic(topic.name, Policies(backlog_quota_age=quota))
    topic.create_subscription("s")
    core.publish_all(core.topic())
    _pass(core, 4 * MINUTE)
    core.clock.step_wall_ms(step)
    _pass(core, LONG)
    between(core)
    core.publish_all(core.topic())
    age = _sub(core).acks.oldest_unacked_age_ms()
    assert abs(age - 5 * MINUTE) <= 2 * SECOND
    _pass(core, 4 * MINUTE)
    assert _sub(core).acks.backlog_messages == 2
    _pass(core, 2 * MINUTE)
    assert _sub(core).acks.backlog_messages == 1
    between(core)
    _pass(core, 5 * MINUTE)
    assert _sub(core).acks.backlog_messages == 0


@STEPS
def test_delays_hold_while_the_clock_is_set_for_a_moment(core: Core, step: int) -> None:
    topic: Topic = core.topic()
    client = Client()
    core.consumer(topic.create_subscription("s"), SHARED, client, permits=10)
    core.publish(core.producer(topic), deliver_at=core.clock.now_ms() + MINUTE)
    core.commit()
    _pass(core, 30 * SECOND)
    core.clock.step_wall_ms(step)
    _pass(core, 10 * SECOND)
    core.clock.step_wall_ms(-step)
    _pass(core, 19 * SECOND)
    assert client.messages == []
    _pass(core, 2 * SECOND)
    assert len(client.messages) == 1


@STEPS
def test_an_idle_topic_is_not_deleted_by_a_clock(core: Core, step: int) -> None:
    topic = core.topic()
    core.broker.policies.set_topic(topic.name, Policies(expires_ms=10 * MINUTE, subscription_expiration_ms=HOUR))
    topic.create_subscription("s")
    core.commit()
    _pass(core, MINUTE)
    core.clock.step_wall_ms(step)
    _pass(core, 5 * MINUTE)
    assert str(topic.name) in core.broker.directory.topics
    _pass(core, 5 * MINUTE)
    assert str(topic.name) not in core.broker.directory.topics
