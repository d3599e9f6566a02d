"""A read that fails once, for want of a descriptor, says nothing of what is stored: the same is done again later."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from heliograph_broker.messaging.containment import FIRST_PAUSE_MS
from heliograph_broker.messaging.expiry import RETRY_MS, TTL_PROPERTY
from heliograph_broker.resources.policies import Policies
from heliograph_broker.storage.entry import EntryHeader
from heliograph_broker.storage.store import LedgerStore

from tests.support.core import Client, Core, make_frame

SHORTAGE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    opened = Core(tmp_path / "d")
    yield opened
    opened.close()


def fail_next_headers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have the next read of headers fail; what is returned has its ledger then."""
    read = LedgerStore.read_headers
    failed: list[int] = []

    def read_headers(
        self: LedgerStore,
        ledger_id: int,
        first: int,
        last: int,
        callback: Callable[[list[EntryHeader] | Exception], None],
    ) -> None:
        if failed:
            read(self, ledger_id, first, last, callback)
        else:
            failed.append(ledger_id)
            callback(SHORTAGE)

    monkeypatch.setattr(LedgerStore, "read_headers", read_headers)
    return failed


def _shortage(*args: Any) -> Any:
    raise SHORTAGE


def test_a_ttl_holds_though_a_start_could_not_search_for_it(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = core.topic()
    topic.create_subscription("s")
    producer = core.producer(topic)
    metadata, frame = make_frame()
    metadata.properties.add(key=TTL_PROPERTY, value="5000")
    topic.publish(producer, 0, 0, 1, metadata, frame)
    core.commit()
    failed = fail_next_headers(monkeypatch)
    core.restart()
    assert failed
    assert [each.owner for each in core.broker.containment.all()] == [core.topic()]
    core.advance(FIRST_PAUSE_MS)
    assert core.broker.containment.idle
    core.advance(5000)
    assert core.topic().subscription("s").backlog_messages == 0


def test_no_duplicate_is_stored_though_its_original_could_not_be_read(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.broker.set_namespace_policies("public/default", Policies(deduplication=True))
    producer = core.producer(core.topic())
    for sequence_id in range(5):
        core.publish(producer, sequence_id=sequence_id)
    core.commit()
    core.crash()
    client = Client()
    producer = core.producer(core.topic(), client)
    with monkeypatch.context() as short:
        short.setattr(LedgerStore, "map_frames", _shortage)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            core.publish(producer, sequence_id=3)
    core.publish(producer, sequence_id=3)
    core.commit()
    assert client.receipts == [(3, -1, -1)]


def test_what_has_expired_goes_though_its_sizes_could_not_be_read(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    core.broker.set_namespace_policies("public/default", Policies(message_ttl_ms=5000))
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
    assert core.topic().subscription("s").backlog_messages == 0
