"""Nothing is deleted because nobody claims it: ledgers go by tombstones, what nobody knows is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.base.tombstones import Tombstone
from heliograph_broker.storage.store import LedgerStore

from tests.support.core import Core


class Sink:
    def entries_durable(self, entries: list[Entry]) -> None: ...

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        raise error


def entry(ledger_id: int, entry_id: int) -> Entry:
    return Entry(ledger_id, entry_id, 0, 0, 0, -1, 1, 1, entry_id + 1, (entry_id + 1) * 1000, b"x" * 1000)


def tombstones(store: LedgerStore) -> set[int]:
    return {Tombstone.ledger_of(key) for key, _ in store.metadata.scan(Tombstone.PREFIX)}


@pytest.fixture
def core_settings() -> dict[str, int]:
    return {"segment_bytes": 1 << 20, "ledger_max_entries": 10}


def fill(core: Core, topic: Topic, entries: int) -> None:
    producer = core.producer(topic)
    for number in range(entries):
        core.publish(producer, b"%d" % number, sequence_id=number)
        core.commit()


def test_an_unknown_ledger_is_kept_and_counted(core: Core) -> None:
    core.store.writer.append(Sink(), entry(4711, 0))
    core.commit()
    core.restart()
    for _ in range(10):
        core.advance(1000)
    assert core.store.ledgers.quarantined == {4711: 1000}
    core.restart()
    assert core.store.ledgers.quarantined == {4711: 1000}
    assert core.store.segments.bounds(4711) == (0, 0)
    core.close()


def test_what_a_version_without_tombstones_left_behind_goes_once(core: Core) -> None:
    ours = core.store.ledger_ids.next()
    for ledger_id in (ours, 1 << 50):
        core.store.writer.append(Sink(), entry(ledger_id, 0))
    core.store.writer.delete(b"store/has-tombstones")
    core.commit()
    core.restart()
    assert core.store.ledgers.quarantined == {1 << 50: 1000}
    assert core.store.segments.live_bytes() == 1000
    core.restart()
    assert core.store.segments.live_bytes() == 1000
    core.close()


def test_a_ledger_goes_when_its_tombstone_is_durable_and_the_tombstone_after_it(core: Core) -> None:
    store = core.store
    store.writer.append(Sink(), entry(4711, 0))
    core.commit()
    store.ledgers.delete(4711)
    assert store.segments.live_bytes() == 1000
    core.commit()
    assert store.segments.live_bytes() == 0
    core.crash()
    assert core.store.ledgers.quarantined == {}
    assert core.store.segments.live_bytes() == 0
    # The open segment still has it: a crash now must not bring it back.
    assert tombstones(core.store) == {4711}
    store = core.store
    for number in range(400):
        store.writer.append(Sink(), entry(4712, number))
        core.commit()
    store.ledgers.delete(4712)
    for _ in range(100):
        core.advance(1000)
    assert tombstones(core.store) == set()
    core.crash()
    assert core.store.ledgers.quarantined == {}
    core.close()


def test_entries_that_were_on_their_way_when_their_ledger_was_dropped_go_too(core: Core) -> None:
    store = core.store
    store.writer.append(Sink(), entry(4711, 0))
    store.ledgers.delete(4711)
    core.commit()
    store.writer.append(Sink(), entry(4711, 1))
    core.commit()
    core.advance(1000)
    assert store.segments.live_bytes() == 0
    core.crash()
    assert core.store.ledgers.quarantined == {}
    core.close()


@pytest.mark.parametrize("commits", range(8))
def test_topics_that_trim_and_go_leave_nothing_unknown_whenever_the_process_dies(tmp_path: Path, commits: int) -> None:
    core = Core(tmp_path / "d", ledger_max_entries=5)
    topic = core.topic()
    subscription = topic.create_subscription("s", "earliest")
    fill(core, topic, 23)

    def acknowledge(offset: int) -> None:
        subscription.acks.acknowledge_up_to(offset, lambda error: None)

    for task in (
        lambda: acknowledge(11),
        lambda: core.clock.advance_ms(200),
        lambda: core.broker.ticks.run(),
        lambda: acknowledge(22),
        lambda: core.clock.advance_ms(200),
        lambda: core.broker.ticks.run(),
        lambda: core.broker.topics.delete(topic.name, force=True),
    )[:commits]:
        task()
        core.commit()
    core.broker.ticks.run()
    core.crash()
    assert core.store.ledgers.quarantined == {}
    core.close()


@pytest.mark.parametrize("crash_after", range(20))
def test_a_compaction_leaves_neither_leak_nor_loss_whenever_the_process_dies(tmp_path: Path, crash_after: int) -> None:
    core = Core(tmp_path / "d", ledger_max_entries=50)
    topic = core.topic()
    producer = core.producer(topic)
    for number in range(120):
        core.publish(producer, b"%d" % number, sequence_id=number, key=f"k{number % 7}")
    core.commit()
    topic.compaction.start()
    for _ in range(crash_after):
        if not core.store.writer._filling:
            break
        core.store.writer._seal()
    core.crash()
    assert core.store.ledgers.quarantined == {}
    assert tombstones(core.store) <= set(core.store.segments.ledgers())
    again = core.broker.directory.topics[str(topic.name)]
    assert isinstance(again, Topic)
    compacted = again.compaction.ledger
    if compacted is not None:
        assert compacted.ledger_id not in tombstones(core.store)
        assert core.store.segments.bounds(compacted.ledger_id) == (0, 6)
    core.close()
