"""Measures the lag of the event loop: the time that a timer takes beyond what it asked for."""

from __future__ import annotations

import asyncio

from heliograph_broker.storage.commit.group import Histogram

INTERVAL_S = 0.5


class LoopLag:
    """A histogram of delays in seconds, one observation each :data:`INTERVAL_S`."""

    def __init__(self) -> None:
        self.seconds = Histogram((0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0))

    async def run(self) -> None:
        """Observe forever; cancel to end."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self.seconds.observe(max(0.0, loop.time() - due))
