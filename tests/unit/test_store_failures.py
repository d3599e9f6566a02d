"""Groups that fail: what was in them is kept until it is durable, or the store fails and says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from heliograph_broker.clock import VirtualClock
from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.base.failure import StoreFailed, breaks_store, lacks_space
from heliograph_broker.storage.base.scheduler import Job
from heliograph_broker.storage.commit.group import Durable
from heliograph_broker.storage.disk.disk import RealDisk
from heliograph_broker.storage.disk.metadata import Metadata
from heliograph_broker.storage.ledgers.ledger_ids import MAX_EPOCH
from heliograph_broker.storage.segments.segment import Segment
from heliograph_broker.storage.store import InlineScheduler, LedgerStore, StorageFull

from tests.support.failing_metadata import failing_metadata
from tests.support.store_entries import Sink, entry

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def open_store(path: Path) -> LedgerStore:
    return LedgerStore.open(path, VirtualClock(), scheduler=InlineScheduler(), disk_reserve_bytes=0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    opened = open_store(tmp_path / "d")
    yield opened
    opened.close()


# -- records that are too large --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 512])
def test_a_key_the_store_cannot_take_is_refused_and_the_group_goes_on(store: LedgerStore, size: int) -> None:
    sink = Sink()
    outcome: list[Exception | None] = []
    store.writer.append(sink, entry(0))
    with pytest.raises(ValueError, match=f"a record's key has {size} bytes; valid: 1 to 511"):
        store.writer.put(b"x" * size, b"")
    with pytest.raises(ValueError, match="valid: 1 to 511"):
        store.writer.delete(b"x" * size)
    store.writer.put(b"x" * 511, b"the largest")
    store.writer.after_commit(outcome.append)
    store.writer.commit()
    assert outcome == [None]
    assert sink.durable == [0]
    assert store.metadata.get(b"x" * 511) == b"the largest"


# -- carried over ----------------------------------------------------------------------------------------------


def test_what_a_group_could_not_write_is_durable_with_the_next_success(store: LedgerStore) -> None:
    notified: list[tuple[str, Exception | None]] = []
    with failing_metadata(NO_SPACE):
        store.writer.put(b"kept", b"1")
        store.writer.put(b"newer", b"1")
        store.writer.put(b"gone", b"1")
        store.writer.after_commit(lambda error: notified.append(("failed", error)))
        store.writer.when_durable(lambda: notified.append(("durable", None)))
        store.writer.commit()
    ((name, error),) = notified
    assert name == "failed"
    assert isinstance(error, StorageFull)
    assert store.space.full
    store.writer.put(b"newer", b"2")
    store.writer.delete(b"gone")
    store.writer.after_commit(lambda error: notified.append(("later", error)))
    store.writer.commit()
    assert notified[1:] == [("durable", None), ("later", None)]
    assert {key: value for key, value in store.metadata.scan(b"") if not key.startswith(b"store/")} == {
        b"kept": b"1",
        b"newer": b"2",
    }


def test_nothing_is_confirmed_while_something_before_it_is_not_durable(store: LedgerStore) -> None:
    notified: list[Exception | None] = []
    sink = Sink()
    with failing_metadata(NO_SPACE) as asked:
        store.writer.put(b"first", b"1")
        store.writer.commit()
        # Nothing of its own to write: yet it may not report success.
        store.writer.after_commit(notified.append)
        store.writer.append(sink, entry(0))
        store.writer.commit()
        store.writer.after_commit(notified.append)
        store.writer.commit()
    assert [type(error) for error in notified] == [StorageFull, StorageFull]
    assert sink.failed == [0]
    assert asked == [{b"first": b"1"}] * 3


def test_without_traffic_what_was_kept_is_written_by_maintain_or_the_end(tmp_path: Path) -> None:
    for ending in ("maintain", "close"):
        store = open_store(tmp_path / ending)
        with failing_metadata(NO_SPACE):
            store.writer.put(b"kept", b"1")
            store.writer.commit()
            store.maintain()
            store.writer.commit()
            assert store.space.full
        if ending == "maintain":
            store.maintain()
            store.writer.commit()
            assert store.metadata.get(b"kept") == b"1"
            store.maintain()
            assert not store.space.full
        store.close()
        store = open_store(tmp_path / ending)
        assert store.metadata.get(b"kept") == b"1"
        store.close()


def test_a_failing_group_fails_its_entries_and_what_their_topic_appended_since(store: LedgerStore) -> None:
    sink = Sink()
    with failing_metadata(NO_SPACE):
        store.writer.put(b"record", b"1")
        store.writer.append(sink, entry(0, 9 << 20))
        # Another group, since the first one is full.
        store.writer.append(sink, entry(1, 9 << 20))
        store.writer.commit()
    assert sink.failed == [0, 1]
    assert store.writer.pending_bytes == 0


def test_a_source_that_raises_keeps_no_other_record_from_being_written(store: LedgerStore) -> None:
    class Broken:
        sink = None

        def seal(self, metadata: dict[bytes, bytes | None], durable: list[Durable]) -> None:
            raise RuntimeError("a mistake")

    outcome: list[Exception | None] = []
    store.writer.submit(Broken())
    store.writer.put(b"record", b"1")
    store.writer.after_commit(outcome.append)
    store.writer.commit()
    assert store.metadata.get(b"record") == b"1"
    # Every request of this group may rest on the record that was not taken.
    assert str(outcome[0]) == "a mistake"
    store.writer.after_commit(outcome.append)
    store.writer.commit()
    assert outcome[1] is None


# -- a store that is broken ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        lmdb.PanicError("mdb_txn_begin"),
        lmdb.CorruptedError("mdb_put"),
        lmdb.ReadonlyError("mdb_txn_begin"),
        lmdb.Error("mdb_txn_commit: Input/output error"),
        OSError(errno.EIO, os.strerror(errno.EIO)),
        OSError(errno.EROFS, os.strerror(errno.EROFS)),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("part", ["metadata", "entries"])
def test_an_environment_that_is_broken_fails_the_store(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch, error: Exception, part: str
) -> None:
    def fail(*_: object) -> int:
        raise error

    reasons: list[str] = []
    outcome: list[Exception | None] = []
    sink = Sink()
    store.writer.on_failure(reasons.append)
    if part == "metadata":
        monkeypatch.setattr(Metadata, "write", fail)
        store.writer.put(b"record", b"1")
        store.writer.after_commit(outcome.append)
    else:
        monkeypatch.setattr(Segment, "write", fail)
    store.writer.append(sink, entry(0))
    store.writer.commit()
    monkeypatch.undo()
    assert reasons == [store.writer.failure] == [f"{type(error).__name__}: {error}"]
    assert sink.failed == [0]
    # It takes nothing any more, though the disk would.
    store.writer.put(b"later", b"1")
    store.writer.append(sink, entry(0))
    store.writer.after_commit(outcome.append)
    store.writer.commit()
    store.maintain()
    store.writer.commit()
    assert sink.failed == [0, 0]
    assert sink.durable == []
    assert outcome
    assert all(isinstance(each, StoreFailed) for each in outcome)
    assert reasons == [store.writer.failure]
    late: list[str] = []
    store.writer.on_failure(late.append)
    assert late == reasons
    store.close()


class _DyingWriter(InlineScheduler):
    """Gives back what a writer thread does whose job is left by what is no :class:`Exception`."""

    dies = False

    def write(self, job: Job[Any], done: Completion[Any]) -> None:
        if self.dies:
            done(RuntimeError("SystemExit: 1"))
        else:
            super().write(job, done)


def test_a_write_of_which_nobody_knows_the_end_fails_the_store(tmp_path: Path) -> None:
    scheduler = _DyingWriter()
    store = LedgerStore.open(tmp_path / "d", VirtualClock(), scheduler=scheduler, disk_reserve_bytes=0)
    outcome: list[Exception | None] = []
    sink = Sink()
    scheduler.dies = True
    store.writer.append(sink, entry(0))
    store.writer.put(b"record", b"1")
    store.writer.after_commit(outcome.append)
    store.writer.commit()
    scheduler.dies = False
    assert store.writer.failure == "SystemExit: 1"
    assert sink.failed == [0]
    store.writer.after_commit(outcome.append)
    store.writer.commit()
    assert [type(each) for each in outcome] == [StoreFailed, StoreFailed]
    assert store.writer.pending_bytes == 0
    store.close()


def test_errors_are_told_apart() -> None:
    full = [
        lmdb.MapFullError("x"),
        lmdb.DiskError("x"),
        lmdb.Error(f"mdb_txn_commit: {os.strerror(errno.ENOSPC)}"),
        lmdb.Error(f"mdb_txn_commit: {os.strerror(errno.EDQUOT)}"),
        NO_SPACE,
        OSError(errno.EDQUOT, "x"),
        StorageFull("x"),
    ]
    passing = [
        OSError(errno.EMFILE, "x"),
        lmdb.Error(f"segment: {os.strerror(errno.EMFILE)}"),
        lmdb.MemoryError("x"),
        RuntimeError("a mistake"),
    ]
    assert all(lacks_space(error) and not breaks_store(error) for error in full)
    assert not any(lacks_space(error) or breaks_store(error) for error in passing)


def test_a_mistake_fails_a_group_and_not_the_store(store: LedgerStore) -> None:
    with failing_metadata(RuntimeError("a mistake")):
        store.writer.put(b"record", b"1")
        store.writer.commit()
    assert store.writer.failure is None
    store.maintain()
    store.writer.commit()
    assert store.metadata.get(b"record") == b"1"


# -- ledger ids ------------------------------------------------------------------------------------------------


def open_at_epoch(path: Path, epoch: int) -> LedgerStore:
    return LedgerStore.open(path, VirtualClock(), scheduler=InlineScheduler(), disk_reserve_bytes=0, new_epoch=epoch)


def test_ids_of_two_stores_differ_and_a_store_keeps_its_epoch(tmp_path: Path) -> None:
    one, other = open_at_epoch(tmp_path / "one", 1), open_at_epoch(tmp_path / "other", MAX_EPOCH - 1)
    ids = {store.ledger_ids.next() for store in (one, other) for _ in range(2000)}
    assert len(ids) == 4000
    # JavaScript and jq read larger integers as floats.
    assert max(ids) < 1 << 53
    assert {number >> 40 for number in ids} == {1, MAX_EPOCH - 1}
    last = one.ledger_ids.next()
    one.close()
    other.close()
    again = open_at_epoch(tmp_path / "one", 77)
    assert again.ledger_ids.epoch == 1
    assert again.ledger_ids.next() > last
    again.close()


@pytest.mark.parametrize("epoch", [-1, MAX_EPOCH])
def test_an_epoch_that_does_not_fit_is_refused(tmp_path: Path, epoch: int) -> None:
    with pytest.raises(ValueError, match=f"valid: 0 to {MAX_EPOCH - 1}"):
        open_at_epoch(tmp_path / "d", epoch)


def test_ids_go_on_where_a_store_without_epochs_was(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d")
    assert store.ledger_ids.next() == 1
    store.close()
    again = open_at_epoch(tmp_path / "d", 5)
    assert (again.ledger_ids.epoch, again.ledger_ids.next()) == (0, 1001)
    again.close()


def test_a_reservation_that_failed_is_durable_before_anything_that_names_its_ids(tmp_path: Path) -> None:
    store = open_store(tmp_path / "d")
    with failing_metadata(NO_SPACE):
        first = store.ledger_ids.next()
        store.writer.commit()
    store.writer.put(b"names", b"%d" % first)
    store.writer.commit()
    store.close(drain=False)
    store = open_store(tmp_path / "d")
    assert store.metadata.get(b"names") == b"%d" % first
    assert store.ledger_ids.next() > first
    store.close()


def test_ids_that_segments_hold_are_not_given_again_though_the_metadata_is_older(tmp_path: Path) -> None:
    store = open_at_epoch(tmp_path / "d", 3)
    ids = [store.ledger_ids.next() for _ in range(5)]
    held = Entry(ids[-1], 0, 0, 0, 0, -1, 1, 1, 1, 1, b"x")
    store.writer.append(Sink(), held)
    store.writer.commit()
    store.writer.put(b"next-ledger-id", b"%d" % (3 << 40))
    store.writer.commit()
    store.close()
    store = open_at_epoch(tmp_path / "d", 9)
    assert store.ledger_ids.next() == ids[-1] + 1
    store.close()


def test_durable_entries_are_not_reported_as_failed_if_the_files_size_is_unknown(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink()
    store.writer.append(sink, entry(0))
    store.writer.commit()
    with monkeypatch.context() as patch:
        asked: list[Path] = []

        def fail(_: RealDisk, path: Path) -> int:
            asked.append(path)
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

        patch.setattr(RealDisk, "file_bytes", fail)
        store.writer.append(sink, entry(1))
        store.writer.commit()
    assert asked
    assert (sink.durable, sink.failed) == ([0, 1], [])
    assert store.segments.bounds(1) == (0, 1)
