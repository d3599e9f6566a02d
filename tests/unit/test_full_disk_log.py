"""A full disk is in the log when it begins and ends, and now and then; the metrics count everything."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from heliograph_broker.clock import VirtualClock
from heliograph_broker.storage.disk.shortage import LOG_INTERVAL_S
from heliograph_broker.storage.segments.segment import Segment
from heliograph_broker.storage.store import InlineScheduler, LedgerStore
from structlog.testing import capture_logs

from tests.support.store_entries import Sink, entry


def test_a_full_disk_is_logged_at_each_change_and_once_in_an_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    store = LedgerStore.open(tmp_path / "d", clock, scheduler=InlineScheduler(), disk_reserve_bytes=0)
    sink = Sink()

    def no_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def publish(groups: int) -> None:
        for _ in range(groups):
            store.writer.append(sink, entry(0))
            store.writer.commit()

    with capture_logs() as logs:
        with monkeypatch.context() as full:
            full.setattr(Segment, "write", no_space)
            publish(500)
            assert [line["event"] for line in logs] == [
                "the disk is full: new messages are refused, metadata is written later"
            ]
            clock.advance_ms(int(LOG_INTERVAL_S * 1000))
            publish(500)
        assert store.space.full
        publish(1)
        publish(1)
    assert [(line["log_level"], line.get("refused_groups")) for line in logs] == [
        ("error", 1),
        ("error", 500),
        ("info", 499),
    ]
    assert (store.space.shortage.groups, store.space.shortage.entries) == (1000, 1000)
    assert not store.space.full
    store.close()


def test_a_disk_that_fills_without_traffic_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LedgerStore.open(tmp_path / "d", VirtualClock(), scheduler=InlineScheduler(), disk_reserve_bytes=1)
    with capture_logs() as logs:
        with monkeypatch.context() as full:
            full.setattr(store._data_dir, "free_bytes", lambda: 0)
            for _ in range(10):
                store.maintain()
        for _ in range(10):
            store.maintain()
    assert [line["log_level"] for line in logs] == ["error", "info"]
    store.close()


def test_a_disk_that_is_full_by_turns_fills_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LedgerStore.open(tmp_path / "d", VirtualClock(), scheduler=InlineScheduler(), disk_reserve_bytes=1)
    with capture_logs() as logs:
        for _ in range(10):
            with monkeypatch.context() as full:
                full.setattr(store._data_dir, "free_bytes", lambda: 0)
                store.maintain()
            store.maintain()
    assert [line["log_level"] for line in logs] == ["error", "info"]
    store.close()
