"""Runs of compaction: when one begins, what it replaces, and what a crash or a failure of it leaves."""

from __future__ import annotations

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import Conflict
from heliograph_broker.messaging.base.names import COMPACTION
from heliograph_broker.messaging.compaction import compaction_run
from heliograph_broker.messaging.compaction.compaction import RETRY_MS
from heliograph_broker.usecases.compaction import start_compaction

from tests.support.compaction import FOREVER, compact, contents, publish, reader, seen, set_policies, view
from tests.support.core import Core


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
