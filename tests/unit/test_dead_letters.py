"""Expired messages on their way to the dead-letter topic: the real core on virtual time."""

from __future__ import annotations

import msgspec
from heliograph_api.policies.policies import BacklogQuota, Policies, Retention
from heliograph_api.protocol.frames import parse_entry
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.delivery.subscription import AckId
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core
from tests.support.entries import make_batch, make_message, open_entry
from tests.support.subscription_types import EXCLUSIVE, SHARED

DEAD = "persistent://public/default/dead"


def _with(core: Core, policies: Policies, name: str = "t") -> Topic:
    topic = core.topic(name)
    core.broker.policies.set_topic(topic.name, policies)
    return topic


def _letters(core: Core, topic: Topic) -> list[tuple[dict[str, str], bytes]]:
    return [letter for entry in core.read_all(topic) for letter in open_entry(entry.frame)]


def _dead(core: Core) -> Topic:
    """The dead-letter topic, kept readable."""
    topic = core.topic("dead")
    core.broker.policies.set_topic(topic.name, Policies(retention=Retention(-1, -1)))
    return topic


def test_an_expired_message_arrives_with_headers_that_tell_its_story(core: Core) -> None:
    dead = _dead(core)
    topic = _with(core, Policies(message_ttl_ms=1000, dead_letter_topic=DEAD))
    topic.create_subscription("s")
    producer = core.producer(topic)
    core.publish_all(producer, b"payload", key="k", properties={"colour": "red"})
    ledger_id, entry_id = topic.log.last_position()
    core.advance(1000)
    [(headers, payload)] = _letters(core, dead)
    assert payload == b"payload"
    assert headers == {
        "colour": "red",
        "x-death-reason": "expired",
        "x-death-topic": "persistent://public/default/t",
        "x-death-subscription": "s",
        "x-death-time": str(core.clock.now_ms()),
        "x-death-count": "1",
        "x-death-message-id": f"{ledger_id}:{entry_id}",
        "x-death-topics": '["persistent://public/default/t"]',
    }
    subscription = topic.subscription("s")
    assert (subscription.acks.backlog_messages, subscription.expiry.msg_expired, subscription.expiry.dead_lettered) == (
        0,
        1,
        1,
    )


def test_each_subscription_sends_its_own_letter_and_one_that_acknowledged_sends_none(core: Core) -> None:
    dead = _dead(core)
    topic = _with(core, Policies(message_ttl_ms=1000, dead_letter_topic=DEAD))
    for name in ("a", "b", "c"):
        topic.create_subscription(name)
    core.publish_all(topic, b"x", key="k")
    topic.subscription("b").acks.acknowledge_up_to(0, None)
    core.advance(1000)
    assert [headers["x-death-subscription"] for headers, _ in _letters(core, dead)] == ["a", "c"]


def test_the_ttl_of_a_message_is_kept_under_another_name(core: Core) -> None:
    dead = _dead(core)
    topic = _with(core, Policies(dead_letter_topic=DEAD))
    topic.create_subscription("s")
    core.publish_all(topic, b"x", ttl="500", key="k")
    core.advance(500)
    [(headers, _)] = _letters(core, dead)
    assert headers["x-original-message-ttl"] == "500"
    assert "x-message-ttl" not in headers


def test_a_second_death_counts_and_lists_both_topics(core: Core) -> None:
    last = core.topic("last")
    core.broker.policies.set_topic(last.name, Policies(retention=Retention(-1, -1)))
    dead = _with(core, Policies(message_ttl_ms=1000, dead_letter_topic=str(last.name)), "dead")
    dead.create_subscription("mourner")
    topic = _with(core, Policies(message_ttl_ms=1000, dead_letter_topic=DEAD))
    topic.create_subscription("s")
    core.publish_all(topic, b"x", key="k")
    core.advance(1000)
    core.advance(1500)
    [(headers, _)] = _letters(core, last)
    assert headers["x-death-count"] == "2"
    assert msgspec.json.decode(headers["x-death-topics"]) == [str(topic.name), DEAD]
    assert headers["x-death-topic"] == DEAD


def test_a_loop_ends_where_it_began(core: Core) -> None:
    topic = _with(core, Policies(message_ttl_ms=1000, dead_letter_topic=DEAD))
    dead = _with(core, Policies(message_ttl_ms=1000, dead_letter_topic=str(topic.name)), "dead")
    topic.create_subscription("s")
    dead.create_subscription("s")
    core.publish_all(topic, b"x", key="k")
    core.advance(1000)
    assert dead.subscription("s").acks.backlog_messages == 1
    core.advance(2000)
    assert dead.subscription("s").acks.backlog_messages == 0
    assert dead.subscription("s").expiry.dead_letter_loops == 1
    assert topic.subscription("s").acks.backlog_messages == 0


