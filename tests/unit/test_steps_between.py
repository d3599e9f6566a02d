"""Steps that take more than one commit or read, and what comes in between: a seek, another step of the kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from heliograph_broker.messaging.base.errors import BrokerError
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core
from tests.support.subscription_types import EXCLUSIVE, SHARED

Errors = list[BrokerError | None]


def batches(core: Core, entries: int, messages: int = 4) -> tuple[Topic, Subscription]:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.producer(topic, Client())
    for sequence_id in range(entries):
        core.publish(producer, sequence_id=sequence_id, messages=messages)
    core.commit()
    return topic, subscription


def test_a_seek_after_a_cumulative_ack_within_a_batch_is_not_undone_by_it(core: Core) -> None:
    topic, subscription = batches(core, 3)
    client = Client()
    consumer = core.consumer(subscription, EXCLUSIVE, client, permits=100)
    errors: Errors = []
    subscription.acks.acknowledge_cumulative(consumer, AckId(*topic.log.position(2), 0b1100), errors.append)
    subscription.seek(0, None, errors.append)
    core.commit()
    assert errors == [None, None]
    assert (subscription.acks.backlog_messages, subscription.acks.cursor.partial) == (12, {})
    core.restart()
    assert core.topic().subscription("s").acks.backlog_messages == 12


def test_a_cumulative_ack_within_a_batch_is_one_step(core: Core) -> None:
    topic, subscription = batches(core, 3)
    consumer = core.consumer(subscription, EXCLUSIVE, Client(), permits=100)
    errors: Errors = []
    subscription.acks.acknowledge_cumulative(consumer, AckId(*topic.log.position(2), 0b1100), errors.append)
    assert subscription.acks.backlog_messages == 2
    assert errors == []
    core.commit()
    assert errors == [None]
    core.crash()
    assert core.topic().subscription("s").acks.backlog_messages == 2


def test_a_seek_that_was_overtaken_acknowledges_nothing(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    _topic, subscription = batches(core, 3)
    held: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
    monkeypatch.setattr(core.store._scheduler, "read", lambda job, done: held.append((job, done)))
    errors: Errors = []
    subscription.seek(1, 0b1000, errors.append)
    assert held
    subscription.seek(0, None, errors.append)
    for job, done in held:
        done(job())
    core.commit()
    assert errors == [None, None]
    assert (subscription.acks.backlog_messages, subscription.acks.cursor.partial) == (12, {})


def test_a_seek_to_the_only_message_of_a_batch_delivers_it(core: Core) -> None:
    _topic, subscription = batches(core, 3, messages=1)
    errors: Errors = []
    subscription.seek(1, 0b1, errors.append)
    core.commit()
    assert errors == [None]
    assert subscription.acks.backlog_messages == 2


def test_an_ack_set_that_leaves_the_only_message_of_an_entry_acknowledges_nothing(core: Core) -> None:
    topic, subscription = batches(core, 2, messages=1)
    errors: Errors = []
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(0), 0b1)], errors.append)
    core.commit()
    assert errors == [None]
    assert subscription.acks.backlog_messages == 2


def test_what_was_acknowledged_before_a_look_up_failed_is_written(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, subscription = batches(core, 4, messages=1)
    client = Client()
    consumer = core.consumer(subscription, SHARED, client, permits=2)
    assert len(client.take()) == 2
    del topic.log.tail[3]
    monkeypatch.setattr(core.store._scheduler, "read", lambda job, done: done(OSError("it passes")))
    errors: Errors = []
    subscription.acks.acknowledge(
        consumer, [AckId(*topic.log.position(0)), AckId(*topic.log.position(3))], errors.append
    )
    monkeypatch.undo()
    core.commit()
    assert len(errors) == 1
    assert errors[0] is not None
    core.restart()
    assert core.topic().subscription("s").acks.backlog_messages == 3
