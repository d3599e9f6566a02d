"""Backlog quotas, sentence by sentence: how much may wait, how long, and what happens to who exceeds it."""

from __future__ import annotations

import pytest
from heliograph_api.policies.policies import BacklogQuota, Policies
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.clients.access_mode import AccessMode
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.delivery.subscription import AckId
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core
from tests.support.policy_cases import (
    HOUR,
    MINUTE,
    SECOND,
    acknowledge_all,
    backlog,
    set_policies,
    stored,
    taken,
)
from tests.support.subscription_types import EXCLUSIVE

HOLD, REFUSE, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"


def size_quota(core: Core, limit: int, action: str) -> None:
    set_policies(core, Policies(backlog_quota_size=BacklogQuota(limit, action)))


def age_quota(core: Core, limit_ms: int, action: str) -> None:
    set_policies(core, Policies(backlog_quota_age=BacklogQuota(limit_ms, action)))


def goes_on(producer: Producer) -> bool:
    """Whether the producer may still publish: refused and held ones are closed and have to come back."""
    return producer.topic.producer_registry.may_publish(producer)


def try_to_send(core: Core, topic: Topic, text: str, size: int) -> bool:
    """Publish from a producer of its own; return whether the message was stored."""
    before = topic.log.end_offset
    producer = core.producer(topic, Client(), f"try-{text}")
    core.publish_all(producer, text, size=size)
    return topic.log.end_offset > before


@pytest.mark.parametrize("action", [HOLD, REFUSE])
def test_not_a_byte_more_than_the_size_quota_gets_in(core: Core, action: str) -> None:
    size_quota(core, 1000, action)
    topic = core.topic()
    topic.create_subscription("s")
    assert [try_to_send(core, topic, text, 250) for text in "abcde"] == [True, True, True, True, False]
    assert topic.statistics.backlog_size() == 1000
    assert topic.quota.refused_size == 1


def test_a_burst_is_counted_before_it_is_on_the_disk(core: Core) -> None:
    size_quota(core, 1000, REFUSE)
    topic = core.topic()
    topic.create_subscription("s")
    producer = core.producer(topic)
    core.publish_all(producer, *"0123", "over", size=250)
    assert (topic.log.end_offset, goes_on(producer)) == (4, False)


@pytest.mark.parametrize("action", [HOLD, REFUSE])
def test_exclusive_access_passes_on_from_a_producer_that_exceeds_the_quota(core: Core, action: str) -> None:
    size_quota(core, 1000, action)
    topic, client = core.topic(), Client()
    topic.create_subscription("s")
    producer = core.producer(topic, client, access_mode=AccessMode.EXCLUSIVE)
    core.producer(topic, client, "next", access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)
    core.publish_all(producer, "large", size=1001)
    assert list(topic.producers) == ["next"]
    assert len(client.ready_producers) == 1


@pytest.mark.parametrize("action", [HOLD, REFUSE])
def test_there_is_room_again_as_soon_as_something_is_acknowledged(core: Core, action: str) -> None:
    size_quota(core, 1000, action)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, *"abcd", size=250)
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(0))], None)
    core.commit()
    assert try_to_send(core, topic, "e", 250)
    assert not try_to_send(core, topic, "f", 250)


def test_the_slowest_subscription_is_the_one_that_counts(core: Core) -> None:
    size_quota(core, 1000, REFUSE)
    topic = core.topic()
    quick = topic.create_subscription("quick")
    topic.create_subscription("slow")
    core.publish_all(topic, *"abcd", size=250)
    acknowledge_all(core, quick)
    assert not try_to_send(core, topic, "e", 250)


def test_without_a_subscription_there_is_no_backlog_to_limit(core: Core) -> None:
    size_quota(core, 1000, REFUSE)
    topic = core.topic()
    core.publish_all(topic, *"abcdefgh", size=250)
    reader = topic.create_subscription("r", "earliest", durable=False)
    core.consumer(reader, EXCLUSIVE, Client())
    core.publish_all(topic, *"abcdefgh", size=250)
    assert topic.log.end_offset == 16


def test_each_topic_of_a_namespace_has_the_whole_quota_for_itself(core: Core) -> None:
    size_quota(core, 1000, REFUSE)
    for name in ("one", "other"):
        topic = core.topic(name)
        topic.create_subscription("s")
        core.publish_all(topic, *"abcd", size=250)
        assert topic.statistics.backlog_size() == 1000


def test_the_quota_of_a_topic_counts_before_that_of_its_namespace(core: Core) -> None:
    size_quota(core, 1000, REFUSE)
    topic = core.topic()
    topic.create_subscription("s")
    core.broker.policies.set_topic(TopicName.parse("t"), Policies(backlog_quota_size=BacklogQuota(500, REFUSE)))
    assert [try_to_send(core, topic, text, 250) for text in "abc"] == [True, True, False]


def test_a_limit_of_the_tenant_caps_the_quota(core: Core) -> None:
    size_quota(core, 1_000_000, HOLD)
    tenant = core.broker.directory.tenants["public"]
    tenant.limits = Policies(backlog_quota_size=BacklogQuota(500, REFUSE))
    core.broker.tenants.update("public", tenant)
    topic = core.topic()
    topic.create_subscription("s")
    assert [try_to_send(core, topic, text, 250) for text in "abc"] == [True, True, False]


