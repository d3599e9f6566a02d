"""A cumulative move of a cursor ends, whatever the cursor and the store hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from heliograph_broker.messaging.base.errors import BrokerError, PersistenceError
from heliograph_broker.storage.ledgers.ledger_reader import LedgerReader

from tests.support.core import Client, Core


@pytest.mark.parametrize("stored", [11, 3])
def test_a_cumulative_move_ends_on_a_cursor_behind_the_trim_point(tmp_path: Path, stored: int) -> None:
    core = Core(tmp_path / "d", ledger_max_entries=4)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.producer(topic, Client())
    core.publish_all(producer, count=stored)
    # As a crash left it once: what is trimmed was acknowledged in memory only, the acks beyond are on disk.
    topic.log.first_offset = 2
    subscription.acks.cursor.ack(stored - 1, 1, len(b"x"))
    outcome: list[BrokerError | None] = []
    subscription.acks.clear_backlog(outcome.append)
    core.commit()
    assert outcome == [None]
    assert all(subscription.acks.cursor.is_acked(offset) for offset in range(2, stored))
    core.close()


@pytest.mark.parametrize("holes", [False, True])
def test_a_cumulative_move_over_entries_that_are_gone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holes: bool
) -> None:
    core = Core(tmp_path / "d")
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.producer(topic, Client())
    core.publish_all(producer, count=3)
    if holes:
        subscription.acks.cursor.ack(1, 1, 1)
    topic.log.tail.clear()
    monkeypatch.setattr(LedgerReader, "read_headers", lambda self, ledger, first, last, callback: callback([]))
    outcome: list[BrokerError | None] = []
    subscription.acks.clear_backlog(outcome.append)
    assert isinstance(outcome[0], PersistenceError)
    assert subscription.acks.backlog_messages == (2 if holes else 3)
    core.close()
