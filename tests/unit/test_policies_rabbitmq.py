"""The statements of RabbitMQ's guide to time-to-live that this broker keeps: TTLs, TTL 0, dead letters, expires."""

from __future__ import annotations

import json

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import BrokerError, NotAllowed
from heliograph_broker.messaging.clients.producer import Producer, Receipt
from heliograph_broker.messaging.delivery.subscription import AckId
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.base.entry import Entry

from tests.support.core import Client, Core
from tests.support.entries import make_message
from tests.support.policy_cases import (
    HOUR,
    MINUTE,
    SECOND,
    backlog,
    properties_of,
    set_policies,
    stored,
    taken,
    texts_of,
)
from tests.support.subscription_types import EXCLUSIVE, SHARED

DEAD = "persistent://public/default/dead"
BAD_BATCH = (make_message(b"a", ttl="1000"), make_message(b"b", ttl="nonsense"))


def letters(core: Core, topic: Topic) -> list[Entry]:
    """Return the entries of a dead-letter topic as its subscription ``watch`` gets them."""
    client = Client()
    subscription = topic.subscription("watch")
    consumer = core.consumer(subscription, SHARED, client, permits=10_000)
    subscription.remove_consumer(consumer)
    return [entry for _, entry, _, _ in client.take()]


def with_dead_letters(core: Core, ttl_ms: int | None = None) -> Topic:
    """Send what expires in ``t`` to a topic with a subscription."""
    dead = core.topic(DEAD)
    dead.create_subscription("watch")
    core.topic("t")
    core.broker.policies.set_topic(TopicName.parse("t"), Policies(message_ttl_ms=ttl_ms, dead_letter_topic=DEAD))
    core.commit()
    return dead


# -- the TTL of a topic, and that of a message -------------------------------------------------------------------


def test_a_message_longer_in_a_topic_than_its_ttl_is_discarded(core: Core) -> None:
    set_policies(core, Policies(message_ttl_ms=SECOND))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(SECOND)
    assert backlog(core, subscription) == []


def test_an_expired_message_is_never_delivered_not_even_between_two_ticks(core: Core) -> None:
    set_policies(core, Policies(message_ttl_ms=SECOND))
    topic = core.topic()
    for name, kind in (("exclusive", EXCLUSIVE), ("shared", SHARED)):
        topic.create_subscription(name)
        core.publish_all(topic, "a")
        core.clock.advance_ms(SECOND)
        client = Client()
        core.consumer(topic.subscription(name), kind, client, permits=10)
        core.commit()
        assert taken(client) == []