def test_a_removed_quota_limits_nothing_any_more(core: Core) -> None:
    size_quota(core, 500, REFUSE)
    topic = core.topic()
    topic.create_subscription("s")
    core.publish_all(topic, *"ab", size=250)
    assert not try_to_send(core, topic, "c", 250)
    set_policies(core, Policies())
    assert try_to_send(core, topic, "d", 250)


def test_a_new_quota_counts_what_is_stored_already(core: Core) -> None:
    topic = core.topic()
    topic.create_subscription("s")
    core.publish_all(topic, *"abcd", size=250)
    size_quota(core, 500, REFUSE)
    assert not try_to_send(core, topic, "e", 1)


@pytest.mark.parametrize("action", [HOLD, REFUSE])
def test_an_age_quota_stops_publishing_while_the_oldest_message_is_too_old(core: Core, action: str) -> None:
    age_quota(core, HOUR, action)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(HOUR)
    assert try_to_send(core, topic, "b", 1)
    core.advance(SECOND)
    assert not try_to_send(core, topic, "c", 1)
    assert topic.quota.refused_age == 1
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(0))], None)
    core.commit()
    assert try_to_send(core, topic, "d", 1)


def test_a_held_producer_goes_on_by_itself_when_there_is_room(core: Core) -> None:
    size_quota(core, 1000, HOLD)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.publish_all(topic, *"abcd", size=250)
    core.publish_all(producer, "e", size=250)
    assert not goes_on(producer)
    assert not topic.quota.check_creation(producer.name, returning=True)
    resumed: list[int] = []
    topic.quota.hold(lambda: resumed.append(core.clock.now_ms()))
    core.advance(MINUTE)
    assert resumed == []
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(0))], None)
    core.commit()
    core.advance(SECOND)
    assert resumed == [core.clock.now_ms()]
    assert topic.quota.check_creation(producer.name, returning=True)


def test_eviction_acknowledges_the_oldest_until_the_rest_fits(core: Core) -> None:
    core.keep_nothing()
    size_quota(core, 1000, EVICT)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, *"abcdef", size=250)
    core.advance(SECOND)
    assert backlog(core, subscription) == list("cdef")
    assert (topic.quota.evicted_size, topic.quota.evictions_size) == (2, 1)
    assert stored(core, topic) == list("cdef")


def test_eviction_takes_from_every_subscription_that_is_over_the_quota_and_from_no_other(core: Core) -> None:
    size_quota(core, 1000, EVICT)
    topic = core.topic()
    slow, slower, quick = (topic.create_subscription(name) for name in ("slow", "slower", "quick"))
    core.publish_all(topic, *"abcdef", size=250)
    slow.acks.acknowledge_up_to(0, None)
    quick.acks.acknowledge_up_to(3, None)
    core.advance(SECOND)
    assert [backlog(core, one) for one in (slow, slower, quick)] == [list("cdef"), list("cdef"), list("ef")]


def test_eviction_by_age_takes_what_is_too_old_and_nothing_else(core: Core) -> None:
    age_quota(core, MINUTE, EVICT)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    for text in "abc":
        core.publish_all(topic, text)
        core.advance(20 * SECOND)
    assert backlog(core, subscription) == ["a", "b", "c"]
    core.advance(SECOND)
    assert backlog(core, subscription) == ["b", "c"]
    assert topic.quota.evicted_age == 1


def test_eviction_delivers_nothing_again(core: Core) -> None:
    size_quota(core, 1000, EVICT)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    client = Client()
    core.consumer(subscription, EXCLUSIVE, client, permits=100)
    core.publish_all(topic, *"abcdef", size=250)
    assert taken(client) == list("abcdef")
    core.advance(SECOND)
    core.publish_all(topic, "g", size=250)
    core.advance(SECOND)
    assert taken(client) == ["g"]
    assert subscription.acks.backlog_messages == 4


def test_what_eviction_takes_is_not_dead_lettered(core: Core) -> None:
    dead = core.topic("dead")
    set_policies(
        core,
        Policies(backlog_quota_size=BacklogQuota(500, EVICT), message_ttl_ms=HOUR, dead_letter_topic=str(dead.name)),
    )
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, *"abcd", size=250)
    core.advance(SECOND)
    assert backlog(core, subscription) == ["c", "d"]
    assert (dead.log.end_offset, subscription.expiry.msg_expired) == (0, 0)


def test_a_backlog_is_cleared_by_hand(core: Core) -> None:
    topic = core.topic()
    one, other = topic.create_subscription("one"), topic.create_subscription("other")
    core.publish_all(topic, "a", "b")
    outcome: list[object] = []
    one.acks.clear_backlog(outcome.append)
    core.commit()
    assert outcome == [None]
    assert (one.acks.backlog_messages, other.acks.backlog_messages) == (0, 2)


def test_how_much_of_the_quota_is_used_can_be_told_before_it_is_exceeded(core: Core) -> None:
    size_quota(core, 1000, REFUSE)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a", "b", size=250)
    core.advance(7 * SECOND)
    assert topic.effective.backlog_quota_size == BacklogQuota(1000, REFUSE)
    assert topic.statistics.backlog_size() == 500
    assert topic.statistics.oldest_backlog() == (subscription, 7 * SECOND)
