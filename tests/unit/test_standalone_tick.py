"""The timer that drives the core."""

from __future__ import annotations

import asyncio

from heliograph_api.broker_config import BrokerConfig
from heliograph_broker.standalone import Standalone


class _Ticks:
    def __init__(self) -> None:
        self.count = 0
        self.enough = asyncio.Event()

    def run(self) -> bool:
        self.count += 1
        if self.count < 3:
            raise RuntimeError("boom")
        self.enough.set()
        return False


class _Broker:
    def __init__(self) -> None:
        self.ticks = _Ticks()


async def test_a_tick_that_raises_is_followed_by_the_next() -> None:
    standalone = Standalone(BrokerConfig(data_dir="unused"), [])
    broker = _Broker()
    standalone.broker = broker  # type: ignore[assignment]
    standalone._loop = asyncio.get_running_loop()
    standalone._on_tick()
    async with asyncio.timeout(30):
        await broker.ticks.enough.wait()
    assert standalone._tick is not None
    standalone._tick.cancel()