def test_messages_of_a_batch_become_letters_of_their_own(core: Core) -> None:
    dead = _dead(core)
    topic = _with(core, Policies(message_ttl_ms=1000, dead_letter_topic=DEAD))
    topic.create_subscription("s")
    core.publish_batch(topic, b"a", b"b", b"c")
    position = topic.log.last_position()
    subscription = topic.subscription("s")
    subscription.acks.acknowledge_entry(0, 3, topic.log.header(0).size, 0b101)  # type: ignore[union-attr]
    core.advance(1000)
    assert [(payload, headers["x-death-message-id"]) for headers, payload in _letters(core, dead)] == [
        (b"a", f"{position[0]}:{position[1]}:0"),
        (b"c", f"{position[0]}:{position[1]}:2"),
    ]
    assert (subscription.expiry.msg_expired, subscription.acks.backlog_messages) == (2, 0)


def test_messages_of_one_batch_expire_each_at_its_own_time(core: Core) -> None:
    dead = _dead(core)
    topic = _with(core, Policies(ttl_in_batches=True, dead_letter_topic=DEAD))
    topic.create_subscription("s")
    core.publish_entry(
        core.producer(topic),
        *make_batch(make_message(b"late", ttl="5000"), b"never", make_message(b"soon", ttl="1000")),
    )
    core.commit()
    subscription = topic.subscription("s")
    core.advance(1000)
    assert [payload for _, payload in _letters(core, dead)] == [b"soon"]
    assert subscription.acks.backlog_messages == 2
    core.advance(4000)
    assert [payload for _, payload in _letters(core, dead)] == [b"soon", b"late"]
    core.advance(60_000)
    assert (subscription.acks.backlog_messages, subscription.expiry.msg_expired) == (1, 2)


def test_a_consumer_gets_of_a_batch_what_has_not_expired(core: Core) -> None:
    topic = _with(core, Policies(ttl_in_batches=True))
    subscription = topic.create_subscription("s")
    core.publish_batch(topic, make_message(b"soon", ttl="1000"), b"never")
    core.clock.advance_ms(1000)
    client = Client()
    core.consumer(subscription, SHARED, client, permits=10)
    [(_, entry, _, remaining)] = client.take()
    assert remaining == 0b10
    assert [payload for _, payload in open_entry(entry.frame)] == [b"soon", b"never"]
    core.advance(500)
    assert subscription.acks.backlog_messages == 1


def test_letters_go_to_the_partition_that_a_java_producer_chooses_for_their_key(core: Core) -> None:
    base = TopicName.parse(DEAD)
    core.broker.partitioned.create(base, 3)
    core.broker.policies.set_topic(base, Policies(retention=Retention(-1, -1)))
    topic = _with(core, Policies(message_ttl_ms=1000, dead_letter_topic=DEAD))
    topic.create_subscription("s")
    producer = core.producer(topic)
    keys = ("key-1", "key-2", "user-42", "éü", "key-1", "polygenelubricants")
    for key in keys:
        core.publish_all(producer, key.encode(), key=key)
    core.publish_batch(producer, make_message(b"of a batch", key="key-2"), make_message(b"with it", key="key-2"))
    core.advance(1000)
    parts = [core.topic(base.with_partition(index).local) for index in range(3)]
    assert [[payload.decode() for _, payload in _letters(core, part)] for part in parts] == [
        ["key-1", "key-1", "polygenelubricants"],
        ["key-2", "user-42", "of a batch", "with it"],
        ["éü"],
    ]


def test_a_message_stays_while_its_letter_cannot_be_stored_and_nobody_gets_it(core: Core) -> None:
    dead = core.topic("dead")
    quota = BacklogQuota(50, "producer_exception")
    core.broker.policies.set_topic(dead.name, Policies(backlog_quota_size=quota))
    dead.create_subscription("mourner")
    topic = _with(core, Policies(message_ttl_ms=1000, dead_letter_topic=DEAD))
    subscription = topic.create_subscription("s")
    core.publish_all(topic, b"x" * 100, key="k")
    core.advance(1000)
    client = Client()
    core.consumer(subscription, EXCLUSIVE, client, permits=10)
    core.advance(1000)
    assert client.take() == []
    assert (subscription.acks.backlog_messages, subscription.expiry.dead_lettered) == (1, 0)
    assert subscription.expiry.dead_letter_failures >= 1
    core.broker.policies.set_topic(dead.name, Policies())
    for _ in range(10):
        core.advance(50)
    assert (subscription.acks.backlog_messages, subscription.expiry.dead_lettered) == (0, 1)
    assert dead.subscription("mourner").acks.backlog_messages == 1


def test_letters_survive_a_restart_between_expiry_and_reading(core: Core) -> None:
    dead = _dead(core)
    topic = _with(core, Policies(message_ttl_ms=1000, dead_letter_topic=DEAD))
    topic.create_subscription("s")
    core.publish_all(topic, b"x", key="k")
    core.advance(1000)
    core.restart()
    dead = core.topic("dead")
    assert [payload for _, payload in _letters(core, dead)] == [b"x"]
    assert core.topic("t").subscription("s").acks.backlog_messages == 0
    core.advance(10_000)
    assert len(_letters(core, dead)) == 1


