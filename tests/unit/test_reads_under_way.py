"""Events between a step and the read it waits for: a trim, a crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from heliograph_api.policies.policies import Policies, Retention
from heliograph_broker.messaging.base.errors import BrokerError
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.topic.housekeeping import CHECK_INTERVAL_MS
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core


class HeldReads:
    """Holds the reads of a core back until they are released."""

    def __init__(self, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self._scheduler = core.store._scheduler
        monkeypatch.setattr(self._scheduler, "read", lambda job, done: self.held.append((job, done)))

    def finish_reads(self) -> None:
        while self.held:
            job, done = self.held.pop(0)
            done(job())


@pytest.fixture
def core_settings() -> dict[str, int]:
    return {"ledger_max_entries": 10}


def keep(core: Core, retention: Retention) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(retention=retention))
    core.commit()


def filled(core: Core, entries: int) -> tuple[Topic, Subscription]:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.producer(topic, Client())
    for sequence_id in range(entries):
        core.publish(producer, sequence_id=sequence_id)
    core.commit()
    return topic, subscription


def test_a_seek_back_goes_no_further_than_what_is_kept_when_it_ends(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(core, Retention(60_000, -1))
    topic, subscription = filled(core, 6)
    subscription.acks.clear_backlog(lambda error: None)
    core.advance(1000)
    assert topic.log.first_offset == 0
    errors: list[BrokerError | None] = []
    reads = HeldReads(core, monkeypatch)
    subscription.seek(2, None, errors.append)
    core.advance(60_000)
    assert topic.log.first_offset == 6
    reads.finish_reads()
    core.commit()
    assert errors == [None]
    assert (
        subscription.acks.cursor.mark_delete,
        subscription.acks.backlog_messages,
        subscription.acks.backlog_bytes,
    ) == (5, 0, 0)
    core.restart()
    assert core.broker.metrics.healed_invariants == {}


def test_what_is_acknowledged_before_a_look_up_is_durable_with_the_trim_it_allows(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(core, Retention(0, 0))
    topic, subscription = filled(core, 6)
    core.broker.record_writer.flush()
    core.commit()
    # Only the store knows the size of the last one.
    del topic.log.tail[5]
    reads = HeldReads(core, monkeypatch)
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(offset)) for offset in (0, 1, 2, 5)], None)
    assert len(reads.held) == 1
    # As any publish does.
    topic.host.check_soon(topic)
    core.advance(CHECK_INTERVAL_MS)
    core.advance(CHECK_INTERVAL_MS)
    assert topic.log.first_offset == 3
    core.crash()
    assert core.broker.metrics.healed_invariants == {}
