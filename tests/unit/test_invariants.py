"""Records that contradict each other are healed when a topic is loaded: nothing unacknowledged lost, nothing back."""

from __future__ import annotations

import tarfile
from pathlib import Path

import msgspec
import pytest
from heliograph_api.policies.policies import Policies
from heliograph_broker.clock import VirtualClock
from heliograph_broker.messaging.acknowledgment.stored_topic import StoredTopic
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.log import invariants
from heliograph_broker.messaging.log.invariants import INVARIANTS
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core
from tests.support.subscription_types import SHARED

FIXTURES = Path(__file__).parent.parent / "fixtures"
ORDERS = "persistent://acme/shop/orders"


@pytest.fixture
def core_settings() -> dict[str, int]:
    return {"ledger_max_entries": 10}


@pytest.fixture
def core(core: Core) -> Core:
    core.keep_nothing()
    return core


def filled(core: Core, entries: int = 25) -> tuple[Topic, Subscription]:
    """Each payload has another size, so that bytes are counted, too."""
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.producer(topic, Client())
    for number in range(entries):
        core.publish(producer, b"x" * number, sequence_id=number, messages=3 if number == 23 else 1)
    core.commit()
    return topic, subscription


def ack(subscription: Subscription, *offsets: int, remaining: int | None = None) -> None:
    ids = [AckId(*subscription.topic.log.position(offset), remaining) for offset in offsets]
    subscription.acks.acknowledge(None, ids, lambda error: None)


def change_cursor(core: Core, subscription: Subscription, **changes: object) -> None:
    """Rewrite a cursor's record behind the broker's back."""
    stored = core.store.metadata.get(subscription.record_key)
    assert stored is not None
    record = msgspec.msgpack.decode(stored, type=records.CursorRecord)
    core.store.writer.put(subscription.record_key, records.encode(msgspec.structs.replace(record, **changes)))
    core.store.writer.commit()


def delivered(core: Core, subscription: Subscription) -> list[int]:
    """Return the offsets a new consumer gets."""
    client = Client()
    consumer = core.consumer(subscription, SHARED, client, permits=1000)
    core.commit()
    subscription.remove_consumer(consumer)
    return [entry.offset for _, entry, _, _ in client.take()]


def recount(topic: StoredTopic, subscription: Subscription) -> tuple[int, int]:
    """Return the messages and bytes that are stored and not acknowledged, entry by entry."""
    messages = size = 0
    for offset in range(topic.log.first_offset, topic.log.end_offset):
        header = topic.log.header(offset)
        assert header is not None
        bits = subscription.acks.unacked_bits(offset, header.messages)
        messages += bits.bit_count()
        size += header.size if bits else 0
    return messages, size


def check(core: Core, subscription: Subscription, *broken: str) -> None:
    """Everything agrees, what was healed is counted, and the next start finds nothing to heal."""
    assert {each for each, count in core.broker.metrics.healed_invariants.items() if count} == set(broken)
    assert recount(subscription.topic, subscription) == (
        subscription.acks.backlog_messages,
        subscription.acks.backlog_bytes,
    )
    core.restart()
    assert not core.broker.metrics.healed_invariants
    again = core.topic(str(subscription.topic.name)).subscription("s")
    assert again.acks.cursor.to_record({}, 0) == subscription.acks.cursor.to_record({}, 0)


def test_a_cursor_behind_the_trim_point_is_lifted_and_keeps_what_it_has_beyond(core: Core) -> None:
    topic, subscription = filled(core)
    ack(subscription, *range(20))
    ack(subscription, 22)
    ack(subscription, 23, remaining=0b110)
    core.commit()
    topic.trim(20)
    core.broker.record_writer.flush()
    core.commit()
    kept = subscription.acks.cursor.to_record({}, 0)
    change_cursor(core, subscription, mark_delete=4, acked_messages=5 + 1 + 1, acked_bytes=123)
    core.crash()
    topic = core.topic()
    subscription = topic.subscription("s")
    assert subscription.acks.cursor.to_record({}, 0) == kept
    assert delivered(core, subscription) == [20, 21, 23, 24]
    check(core, subscription, invariants.TRIM_POINT)


