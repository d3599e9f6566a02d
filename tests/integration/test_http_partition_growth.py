"""Requests about a topic while its partitions are created in turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.broker.partition_growth import TURN

from .http_api import HttpApi, running_api

NAME = TopicName.parse("persistent://public/default/wide")
PATH = "/admin/v2/persistent/public/default/wide"
COUNT = 3 * TURN


@pytest.fixture
async def growing(tmp_path: Path) -> AsyncIterator[HttpApi]:
    """Serve a broker whose turns the test decides, with a topic after its first."""
    async with running_api(tmp_path / "data") as running:
        running.broker.partitioned.create(NAME, COUNT)
        yield running


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/unload"), ("POST", "/terminate/partitions"), ("DELETE", "/truncate"), ("PUT", "/compaction")],
)
async def test_what_is_done_to_all_partitions_is_done_to_those_that_are_to_come(
    growing: HttpApi, method: str, path: str
) -> None:
    answer = await growing.request(method, PATH + path)
    assert answer.status in (200, 204), answer
    assert growing.broker.directory.missing_partitions(NAME) == []


async def test_subscriptions_are_listed_and_deleted(growing: HttpApi) -> None:
    assert await growing.get(f"{PATH}/subscriptions") == []
    growing.broker.partitioned.extend(NAME, 2 * COUNT)
    await growing.done("PUT", f"{PATH}/subscription/all")
    growing.broker.partitioned.extend(NAME, 3 * COUNT)
    await growing.done("DELETE", f"{PATH}/subscription/all")
    assert await growing.get(f"{PATH}/subscriptions") == []


@pytest.mark.parametrize("path", ["/partitioned-stats", "/partitioned-internalStats"])
async def test_statistics_wait_for_the_partitions_to_come(growing: HttpApi, path: str) -> None:
    asked = asyncio.create_task(growing.get(PATH + path))
    # Its answer comes after the other request has come.
    assert (await growing.get(f"{PATH}/partitions"))["partitions"] == COUNT
    while not asked.done():
        growing.broker.ticks.run()
        await asyncio.sleep(0)
    assert len((await asked)["partitions"]) == COUNT
