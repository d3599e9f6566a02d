"""A broker whose store has failed says so and ends with an error; the threads end, whatever fails."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from pathlib import Path

import lmdb
import pytest
from aiohttp import ClientSession
from heliograph_api.broker_config import BrokerConfig
from heliograph_broker.cli.base.shared_options import CliError
from heliograph_broker.cli.commands.standalone import _serve
from heliograph_broker.messaging.base.records import TenantRecord
from heliograph_broker.standalone import Standalone
from heliograph_broker.storage.base.failure import StorageFull, StoreFailed

from tests.support.failing_metadata import failing_metadata
from tests.support.polling import DEADLINE_S

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
PANIC = lmdb.PanicError("mdb_txn_begin: MDB_PANIC")


def config(path: Path) -> BrokerConfig:
    return BrokerConfig(data_dir=str(path), broker_port=0, http_port=0, disk_reserve_bytes=0)


def store_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("store-")]


def test_a_broker_that_cannot_commit_stops_closes_its_store_and_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        broker = Standalone(config(tmp_path / "d"), [])
        await broker.start()
        with failing_metadata(NO_SPACE):
            broker.broker.tenants.create("acme", TenantRecord())
            with pytest.raises(StorageFull):
                await asyncio.wait_for(broker.stop(), DEADLINE_S)
        assert broker.broker.store.closed
        assert store_threads() == []
        # Another process may open it, and the drive is not held.
        again = Standalone(config(tmp_path / "d"), [])
        await again.start()
        assert "acme" not in again.broker.directory.tenants
        await again.stop()

    asyncio.run(run())


def test_a_failed_store_makes_the_broker_not_ready_and_ends_it_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str]] = []
    begin_start, begin_stop = Standalone.start, Standalone.stop
    started: list[Standalone] = []
    ready = asyncio.Event()

    async def start(self: Standalone, recovered: object) -> None:
        await begin_start(self)
        started.append(self)
        ready.set()

    async def probe(url: str) -> None:
        async with ClientSession() as http, http.get(f"{url}/health/ready") as answer:
            seen.append((answer.status, await answer.text()))

    async def stop(self: Standalone) -> None:
        # The answers to a probe between the failure and the end.
        await probe(self.http_url)
        await begin_stop(self)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        serving = asyncio.ensure_future(_serve(config(tmp_path / "d"), []))
        try:
            async with asyncio.timeout(30):
                await ready.wait()
                with failing_metadata(PANIC):
                    await probe(started[0].http_url)
                    with pytest.raises(CliError, match=r"not everything could be made durable: .*MDB_PANIC"):
                        await serving
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    monkeypatch.setattr(Standalone, "start", start)
    monkeypatch.setattr(Standalone, "stop", stop)
    asyncio.run(run())
    assert [status for status, _ in seen] == [503, 503]
    assert all("the store has failed" in text for _, text in seen)
    assert store_threads() == []


def test_a_start_on_a_full_disk_goes_on_and_one_on_a_broken_disk_does_not(tmp_path: Path) -> None:
    async def full() -> None:
        broker = Standalone(config(tmp_path / "full"), [])
        with failing_metadata(NO_SPACE):
            await broker.start()
            assert broker.broker.store.space.full
        # There is room again: what the start changed becomes durable.
        await broker.stop()
        again = Standalone(config(tmp_path / "full"), [])
        await again.start()
        assert again.broker.store.metadata.get(b"tenant/public") is not None
        await again.stop()

    async def broken() -> None:
        broker = Standalone(config(tmp_path / "broken"), [])
        with failing_metadata(PANIC), pytest.raises(StoreFailed):
            await broker.start()
        assert store_threads() == []

    asyncio.run(full())
    asyncio.run(broken())