def test_a_lifted_cursor_goes_on_over_what_is_acknowledged_next_to_it(core: Core) -> None:
    topic, subscription = filled(core)
    ack(subscription, *range(22))
    core.commit()
    topic.trim(20)
    core.broker.record_writer.flush()
    core.commit()
    kept = subscription.acks.cursor.to_record({}, 0)
    holes = Subscription(topic, "none", type(subscription.acks.cursor)(4, 5, 0)).acks.cursor
    holes.ack_range(20, 21, 2, 0)
    change_cursor(core, subscription, mark_delete=4, acked_messages=7, acked=holes.acked.serialize())
    core.crash()
    subscription = core.topic().subscription("s")
    assert subscription.acks.cursor.to_record({}, 0) == kept
    check(core, subscription, invariants.TRIM_POINT)


def test_a_cursor_ahead_of_the_entries_does_not_swallow_what_comes_next(core: Core) -> None:
    topic, subscription = filled(core)
    before = topic.log.ledgers[-1].ledger_id
    change_cursor(core, subscription, mark_delete=40, acked_messages=43, acked_bytes=9999)
    core.crash()
    topic = core.topic()
    subscription = topic.subscription("s")
    assert subscription.acks.backlog_messages == 0
    core.publish(core.producer(topic), b"next", sequence_id=100)
    core.commit()
    # A client with the id of an entry that is gone does not acknowledge this one by it.
    assert topic.log.ledgers[-1].ledger_id > before
    assert delivered(core, subscription) == [25]
    check(core, subscription, invariants.CURSOR)


def test_single_acks_ahead_of_the_entries_are_forgotten(core: Core) -> None:
    _, subscription = filled(core)
    holes = type(subscription.acks.cursor)(-1, 0, 0)
    for offset in (3, 30, 31):
        holes.ack(offset, 1, 1)
    holes.partial[33] = 1
    change_cursor(core, subscription, acked=holes.acked.serialize(), partial={33: b"\x01"}, acked_messages=5)
    core.crash()
    subscription = core.topic().subscription("s")
    assert list(subscription.acks.cursor.acked) == [3]
    assert not subscription.acks.cursor.partial
    check(core, subscription, invariants.CURSOR)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("wrong", [-1000, 1000])
def test_figures_that_no_recount_gives_are_counted_again(core: Core, holes: bool, wrong: int) -> None:
    _, subscription = filled(core)
    ack(subscription, *range(12))
    if holes:
        ack(subscription, 14, 15)
        ack(subscription, 23, remaining=0b011)
    core.commit()
    cursor = subscription.acks.cursor
    kept = cursor.to_record({}, 0)
    change_cursor(core, subscription, acked_messages=cursor.acked_messages + wrong)
    core.crash()
    subscription = core.topic().subscription("s")
    assert subscription.acks.cursor.to_record({}, 0) == kept
    check(core, subscription, invariants.COUNTS)


def test_trimmed_totals_that_do_not_lead_to_the_first_entry_are_corrected(core: Core) -> None:
    topic, subscription = filled(core)
    ack(subscription, *range(20))
    core.commit()
    topic.trim(20)
    core.broker.record_writer.flush()
    core.commit()
    stored = topic.log.trimmed_messages, topic.log.trimmed_bytes, topic.statistics.stored_bytes
    topic.log.trimmed_messages, topic.log.trimmed_bytes = 1000, 7
    topic.records.commit(topic)
    core.commit()
    core.crash()
    topic = core.topic()
    assert (topic.log.trimmed_messages, topic.log.trimmed_bytes, topic.statistics.stored_bytes) == stored
    check(core, topic.subscription("s"), invariants.TOTALS)