def test_an_expired_message_behind_others_that_live_is_never_delivered(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.publish_all(topic, "lives")
    core.publish(producer, b"dies", ttl="1000")
    core.publish_all(producer, "lives too")
    core.clock.advance_ms(SECOND)
    client = Client()
    core.consumer(subscription, EXCLUSIVE, client, permits=10)
    assert taken(client) == ["lives", "lives too"]


def test_an_expired_message_behind_others_is_removed_too_and_counts_in_no_backlog(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.publish_all(topic, "lives")
    core.publish(producer, b"dies", ttl="1000")
    core.publish_all(producer, "lives too")
    core.advance(SECOND)
    assert (subscription.acks.backlog_messages, subscription.expiry.msg_expired) == (2, 1)


def test_messages_are_removed_within_a_second_of_their_expiry(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.producer(topic)
    for ttl in (300, 777, 1500):
        core.publish_all(producer, str(ttl), ttl=str(ttl))
    late = 0
    for _ in range(60):
        core.advance(50)
        now = core.clock.now_ms()
        for offset, ttl in enumerate((300, 777, 1500)):
            due = 1_700_000_000_000 + ttl
            if not subscription.acks.cursor.is_acked(offset):
                late = max(late, now - due)
    assert subscription.expiry.msg_expired == 3
    assert late < SECOND


def test_a_message_may_expire_at_different_times_in_different_topics_and_not_at_all_in_others(core: Core) -> None:
    topics = [core.topic(name) for name in ("short", "long", "ever")]
    for name, ttl in (("short", SECOND), ("long", MINUTE)):
        core.broker.policies.set_topic(TopicName.parse(name), Policies(message_ttl_ms=ttl))
    subscriptions = [topic.create_subscription("s") for topic in topics]
    for topic in topics:
        core.publish_all(topic, "a")
    core.advance(SECOND)
    assert [subscription.acks.backlog_messages for subscription in subscriptions] == [0, 1, 1]
    core.advance(MINUTE)
    assert [subscription.acks.backlog_messages for subscription in subscriptions] == [0, 0, 1]


def test_the_death_of_a_message_for_one_subscription_leaves_it_to_the_others(core: Core) -> None:
    topic = core.topic()
    one, other = topic.create_subscription("one"), topic.create_subscription("other")
    core.publish_all(topic, "a")
    core.advance(SECOND)
    one.expiry.expire_older_than(0, lambda _: None)
    core.commit()
    assert (one.expiry.msg_expired, backlog(core, one), backlog(core, other)) == (1, [], ["a"])


def test_a_publisher_gives_a_message_a_ttl_of_its_own(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a", ttl="60000")
    core.publish_all(topic, "b")
    core.advance(MINUTE - 1)
    assert backlog(core, subscription) == ["a", "b"]
    core.advance(SECOND)
    assert backlog(core, subscription) == ["b"]


@pytest.mark.parametrize(("of_topic", "of_message"), [(MINUTE, "1000"), (SECOND, "60000")])
def test_of_two_ttls_the_lower_one_counts(core: Core, of_topic: int, of_message: str) -> None:
    set_policies(core, Policies(message_ttl_ms=of_topic))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a", ttl=of_message)
    core.advance(SECOND - 1)
    assert subscription.acks.backlog_messages == 1
    core.advance(SECOND)
    assert subscription.acks.backlog_messages == 0


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", " 1", "1 ", "+1", "0x10", "1e3", str(2**63), "٣"])
def test_a_ttl_that_is_not_a_whole_number_of_milliseconds_is_refused_by_name(core: Core, text: str) -> None:
    topic = core.topic()
    topic.create_subscription("s")
    client = Client()
    core.publish_all(core.producer(topic, client), "a", ttl=text)
    ((_, refusal),) = client.errors
    assert isinstance(refusal, NotAllowed)
    assert "x-message-ttl" in str(refusal)
    assert f"'{text}'" in str(refusal)
    assert topic.log.end_offset == 0


def test_a_refusal_comes_between_the_receipts_of_what_was_sent_before_and_after(core: Core) -> None:
    notified: list[int] = []

    class Ordered(Client):
        def send_receipts(self, producer: Producer, receipts: list[Receipt]) -> None:
            notified.extend(receipt[0] for receipt in receipts)

        def send_publish_error(self, producer_id: int, sequence_id: int, error: BrokerError) -> None:
            notified.append(-sequence_id)

    topic = core.topic()
    producer = core.producer(topic, Ordered())
    for sequence_id, ttl in enumerate(["soon", "1", "1", "soon", "never", "1", "soon"], 1):
        core.publish(producer, b"a", ttl=ttl, sequence_id=sequence_id)
    assert notified == [-1]
    core.commit()
    assert notified == [-1, 2, 3, -4, -5, 6, -7]
    assert topic.log.end_offset == 3


@pytest.mark.parametrize("text", ["0", "1", "007", str(2**63 - 1)])
def test_a_ttl_that_is_a_whole_number_of_milliseconds_is_accepted(core: Core, text: str) -> None:
    topic = core.topic()
    topic.create_subscription("s")
    client = Client()
    core.publish_all(core.producer(topic, client), "a", ttl=text)
    assert (client.errors, len(client.receipts)) == ([], 1)


@pytest.mark.parametrize("size", [1, 5000])
@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_messages_in_batches_have_ttls_of_their_own(core: Core, codec: str, size: int) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    a, b, c = (text.encode() * size for text in "abc")
    core.publish_batch(topic, make_message(a, ttl="1000"), b, make_message(c, ttl="2000"), codec=codec)
    core.advance(SECOND)
    assert (subscription.acks.backlog_messages, backlog(core, subscription)) == (2, ["b" * size, "c" * size])
    core.advance(SECOND)
    assert (subscription.acks.backlog_messages, backlog(core, subscription)) == (1, ["b" * size])
    assert subscription.expiry.msg_expired == 2


@pytest.mark.parametrize("size", [1, 5000])
def test_a_payload_that_only_mentions_the_property_has_no_ttl(core: Core, size: int) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    mention = b"\n\rx-message-ttl\x12\x041000" + b"." * size
    core.publish_batch(topic, mention, b"b")
    core.advance(MINUTE)
    assert len(backlog(core, subscription)) == 2


def test_messages_of_an_encrypted_batch_have_no_ttl_that_the_broker_could_read(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    keys = [wire.EncryptionKeys(key="k", value=b"v")]
    for codec in ("NONE", "LZ4"):
        core.publish_batch(topic, make_message(b"a", ttl="1000"), b"b", codec=codec, encryption_keys=keys)
    core.advance(MINUTE)
    assert subscription.acks.backlog_messages == 4


def test_where_that_is_switched_off_batches_are_not_opened(core: Core) -> None:
    set_policies(core, Policies(ttl_in_batches=False))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    client = Client()
    core.publish_batch(core.producer(topic, client), *BAD_BATCH)
    core.advance(MINUTE)
    assert client.errors == []
    assert backlog(core, subscription) == ["a", "b"]


@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_a_batch_with_an_invalid_ttl_in_it_is_refused(core: Core, codec: str) -> None:
    client = Client()
    core.publish_batch(core.producer(core.topic(), client), *BAD_BATCH, codec=codec)
    ((_, refusal),) = client.errors
    assert isinstance(refusal, NotAllowed)
    assert "'nonsense'" in str(refusal)


def test_a_message_given_back_keeps_its_original_expiry(core: Core) -> None:
    set_policies(core, Policies(message_ttl_ms=MINUTE))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    client = Client()
    consumer = core.consumer(subscription, SHARED, client, permits=10)
    core.publish_all(topic, "a")
    core.advance(30 * SECOND)
    subscription.redeliver(consumer, None, None)
    assert taken(client) == ["a", "a"]
    core.advance(29 * SECOND)
    subscription.remove_consumer(consumer)
    assert backlog(core, subscription) == ["a"]
    core.advance(SECOND)
    assert subscription.acks.backlog_messages == 0


# -- TTL 0 -------------------------------------------------------------------------------------------------------


def test_with_a_ttl_of_zero_a_message_expires_unless_it_can_be_delivered_at_once(core: Core) -> None:
    set_policies(core, Policies(message_ttl_ms=0))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "nobody here")
    assert backlog(core, subscription) == []
    client = Client()
    core.consumer(subscription, EXCLUSIVE, client, permits=2)
    core.publish_all(topic, "one", "two", "no permits left")
    assert taken(client) == ["one", "two"]
    core.advance(SECOND)
    assert subscription.expiry.msg_expired == 2


def test_what_was_delivered_with_a_ttl_of_zero_may_be_acknowledged_later(core: Core) -> None:
    set_policies(core, Policies(message_ttl_ms=0))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    consumer = core.consumer(subscription, EXCLUSIVE, Client(), permits=2)
    core.publish_all(topic, "a")
    core.advance(HOUR)
    assert (subscription.expiry.msg_expired, consumer.unacked) == (0, 1)
    subscription.acks.acknowledge(consumer, [AckId(*topic.log.position(0))], None)
    core.commit()
    assert (subscription.acks.backlog_messages, subscription.expiry.msg_expired) == (0, 0)


@pytest.mark.parametrize("how", ["nack", "disconnect"])
def test_what_was_delivered_with_a_ttl_of_zero_and_given_back_expires_at_once(core: Core, how: str) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    client = Client()
    for consumer_id in (1, 2):
        core.consumer(subscription, SHARED, client, permits=10, consumer_id=consumer_id)
    core.publish_all(topic, "a", ttl="0")
    assert taken(client) == ["a"]
    holder = next(one for one in subscription.consumers if one.unacked)
    if how == "nack":
        subscription.redeliver(holder, None, None)
    else:
        subscription.remove_consumer(holder)
    core.advance(SECOND)
    assert taken(client) == []
    assert subscription.expiry.msg_expired == 1


def test_nothing_is_returned_to_the_publisher_of_a_message_with_a_ttl_of_zero(core: Core) -> None:
    topic = core.topic()
    topic.create_subscription("s")
    client = Client()
    core.publish_all(core.producer(topic, client), "a", ttl="0")
    core.advance(SECOND)
    assert (client.errors, len(client.receipts)) == ([], 1)


def test_what_a_ttl_of_zero_discards_goes_to_the_dead_letter_topic(core: Core) -> None:
    dead = with_dead_letters(core, 0)
    topic = core.topic()
    topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(SECOND)
    assert [texts_of(entry) for entry in letters(core, dead)] == [["a"]]


# -- dead letters ------------------------------------------------------------------------------------------------


def test_a_dead_letter_says_what_died_where_when_and_how_often(core: Core) -> None:
    dead = with_dead_letters(core, MINUTE)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a", ttl="30000")
    ledger, entry = topic.log.position(0)
    core.advance(30 * SECOND)
    (letter,) = letters(core, dead)
    assert texts_of(letter) == ["a"]
    assert properties_of(letter) == {
        "x-death-reason": "expired",
        "x-death-topic": "persistent://public/default/t",
        "x-death-subscription": "s",
        "x-death-time": str(core.clock.now_ms()),
        "x-death-count": "1",
        "x-death-message-id": f"{ledger}:{entry}",
        "x-death-topics": '["persistent://public/default/t"]',
        "x-original-message-ttl": "30000",
    }
    assert (subscription.expiry.dead_lettered, subscription.acks.backlog_messages) == (1, 0)


def test_every_subscription_sends_a_letter_of_its_own(core: Core) -> None:
    dead = with_dead_letters(core, MINUTE)
    topic = core.topic()
    for name in ("one", "other"):
        topic.create_subscription(name)
    core.publish_all(topic, "a")
    core.advance(MINUTE)
    assert sorted(properties_of(letter)["x-death-subscription"] for letter in letters(core, dead)) == ["one", "other"]


def test_letters_come_in_the_order_of_their_messages_wherever_in_the_topic_they_expire(core: Core) -> None:
    dead = with_dead_letters(core)
    topic = core.topic()
    topic.create_subscription("s")
    producer = core.producer(topic)
    core.publish(producer, b"stays")
    core.publish_all(producer, *"01234", ttl="1000")
    core.advance(SECOND)
    assert [texts_of(letter) for letter in letters(core, dead)] == [[str(number)] for number in range(5)]


def test_of_a_batch_every_expired_message_is_a_letter(core: Core) -> None:
    dead = with_dead_letters(core, MINUTE)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_batch(topic, b"a", b"b", b"c")
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(0), 0b101)], None)
    ledger, entry = topic.log.position(0)
    core.advance(MINUTE)
    found = letters(core, dead)
    assert [texts_of(letter) for letter in found] == [["a"], ["c"]]
    assert [properties_of(letter)["x-death-message-id"] for letter in found] == [
        f"{ledger}:{entry}:0",
        f"{ledger}:{entry}:2",
    ]


def test_a_letter_lives_by_the_ttl_of_the_dead_letter_topic_not_by_its_own(core: Core) -> None:
    dead = with_dead_letters(core)
    topic = core.topic()
    topic.create_subscription("s")
    core.publish_all(topic, "a", ttl="1000")
    core.advance(SECOND)
    core.advance(24 * HOUR)
    assert [texts_of(letter) for letter in letters(core, dead)] == [["a"]]


def test_a_letter_may_die_again_elsewhere_and_counts_its_deaths(core: Core) -> None:
    first = with_dead_letters(core, SECOND)
    last = core.topic("last")
    last.create_subscription("watch")
    core.broker.policies.set_topic(first.name, Policies(message_ttl_ms=SECOND, dead_letter_topic=str(last.name)))
    topic = core.topic()
    topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(SECOND)
    core.advance(SECOND)
    (letter,) = letters(core, last)
    output = properties_of(letter)
    assert (output["x-death-count"], output["x-death-topic"], output["x-death-subscription"]) == ("2", DEAD, "watch")
    assert json.loads(output["x-death-topics"]) == ["persistent://public/default/t", DEAD]


def test_a_message_does_not_go_round_in_circles(core: Core) -> None:
    dead = with_dead_letters(core, SECOND)
    topic = core.topic()
    core.broker.policies.set_topic(dead.name, Policies(message_ttl_ms=SECOND, dead_letter_topic=str(topic.name)))
    topic.create_subscription("s")
    core.publish_all(topic, "a")
    for _ in range(5):
        core.advance(SECOND)
    assert topic.log.end_offset == 1
    assert (dead.log.end_offset, dead.subscription("watch").expiry.dead_letter_loops) == (1, 1)
    assert dead.subscription("watch").acks.backlog_messages == 0


def test_a_topic_that_is_its_own_dead_letter_topic_drops_what_expires(core: Core) -> None:
    topic = core.topic()
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=SECOND, dead_letter_topic=str(topic.name)))
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(SECOND)
    assert (topic.log.end_offset, subscription.acks.backlog_messages, subscription.expiry.dead_letter_loops) == (
        1,
        0,
        1,
    )


