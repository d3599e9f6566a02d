"""The operator's requests to a broker: together for many, and seldom if it does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable
from heliograph_operator import operator_metrics
from heliograph_operator.act import broker_sessions
from heliograph_operator.act.broker_sessions import BrokerSessions

from tests.support.broker_process import BrokerProcess

from .broker_side import broker_state


def _manifest(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team"}
    return {"apiVersion": "heliograph.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def _topic(number: int, namespace: str = "public/default") -> dict[str, Any]:
    return _manifest("Topic", f"t{number}", namespaceRef={"name": namespace})


def _requests(operation: str, result: str) -> float:
    return (
        operator_metrics.REGISTRY.get_sample_value(
            "heliograph_operator_broker_requests_total", {"operation": operation, "result": result}
        )
        or 0.0
    )


async def test_many_changes_are_few_requests_and_one_that_is_refused_stops_no_other(broker: BrokerProcess) -> None:
    brokers = BrokerSessions(batch_s=0.05)
    at = brokers.at(broker.http_url)
    before = _requests("apply", "ok") + _requests("apply", "refused")
    wanted = [_topic(number, "nobody/has" if number == 17 else "public/default") for number in range(64)]
    outcomes = await asyncio.gather(*(at.apply(each) for each in wanted), return_exceptions=True)
    refused = {number: outcome for number, outcome in enumerate(outcomes) if outcome is not None}
    assert set(refused) == {17}
    assert isinstance(refused[17], AdminRefused)
    assert "nobody/has" in refused[17].reason
    # Two batches; the one with the bad topic is halved five times.
    assert _requests("apply", "ok") + _requests("apply", "refused") - before <= 12
    listing = await at.listing(0.0)
    assert {f"persistent://public/default/t{number}" for number in range(64) if number != 17} <= set(
        listing.state.topics
    )
    await at.delete("Topic", "persistent://public/default/t3", force=True)
    await at.delete("Topic", "persistent://public/default/t3", force=True)
    assert "persistent://public/default/t3" not in (await at.listing(0.0)).state.topics
    await brokers.close()
    assert "persistent://public/default/t4" in broker_state(broker).topics


async def test_all_who_ask_for_a_listing_share_one(broker: BrokerProcess) -> None:
    brokers = BrokerSessions(batch_s=0.01)
    at = brokers.at(broker.http_url)
    before = _requests("state", "ok")
    listings = await asyncio.gather(*(at.listing(0.0) for _ in range(50)))
    assert len({id(listing) for listing in listings}) == 1
    assert _requests("state", "ok") - before == 1
    await brokers.close()


async def test_a_broker_that_does_not_answer_is_left_alone_for_ten_seconds(broker: BrokerProcess) -> None:
    broker.kill9()
    brokers = BrokerSessions(batch_s=0.01)
    at = brokers.at(broker.http_url)
    before = _requests("state", "unreachable") + _requests("apply", "unreachable")
    for _ in range(20):
        with pytest.raises(AdminUnreachable, match="Connection refused"):
            await at.listing(0.0)
        with pytest.raises(AdminUnreachable, match="Connection refused"):
            await at.apply(_topic(1))
    assert _requests("state", "unreachable") + _requests("apply", "unreachable") - before == 1
    assert not at.reachable
    await brokers.close()


async def test_a_broker_that_takes_a_request_and_says_nothing_is_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_sessions, "ANSWER_S", 2.0)
    asked, ended = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        asked.set()
        await ended.wait()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        brokers = BrokerSessions(batch_s=0.01)
        at = brokers.at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(AdminUnreachable, match=r"does not answer within 2 s"):
            await at.listing(0.0)
        assert asked.is_set()
        assert not at.reachable
        await brokers.close()
        ended.set()