def test_a_broken_claim_about_earlier_deaths_is_not_believed(core: Core) -> None:
    dead = _dead(core)
    topic = _with(core, Policies(message_ttl_ms=1000, dead_letter_topic=DEAD))
    topic.create_subscription("s")
    core.publish_all(topic, b"x", properties={"x-death-topics": "{", "x-death-count": "many"}, key="k")
    core.advance(1000)
    [(headers, _)] = _letters(core, dead)
    assert headers["x-death-count"] == "1"
    assert msgspec.json.decode(headers["x-death-topics"]) == [str(topic.name)]


def test_letters_settle_one_by_one_into_a_full_topic_that_is_drained(core: Core) -> None:
    """500 expired messages, a quota of 40 kB on the dead-letter topic, drained every second: each letter once."""
    dead = core.topic("dead")
    quota = BacklogQuota(40_000, "producer_exception")
    core.broker.policies.set_topic(dead.name, Policies(backlog_quota_size=quota, retention=Retention(0, 0)))
    drain = dead.create_subscription("drain")
    client = Client()
    consumer = core.consumer(drain, SHARED, client, permits=10_000)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.producer(topic)
    for number in range(500):
        core.publish(producer, b"%04d" % number + b"x" * 500, sequence_id=number)
    core.commit()
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=1000, dead_letter_topic=str(dead.name)))
    seen: list[bytes] = []
    for _ in range(60):
        core.advance(1000)
        for _, entry, _, _ in client.take():
            seen.append(entry.frame[parse_entry(entry.frame).payload_offset :][:4])
            drain.acks.acknowledge(consumer, [AckId(entry.ledger_id, entry.entry_id)], None)
        core.commit()
    assert subscription.acks.backlog_messages == 0
    assert seen == [b"%04d" % number for number in range(500)]
    assert subscription.expiry.dead_lettered == 500
    assert subscription.expiry.dead_letter_failures > 0


def test_a_batch_of_which_some_letters_were_refused_sends_only_the_others_later(core: Core) -> None:
    dead = core.topic("dead")
    drain = dead.create_subscription("drain")
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_batch(topic, *[b"%04d" % number * 250 for number in range(10)])
    limited = Policies(backlog_quota_size=BacklogQuota(5000, "producer_exception"))
    core.broker.policies.set_topic(dead.name, limited)
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=1000, dead_letter_topic=str(dead.name)))
    core.advance(2000)
    stored = drain.acks.backlog_messages
    assert 0 < stored < 10
    assert subscription.acks.backlog_messages == 10 - stored
    core.broker.policies.set_topic(dead.name, Policies(retention=Retention(-1, -1)))
    for _ in range(5):
        core.advance(1000)
    assert subscription.acks.backlog_messages == 0
    assert [payload[:4] for _, payload in _letters(core, dead)] == [b"%04d" % number for number in range(10)]


def _expiring(core: Core, policies: Policies) -> tuple[Topic, list[object]]:
    """A topic of three messages, old enough, whose letters go to the dead-letter topic; and what was answered."""
    topic = _with(core, msgspec.structs.replace(policies, dead_letter_topic=DEAD))
    topic.create_subscription("s")
    producer = core.producer(topic)
    for payload in (b"1", b"2", b"3"):
        core.publish_all(producer, payload, key="k")
    core.clock.advance_ms(2000)
    return topic, []


def test_what_is_expired_by_hand_twice_is_dead_lettered_once(core: Core) -> None:
    dead = _dead(core)
    topic, answers = _expiring(core, Policies())
    subscription = topic.subscription("s")
    subscription.expiry.expire_older_than(100, answers.append)
    subscription.expiry.expire_older_than(100, answers.append)
    core.commit()
    assert answers == [None, None]
    assert subscription.acks.backlog_messages == 0
    assert [payload for _, payload in _letters(core, dead)] == [b"1", b"2", b"3"]


def test_what_the_ttl_forwards_is_not_forwarded_again_by_hand(core: Core) -> None:
    dead = _dead(core)
    topic, answers = _expiring(core, Policies(message_ttl_ms=1000))
    subscription = topic.subscription("s")
    core.broker.ticks.run()
    assert subscription.expiry.running
    subscription.expiry.expire_older_than(100, answers.append)
    core.commit()
    assert answers == [None]
    assert subscription.acks.backlog_messages == 0
    assert [payload for _, payload in _letters(core, dead)] == [b"1", b"2", b"3"]


def test_a_seek_ends_an_expiry_by_hand_that_waits_for_a_run(core: Core) -> None:
    dead = _dead(core)
    topic, answers = _expiring(core, Policies())
    subscription = topic.subscription("s")
    subscription.expiry.expire_up_to(*topic.log.position(0), answers.append)
    subscription.expiry.expire_older_than(100, answers.append)
    subscription.seek(0, None, answers.append)
    core.commit()
    assert answers == [None, None, None]
    assert subscription.acks.backlog_messages == 3
    # The first had been sent when the seek came.
    assert [payload for _, payload in _letters(core, dead)] == [b"1"]