def test_a_new_ttl_dead_letters_what_it_lets_expire(core: Core) -> None:
    dead = with_dead_letters(core)
    topic = core.topic()
    topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(HOUR)
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=MINUTE, dead_letter_topic=DEAD))
    core.advance(SECOND)
    assert [texts_of(letter) for letter in letters(core, dead)] == [["a"]]


def test_a_message_is_acknowledged_only_when_its_letter_is_durable(core: Core) -> None:
    dead = with_dead_letters(core, SECOND)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.clock.advance_ms(SECOND)
    core.broker.ticks.run()
    assert (dead.log.end_offset, subscription.acks.backlog_messages) == (0, 1)
    core.commit()
    assert (dead.log.end_offset, subscription.acks.backlog_messages) == (1, 0)


def test_without_a_dead_letter_topic_what_expires_is_gone(core: Core) -> None:
    core.keep_nothing()
    set_policies(core, Policies(message_ttl_ms=SECOND))
    topic = core.topic()
    topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(SECOND)
    core.advance(SECOND)
    assert stored(core, topic) == []


# -- limits of the operator --------------------------------------------------------------------------------------


def test_a_limit_of_the_tenant_caps_the_ttl_of_its_topics(core: Core) -> None:
    set_policies(core, Policies(message_ttl_ms=HOUR))
    tenant = core.broker.directory.tenants["public"]
    tenant.limits = Policies(message_ttl_ms=MINUTE)
    core.broker.tenants.update("public", tenant)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(MINUTE)
    assert subscription.acks.backlog_messages == 0


