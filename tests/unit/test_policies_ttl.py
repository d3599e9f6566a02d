"""Time to live as Pulsar has it: a stopwatch on every message that acknowledges it for those who did not."""

from __future__ import annotations

import pytest
from heliograph_api.policies.policies import Policies, Retention
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.delivery.subscription import AckId

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
from tests.support.subscription_types import EXCLUSIVE, SHARED


def ttl(core: Core, ms: int | None) -> None:
    set_policies(core, Policies(message_ttl_ms=ms))


def test_without_a_ttl_unacknowledged_messages_stay_for_ever(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(10_000 * 24 * HOUR)
    assert backlog(core, subscription) == ["a"]


def test_a_message_is_acknowledged_when_its_ttl_is_over(core: Core) -> None:
    ttl(core, 2 * MINUTE)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(2 * MINUTE - 1)
    assert subscription.acks.backlog_messages == 1
    core.advance(SECOND)
    assert (subscription.acks.backlog_messages, subscription.expiry.msg_expired) == (0, 1)


def test_a_message_with_a_ttl_of_two_seconds_is_gone_after_three(core: Core) -> None:
    ttl(core, 2 * SECOND)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    for _ in range(60):
        core.advance(50)
    assert subscription.acks.backlog_messages == 0


def test_every_message_has_a_stopwatch_of_its_own(core: Core) -> None:
    ttl(core, MINUTE)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    for text in "abc":
        core.publish_all(topic, text)
        core.advance(20 * SECOND)
    assert backlog(core, subscription) == ["b", "c"]
    core.advance(20 * SECOND)
    assert backlog(core, subscription) == ["c"]


def test_an_expired_message_is_let_go_unless_retention_keeps_it(core: Core) -> None:
    core.keep_nothing()
    ttl(core, MINUTE)
    topic = core.topic()
    topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(MINUTE)
    core.advance(SECOND)
    assert stored(core, topic) == []


def test_retention_keeps_expired_messages_readable(core: Core) -> None:
    set_policies(core, Policies(message_ttl_ms=MINUTE, retention=Retention(HOUR, -1)))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(2 * MINUTE)
    assert subscription.acks.backlog_messages == 0
    assert stored(core, topic) == ["a"]


def test_what_was_acknowledged_in_time_does_not_count_as_expired(core: Core) -> None:
    ttl(core, MINUTE)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a", "b")
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(0))], None)
    core.advance(MINUTE)
    assert (subscription.expiry.msg_expired, subscription.acks.messages_acked - subscription.expiry.msg_expired) == (
        1,
        1,
    )


def test_the_clock_of_the_client_does_not_count(core: Core) -> None:
    ttl(core, MINUTE)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    # Its frames say that they were published in 1970.
    core.publish_all(topic, "a")
    core.advance(MINUTE - 1)
    assert backlog(core, subscription) == ["a"]


def test_a_delayed_message_lives_from_when_it_becomes_deliverable(core: Core) -> None:
    ttl(core, MINUTE)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish(core.producer(topic), b"late", deliver_at=core.clock.now_ms() + HOUR)
    core.publish_all(topic, "now")
    core.advance(MINUTE)
    assert subscription.acks.backlog_messages == 1
    core.advance(59 * MINUTE)
    assert backlog(core, subscription) == ["late"]
    core.advance(MINUTE - 1)
    assert subscription.acks.backlog_messages == 1
    core.advance(1)
    core.advance(SECOND)
    assert (subscription.acks.backlog_messages, subscription.expiry.msg_expired) == (0, 2)


def test_with_delayed_delivery_switched_off_a_delayed_message_lives_from_its_publish(core: Core) -> None:
    set_policies(core, Policies(message_ttl_ms=MINUTE, delayed_delivery=False))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "late", deliver_at=core.clock.now_ms() + HOUR)
    core.advance(MINUTE)
    assert subscription.acks.backlog_messages == 0


@pytest.mark.parametrize("own", [None, "1000"])
def test_a_ttl_that_counts_the_delay_ends_before_the_delivery_time(core: Core, own: str | None) -> None:
    set_policies(core, Policies(message_ttl_ms=None if own else SECOND, ttl_counts_delay=True))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    client = Client()
    core.consumer(subscription, SHARED, client, permits=10)
    core.publish_all(topic, "late", ttl=own, deliver_at=core.clock.now_ms() + 10 * SECOND)
    core.advance(SECOND - 1)
    assert subscription.acks.backlog_messages == 1
    core.advance(SECOND + 1)
    assert (subscription.acks.backlog_messages, subscription.expiry.msg_expired) == (0, 1)
    core.advance(10 * SECOND)
    assert taken(client) == []


def test_a_ttl_of_zero_that_counts_the_delay_ends_a_delayed_message_at_once(core: Core) -> None:
    set_policies(core, Policies(message_ttl_ms=0, ttl_counts_delay=True))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    client = Client()
    core.consumer(subscription, SHARED, client, permits=10)
    core.publish_all(topic, "late", deliver_at=core.clock.now_ms() + 10 * SECOND)
    core.advance(SECOND)
    assert (subscription.acks.backlog_messages, taken(client)) == (0, [])


@pytest.mark.parametrize("own", [None, "60000"])
def test_counting_the_delay_applies_to_messages_that_wait_already(core: Core, own: str | None) -> None:
    of_topic = None if own else MINUTE
    set_policies(core, Policies(message_ttl_ms=of_topic))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "late", ttl=own, deliver_at=core.clock.now_ms() + HOUR)
    core.advance(2 * MINUTE)
    assert subscription.acks.backlog_messages == 1
    set_policies(core, Policies(message_ttl_ms=of_topic, ttl_counts_delay=True))
    core.advance(SECOND)
    assert subscription.acks.backlog_messages == 0


