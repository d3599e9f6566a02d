"""Reads of a subscription that bring nothing: what is lost is skipped, what failed is tried again, nothing spins."""

from __future__ import annotations

import pytest
from heliograph_broker.messaging.base.containment import FIRST_PAUSE_MS
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.base.entry import Entry, EntryHeader

from tests.support.core import Client, Core
from tests.support.subscription_types import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED

EVERY_TYPE = [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED]


class Store:
    """Stands before the store's reads: some entries are lost, or all reads fail; counts them."""

    def __init__(self, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost: set[int] = set()
        self.failure: Exception | None = None
        self.empty = False
        self.reads = 0
        self._read, self._header = core.store.reader.read, core.store.reader.header
        monkeypatch.setattr(core.store.reader, "read", self.read)
        monkeypatch.setattr(core.store.reader, "header", self.header)

    def read(self, ledger_id: int, first: int, last: int, max_bytes: int, callback: Completion[list[Entry]]) -> None:
        self.reads += 1
        if self.failure is not None:
            callback(self.failure)
        elif self.empty:
            callback([])
        elif first in self.lost:
            end = first
            while end < last and end + 1 in self.lost:
                end += 1
            callback(DamagedEntries(ledger_id, first, end, "bit rot"))
        else:
            readable = first
            while readable < last and readable + 1 not in self.lost:
                readable += 1
            self._read(ledger_id, first, readable, max_bytes, callback)

    def header(self, ledger_id: int, entry_id: int) -> EntryHeader | None:
        if entry_id in self.lost:
            raise DamagedEntries(ledger_id, entry_id, entry_id, "bit rot")
        return self._header(ledger_id, entry_id)


@pytest.fixture
def store(core: Core, monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(core, monkeypatch)


def stored(core: Core, entries: int = 10, *, durable: bool = True) -> tuple[Topic, Subscription]:
    """A topic whose entries are in the store only."""
    topic = core.topic()
    subscription = topic.create_subscription("s", "earliest", durable=durable)
    if not durable:
        topic.create_subscription("keeper", "earliest")
    producer = core.producer(topic)
    for number in range(entries):
        core.publish(producer, key=str(number))
    core.commit()
    topic.log.tail.clear()
    return topic, subscription


@pytest.mark.parametrize("sub_type", EVERY_TYPE)
@pytest.mark.parametrize("durable", [True, False])
def test_lost_entries_are_skipped_and_counted_and_the_rest_is_delivered(
    core: Core, store: Store, sub_type: SubscriptionType, durable: bool
) -> None:
    topic, subscription = stored(core, durable=durable)
    store.lost = {0, 3, 4, 5, 9}
    client = Client()
    consumer = core.consumer(subscription, sub_type, client, permits=100)
    assert sorted(client.take_offsets()) == [1, 2, 6, 7, 8]
    assert (subscription.acks.skipped_entries, subscription.acks.skipped_messages) == (5, 5)
    assert subscription.acks.backlog_messages == consumer.unacked == 5
    assert topic.log.damaged.entries == 5
    assert store.reads <= 6


@pytest.mark.parametrize("sub_type", EVERY_TYPE)
def test_a_replay_of_what_was_lost_meanwhile_is_skipped(core: Core, store: Store, sub_type: SubscriptionType) -> None:
    topic, subscription = stored(core)
    client = Client()
    consumer = core.consumer(subscription, sub_type, client, permits=100)
    assert sorted(client.take_offsets()) == list(range(10))
    topic.log.tail.clear()
    store.lost = {2, 7}
    subscription.redeliver(consumer, None, None)
    assert sorted(client.take_offsets()) == [0, 1, 3, 4, 5, 6, 8, 9]
    assert subscription.acks.skipped_entries == 2


@pytest.mark.parametrize("sub_type", EVERY_TYPE)
@pytest.mark.parametrize("how", ["fails", "brings nothing"])
def test_a_read_is_tried_again_by_the_tick_after_growing_pauses(
    core: Core, store: Store, sub_type: SubscriptionType, how: str
) -> None:
    _, subscription = stored(core)
    if how == "fails":
        store.failure = OSError("no descriptors left")
    else:
        store.empty = True
    client = Client()
    consumer = core.consumer(subscription, sub_type, client, permits=10)
    assert store.reads == 1
    for _ in range(100):
        subscription.flow(consumer, 1)
        subscription.notify()
    assert store.reads == 1
    (suspension,) = core.broker.containment.of(subscription)
    assert suspension.task == "read"
    seen = []
    for _ in range(15):
        core.advance(FIRST_PAUSE_MS)
        seen.append(store.reads)
    assert seen == [2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 5]
    store.failure, store.empty = None, False
    core.advance(60_000)
    assert sorted(client.take_offsets()) == list(range(10))
    assert core.broker.containment.of(subscription) == []


def test_who_comes_later_does_not_wait_for_the_pause(core: Core, store: Store) -> None:
    _, subscription = stored(core)
    store.failure = OSError("disk")
    gone = core.consumer(subscription, EXCLUSIVE, Client(), permits=10)
    store.failure = None
    subscription.remove_consumer(gone)
    client = Client()
    core.consumer(subscription, EXCLUSIVE, client, permits=10)
    assert client.take_offsets() == list(range(10))


def test_a_read_that_nobody_wants_any_more_is_not_suspended_for_good(core: Core, store: Store) -> None:
    _, subscription = stored(core)
    store.failure = OSError("disk")
    consumer = core.consumer(subscription, SHARED, Client(), permits=10)
    assert len(core.broker.containment.of(subscription)) == 1
    subscription.remove_consumer(consumer)
    assert core.broker.containment.idle


def test_a_read_whose_entries_were_acknowledged_meanwhile_is_not_suspended_for_good(core: Core, store: Store) -> None:
    _, subscription = stored(core)
    store.failure = OSError("disk")
    core.consumer(subscription, SHARED, Client(), permits=10)
    store.failure = None
    subscription.acks.clear_backlog(lambda error: None)
    core.commit()
    core.advance(FIRST_PAUSE_MS)
    assert subscription.acks.backlog_messages == 0
    assert core.broker.containment.idle


def test_nothing_of_a_deleted_subscription_stays_suspended(core: Core) -> None:
    topic, subscription = stored(core)
    core.broker.containment.failed(subscription, "expire", ValueError("first"))
    # It has been tried again, and what comes of that is not known yet.
    core.clock.advance_ms(FIRST_PAUSE_MS)
    core.broker.containment.run()
    topic.delete_subscription("s", force=True)
    core.advance(60_000)
    assert core.broker.containment.idle


def test_a_missing_ledger_is_passed(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, subscription = stored(core, 30)
    monkeypatch.setattr(core.store.reader, "read", lambda ledger, first, last, size, callback: callback([]))
    monkeypatch.setattr(core.store.reader, "header", lambda ledger, entry: None)
    client = Client()
    core.consumer(subscription, SHARED, client, permits=100)
    assert client.take_offsets() == []
    assert subscription.acks.skipped_entries == 30
    assert subscription.acks.backlog_messages == 0
    core.publish_all(topic)
    assert client.take_offsets() == [30]