def test_a_limit_of_the_broker_caps_the_ttl_also_where_nobody_set_one(core: Core) -> None:
    core.broker.policies.set_broker(Policies(), Policies(message_ttl_ms=MINUTE))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(MINUTE)
    assert subscription.acks.backlog_messages == 0


# -- expires -----------------------------------------------------------------------------------------------------


def exists(core: Core, name: str = "t") -> bool:
    return core.broker.directory.exists(TopicName.parse(name))


def test_a_topic_that_nobody_uses_for_its_period_is_deleted_with_its_messages(core: Core) -> None:
    set_policies(core, Policies(expires_ms=30 * MINUTE))
    topic = core.topic()
    topic.create_subscription("s")
    producer = core.publish_all(topic, "a")
    topic.producer_registry.remove(producer)
    core.advance(30 * MINUTE - 1)
    assert exists(core)
    core.advance(SECOND)
    assert not exists(core)


def test_a_topic_with_a_consumer_does_not_expire(core: Core) -> None:
    set_policies(core, Policies(expires_ms=MINUTE))
    subscription = core.topic().create_subscription("s")
    consumer = core.consumer(subscription, EXCLUSIVE, Client())
    core.advance(HOUR)
    assert exists(core)
    subscription.remove_consumer(consumer)
    core.advance(MINUTE - 1)
    assert exists(core)
    core.advance(SECOND)
    assert not exists(core)


