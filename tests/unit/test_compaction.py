"""Topic compaction on the real core: what stays, who sees it, what survives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from heliograph_api.policies.policies import Policies, Retention
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import parse_entry
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import Conflict
from heliograph_broker.messaging.base.names import COMPACTION
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.compaction import compaction_run
from heliograph_broker.messaging.compaction.compaction import RETRY_MS
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.messages.batches import open_batch
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.messaging.topic.truncation import truncate
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.usecases.compaction import start_compaction

from tests.support.core import Client, Core
from tests.support.entries import make_message
from tests.support.subscription_types import EXCLUSIVE, FAILOVER

FOREVER = Policies(retention=Retention(-1, -1))
SECRET = wire.EncryptionKeys(key="k", value=b"v")


@pytest.fixture
def core_settings() -> dict[str, int]:
    return {"ledger_max_entries": 7}


@pytest.fixture
def core(core: Core) -> Core:
    core.keep_nothing()
    return core


class Seen(NamedTuple):
    """A message as a consumer sees it."""

    key: str | None
    payload: bytes
    position: tuple[int, int, int]


def publish(core: Core, topic: Topic, *messages: tuple[str | None, bytes], **fields: object) -> None:
    """Publish single messages; empty payloads delete their key."""
    for key, payload in messages:
        core.publish(core.producer_of(topic), payload, key=key, publish_time=core.clock.now_ms(), **fields)
    core.commit()


def publish_batch(core: Core, topic: Topic, *messages: tuple[str | None, bytes], codec: str = "NONE") -> None:
    batch = [make_message(payload, key=key) for key, payload in messages]
    core.publish_batch(topic, *batch, publish_time=core.clock.now_ms(), codec=codec)


def compact(core: Core, topic: Topic) -> None:
    topic.compaction.start()
    core.commit()
    assert topic.compaction.status() == ("SUCCESS", "")


def reader(
    core: Core, topic: Topic, name: str = "r", *, permits: int = 1000, start: int = 0, compacted: bool = True
) -> tuple[Subscription, Consumer, Client]:
    """Return a reader that is not durable, from the offset ``start`` on (0: what the view has, trimmed or not)."""
    subscription = topic.create_subscription(name, durable=False, start_offset=start)
    return attach(subscription, permits=permits, compacted=compacted, owed=0 if compacted and start == 0 else -1)


def attach(
    subscription: Subscription, *, permits: int = 1000, compacted: bool = True, owed: int = -1
) -> tuple[Subscription, Consumer, Client]:
    client = Client()
    consumer = Consumer(subscription, client, 1, "c")
    consumer.read_compacted = compacted
    subscription.add_consumer(consumer, EXCLUSIVE)
    if owed >= 0 and subscription.view is not None:
        subscription.view.owe(owed)
    subscription.flow(consumer, permits)
    return subscription, consumer, client


def opened(entry: Entry, remaining: int | None) -> Iterator[Seen]:
    metadata, at = parse_entry(entry.frame)
    if not metadata.HasField("num_messages_in_batch"):
        key = metadata.partition_key if metadata.HasField("partition_key") else None
        yield Seen(key, entry.frame[at:], (entry.ledger_id, entry.entry_id, -1))
        return
    for index, (single, payload) in enumerate(open_batch(metadata, entry.frame[at:])):
        if remaining is None or remaining >> index & 1:
            assert not single.compacted_out
            key = single.partition_key if single.HasField("partition_key") else None
            yield Seen(key, payload, (entry.ledger_id, entry.entry_id, index))


def seen(client: Client) -> list[Seen]:
    return [message for _, entry, _, remaining in client.take() for message in opened(entry, remaining)]


def contents(client: Client) -> list[tuple[str | None, bytes]]:
    return [(message.key, message.payload) for message in seen(client)]


def view(core: Core, topic: Topic) -> list[tuple[str | None, bytes]]:
    subscription, consumer, client = reader(core, topic, "view")
    found = contents(client)
    subscription.remove_consumer(consumer)
    return found


def set_policies(core: Core, topic: Topic, policies: Policies) -> None:
    core.broker.policies.set_topic(topic.name, policies)
    core.commit()


def test_last_value_of_each_key_stays_in_the_topics_order(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    publish(core, topic, ("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("b", b"2"))
    compact(core, topic)
    publish(core, topic, ("a", b"3"))
    assert view(core, topic) == [("a", b"2"), ("c", b"1"), ("b", b"2"), ("a", b"3")]


def test_without_read_compacted_everything_is_seen(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    publish(core, topic, ("a", b"1"), ("a", b"2"), ("a", b""))
    compact(core, topic)
    assert contents(reader(core, topic, compacted=False)[2]) == [("a", b"1"), ("a", b"2"), ("a", b"")]


def test_before_any_compaction_read_compacted_sees_everything(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    publish(core, topic, ("a", b"1"), ("a", b"2"))
    assert view(core, topic) == [("a", b"1"), ("a", b"2")]


@pytest.mark.parametrize("tombstone", [{}, {"null_value": True}])
def test_null_payload_deletes_its_key(core: Core, tombstone: dict[str, object]) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    publish(core, topic, ("a", b"1"), ("b", b"1"))
    publish(core, topic, ("a", b""), **tombstone)
    compact(core, topic)
    assert view(core, topic) == [("b", b"1")]
    publish(core, topic, ("b", b""))
    compact(core, topic)
    assert view(core, topic) == []
    publish(core, topic, ("b", b"2"))
    compact(core, topic)
    assert view(core, topic) == [("b", b"2")]


def test_messages_without_key_go_unless_they_are_to_stay(tmp_path: Path) -> None:
    for retain in (False, True):
        core = Core(tmp_path / str(retain), compaction_retain_null_key=retain)
        topic = core.topic()
        set_policies(core, topic, FOREVER)
        publish(core, topic, (None, b"1"), ("a", b"1"), (None, b"2"))
        publish_batch(core, topic, (None, b"3"), ("a", b"2"))
        compact(core, topic)
        kept = [(None, b"1"), (None, b"2"), (None, b"3"), ("a", b"2")]
        assert view(core, topic) == (kept if retain else [("a", b"2")])
        core.close()


@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_batches_are_taken_message_by_message_and_keep_their_indexes(core: Core, codec: str) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    filler = b"x" * 300
    publish_batch(core, topic, ("a", b"1"), ("b", filler), ("c", b"1"), ("a", b"2"), codec=codec)
    publish_batch(core, topic, ("b", b"2"), ("d", filler), ("d", b""), codec=codec)
    ledger, entry = topic.log.position(0)
    compact(core, topic)
    client = reader(core, topic)[2]
    assert seen(client) == [
        Seen("c", b"1", (ledger, entry, 2)),
        Seen("a", b"2", (ledger, entry, 3)),
        Seen("b", b"2", (ledger, entry + 1, 0)),
    ]


def test_what_cannot_be_opened_stays_whole(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    core.publish_all(topic, b"sealed", messages=2, encryption_keys=[SECRET])
    core.publish_all(topic, b"no batch", messages=2)
    publish(core, topic, ("a", b"1"))
    frames = [entry.frame for _, entry, _, _ in reader(core, topic, compacted=False)[2].take()]
    compact(core, topic)
    compact(core, topic)
    assert [entry.frame for _, entry, _, _ in reader(core, topic, "again")[2].take()] == frames


def test_single_encrypted_messages_take_part_by_their_key(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    core.publish_all(topic, b"sealed one", b"sealed two", key="a", encryption_keys=[SECRET])
    compact(core, topic)
    assert view(core, topic) == [("a", b"sealed two")]


def test_chunks_of_a_message_share_its_fate(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)

    def chunk(uuid: str, number: int, of: int = 2) -> None:
        publish(
            core,
            topic,
            ("a", f"{uuid}{number}".encode()),
            uuid=uuid,
            chunk_id=number,
            num_chunks_from_msg=of,
            total_chunk_msg_size=10,
        )

    chunk("x", 0)
    chunk("y", 0)
    chunk("x", 1)
    chunk("y", 1)
    chunk("z", 0)
    compact(core, topic)
    assert [payload for _, payload in view(core, topic)] == [b"y0", b"y1", b"z0"]
    chunk("z", 1)
    compact(core, topic)
    assert [payload for _, payload in view(core, topic)] == [b"z0", b"z1"]
    publish(core, topic, ("a", b"small"))
    compact(core, topic)
    assert [payload for _, payload in view(core, topic)] == [b"small"]


def test_compaction_under_way_is_not_started_twice(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, ("a", b"1"))
    assert topic.compaction.status() == ("NOT_RUN", "")
    topic.compaction.start()
    assert topic.compaction.status() == ("RUNNING", "")
    with pytest.raises(Conflict, match="already in progress"):
        topic.compaction.start()
    core.commit()
    assert topic.compaction.status() == ("SUCCESS", "")
    assert topic.compaction.succeeded_ms == core.clock.now_ms()


def test_all_partitions_begin_to_be_compacted_or_none(core: Core) -> None:
    topics = [core.topic(name) for name in ("one", "two", "three")]
    for topic in topics:
        publish(core, topic, ("a", b"1"))
    topics[2].compaction.start()
    with pytest.raises(Conflict, match="already in progress"):
        start_compaction(topics)
    assert [topic.compaction.status()[0] for topic in topics] == ["NOT_RUN", "NOT_RUN", "RUNNING"]
    core.commit()
    start_compaction(topics)
    core.commit()
    assert [topic.compaction.status()[0] for topic in topics] == ["SUCCESS"] * 3


def test_topics_are_compacted_one_after_the_other(core: Core) -> None:
    topics = [core.topic(name) for name in ("one", "two", "three")]
    for topic in topics:
        publish(core, topic, ("a", b"1"), ("a", b"2"))
    for topic in topics:
        topic.compaction.start()
    core.broker.topics.delete(topics[1].name, force=True)
    # Messages that came while a topic waited for its turn are compacted, too.
    publish(core, topics[2], ("a", b"3"))
    for topic in (topics[0], topics[2]):
        assert topic.compaction.status() == ("SUCCESS", "")
    assert view(core, topics[0]) == [("a", b"2")]
    assert view(core, topics[2]) == [("a", b"3")]


def test_empty_topic_is_compacted_to_nothing(core: Core) -> None:
    topic = core.topic()
    compact(core, topic)
    assert topic.compaction.ledger is None
    assert topic.subscriptions[COMPACTION].acks.backlog_messages == 0


def test_compacted_data_outlives_the_originals_and_a_restart(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, *((f"k{i % 5}", b"%d" % i) for i in range(40)), (None, b"no key"))
    positions = {f"k{i % 5}": topic.log.position(i) for i in range(35, 40)}
    assert topic.log.first_offset == 0
    compact(core, topic)
    core.advance(1000)
    assert topic.log.first_offset == topic.log.end_offset == 41
    for _ in range(2):
        client = reader(core, topic)[2]
        found = seen(client)
        assert [(m.key, m.payload) for m in found] == [(f"k{i % 5}", b"%d" % i) for i in range(35, 40)]
        assert {m.key: m.position[:2] for m in found} == positions
        core.restart()
        topic = core.topic()
    assert topic.subscriptions[COMPACTION].acks.backlog_messages == 0
    publish(core, topic, ("k0", b"new"))
    compact(core, topic)
    core.advance(1000)
    assert contents(reader(core, topic)[2])[-1] == ("k0", b"new")
    assert len(view(core, topic)) == 5


def test_nothing_is_trimmed_before_it_is_compacted(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, Policies(compaction_threshold=1_000_000))
    publish(core, topic, *(("a", b"%d" % i) for i in range(10)))
    core.advance(1000)
    core.advance(1000)
    assert topic.log.first_offset == 0
    assert topic.subscriptions[COMPACTION].acks.backlog_messages == 10
    assert topic.statistics.backlog_size() == 0
    compact(core, topic)
    core.advance(1000)
    assert topic.log.first_offset == 10
    assert view(core, topic) == [("a", b"9")]


def test_threshold_starts_compaction_by_itself(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, Policies(compaction_threshold=2000))
    publish(core, topic, *(("a", b"x" * 100) for _ in range(5)))
    core.advance(1000)
    assert topic.compaction.status()[0] == "NOT_RUN"
    publish(core, topic, *(("a", b"x" * 100) for _ in range(20)))
    core.advance(1000)
    assert topic.compaction.status() == ("SUCCESS", "")
    assert view(core, topic) == [("a", b"x" * 100)]
    assert topic.compaction.removed == 24


def test_failed_compaction_leaves_the_last_one_and_is_tried_again(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = core.topic()
    publish(core, topic, ("a", b"1"), ("b", b"1"))
    compact(core, topic)
    set_policies(core, topic, Policies(compaction_threshold=1))
    publish(core, topic, ("a", b"2"))
    monkeypatch.setattr(core.store._data_dir, "free_bytes", lambda: -1)
    core.advance(1000)
    status, message = topic.compaction.status()
    assert status == "ERROR"
    assert "would be free" in message
    assert topic.compaction.horizon == 1
    monkeypatch.undo()
    core.advance(1000)
    assert topic.compaction.status()[0] == "ERROR"
    assert view(core, topic) == [("a", b"1"), ("b", b"1"), ("a", b"2")]
    core.advance(RETRY_MS)
    assert topic.compaction.status() == ("SUCCESS", "")
    assert view(core, topic) == [("b", b"1"), ("a", b"2")]


def test_ledger_of_the_compaction_before_is_let_go(core: Core) -> None:
    topic = core.topic()
    for round_ in range(3):
        publish(core, topic, *((f"k{i}", b"x" * 1000) for i in range(20)))
        compact(core, topic)
        core.advance(1000)
        assert topic.compaction.ledger is not None
        assert core.store.segments.live_bytes() < 22_000 * (1 if round_ == 0 else 1.1)
    core.restart()
    assert core.store.segments.live_bytes() < 24_000
    assert len(view(core, core.topic())) == 20


@pytest.mark.parametrize("groups", range(12))
def test_run_that_a_crash_ends_leaves_nothing_behind(core: Core, monkeypatch: pytest.MonkeyPatch, groups: int) -> None:
    monkeypatch.setattr(compaction_run, "SLICE_ENTRIES", 3)
    topic = core.topic()
    publish(core, topic, *((f"k{i % 20}", b"x" * 1000) for i in range(30)))
    compact(core, topic)
    core.advance(1000)
    publish(core, topic, *((f"k{i % 20}", b"y%d" % i) for i in range(10)))
    before = view(core, topic)
    core.broker.record_writer.flush()
    core.commit()
    topic.compaction.start()
    for _ in range(groups):
        core.store.writer._seal()
    core.close()
    core._open()
    topic = core.topic()
    record = topic.compaction.record
    assert record is not None
    assert record.horizon in (29, 39)
    assert core.store.segments.live_bytes() == topic.statistics.stored_bytes + record.size
    assert topic.compaction.status() == ("NOT_RUN", "")
    latest = dict(before)
    assert dict(view(core, topic)) == latest
    compact(core, topic)
    assert dict(view(core, topic)) == latest
    assert len(view(core, topic)) == 20


def test_deleting_the_compaction_subscription_forgets_what_is_compacted(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    publish(core, topic, ("a", b"1"), ("a", b"2"))
    compact(core, topic)
    topic.delete_subscription(COMPACTION)
    core.commit()
    assert topic.compaction.status() == ("NOT_RUN", "")
    assert view(core, topic) == [("a", b"1"), ("a", b"2")]
    core.restart()
    assert view(core, core.topic()) == [("a", b"1"), ("a", b"2")]


def test_topic_deleted_while_it_is_compacted_leaves_nothing(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, *((f"k{i}", b"x") for i in range(20)))
    topic.compaction.start()
    core.broker.topics.delete(TopicName.parse("t"), force=True)
    core.commit()
    assert core.store.segments.live_bytes() == 0
    other = core.topic("other")
    publish(core, other, ("a", b"1"), ("a", b"2"))
    compact(core, other)
    assert view(core, other) == [("a", b"2")]


# -- cursors on the view -------------------------------------------------------------------------------------------


def acknowledge(subscription: Subscription, message: Seen, remaining: int | None = None) -> None:
    ledger, entry, _ = message.position
    subscription.acks.acknowledge(None, [AckId(ledger, entry, remaining)], None)


def test_backlog_of_a_durable_subscription_comes_to_zero_by_single_acknowledgments(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s", "earliest")
    publish(core, topic, *((f"k{i % 3}", b"%d" % i) for i in range(30)), (None, b"gone"))
    compact(core, topic)
    _, consumer, client = attach(subscription)
    messages = seen(client)
    assert len(messages) == 3
    for message in reversed(messages):
        acknowledge(subscription, message)
    assert (subscription.acks.backlog_messages, subscription.acks.backlog_bytes) == (0, 0)
    assert subscription.acks.cursor.mark_delete == 30
    assert (consumer.unacked, subscription.acks.pending) == (0, {})
    core.advance(1000)
    assert topic.log.first_offset == 31


def test_backlog_comes_to_zero_by_cumulative_acknowledgment(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s", "earliest")
    publish(core, topic, *((f"k{i % 3}", b"%d" % i) for i in range(30)), (None, b"gone"))
    compact(core, topic)
    _, consumer, client = attach(subscription)
    last = seen(client)[-1]
    subscription.acks.acknowledge_cumulative(consumer, AckId(*last.position[:2]), None)
    assert (subscription.acks.backlog_messages, subscription.acks.backlog_bytes, consumer.unacked) == (0, 0, 0)


def test_what_was_acknowledged_before_the_compaction_stays_so(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s", "earliest")
    publish(core, topic, *((f"k{i % 3}", b"%d" % i) for i in range(30)))
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(i)) for i in (4, 9, 28)], None)
    compact(core, topic)
    _, _, client = attach(subscription)
    messages = seen(client)
    assert [message.payload for message in messages] == [b"27", b"29"]
    for message in messages:
        acknowledge(subscription, message)
    assert (subscription.acks.backlog_messages, subscription.acks.backlog_bytes) == (0, 0)


def test_batch_in_part_left_out_is_acknowledged_by_the_rest(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s", "earliest")
    publish_batch(core, topic, ("a", b"1"), ("b", b"1"), ("c", b"1"))
    publish(core, topic, ("b", b"2"))
    compact(core, topic)
    _, consumer, client = attach(subscription)
    first, second, third = seen(client)
    assert consumer.permits == 997
    assert consumer.unacked == 3
    acknowledge(subscription, first, 0b110)
    assert subscription.acks.backlog_messages == 2
    acknowledge(subscription, second, 0b011)
    acknowledge(subscription, third)
    assert (subscription.acks.backlog_messages, subscription.acks.backlog_bytes, consumer.unacked) == (0, 0, 0)


def test_trimmed_messages_are_owed_until_they_are_acknowledged(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, *((f"k{i % 4}", b"%d" % i) for i in range(20)))
    compact(core, topic)
    core.advance(1000)
    assert topic.log.first_offset == 20
    subscription = topic.create_subscription("s", "earliest")
    _, consumer, client = attach(subscription, owed=0)
    messages = seen(client)
    assert [message.payload for message in messages] == [b"16", b"17", b"18", b"19"]
    assert consumer.unacked == 4
    acknowledge(subscription, messages[0])
    acknowledge(subscription, messages[1])
    assert consumer.unacked == 2
    core.restart()
    topic = core.topic()
    subscription = topic.subscriptions["s"]
    _, consumer, client = attach(subscription)
    messages = seen(client)
    assert [message.payload for message in messages] == [b"18", b"19"]
    subscription.acks.acknowledge_cumulative(consumer, AckId(*messages[1].position[:2]), None)
    assert consumer.unacked == 0
    publish(core, topic, ("new", b"1"))
    assert contents(client) == [("new", b"1")]
    core.restart()
    _, _, client = attach(core.topic().subscriptions["s"])
    assert contents(client) == [("new", b"1")]


def test_redelivery_begins_again_at_the_first_unacknowledged(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, *((f"k{i % 4}", b"%d" % i) for i in range(20)))
    compact(core, topic)
    core.advance(1000)
    subscription, consumer, client = reader(core, topic)
    first = seen(client)[0]
    acknowledge(subscription, first)
    subscription.redeliver(consumer, None, None)
    assert [message.payload for message in seen(client)] == [b"17", b"18", b"19"]


def test_few_permits_bring_the_view_in_pieces(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    publish(core, topic, *((f"k{i % 5}", b"%d" % i) for i in range(20)))
    compact(core, topic)
    publish(core, topic, ("k0", b"20"))
    subscription, consumer, client = reader(core, topic, permits=2)
    assert [payload for _, payload in contents(client)] == [b"15", b"16"]
    subscription.flow(consumer, 3)
    assert [payload for _, payload in contents(client)] == [b"17", b"18", b"19"]
    compact(core, topic)
    subscription.flow(consumer, 3)
    assert [payload for _, payload in contents(client)] == [b"20"]


def test_reader_of_the_originals_goes_on_in_the_view_where_it_was(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    publish(core, topic, *((f"k{i % 5}", b"%d" % i) for i in range(20)))
    subscription, consumer, client = reader(core, topic, permits=3)
    assert [payload for _, payload in contents(client)] == [b"0", b"1", b"2"]
    compact(core, topic)
    subscription.flow(consumer, 100)
    assert [payload for _, payload in contents(client)] == [b"15", b"16", b"17", b"18", b"19"]


def test_trimming_under_a_reader_that_has_read_on_brings_nothing_again(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, ("keep", b"x"))
    topic.create_subscription("s", "earliest")
    publish(core, topic, *((f"k{i % 5}", b"%d" % i) for i in range(20)))
    subscription, consumer, client = reader(core, topic)
    assert len(contents(client)) == 21
    compact(core, topic)
    topic.subscriptions["s"].acks.clear_backlog(lambda error: None)
    core.advance(1000)
    assert topic.log.first_offset == topic.log.end_offset
    publish(core, topic, ("k0", b"20"))
    subscription.flow(consumer, 10)
    assert contents(client) == [("k0", b"20")]


def test_standby_takes_over_at_the_first_unacknowledged_of_the_view(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, *((f"k{i % 4}", b"%d" % i) for i in range(20)))
    compact(core, topic)
    core.advance(1000)
    publish(core, topic, ("k9", b"20"))
    subscription = topic.create_subscription("s", "earliest")
    clients = [Client(), Client()]
    consumers = []
    for number, client in enumerate(clients):
        consumer = Consumer(subscription, client, number, f"c{number}")
        consumer.read_compacted = True
        subscription.add_consumer(consumer, FAILOVER)
        consumers.append(consumer)
        if number == 0:
            assert subscription.view is not None
            subscription.view.owe(topic.compaction.trimmed_from(-1, -1))
        subscription.flow(consumer, 100)
    first = seen(clients[0])
    assert [message.payload for message in first] == [b"16", b"17", b"18", b"19", b"20"]
    acknowledge(subscription, first[0])
    acknowledge(subscription, first[1])
    subscription.remove_consumer(consumers[0])
    assert [message.payload for message in seen(clients[1])] == [b"18", b"19", b"20"]


def test_clearing_the_backlog_settles_what_is_owed(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, *((f"k{i % 4}", b"%d" % i) for i in range(20)))
    compact(core, topic)
    core.advance(1000)
    subscription = topic.create_subscription("s", "earliest")
    _, consumer, client = attach(subscription, owed=0, permits=2)
    assert len(seen(client)) == 2
    subscription.acks.clear_backlog(lambda error: None)
    assert consumer.unacked == 0
    subscription.flow(consumer, 100)
    assert seen(client) == []
    core.restart()
    assert seen(attach(core.topic().subscriptions["s"])[2]) == []


def test_truncating_a_topic_empties_the_view(core: Core) -> None:
    topic = core.topic()
    publish(core, topic, *((f"k{i % 4}", b"%d" % i) for i in range(20)))
    compact(core, topic)
    answers: list[object] = []
    truncate(topic, answers.append)
    core.commit()
    assert answers == [None]
    assert view(core, topic) == []
    assert core.store.segments.live_bytes() == 0
    publish(core, topic, ("k1", b"20"))
    compact(core, topic)
    assert view(core, topic) == [("k1", b"20")]


# -- positions -------------------------------------------------------------------------------------------------------


def test_last_position_is_that_of_the_view_while_nothing_follows_it(core: Core) -> None:
    topic = core.topic()
    assert topic.compaction.last_position() is None
    publish_batch(core, topic, ("a", b"1"), ("b", b"1"), ("c", b""))
    position = topic.log.position(0)
    publish(core, topic, ("c", b""), (None, b"x"))
    compact(core, topic)
    assert topic.compaction.last_position() == (*position, 1)
    publish(core, topic, ("b", b"2"))
    assert topic.compaction.last_position() is None
    last = topic.log.position(3)
    compact(core, topic)
    assert topic.compaction.last_position() == (*last, -1)
    publish(core, topic, ("a", b""), ("b", b""))
    compact(core, topic)
    assert topic.compaction.last_position() == (-1, -1, -1)


def test_old_positions_and_times_are_found_in_the_view(core: Core) -> None:
    topic = core.topic()
    times = []
    for i in range(20):
        times.append(core.clock.now_ms())
        publish(core, topic, (f"k{i % 12}", b"%d" % i))
        core.clock.advance_ms(10)
    positions = [topic.log.position(i) for i in range(20)]
    compact(core, topic)
    core.advance(1000)
    publish(core, topic, ("new", b"20"))
    expected = list(range(8, 21))
    for i in range(20):
        for name, start in (
            ("p", topic.compaction.trimmed_from(*positions[i])),
            ("t", topic.compaction.trimmed_published_at_or_after(times[i])),
        ):
            subscription = topic.create_subscription(f"{name}{i}", "earliest", durable=False)
            found = [int(payload) for _, payload in contents(attach(subscription, owed=start)[2])]
            assert found == [value for value in expected if value >= i]
    assert topic.compaction.trimmed_from(-1, -1) == 0
    assert topic.compaction.trimmed_from(*topic.log.position(20)) == -1
