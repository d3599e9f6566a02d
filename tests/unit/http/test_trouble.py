"""People and probes see trouble: statistics, metrics, REST, readiness."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from heliograph_broker.http.app import Endpoints, create_app
from heliograph_broker.http.brokers.health import TICK_TIMEOUT_S
from heliograph_broker.messaging.log.skipping import skip_range

from tests.support.core import Core

TOPIC = "/admin/v2/persistent/public/default/t"


def _serving(core: Core) -> TestClient[Any, Any]:
    return TestClient(TestServer(create_app(core.broker, core.config, Endpoints("pulsar://unused", "http://unused"))))


@pytest.fixture
async def http(core: Core) -> AsyncIterator[TestClient[Any, Any]]:
    async with _serving(core) as client:
        yield client
    core.close()


async def _ready(core: Core, http: TestClient[Any, Any]) -> tuple[int, str]:
    """Ask while commits go on, as the writer thread's do."""
    asking = asyncio.ensure_future(http.get("/health/ready"))
    async with asyncio.timeout(30):
        while not asking.done():
            await asyncio.sleep(0.001)
            if core.store.writer.failure is None:
                core.commit()
    response = await asking
    return response.status, await response.text()


async def test_ready_while_ticks_come_and_both_environments_can_be_written(
    core: Core, http: TestClient[Any, Any]
) -> None:
    core.publish(core.producer(core.topic()))
    core.commit()
    core.advance(1000)
    assert (await _ready(core, http))[0] == 200


async def test_not_ready_without_ticks_but_alive(
    core: Core, http: TestClient[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    core.advance(50)
    core.clock.advance_ms(round(TICK_TIMEOUT_S * 1000) + 2000)
    status, text = await _ready(core, http)
    assert status == 503
    assert "the broker's timer last ran 12 s ago" in text
    assert (await http.get("/health/live")).status == 200
    core.broker.ticks.run()
    assert (await _ready(core, http))[0] == 200


async def test_not_ready_when_the_open_segment_cannot_be_written(
    core: Core, http: TestClient[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    core.publish(core.producer(core.topic()))
    core.commit()
    core.advance(50)

    def panic(_: object) -> None:
        raise OSError("MDB_PANIC: Update of meta page failed or environment had fatal error")

    monkeypatch.setattr(type(core.store.segments.open_segment), "probe", panic)
    status, text = await _ready(core, http)
    assert status == 503
    assert "the open segment cannot be written: MDB_PANIC" in text


async def test_what_is_suspended_is_shown(
    core: Core, http: TestClient[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.broker.containment.failed(subscription, "expire", ValueError("broken\nin two lines"))
    core.broker.containment.failed("store", "maintain", OSError("no descriptors"))
    stats = await (await http.get(f"{TOPIC}/stats")).json()
    now = core.clock.now_ms()
    assert stats["suspended"] == [
        {
            "subscription": "s",
            "duty": "expire",
            "reason": "ValueError: broken",
            "sinceTimestamp": now,
            "lastFailureTimestamp": now,
            "failures": 1,
        }
    ]
    suspended = await (await http.get("/heliograph/v1/suspended")).json()
    assert [(each["topic"], each["subscription"], each["duty"]) for each in suspended] == [
        (str(topic.name), "s", "expire"),
        ("", "", "maintain"),
    ]
    metrics = await (await http.get("/metrics")).text()
    assert (
        f'heliograph_suspended{{cluster="standalone",topic="{topic.name}",subscription="s",duty="expire"}} 1' in metrics
    )
    assert 'heliograph_duty_failures_total{cluster="standalone",duty="expire"} 1' in metrics


async def test_what_is_in_quarantine_is_shown_with_the_time_it_was_found(
    core: Core, http: TestClient[Any, Any]
) -> None:
    assert await (await http.get("/heliograph/v1/quarantine")).json() == []
    topic = core.topic()
    producer = core.producer(topic)
    for number in range(5):
        core.publish(producer, sequence_id=number)
    core.commit()
    ledger_id, size = topic.log.ledgers[0].ledger_id, topic.log.total_bytes
    core.store.writer.delete(topic.record_key)
    core.commit()
    core.crash()
    found_ms = core.clock.now_ms()
    for _ in range(2):
        async with _serving(core) as restarted:
            assert await (await restarted.get("/heliograph/v1/quarantine")).json() == [
                {
                    "ledgerId": ledger_id,
                    "firstEntryId": 0,
                    "lastEntryId": 4,
                    "bytes": size,
                    "reason": "no topic record refers to it",
                    "sinceTimestamp": found_ms,
                }
            ]
        # The time outlives a restart.
        core.clock.advance_ms(5000)
        core.restart()
    core.store.ledgers.delete(ledger_id)
    core.restart()
    assert core.store.ledgers.quarantined_since == {}
    assert list(core.store.metadata.scan(b"store/quarantine/")) == []


async def test_what_is_damaged_and_skipped_is_shown(core: Core, http: TestClient[Any, Any]) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.producer(topic)
    for number in range(5):
        core.publish(producer, sequence_id=number, messages=2)
    core.commit()
    skip_range(subscription, 1, 3, "bit rot")
    stats = await (await http.get(f"{TOPIC}/stats")).json()
    assert stats["damagedEntries"] == 3
    shown = stats["subscriptions"]["s"]
    assert (shown["skippedEntries"], shown["skippedMessages"], shown["msgBacklog"]) == (3, 6, 4)
    damaged = await (await http.get(f"{TOPIC}/damaged")).json()
    ledger_id = topic.log.position(1)[0]
    assert damaged == {
        "entries": 3,
        "ranges": [
            {
                "ledgerId": ledger_id,
                "entryId": 1,
                "lastLedgerId": ledger_id,
                "lastEntryId": 3,
                "entries": 3,
                "reason": "bit rot",
                "foundTimestamp": core.clock.now_ms(),
            }
        ],
    }
    metrics = await (await http.get("/metrics")).text()
    labels = f'cluster="standalone",namespace="public/default",topic="{topic.name}"'
    assert f"heliograph_damaged_entries{{{labels}}} 3" in metrics
    assert f'heliograph_skipped_entries_total{{{labels},subscription="s"}} 3' in metrics