def test_a_message_held_by_a_consumer_expires_and_its_late_ack_does_no_harm(core: Core) -> None:
    ttl(core, MINUTE)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    client = Client()
    consumer = core.consumer(subscription, SHARED, client, permits=10)
    core.publish_all(topic, "a", "b")
    positions = [topic.log.position(offset) for offset in range(2)]
    core.advance(MINUTE)
    assert (subscription.expiry.msg_expired, consumer.unacked) == (2, 0)
    core.publish_all(topic, "c")
    outcome: list[object] = []
    subscription.acks.acknowledge(consumer, [AckId(*position) for position in positions], outcome.append)
    core.commit()
    assert outcome == [None]
    assert (subscription.acks.backlog_messages, consumer.unacked) == (1, 1)
    assert taken(client) == ["a", "b", "c"]


def test_a_message_held_by_a_consumer_is_not_delivered_again_once_it_expired(core: Core) -> None:
    ttl(core, MINUTE)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    client = Client()
    consumer = core.consumer(subscription, SHARED, client, permits=10)
    core.publish_all(topic, "a")
    assert taken(client) == ["a"]
    # No tick has seen the time yet.
    core.clock.advance_ms(MINUTE)
    subscription.redeliver(consumer, None, None)
    core.commit()
    assert taken(client) == []


def test_a_message_of_several_subscriptions_expires_for_those_that_did_not_acknowledge_it(core: Core) -> None:
    ttl(core, MINUTE)
    topic = core.topic()
    quick, slow = topic.create_subscription("quick"), topic.create_subscription("slow")
    core.publish_all(topic, "a")
    acknowledge_all(core, quick)
    core.advance(MINUTE)
    assert (quick.expiry.msg_expired, slow.expiry.msg_expired) == (0, 1)


def test_a_new_ttl_applies_to_what_is_stored_already(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(HOUR)
    core.publish_all(topic, "b")
    ttl(core, MINUTE)
    core.advance(SECOND)
    assert backlog(core, subscription) == ["b"]


def test_a_longer_ttl_spares_what_has_not_expired_yet(core: Core) -> None:
    ttl(core, MINUTE)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(30 * SECOND)
    ttl(core, HOUR)
    core.advance(30 * MINUTE)
    assert backlog(core, subscription) == ["a"]


def test_a_removed_ttl_leaves_everything_where_it_is(core: Core) -> None:
    ttl(core, MINUTE)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    ttl(core, None)
    core.advance(24 * HOUR)
    assert backlog(core, subscription) == ["a"]


def test_the_ttl_of_a_topic_counts_before_that_of_its_namespace(core: Core) -> None:
    ttl(core, MINUTE)
    long, none = core.topic("long"), core.topic("none")
    core.broker.policies.set_topic(TopicName.parse("long"), Policies(message_ttl_ms=HOUR))
    core.broker.policies.set_topic(TopicName.parse("none"), Policies(message_ttl_ms=-1))
    topics = (long, none, core.topic("short"))
    subscriptions = [topic.create_subscription("s") for topic in topics]
    for topic in topics:
        core.publish_all(topic, "a")
    core.advance(MINUTE)
    assert [subscription.acks.backlog_messages for subscription in subscriptions] == [1, 1, 0]
    core.advance(HOUR)
    assert [subscription.acks.backlog_messages for subscription in subscriptions] == [0, 1, 0]


def test_a_batch_expires_as_its_messages_do(core: Core) -> None:
    ttl(core, MINUTE)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_batch(topic, b"a", b"b", b"c")
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(0), 0b101)], None)
    core.commit()
    assert subscription.acks.backlog_messages == 2
    core.advance(MINUTE)
    assert (subscription.acks.backlog_messages, subscription.expiry.msg_expired) == (0, 2)


def test_a_ttl_goes_on_over_a_restart(core: Core) -> None:
    ttl(core, MINUTE)
    topic = core.topic()
    topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(30 * SECOND)
    core.restart()
    assert backlog(core, core.topic().subscription("s")) == ["a"]
    core.advance(30 * SECOND)
    assert core.topic().subscription("s").acks.backlog_messages == 0


def test_a_subscription_moved_back_to_expired_messages_does_not_get_them(core: Core) -> None:
    set_policies(core, Policies(message_ttl_ms=MINUTE, retention=Retention(-1, -1)))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(MINUTE)
    core.publish_all(topic, "b")
    subscription.seek(0, None, lambda _: None)
    core.commit()
    assert backlog(core, subscription) == ["b"]
    core.advance(SECOND)
    assert subscription.acks.backlog_messages == 1


def test_readers_see_what_is_stored_expired_or_not(core: Core) -> None:
    set_policies(core, Policies(message_ttl_ms=MINUTE, retention=Retention(-1, -1)))
    topic = core.topic()
    core.publish_all(topic, "a")
    core.advance(HOUR)
    client = Client()
    core.consumer(topic.create_subscription("r", "earliest", durable=False), EXCLUSIVE, client, permits=10)
    assert taken(client) == ["a"]


def test_everything_may_be_expired_by_hand_up_to_an_age(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a", "b")
    core.advance(MINUTE)
    core.publish_all(topic, "c")
    outcome: list[object] = []
    subscription.expiry.expire_older_than(30 * SECOND, outcome.append)
    core.commit()
    assert outcome == [None]
    assert backlog(core, subscription) == ["c"]
    assert subscription.expiry.msg_expired == 2


def test_everything_may_be_expired_by_hand_up_to_a_message(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a", "b", "c")
    outcome: list[object] = []
    subscription.expiry.expire_up_to(*topic.log.position(1), outcome.append)
    core.commit()
    assert outcome == [None]
    assert backlog(core, subscription) == ["c"]
    assert subscription.expiry.msg_expired == 2