def test_a_topic_with_a_producer_does_not_expire(core: Core) -> None:
    set_policies(core, Policies(expires_ms=MINUTE))
    topic = core.topic()
    producer = core.producer(topic)
    core.advance(HOUR)
    assert exists(core)
    topic.producer_registry.remove(producer)
    core.advance(MINUTE - 1)
    assert exists(core)
    core.advance(SECOND)
    assert not exists(core)


def test_messages_that_wait_do_not_keep_an_unused_topic(core: Core) -> None:
    set_policies(core, Policies(expires_ms=MINUTE))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.publish_all(topic, "a", "b")
    topic.producer_registry.remove(producer)
    assert subscription.acks.backlog_messages == 2
    core.advance(MINUTE)
    core.advance(SECOND)
    assert not exists(core)


def test_asking_for_a_topic_again_renews_its_period(core: Core) -> None:
    set_policies(core, Policies(expires_ms=MINUTE))
    core.topic()
    for _ in range(3):
        core.advance(40 * SECOND)
        core.broker.topics.redeclared(TopicName.parse("t"))
    assert exists(core)
    core.advance(MINUTE + SECOND)
    assert not exists(core)


def test_a_topic_made_from_the_same_name_begins_its_period_anew(core: Core) -> None:
    set_policies(core, Policies(expires_ms=MINUTE))
    core.topic()
    core.advance(MINUTE + SECOND)
    assert not exists(core)
    core.topic()
    core.advance(MINUTE - 1)
    assert exists(core)
    core.advance(SECOND)
    assert not exists(core)
