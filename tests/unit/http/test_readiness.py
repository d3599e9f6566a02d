"""Ready means that ticks come, the writer works and both environments can be written; alive, that the loop turns."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from aiohttp import ClientSession
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.values.names import TopicName
from heliograph_broker.http.brokers import health
from heliograph_broker.messaging.broker.ticks import Ticks
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.standalone import Standalone
from heliograph_broker.storage.base.scheduler import LoopScheduler
from heliograph_broker.storage.disk.metadata import Metadata
from heliograph_broker.storage.segments.segment import Segment

from tests.support.core import Client
from tests.support.entries import make_frame
from tests.support.failing_metadata import failing_metadata

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = lmdb.PanicError("mdb_txn_begin: MDB_PANIC: Update of meta page failed or environment had fatal error")


@pytest.fixture
async def standalone(tmp_path: Path) -> AsyncIterator[Standalone]:
    """A broker with its threads and its timer, of which an entry is stored."""
    running = Standalone(BrokerConfig(data_dir=str(tmp_path / "d"), broker_port=0, http_port=0), [])
    await running.start()
    publish(running)
    await until(running, 200)
    yield running
    try:
        await running.stop()
    except Exception:
        # The store of some has failed, which is what they are for.
        assert running.broker.store.writer.failure is not None


def publish(running: Standalone) -> Client:
    topic = running.broker.topics.get_or_create(TopicName.parse("t"))
    client = Client()
    producer = Producer(topic, client, 1, f"p{len(topic.producers)}")
    topic.producer_registry.add(producer, None)
    topic.publish(producer, 0, 0, *make_frame())
    return client


async def ask(running: Standalone, probe: str = "ready") -> tuple[int, str]:
    async with ClientSession() as http, http.get(f"{running.http_url}/health/{probe}") as answer:
        return answer.status, await answer.text()


async def until(running: Standalone, status: int) -> str:
    """Ask until the broker answers with ``status``; return the text. It is alive all the while."""
    async with asyncio.timeout(30):
        while True:
            answer = await ask(running)
            assert (await ask(running, "live"))[0] == 200
            if answer[0] == status:
                return answer[1]
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("way", ["never called", "raises"])
async def test_not_ready_while_no_tick_ends(standalone: Standalone, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(health, "TICK_TIMEOUT_S", 0.3)
    run = Ticks.run

    def fail(_: Ticks) -> bool:
        raise RuntimeError("not a single duty's mistake")

    monkeypatch.setattr(Ticks, "run", fail if way == "raises" else lambda _: False)
    assert "the broker's timer last ran" in await until(standalone, 503)
    monkeypatch.setattr(Ticks, "run", run)
    await until(standalone, 200)


async def test_not_ready_while_the_writer_is_stuck(standalone: Standalone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "WRITER_TIMEOUT_S", 0.2)
    hangs = threading.Event()
    write = Metadata.write

    def hang(self: Metadata, records: Any) -> None:
        hangs.wait(30)
        write(self, records)

    monkeypatch.setattr(Metadata, "write", hang)
    try:
        assert "the store has not committed anything for 0.2 s" in await until(standalone, 503)
    finally:
        hangs.set()
    monkeypatch.setattr(Metadata, "write", write)
    await until(standalone, 200)


async def test_not_ready_while_the_segment_is_stuck(standalone: Standalone, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync of entries that hangs holds up whatever comes after it."""
    monkeypatch.setattr(health, "WRITER_TIMEOUT_S", 0.2)
    hangs = threading.Event()
    write = Segment.write

    def hang(self: Segment, *entries: Any) -> int:
        hangs.wait(30)
        return write(self, *entries)

    monkeypatch.setattr(Segment, "write", hang)
    client = publish(standalone)
    try:
        assert "the store has not committed anything for 0.2 s" in await until(standalone, 503)
    finally:
        hangs.set()
    monkeypatch.setattr(Segment, "write", write)
    await until(standalone, 200)
    assert len(client.receipts) == 1


async def test_not_ready_while_the_writer_is_dead(standalone: Standalone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "WRITER_TIMEOUT_S", 0.2)
    scheduler = standalone.broker.store._scheduler
    assert isinstance(scheduler, LoopScheduler)
    scheduler._jobs.put(None)
    await asyncio.to_thread(scheduler._writer.join, 30)
    assert not scheduler._writer.is_alive()
    try:
        assert "the store has not committed anything for 0.2 s" in await until(standalone, 503)
    finally:
        scheduler._writer = threading.Thread(target=scheduler._run_writer, name="store-writer")
        scheduler._writer.start()
    await until(standalone, 200)


async def test_no_job_ends_the_writer(standalone: Standalone) -> None:
    outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def leave() -> None:
        raise SystemExit("a library's idea")

    standalone.broker.store._scheduler.write(leave, outcome.set_result)
    assert isinstance(await asyncio.wait_for(outcome, 30), RuntimeError)
    await until(standalone, 200)


async def test_not_ready_while_metadata_cannot_be_written(standalone: Standalone) -> None:
    with failing_metadata(NO_SPACE):
        assert "No space left on device" in await until(standalone, 503)
    await until(standalone, 200)


async def _fail_metadata(running: Standalone, patch: pytest.MonkeyPatch) -> None:
    with failing_metadata(BROKEN):
        await until(running, 503)


async def _fail_entries(running: Standalone, patch: pytest.MonkeyPatch) -> None:
    def panic(*_: object) -> int:
        raise BROKEN

    patch.setattr(Segment, "write", panic)
    publish(running)
    await until(running, 503)


@pytest.mark.parametrize("fail", [_fail_metadata, _fail_entries], ids=["metadata", "entries"])
async def test_not_ready_after_an_environment_has_failed(
    standalone: Standalone, monkeypatch: pytest.MonkeyPatch, fail: Callable[..., Any]
) -> None:
    await fail(standalone, monkeypatch)
    monkeypatch.undo()
    # It stays so, although the next write would not fail.
    status, text = await ask(standalone)
    assert status == 503
    assert "the store has failed and the broker is stopping" in text
    assert "MDB_PANIC" in text


async def test_not_ready_if_the_segments_environment_is_broken_and_nobody_publishes(standalone: Standalone) -> None:
    """Nothing is written to it by the broker itself: the probe begins to."""
    segment = standalone.broker.store.segments.open_segment
    environment = segment._env
    assert environment is not None

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise BROKEN

    segment._env = Broken()  # type: ignore[assignment]
    try:
        assert "the open segment cannot be written" in await until(standalone, 503)
    finally:
        segment._env = environment
    await until(standalone, 200)
