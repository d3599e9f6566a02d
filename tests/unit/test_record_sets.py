"""A topic's durable state is one unit: no crash, and no group that fails, leaves one part of it ahead of another."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import msgspec
import pytest
from heliograph_api.policies.policies import Policies
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.containment import FIRST_PAUSE_MS
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.messaging.base.records import NamespaceRecord, TenantRecord
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.log.record_set import FLUSH_MS, RecordSet
from heliograph_broker.messaging.topic.housekeeping import CHECK_INTERVAL_MS
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core
from tests.support.failing_metadata import failing_metadata
from tests.support.subscription_types import SHARED

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def core_settings() -> dict[str, int]:
    return {"ledger_max_entries": 10}


@pytest.fixture
def core(core: Core) -> Core:
    core.keep_nothing()
    return core


def ack(subscription: Subscription, *offsets: int) -> None:
    """Acknowledge as clients do by default: without asking for a receipt."""
    subscription.acks.acknowledge(None, [AckId(*subscription.topic.log.position(offset)) for offset in offsets], None)


def filled(core: Core, entries: int, name: str = "t") -> tuple[Topic, Subscription]:
    topic = core.topic(name)
    subscription = topic.create_subscription("s")
    producer = core.producer(topic, Client())
    for sequence_id in range(entries):
        core.publish(producer, sequence_id=sequence_id)
    core.commit()
    return topic, subscription


def check(core: Core) -> None:
    """Let housekeeping trim, and commit nothing."""
    core.clock.advance_ms(CHECK_INTERVAL_MS)
    core.broker.housekeeping.run(core.clock.now_ms())


def hold_flush(core: Core) -> None:
    """Flush now, so that what changes next waits."""
    core.broker.record_writer.flush()
    core.commit()


def publish(core: Core, topic: Topic, entries: int, deliver_at: int | None = None) -> None:
    for _ in range(entries):
        core.publish(core.producer_of(topic), deliver_at=deliver_at)


CAUSES: dict[str, Callable[[Core, Topic], object]] = {
    "policy": lambda core, topic: core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=1000)),
    "roll": lambda core, topic: publish(core, topic, 11),
    "receipted ack of another": lambda core, topic: topic.subscriptions["other"].acks.clear_backlog(lambda error: None),
    "subscription": lambda core, topic: topic.create_subscription("new"),
    "deletion": lambda core, topic: topic.delete_subscription("other"),
    "delayed message": lambda core, topic: publish(core, topic, 1, deliver_at=core.clock.now_ms() + 60_000),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_trim_point_is_never_durable_ahead_of_the_cursors_it_rests_on(core: Core, cause: str) -> None:
    topic, subscription = filled(core, 25)
    topic.create_subscription("other")
    hold_flush(core)
    ack(subscription, *range(20))
    check(core)
    assert topic.log.first_offset == 20
    assert core.broker.record_writer._waiting
    CAUSES[cause](core, topic)
    core.commit()
    core.crash()
    topic = core.topic()
    subscription = topic.subscription("s")
    assert topic.log.first_offset == 20
    assert subscription.acks.cursor.mark_delete == 19
    assert subscription.acks.backlog_messages == topic.log.total_messages - 20
    client = Client()
    core.consumer(subscription, SHARED, client, permits=100)
    core.commit()
    assert [entry.offset for _, entry, _, _ in client.take()][:5] == list(range(20, 25))


def test_acks_without_receipt_are_durable_within_the_time_of_a_flush(core: Core) -> None:
    _, subscription = filled(core, 25)
    hold_flush(core)
    groups = core.store.writer.stats.groups
    ack(subscription, 0)
    ack(subscription, 1, 2)
    core.commit()
    assert core.store.writer.stats.groups == groups
    core.clock.advance_ms(FLUSH_MS)
    core.broker.ticks.run()
    core.commit()
    core.crash()
    assert core.topic().subscription("s").acks.cursor.mark_delete == 2


def test_each_write_of_a_set_has_a_higher_version_which_outlives_a_restart(core: Core) -> None:
    topic, subscription = filled(core, 5)
    versions = []
    for offset in range(3):
        ack(subscription, offset)
        core.broker.record_writer.flush()
        core.commit()
        stored = core.store.metadata.get(subscription.record_key)
        assert stored is not None
        versions.append(msgspec.msgpack.decode(stored, type=records.CursorRecord).version)
    assert versions == sorted(set(versions))
    core.restart()
    assert core.topic().records.version >= versions[-1]
    topic = core.topic()
    topic.delete_subscription("s")
    core.commit()
    stored = core.store.metadata.get(topic.record_key)
    assert stored is not None
    assert msgspec.msgpack.decode(stored, type=records.TopicRecord).version > versions[-1]
    assert core.store.metadata.get(subscription.record_key) is None
    of_broker = core.broker.records.version
    core.broker.tenants.create("t", TenantRecord())
    core.restart()
    assert core.broker.records.version > of_broker


def test_a_deleted_topic_leaves_nothing_and_one_of_its_name_begins_at_nothing(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(deduplication=True))
    topic, subscription = filled(core, 5)
    ack(subscription, 0)
    core.broker.topics.delete(topic.name, force=True)
    # Late news of what was deleted reach neither the disk nor what comes in its place.
    subscription.acks.acked(None)
    topic.records.changed(subscription)
    filled(core, 2)
    core.broker.record_writer.flush()
    core.commit()
    core.crash()
    topic = core.topic()
    assert (topic.log.first_offset, topic.log.end_offset) == (0, 2)
    assert topic.subscription("s").acks.backlog_messages == 2
    core.broker.topics.delete(topic.name, force=True)
    core.commit()
    assert not [key for key, _ in core.store.metadata.scan(b"") if str(topic.name).encode() in key]


# -- groups that fail ------------------------------------------------------------------------------------------


def test_what_a_failed_group_had_is_there_once_anything_is_confirmed(core: Core) -> None:
    topic, subscription = filled(core, 5)
    outcome: list[Exception | None] = []
    with failing_metadata(NO_SPACE):
        topic.create_subscription("durable")
        core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=5000))
        core.broker.tenants.create("acme", TenantRecord())
        core.broker.namespaces.create("acme/shop", NamespaceRecord())
        subscription.acks.acknowledge_up_to(3, lambda error: outcome.append(error))
        core.store.writer.after_commit(outcome.append)
        core.commit()
    assert len(outcome) == 2
    assert None not in outcome
    # The client asks again, finds its subscription, and gets a success.
    core.store.writer.after_commit(outcome.append)
    core.commit()
    assert outcome[-1] is None
    core.crash()
    topic = core.topic()
    assert set(topic.subscriptions) == {"s", "durable"}
    assert topic.subscription("s").acks.cursor.mark_delete == 3
    assert topic.policies == Policies(message_ttl_ms=5000)
    assert "acme/shop" in core.broker.directory.namespaces


def test_ledger_ids_of_a_reservation_that_failed_are_not_handed_out_twice(core: Core) -> None:
    with failing_metadata(NO_SPACE):
        core.publish(core.producer(core.topic("a")))
        core.commit()
    client = Client()
    producer = core.producer(core.topic("a"), client, "again")
    core.publish(producer, b"of a")
    core.commit()
    assert client.receipts
    core.crash()
    core.publish(core.producer(core.topic("b")), b"of b")
    core.commit()
    a, b = core.topic("a"), core.topic("b")
    assert not {ledger.ledger_id for ledger in a.log.ledgers} & {ledger.ledger_id for ledger in b.log.ledgers}
    reader = Client()
    core.consumer(a.create_subscription("s", "earliest"), SHARED, reader, permits=10)
    core.commit()
    assert [entry.frame[-4:] for _, entry, _, _ in reader.take()] == [b"of a"]


def test_space_is_given_back_once_the_trim_point_is_durable_however_late(core: Core) -> None:
    topic, subscription = filled(core, 25)
    hold_flush(core)
    live = core.store.segments.live_bytes()
    with failing_metadata(NO_SPACE):
        ack(subscription, *range(20))
        check(core)
        hold_flush(core)
        assert topic.log.first_offset == 20
        assert core.store.segments.live_bytes() == live
    core.store.maintain()
    core.commit()
    assert core.store.segments.live_bytes() == live // 5


def test_a_record_that_cannot_be_encoded_is_tried_again_and_delays_nobody_for_long(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, subscription = filled(core, 5)
    _, other = filled(core, 5, "other")
    hold_flush(core)
    outcome: list[Exception | None] = []
    with monkeypatch.context() as broken:
        broken.setattr(Topic, "encode_record", lambda self, version: 1 / 0)
        topic.records.commit(topic, outcome.append)
        core.commit()
        assert isinstance(outcome[0], ZeroDivisionError)
        other.acks.acknowledge_up_to(2, outcome.append)
        core.commit()
        assert outcome[1] is None
        # The other parts wait with it.
        ack(subscription, 0)
    core.advance(FIRST_PAUSE_MS)
    core.advance(FLUSH_MS)
    core.crash()
    assert core.topic().subscription("s").acks.cursor.mark_delete == 0
    assert core.topic("other").subscription("s").acks.cursor.mark_delete == 2


def test_a_record_that_is_too_large_is_refused_before_anything_changes(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph_broker.storage.commit.group.MAX_VALUE_BYTES", 1000)
    with pytest.raises(PreconditionFailed, match="valid: at most 1000"):
        core.broker.namespaces.set_properties("public/default", {"a": "x" * 2000})
    assert core.broker.directory.namespaces["public/default"].properties == {}
    with pytest.raises(PreconditionFailed, match="valid: at most 1000"):
        core.broker.tenants.create("t", TenantRecord(admin_roles=["x" * 2000]))
    assert "t" not in core.broker.directory.tenants


def test_a_set_without_changes_writes_nothing(core: Core) -> None:
    topic, _ = filled(core, 5)
    hold_flush(core)
    groups = core.store.writer.stats.groups
    assert isinstance(topic.records, RecordSet)
    topic.records.flush()
    core.commit()
    assert core.store.writer.stats.groups == groups
