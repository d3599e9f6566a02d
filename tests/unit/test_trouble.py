"""Trouble in one topic or subscription ends there: the real core on virtual time, with callbacks that raise."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest
from heliograph_api.policies.policies import BacklogQuota, Policies, Retention
from heliograph_broker.messaging.base.containment import FIRST_PAUSE_MS
from heliograph_broker.messaging.broker import inactivity
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.log.record_set import RecordWriter
from heliograph_broker.messaging.policies.backlog_quota import QuotaState
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core
from tests.support.subscription_types import SHARED


def _boom(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("boom")


def _no_space(*args: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _filled(core: Core, name: str, policies: Policies | None = None, entries: int = 3) -> Subscription:
    topic = core.topic(name)
    if policies is not None:
        core.broker.policies.set_topic(topic.name, policies)
    subscription = topic.create_subscription("s")
    producer = core.producer(topic, name=f"p-{name}")
    for number in range(entries):
        core.publish(producer, b"x", sequence_id=number)
    core.commit()
    return subscription


def _suspended(core: Core) -> list[tuple[str, str, str]]:
    return [(*each.names, each.reason) for each in core.broker.containment.all()]


def _expires(core: Core, bad: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad.topic.log, "read", _boom, raising=False)


def _quota(subscription: Subscription) -> QuotaState:
    assert isinstance(subscription.topic, Topic)
    return subscription.topic.quota


BREAKS: dict[str, Callable[[Subscription], tuple[Any, str]]] = {
    "trim": lambda sub: (sub.topic, "trim"),
    "quota": lambda sub: (_quota(sub), "evict"),
    "compaction": lambda sub: (sub.topic.compaction, "maybe_start"),
    "expiry": lambda sub: (sub.expiry, "run"),
}


class _Broken:
    """Stands for an object of which one method raises: slots cannot be patched on an instance."""

    def __init__(self, instance: Any, method: str) -> None:
        self.instance, self.method, self.real = instance, method, getattr(type(instance), method)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        instance, real = self.instance, self.real

        def perhaps(this: Any, *args: Any, **kwargs: Any) -> Any:
            return _boom() if this is instance else real(this, *args, **kwargs)

        monkeypatch.setattr(type(instance), self.method, perhaps)


@pytest.mark.parametrize("what", BREAKS)
def test_a_duty_that_raises_for_one_topic_leaves_the_others_alone(
    core: Core, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    core.keep_nothing()
    ttl = Policies(message_ttl_ms=5000, retention=Retention(0, 0))
    bad, good = _filled(core, "bad", ttl), _filled(core, "good", ttl)
    with monkeypatch.context() as patch:
        _Broken(*BREAKS[what](bad)).install(patch)
        core.advance(10_000)
        core.advance(1000)
        assert good.acks.backlog_messages == 0
        assert good.topic.log.stored_messages == 0
        ((topic, _, reason),) = _suspended(core)
        assert topic == str(bad.topic.name)
        assert reason == "RuntimeError: boom"
    for _ in range(10):
        core.advance(FIRST_PAUSE_MS)
    assert _suspended(core) == []
    assert (bad.acks.backlog_messages, bad.topic.log.stored_messages) == (0, 0)


def test_acks_go_on_while_expiry_and_dispatch_are_suspended(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = _filled(core, "bad", Policies(message_ttl_ms=5000))
    client = Client()
    consumer = core.consumer(bad, SHARED, client, permits=2)
    assert len(client.messages) == 2
    dispatcher = bad.dispatcher
    assert dispatcher is not None
    _Broken(bad.expiry, "run").install(monkeypatch)
    _Broken(dispatcher, "_dispatch").install(monkeypatch)
    bad.flow(consumer, 10)
    assert {names[:2] for names in _suspended(core)} == {(str(bad.topic.name), "s")}
    topic = bad.topic
    done: list[object] = []
    from heliograph_broker.messaging.delivery.subscription import AckId

    bad.acks.acknowledge(consumer, [AckId(*topic.log.position(0)), AckId(*topic.log.position(1))], done.append)
    core.commit()
    assert done == [None]
    assert bad.acks.backlog_messages == 1


def test_dispatch_that_raised_goes_on_by_itself_when_it_can(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = _filled(core, "bad")
    client = Client()
    with monkeypatch.context() as patch:
        patch.setattr(Client, "send_message", _boom)
        consumer = core.consumer(bad, SHARED, client, permits=100)
        bad.flow(consumer, 1)
    assert [topic for topic, _, _ in _suspended(core)] == [str(bad.topic.name)]
    core.advance(FIRST_PAUSE_MS)
    assert len(client.messages) >= 2
    assert _suspended(core) == []


def test_a_receipt_that_cannot_be_sent_keeps_no_other_client_waiting(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    broken, fine, reader = Client(), Client(), Client()
    core.consumer(subscription, SHARED, reader, permits=10)
    monkeypatch.setattr(broken, "send_receipts", _boom)
    bad, good = core.producer(topic, broken, "bad"), core.producer(topic, fine, "good")
    core.publish(bad)
    core.publish(good)
    core.commit()
    assert len(fine.receipts) == 1
    assert len(reader.messages) == 2
    assert topic.log.end_offset == 2
    core.publish(good, sequence_id=1)
    core.commit()
    assert len(fine.receipts) == 2


def test_an_error_that_cannot_be_sent_leaves_no_gap(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    broken, fine, reader = Client(), Client(), Client()
    core.consumer(subscription, SHARED, reader, permits=10)
    monkeypatch.setattr(broken, "send_publish_error", _boom)
    bad, good = core.producer(topic, broken, "bad"), core.producer(topic, fine, "good")
    with monkeypatch.context() as full:
        full.setattr(core.store.writer, "_write_entries", _no_space)
        core.publish(bad, sequence_id=1)
        core.publish(good, sequence_id=2)
        core.commit()
    assert [error[0] for error in fine.errors] == [2]
    core.publish(good, sequence_id=3)
    core.commit()
    assert [receipt[0] for receipt in fine.receipts] == [3]
    assert [(entry.offset, entry.entry_id) for _, entry, _, _ in reader.messages] == [(0, 0)]


def test_delayed_messages_of_other_topics_come_in_time(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = {}
    for name in ("bad", "good"):
        topic = core.topic(name)
        subscription = topic.create_subscription("s")
        clients[name] = Client()
        core.consumer(subscription, SHARED, clients[name], permits=10)
        core.publish(core.producer(topic), deliver_at=core.clock.now_ms() + 2000)
    core.commit()
    bad = core.topic("bad").subscription("s").dispatcher
    assert bad is not None
    with monkeypatch.context() as patch:
        _Broken(bad, "delays_over").install(patch)
        core.advance(2500)
        assert len(clients["good"].messages) == 1
        assert len(clients["bad"].messages) == 0
        assert len(_suspended(core)) == 1
    core.advance(FIRST_PAUSE_MS)
    core.advance(100)
    assert len(clients["bad"].messages) == 1
    assert _suspended(core) == []


def test_inactivity_policies_and_snapshots_of_other_topics_go_on(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = Policies(deduplication=True, expires_ms=10_000)
    topics = [core.topic(name) for name in ("a", "b", "c")]
    for topic in topics:
        core.broker.policies.set_topic(topic.name, policies)
    core.commit()
    with monkeypatch.context() as patch:
        in_use = inactivity.in_use
        patch.setattr(inactivity, "in_use", lambda topic: _boom() if topic is topics[0] else in_use(topic))
        core.advance(20_000)
        assert [name.rpartition("/")[2] for name in core.broker.directory.topics] == ["a"]
        assert _suspended(core)[0][0] == str(topics[0].name)
    core.advance(FIRST_PAUSE_MS)
    core.advance(FIRST_PAUSE_MS)
    assert not core.broker.directory.topics


def test_a_policy_change_reaches_the_other_topics(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [core.topic(name) for name in ("a", "b", "c")]
    core.commit()
    with monkeypatch.context() as patch:
        _Broken(topics[0], "configure").install(patch)
        core.broker.namespaces.set_policies("public/default", Policies(message_ttl_ms=5000))
        core.advance(100)
        assert [topic.timing.ttl_ms for topic in topics] == [-1, 5000, 5000]
        assert _suspended(core)[0][0] == str(topics[0].name)
    core.advance(FIRST_PAUSE_MS)
    assert [topic.timing.ttl_ms for topic in topics] == [5000, 5000, 5000]


def test_a_part_of_the_broker_that_raises_stops_no_other(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    good = _filled(core, "good", Policies(message_ttl_ms=5000))
    with monkeypatch.context() as patch:
        patch.setattr(core.store, "maintain", _boom)
        patch.setattr(RecordWriter, "run", _boom)
        core.advance(10_000)
        assert good.acks.backlog_messages == 0
        assert {topic for topic, _, _ in _suspended(core)} == {""}
    for _ in range(3):
        core.advance(FIRST_PAUSE_MS)
    assert _suspended(core) == []


def test_an_eviction_whose_read_fails_is_tried_again(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = BacklogQuota(100, "consumer_backlog_eviction")
    bad = _filled(core, "bad", Policies(backlog_quota_size=quota), entries=10)
    with monkeypatch.context() as patch:
        _Broken(bad.acks, "acknowledge_entry").install(patch)
        core.advance(500)
        assert bad.acks.backlog_bytes > 100
        assert len(_suspended(core)) == 1
    core.advance(FIRST_PAUSE_MS)
    core.advance(500)
    assert bad.acks.backlog_bytes <= 100
    assert _suspended(core) == []
