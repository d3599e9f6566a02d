"""The search for timed entries at a start sees every entry, wherever it lies."""

from __future__ import annotations

from pathlib import Path

from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.base.entry import EntryHeader

from tests.support.core import Core

_MIB = 1024 * 1024


def _timed_in_the_second_segment(directory: Path) -> Core:
    """Return a core with one ledger in two segments, of which the second has an entry with a TTL of its own."""
    core = Core(directory, segment_bytes=_MIB)
    topic = core.topic()
    topic.create_subscription("s")
    producer = core.producer(topic)
    core.publish_all(producer, bytes(_MIB), publish_time=1)
    core.publish_all(producer, bytes(_MIB), publish_time=1)
    core.publish_all(producer, publish_time=1, ttl="200")
    assert len(topic.log.ledgers) == 1
    return core


def test_a_message_with_a_ttl_expires_after_a_restart_wherever_its_segment(tmp_path: Path) -> None:
    core = _timed_in_the_second_segment(tmp_path)
    core.restart()
    subscription = core.topic().subscription("s")
    assert subscription.acks.backlog_messages == 3
    core.advance(1000)
    core.advance(1000)
    assert subscription.acks.backlog_messages == 2
    core.close()


def test_the_search_goes_on_behind_entries_that_are_damaged(tmp_path: Path) -> None:
    core = _timed_in_the_second_segment(tmp_path)
    topic = core.topic()
    read = core.store.reader.read_headers

    def damaged(ledger_id, first, last, callback):  # type: ignore[no-untyped-def]
        if first == 0:
            callback(DamagedEntries(ledger_id, 0, 0, "a test"))
        else:
            read(ledger_id, first, last, callback)

    core.store.reader.read_headers = damaged  # type: ignore[method-assign]
    found: list[int] = []

    def keep(headers: list[tuple[int, EntryHeader]] | Exception | None) -> None:
        assert not isinstance(headers, Exception)
        found.extend(offset for offset, _ in headers or ())

    topic.log.scan_headers(keep)
    assert found == [1, 2]
    core.close()
