"""The addresses and ports a broker listens on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from heliograph_api.broker_config import BrokerConfig
from heliograph_broker.server.acceptor import host_in_url
from heliograph_broker.standalone import Standalone

from tests.support.ports import free_ports


@asynccontextmanager
async def running(directory: Path, **settings: Any) -> AsyncIterator[Standalone]:
    broker = Standalone(BrokerConfig(data_dir=str(directory / "d"), broker_port=0, http_port=0, **settings), [])
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def test_all_addresses_are_those_of_ipv4_and_ipv6_at_one_port(tmp_path: Path) -> None:
    async with running(tmp_path, bind="*") as broker:
        for url in (broker.broker_url, broker.http_url):
            at = urlsplit(url)
            assert at.hostname == "localhost"
            for host in ("127.0.0.1", "::1"):
                _, writer = await asyncio.open_connection(host, at.port)
                writer.close()
                await writer.wait_closed()


async def test_an_ipv6_address_is_in_brackets_in_urls(tmp_path: Path) -> None:
    async with running(tmp_path, bind="::1") as broker:
        assert broker.http_url.startswith("http://[::1]:")
        assert broker.broker_url.startswith("pulsar://[::1]:")
        async with aiohttp.ClientSession() as session, session.get(f"{broker.http_url}/health/live") as answer:
            assert answer.status == 200


async def test_a_port_in_use_is_an_error_and_not_left_out(tmp_path: Path) -> None:
    async with running(tmp_path, bind="::1") as broker:
        taken = urlsplit(broker.http_url).port
        assert taken
        other = Standalone(BrokerConfig(data_dir=str(tmp_path / "e"), broker_port=taken, http_port=0, bind="*"), [])
        with pytest.raises(OSError, match="Address already in use"):
            await other.start()


async def test_the_port_for_metrics_serves_nothing_else(tmp_path: Path) -> None:
    [port] = free_ports(1)
    async with running(tmp_path, metrics_port=port) as broker, aiohttp.ClientSession() as session:
        for path, status in (
            ("/metrics", 200),
            ("/admin/v2/clusters", 404),
            ("/heliograph/v1/backup", 404),
            ("/lookup/v2/topic/persistent/public/default/a", 404),
        ):
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                assert answer.status == status, path
                text = await answer.text()
                if status == 200:
                    assert "pulsar_topics_count" in text or "heliograph_" in text
        async with session.get(f"{broker.http_url}/metrics") as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("host", "in_url"),
    [
        ("*", "localhost"),
        ("::", "localhost"),
        ("0.0.0.0", "localhost"),
        ("::1", "[::1]"),
        ("10.0.0.1", "10.0.0.1"),
        ("a.b", "a.b"),
    ],
)
def test_hosts_in_urls(host: str, in_url: str) -> None:
    assert host_in_url(host) == in_url
