"""The search of unacknowledged messages: what is found, in which state, and where it goes on."""

from __future__ import annotations

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_broker.messaging.delivery import dispatch_key_shared
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.delivery.unacked_search import SEARCH_BYTES, DeliveryState, FoundMessage, UnackedSearch
from heliograph_broker.messaging.messages.batches import build_frame
from heliograph_broker.messaging.messages.message_match import Criteria
from heliograph_broker.storage.base.damage import DamagedEntries
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.core import Client, Core
from tests.support.entries import make_message
from tests.support.subscription_types import EXCLUSIVE, KEY_SHARED, SHARED


def run(search: UnackedSearch) -> UnackedSearch:
    steps = 0
    while not search.finished:
        outcome: list[object] = []
        search.step(outcome.append)
        assert outcome == [None]
        steps += 1
        assert steps < 1000
    return search


def find(subscription: Subscription, limit: int = 100, **criteria: object) -> list[FoundMessage]:
    return run(UnackedSearch(subscription, Criteria(**criteria), limit=limit)).found  # type: ignore[arg-type]


def places(found: list[FoundMessage]) -> list[tuple[int, int]]:
    return [(each.message.offset, each.message.batch_index) for each in found]


def test_by_key_and_property_what_is_not_acknowledged(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    for number in range(6):
        core.publish_all(topic, key=f"k{number % 2}", properties={"n": str(number), "kind": "order"})
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(2))], None)
    assert places(find(subscription, key="k0")) == [(0, -1), (4, -1)]
    assert places(find(subscription, properties={"n": "3", "kind": "order"})) == [(3, -1)]
    assert find(subscription, key="k0", properties={"n": "1"}) == []
    assert places(find(subscription)) == [(0, -1), (1, -1), (3, -1), (4, -1), (5, -1)]
    assert subscription.acks.pending == {}


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_batches_by_index_without_those_acknowledged_by_index(core: Core, compression: str) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    messages = [make_message(b"x" * 50, key=f"k{index % 2}", properties={"i": str(index)}) for index in range(5)]
    core.publish_batch(topic, *messages, codec=compression)
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(0), 0b11011)], None)
    assert places(find(subscription, key="k0")) == [(0, 0), (0, 4)]
    assert places(find(subscription, properties={"i": "3"})) == [(0, 3)]
    assert places(find(subscription, batch_index=1)) == [(0, 1)]


def test_of_an_encrypted_batch_only_the_entrys_metadata(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    metadata = wire.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=3, partition_key="k"
    )
    metadata.encryption_keys.add(key="key", value=b"v")
    core.publish_entry(core.producer(topic), metadata, build_frame(metadata, b"secret"))
    core.commit()
    (found,) = find(subscription, key="k")
    assert (found.message.encrypted, found.message.messages, found.message.batch_index) == (True, 3, -1)
    assert "encrypted" in found.message.unopened
    assert find(subscription, properties={"a": "b"}) == []


