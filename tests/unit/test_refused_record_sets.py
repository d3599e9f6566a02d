"""A topic whose records cannot be encoded: it alone is suspended, and nothing that rests on them is confirmed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_broker.messaging.base.containment import FIRST_PAUSE_MS
from heliograph_broker.messaging.topic.topic import Topic
from structlog.testing import capture_logs

from tests.support.core import Client, Core
from tests.support.virtual_connection import VirtualServer
from tests.support.wire_client import Type

SUBSCRIBE: dict[str, Any] = {"subscription": "s", "subType": wire.CommandSubscribe.Shared}


@pytest.fixture
def core_settings() -> dict[str, int]:
    return {"ledger_max_entries": 3}


@contextmanager
def unencodable(*names: str) -> Iterator[None]:
    """While it is entered, the records of these topics cannot be encoded."""
    encode = Topic.encode_record

    def fail(topic: Topic, version: int) -> bytes:
        if topic.name.local in names:
            raise RuntimeError("a mistake in encoding")
        return encode(topic, version)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Topic, "encode_record", fail)
        yield


def test_what_a_client_asks_again_is_not_confirmed_by_a_group_that_leaves_its_records_out(core: Core) -> None:
    core.topic("broken"), core.topic("other")
    core.commit()
    client = VirtualServer(core).connect()
    with unencodable("broken"):
        core.topic("broken").create_subscription("s")
        core.topic("broken").records.commit(core.topic("broken"))
        core.commit()
        # The subscription is there, in memory.
        answer = client.request(Type.SUBSCRIBE, consumer_id=1, topic="broken", **SUBSCRIBE)
        assert answer.error == wire.PersistenceError
        assert "a mistake in encoding" in answer.message
        assert isinstance(
            client.request(Type.SUBSCRIBE, consumer_id=2, topic="other", **SUBSCRIBE), wire.CommandSuccess
        )
    core.crash()
    assert set(core.topic("other").subscriptions) == {"s"}


def test_only_the_topic_at_fault_is_refused_by_a_group(core: Core) -> None:
    broken, other = core.topic("broken"), core.topic("other")
    outcome: dict[str, Exception | None] = {}
    with unencodable("broken"):
        broken.records.commit(broken, lambda error: outcome.update(broken=error))
        other.create_subscription("s")
        other.subscription("s").acks.clear_backlog(lambda error: outcome.update(other=error))
        other.delete_subscription("s", done=lambda error: outcome.update(deleted=error))
        core.commit()
    assert isinstance(outcome.pop("broken"), RuntimeError)
    assert outcome == {"other": None, "deleted": None}


def test_no_entry_is_receipted_whose_ledger_no_durable_record_names(core: Core) -> None:
    broken, other = core.topic("broken"), core.topic("other")
    client = Client()
    producer, beside = core.producer(broken, client), core.producer(other, client, "q")
    for sequence_id in range(3):
        core.publish(producer, sequence_id=sequence_id)
    core.commit()
    client.receipts.clear()
    with unencodable("broken"):
        # A new ledger begins with it.
        core.publish(producer, sequence_id=3)
        core.publish(beside, sequence_id=0)
        core.commit()
        core.publish(producer, sequence_id=4)
        core.commit()
    assert [sequence_id for sequence_id, _ in client.errors] == [3, 4]
    assert [sequence_id for sequence_id, _, _ in client.receipts] == [0]
    assert core.store.writer.pending_bytes == 0
    core.advance(FIRST_PAUSE_MS)
    core.publish(producer, sequence_id=5)
    core.commit()
    assert [sequence_id for sequence_id, _, _ in client.receipts] == [0, 5]
    core.crash()
    assert core.topic("broken").log.end_offset == 4
    assert not core.store.ledgers.quarantined


def test_the_topic_is_suspended_with_a_reason_and_resumes(core: Core) -> None:
    broken = core.topic("broken")
    core.commit()
    with capture_logs() as logs, unencodable("broken"):
        for _ in range(5):
            broken.records.commit(broken)
            core.commit()
        (suspension,) = core.broker.containment.of(broken)
    assert suspension.task == "records"
    assert suspension.reason == "RuntimeError: a mistake in encoding"
    # A request in the pause costs neither an attempt nor a line of log.
    assert suspension.failures == 1
    assert len([entry for entry in logs if entry["log_level"] == "error"]) <= 2
    core.advance(FIRST_PAUSE_MS)
    assert core.broker.containment.of(broken) == []


def test_a_topic_that_cannot_be_written_can_be_deleted(core: Core) -> None:
    broken = core.topic("broken")
    core.commit()
    with unencodable("broken"):
        broken.records.commit(broken)
        core.commit()
        outcome: list[Exception | None] = []
        core.broker.topics.delete(broken.name)
        core.store.writer.after_commit(outcome.append)
        core.commit()
    assert outcome == [None]
    core.crash()
    assert not core.broker.directory.topics