@pytest.mark.parametrize(("offset", "broken"), [(40, invariants.SEQUENCE_IDS), (5, invariants.SNAPSHOT)])
def test_a_snapshot_of_sequence_ids_covers_what_is_stored(core: Core, offset: int, broken: str) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(deduplication=True))
    topic, subscription = filled(core)
    ack(subscription, *range(20))
    core.commit()
    topic.trim(20)
    core.broker.record_writer.flush()
    core.commit()
    key = records.DEDUPLICATION + str(topic.name).encode()
    core.store.writer.put(key, records.encode(records.DeduplicationRecord(offset, {"p": 24, "gone": 7})))
    core.store.writer.commit()
    core.crash()
    topic = core.topic()
    client = Client()
    producer = core.producer(topic, client)
    # Stored messages are known, later ones are stored, and known after another crash.
    core.publish(producer, b"", sequence_id=24)
    core.publish(producer, b"", sequence_id=25)
    core.commit()
    assert [entry for _, _, entry in client.receipts] == [-1, 0]
    assert core.broker.metrics.healed_invariants == {broken: 1}
    core.crash()
    topic = core.topic()
    assert topic.deduplication is not None
    core.producer(topic)
    assert topic.deduplication.last_sequence_id("p") == 25
    assert topic.deduplication.last_sequence_id("gone") == 7
    assert not core.broker.metrics.healed_invariants


def test_the_cursor_of_no_topic_is_removed(core: Core) -> None:
    key = records.cursor_key("persistent://public/default/gone", "s")
    core.store.writer.put(key, records.encode(records.CursorRecord(5, 6, 7)))
    core.store.writer.commit()
    core.crash()
    assert core.broker.metrics.healed_invariants == {invariants.OWNER: 1}
    assert core.topic("gone").subscriptions == {}
    core.commit()
    core.crash()
    assert core.broker.metrics.healed_invariants == {}
    assert core.topic("gone").subscriptions == {}


# -- directories of released formats ---------------------------------------------------------------------------


def opened(tmp_path: Path, name: str) -> Core:
    with tarfile.open(FIXTURES / f"{name}.tar.gz") as tar:
        tar.extractall(tmp_path / "d", filter="data")
    return Core(tmp_path / "d", VirtualClock(), ledger_max_entries=10)


def test_a_healthy_directory_of_format_2_opens_as_it_was(tmp_path: Path) -> None:
    core = opened(tmp_path, "format-2-healthy")
    assert core.broker.metrics.healed_invariants == {}
    assert core.broker.directory.tenants["acme"].admin_roles == ["admin"]
    assert core.broker.directory.partitions_of(type(core.topic(ORDERS).name).parse("acme/shop/parts")) == 2
    assert core.broker.schemas.latest(ORDERS) is not None
    topic = core.topic(ORDERS)
    subscription = topic.subscription("s")
    assert (topic.log.first_offset, topic.log.end_offset, len(topic.log.ledgers)) == (0, 25, 3)
    assert topic.policies == Policies(message_ttl_ms=3_600_000_000)
    assert subscription.properties == {"of": "the subscription"}
    assert subscription.acks.cursor.mark_delete == 11
    assert delivered(core, subscription) == [*range(12, 22), 23, 24]
    assert subscription.acks.backlog_messages == 10 + 2 + 1
    client = Client()
    producer = core.producer(topic, client, "writer")
    core.publish(producer, sequence_id=24)
    core.publish(producer, sequence_id=25)
    core.commit()
    # Its ledger ids go on where they were reserved up to.
    assert [ledger for _, ledger, _ in client.receipts] == [-1, 1001]
    assert core.store.ledger_ids.next() < 10_000
    core.close()


def test_a_broken_directory_of_format_2_heals(tmp_path: Path) -> None:
    core = opened(tmp_path, "format-2-broken")
    topic = core.topic(ORDERS)
    subscription = topic.subscription("s")
    assert topic.log.first_offset == 20
    assert delivered(core, subscription) == [20, 21, 23, 24]
    assert subscription.acks.backlog_messages == 5
    check(core, subscription, invariants.TRIM_POINT)
    # It trims again, and moving over everything ends.
    topic = core.topic(ORDERS)
    subscription = topic.subscription("s")
    outcome: list[object] = []
    subscription.acks.clear_backlog(outcome.append)
    core.commit()
    core.advance(1000)
    assert outcome == [None]
    assert topic.log.first_offset == topic.log.end_offset == 25
    assert core.store.segments.live_bytes() == 0
    core.close()


def test_every_invariant_is_named_once() -> None:
    assert len(set(INVARIANTS)) == len(INVARIANTS)