def test_by_age_and_by_id(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    for _ in range(5):
        core.publish_all(topic)
        core.advance(10_000)
    now_ms = core.clock.now_ms()
    older = UnackedSearch(subscription, Criteria(), limit=100)
    older.older_than(now_ms - 30_000)
    assert places(run(older).found) == [(0, -1), (1, -1), (2, -1)]
    newer = UnackedSearch(subscription, Criteria(), limit=100)
    newer.newer_than(now_ms - 30_000)
    assert places(run(newer).found) == [(3, -1), (4, -1)]
    one = UnackedSearch(subscription, Criteria(), limit=100)
    one.only(3)
    assert places(run(one).found) == [(3, -1)]


def test_the_state_of_each(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    client = Client()
    consumer = core.consumer(subscription, SHARED, client, permits=2)
    core.publish_all(topic, count=4)
    core.publish_all(topic, deliver_at=core.clock.now_ms() + 60_000)
    sent_ms = core.clock.now_ms()
    core.advance(500)
    subscription.redeliver(consumer, [topic.log.position(1)], None)
    found = find(subscription)
    assert [each.state for each in found] == [
        DeliveryState.SENT,
        DeliveryState.TO_REDELIVER,
        DeliveryState.NOT_SENT,
        DeliveryState.NOT_SENT,
        DeliveryState.DELAYED,
    ]
    assert (found[0].consumer, found[0].since_ms) == (consumer, sent_ms)
    assert found[1].redeliveries == 1
    assert found[4].message.deliver_at_ms == sent_ms + 60_000


def test_whose_key_another_consumer_holds(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    # The consumer need not be searched for, among all entries that it holds, for each message.
    monkeypatch.setattr(dispatch_key_shared, "LOOK_AHEAD", 20)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    holder = core.consumer(subscription, KEY_SHARED, Client(), name="a", permits=100)
    core.publish_all(topic, *(["x"] * 2))
    for number in range(30):
        core.publish_all(topic, key=str(number))
    core.consumer(subscription, KEY_SHARED, Client(), consumer_id=2, name="b", permits=100)
    for number in range(30):
        core.publish_all(topic, key=str(number))
    held = [each for each in find(subscription) if each.state is DeliveryState.KEY_HELD]
    assert held
    assert {each.consumer for each in held} == {holder}
    assert all(each.message.offset >= 32 for each in held)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    acked=st.sets(st.tuples(st.integers(0, 29), st.integers(0, 4))),
    limit=st.integers(1, 7),
)
def test_paging_finds_everything_once(core: Core, sizes: list[int], acked: set[tuple[int, int]], limit: int) -> None:
    """0 is a single message, more are a batch of so many."""
    topic = core.topic(f"t{next(_SERIAL)}")
    subscription = topic.create_subscription("s")
    expected: list[tuple[int, int]] = []
    for offset, size in enumerate(sizes):
        if size:
            core.publish_batch(topic, *[make_message(b"x", key=str(index)) for index in range(size)])
        else:
            core.publish_all(topic)
        expected += [(offset, index) for index in range(size)] or [(offset, -1)]
    topic.log.tail.clear()
    for offset, index in sorted(acked):
        if offset < len(sizes) and index < max(1, sizes[offset]):
            place = (offset, index) if sizes[offset] else (offset, -1)
            remaining = (1 << sizes[offset]) - 1 & ~(1 << index) if sizes[offset] else None
            subscription.acks.acknowledge(None, [AckId(*topic.log.position(offset), remaining)], None)
            expected.remove(place)
    found: list[tuple[int, int]] = []
    offset = index = 0
    while True:
        search = run(UnackedSearch(subscription, Criteria(), limit=limit, offset=offset, index=index))
        assert len(search.found) <= limit
        found += places(search.found)
        if not search.more:
            break
        assert (search.next_offset, search.next_index) > (offset, index)
        offset, index = search.next_offset, search.next_index
    assert found == expected


_SERIAL = iter(range(1_000_000))


def test_it_ends_at_its_memory_and_goes_on_from_there(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    for _ in range(6):
        core.publish_all(topic, properties={"large": "x" * (SEARCH_BYTES // 4)})
    search = run(UnackedSearch(subscription, Criteria(), limit=1000))
    assert 0 < len(search.found) < 6
    assert search.more
    rest = run(UnackedSearch(subscription, Criteria(), limit=1000, offset=search.next_offset))
    assert len(search.found) + len(rest.found) == 6


def test_damaged_entries_are_left_out_and_failed_reads_are_said(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, count=5)
    examine = core.store.reader.examine

    def lost(ledger: int, first: int, last: int, size: int, function: object, callback: object) -> None:
        if first == 0:
            callback(DamagedEntries(ledger, 0, 1, "bit rot"))  # type: ignore[operator]
        else:
            examine(ledger, first, last, size, function, callback)  # type: ignore[arg-type]

    monkeypatch.setattr(core.store.reader, "examine", lost)
    search = run(UnackedSearch(subscription, Criteria(), limit=10))
    assert (places(search.found), search.unreadable) == ([(2, -1), (3, -1), (4, -1)], 2)
    monkeypatch.setattr(core.store.reader, "examine", lambda *arguments: arguments[-1](OSError("gone")))
    outcome: list[object] = []
    UnackedSearch(subscription, Criteria(), limit=10).step(outcome.append)
    assert isinstance(outcome[0], OSError)


def test_a_consumer_notices_nothing(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    client = Client()
    core.consumer(subscription, EXCLUSIVE, client, permits=2)
    core.publish_all(topic, count=3)
    client.take()
    before = subscription.acks.unacked_messages, subscription.acks.backlog_messages, subscription.consumers[0].permits
    assert len(find(subscription)) == 3
    after = subscription.acks.unacked_messages, subscription.acks.backlog_messages, subscription.consumers[0].permits
    assert (client.take(), after) == ([], before)
