"""Deduplication that is switched on or off while producers send: what is known then, and who has to send again."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_api.protocol.frames import peek_metadata
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.records import DEDUPLICATION
from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.scheduler import InlineScheduler, Job, T

from tests.support.core import Client, Core

from .test_deduplication import OFF, ON, core, core_settings, crash, last, send, stored

__all__ = ["core", "core_settings"]


def test_switched_on_it_counts_from_then_on_also_after_a_crash(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", OFF)
    topic = core.topic()
    producer = core.producer(topic)
    send(core, producer, 0, 1)
    core.commit()
    send(core, producer, 2)
    core.broker.namespaces.set_policies("public/default", ON)
    send(core, producer, 3)
    core.commit()
    send(core, producer, 3)
    core.commit()
    assert stored(topic) == 4
    assert last(topic) == 3
    crash(core)
    topic = core.topic()
    assert last(topic) == 3


def test_a_crash_right_after_it_was_switched_on_leaves_nothing_to_heal(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.broker.namespaces.set_policies("public/default", OFF)
    topic = core.topic()
    producer = core.producer(topic)
    send(core, producer, 0)
    core.commit()
    send(core, producer, 1, 2)
    core.broker.namespaces.set_policies("public/default", ON)
    # The group's metadata is durable, its entries are not.
    monkeypatch.setattr(core.store.writer, "_write_entries", _killed)
    core.store.writer._seal()
    crash(core)
    topic = core.topic()
    assert core.broker.metrics.healed_invariants == {}
    send(core, core.producer(topic), 1, 2)
    core.commit()
    crash(core)
    assert last(core.topic()) == 2
    assert stored(core.topic()) == 3


def _killed(*args: object) -> int:
    raise OSError(errno.ENOSPC, "killed")


def test_switched_on_while_entries_fail_later_ones_count(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", OFF)
    topic = core.topic()
    producer = core.producer(topic)
    send(core, producer, 0, 1, 2)
    core.broker.namespaces.set_policies("public/default", ON)
    with core.full_disk():
        core.commit()
    send(core, producer, 0)
    core.commit()
    crash(core)
    assert last(core.topic()) == 0


def test_switched_off_it_forgets_at_once_and_on_disk(core: Core) -> None:
    topic, client = core.topic(), Client()
    producer = core.producer(topic, client)
    send(core, producer, 0)
    core.commit()
    send(core, producer, 1, 1)
    core.broker.namespaces.set_policies("public/default", OFF)
    assert topic.deduplication is None
    # The repetition has no answer: its client comes back with all that has none.
    assert client.closed_producers == [producer.producer_id]
    send(core, core.producer(topic, client), 1, 0)
    core.commit()
    assert stored(topic) == 4
    assert [sequence_id for sequence_id, _, _ in client.receipts] == [0, 1, 1, 0]
    assert not list(core.store.metadata.scan(DEDUPLICATION))
    core.broker.namespaces.set_policies("public/default", ON)
    assert last(topic) == -1


class _HeldDisk(InlineScheduler):
    """Writes a group when the test says so, while others are filled."""

    concurrent = True

    def __init__(self) -> None:
        self._jobs: list[Callable[[], None]] = []

    def write(self, job: Job[T], done: Completion[T]) -> None:
        self._jobs.append(partial(super().write, job, done))

    def run(self) -> None:
        self._jobs.pop(0)()

    def drain(self, core: Core) -> None:
        core.store.writer._seal()
        while self._jobs:
            self.run()
            core.store.writer._seal()


@pytest.mark.parametrize("overtaken", [False, True])
def test_switched_off_a_repetition_has_no_receipt_for_what_others_store_in_its_place(
    core: Core, overtaken: bool
) -> None:
    topic, client = core.topic(), Client()
    core.commit()
    disk = _HeldDisk()
    core.store.writer._scheduler = disk
    first, other = core.producer(topic), core.producer(topic, name="other")
    send(core, first, 1, 2)
    core.store.writer._seal()
    topic.producer_registry.remove(first)
    again = core.producer(topic, client, epoch=1)
    send(core, again, 1, 2)
    core.broker.namespaces.set_policies("public/default", OFF)
    with core.full_disk():
        disk.run()
    # A connection drops what its client sends to a closed producer.
    assert client.closed_producers == [again.producer_id]
    assert not topic.producer_registry.may_publish(again)
    if not overtaken:
        # These take the offsets of the entries that were refused.
        send(core, other, 1, 2)
    disk.drain(core)
    assert (client.receipts, client.errors) == ([], [])
    send(core, core.producer(topic, client), 1, 2, 3)
    disk.drain(core)
    found = [peek_metadata(memoryview(entry.frame)) for entry in core.read_all(topic)]
    assert [metadata.sequence_id for metadata in found if metadata.producer_name == "p"] == [1, 2, 3]
    assert [sequence_id for sequence_id, _, _ in client.receipts] == [1, 2, 3]


def test_switched_off_it_closes_no_producer_without_a_waiting_repetition(core: Core) -> None:
    topic, waits, goes_on = core.topic(), Client(), Client()
    waiting, other = core.producer(topic, waits), core.producer(topic, goes_on, name="other")
    send(core, waiting, 1, 1, 1)
    send(core, other, 1)
    core.broker.namespaces.set_policies("public/default", OFF)
    assert len(waits.closed_producers) == 1
    assert goes_on.closed_producers == []
    core.commit()
    assert len(goes_on.receipts) == 1


def test_a_topic_that_is_deleted_closes_a_producer_with_a_waiting_repetition_once(core: Core) -> None:
    topic, client = core.topic(), Client()
    send(core, core.producer(topic, client), 1, 1)
    core.broker.topics.delete(topic.name, force=True)
    core.commit()
    assert len(client.closed_producers) == 1
    assert not client.errors


def test_a_topics_own_policy_switches_it_alone(core: Core) -> None:
    topic, other = core.topic(), core.topic("u")
    core.broker.policies.set_topic(TopicName.parse("t"), Policies(deduplication=False))
    assert topic.deduplication is None
    assert other.deduplication is not None
