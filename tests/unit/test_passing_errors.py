"""A read that fails once, for want of a descriptor, says nothing of what is stored: the same is done again later."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_broker.messaging.base.containment import FIRST_PAUSE_MS
from heliograph_broker.messaging.base.errors import BrokerError, Done, PersistenceError
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.log.damaged import DamagedList
from heliograph_broker.messaging.policies.expiry import RETRY_MS
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.base.entry import Entry, EntryHeader
from heliograph_broker.storage.ledgers.ledger_reader import LedgerReader

from tests.support.core import Client, Core
from tests.support.subscription_types import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED

SHORTAGE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def fail_next_headers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have the next read of headers fail; what is returned has its ledger then."""
    read = LedgerReader.read_headers
    failed: list[int] = []

    def read_headers(
        self: LedgerReader,
        ledger_id: int,
        first: int,
        last: int,
        callback: Completion[list[EntryHeader]],
    ) -> None:
        if failed:
            read(self, ledger_id, first, last, callback)
        else:
            failed.append(ledger_id)
            callback(SHORTAGE)

    monkeypatch.setattr(LedgerReader, "read_headers", read_headers)
    return failed


def _shortage(*args: Any) -> Any:
    raise SHORTAGE


def test_a_ttl_holds_though_a_start_could_not_search_for_it(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = core.topic()
    topic.create_subscription("s")
    core.publish_all(topic, ttl="5000")
    failed = fail_next_headers(monkeypatch)
    core.restart()
    assert failed
    assert [each.owner for each in core.broker.containment.all()] == [core.topic()]
    core.advance(FIRST_PAUSE_MS)
    assert core.broker.containment.idle
    core.advance(5000)
    assert core.topic().subscription("s").acks.backlog_messages == 0


def test_no_duplicate_is_stored_though_its_original_could_not_be_read(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(deduplication=True))
    producer = core.producer(core.topic())
    for sequence_id in range(5):
        core.publish(producer, sequence_id=sequence_id)
    core.commit()
    core.crash()
    client = Client()
    producer = core.producer(core.topic(), client)
    with monkeypatch.context() as short:
        short.setattr(LedgerReader, "map_frames", _shortage)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            core.publish(producer, sequence_id=3)
    core.publish(producer, sequence_id=3)
    core.commit()
    assert client.receipts == [(3, -1, -1)]


def test_what_has_expired_goes_though_its_sizes_could_not_be_read(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(message_ttl_ms=5000))
    topic = core.topic()
    topic.create_subscription("s")
    producer = core.producer(topic)
    for sequence_id in range(5):
        core.publish(producer, sequence_id=sequence_id)
    core.commit()
    # Nothing is in memory now.
    core.restart()
    failed = fail_next_headers(monkeypatch)
    core.advance(5001)
    assert failed
    core.advance(RETRY_MS)
    assert core.topic().subscription("s").acks.backlog_messages == 0


def test_what_has_expired_before_a_read_fails_stays_so_after_a_restart(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = core.topic()
    topic.create_subscription("s")
    producer = core.producer(topic)
    for sequence_id in range(3):
        core.publish(producer, sequence_id=sequence_id, ttl=None if sequence_id == 1 else "5000")
    core.commit()
    read = LedgerReader.read
    reads: list[int] = []

    def read_once(
        self: LedgerReader,
        ledger_id: int,
        first: int,
        last: int,
        max_bytes: int,
        callback: Completion[list[Entry]],
    ) -> None:
        reads.append(first)
        if first == 0:
            read(self, ledger_id, first, last, max_bytes, callback)
        else:
            callback(SHORTAGE)

    with monkeypatch.context() as short:
        short.setattr(LedgerReader, "read", read_once)
        core.advance(5001)
        assert reads[:2] == [0, 2]
        core.restart()
        assert core.topic().subscription("s").acks.backlog_messages == 2


# -- in the middle of finding out what is lost --------------------------------------------------------------------


class ReadsApart:
    """Reads that are done when :meth:`run` is called, as on a reader's thread: nobody waits for them to return."""

    def __init__(self, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._asked: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        monkeypatch.setattr(core.store._scheduler, "read", lambda job, done: self._asked.append((job, done)))

    def fail_one(self, result: object) -> None:
        """Answer the next read by ``result``, while no header can be read that would explain it."""
        _, done = self._asked.popleft()
        with self._monkeypatch.context() as short:
            short.setattr(LedgerReader, "header", _shortage)
            done(result)

    def run(self, core: Core) -> None:
        while self._asked:
            job, done = self._asked.popleft()
            done(job())
            core.commit()


UNEXPLAINED: dict[str, object] = {"empty": [], "damaged": DamagedEntries(1, 0, 2, "a test")}
STEPS: dict[str, Callable[[Subscription, Done], None]] = {
    "acknowledge": lambda subscription, done: subscription.acks.acknowledge_up_to(12, done),
    "clear": lambda subscription, done: subscription.acks.clear_backlog(done),
    "seek": lambda subscription, done: subscription.seek(5, None, done),
}


def filled(core: Core, name: str = "t") -> Topic:
    topic = core.topic(name)
    topic.create_subscription("s")
    producer = core.producer(topic)
    for sequence_id in range(25):
        core.publish(producer, key="k", sequence_id=sequence_id)
    core.commit()
    return topic


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
@pytest.mark.parametrize("result", UNEXPLAINED)
def test_a_read_that_nothing_explains_is_tried_again(
    core: Core, monkeypatch: pytest.MonkeyPatch, result: str, kind: SubscriptionType
) -> None:
    filled(core)
    core.restart()
    subscription = core.topic().subscription("s")
    reads = ReadsApart(core, monkeypatch)
    client = Client()
    core.consumer(subscription, kind, client, permits=100)
    reads.fail_one(UNEXPLAINED[result])
    core.advance(FIRST_PAUSE_MS)
    reads.run(core)
    assert len(client.messages) == 25
    assert subscription.acks.skipped_entries == 0


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("result", UNEXPLAINED)
def test_who_waits_for_such_a_read_is_told(core: Core, monkeypatch: pytest.MonkeyPatch, result: str, step: str) -> None:
    filled(core)
    core.restart()
    subscription = core.topic().subscription("s")
    reads = ReadsApart(core, monkeypatch)
    outcome: list[BrokerError | None] = []
    STEPS[step](subscription, outcome.append)
    reads.fail_one(UNEXPLAINED[result])
    assert [type(error) for error in outcome] == [PersistenceError]
    STEPS[step](subscription, outcome.append)
    reads.run(core)
    assert outcome[1:] == [None]


@pytest.mark.parametrize("result", UNEXPLAINED)
def test_a_compaction_that_meets_such_a_read_fails_and_lets_the_next_one_begin(
    core: Core, monkeypatch: pytest.MonkeyPatch, result: str
) -> None:
    topic, other = filled(core), filled(core, "other")
    reads = ReadsApart(core, monkeypatch)
    topic.compaction.start()
    with monkeypatch.context() as broken:
        broken.setattr(DamagedList, "add", _shortage)
        reads.fail_one(UNEXPLAINED[result])
    assert topic.compaction.status()[0] == "ERROR"
    other.compaction.start()
    reads.run(core)
    assert other.compaction.status()[0] == "SUCCESS"
