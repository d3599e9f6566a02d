"""An Event is not repeated for five minutes, by a clock that nobody sets."""

from __future__ import annotations

import asyncio

from heliograph_operator.kube.events import Events

from tests.simulation.operator.virtual_time import Machine, VirtualLoop, virtual_wall_clock

from .api_server import ApiServer
from .bodies import topic


def test_an_event_is_repeated_after_five_minutes_whatever_the_wall_clock_says() -> None:
    server, machine = ApiServer(), Machine()
    events = Events(server, "test")

    async def emits() -> None:
        for after_s, ahead_s in ((0.0, 0.0), (200.0, 7200.0), (200.0, -7200.0), (100.0, 0.0), (250.0, 0.0)):
            await asyncio.sleep(after_s)
            machine.ahead_s = ahead_s
            await events.emit(topic("orders"), "Refused", "no")

    async def run() -> None:
        await machine.create_task(emits())

    with virtual_wall_clock(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())
    # At 0, 400 and 750 s; not at 200 and 500 s.
    assert len(server.events) == 3


def test_one_that_is_always_emitted_counts_for_those_that_are_not() -> None:
    server = ApiServer()
    events = Events(server, "test")

    async def run() -> None:
        await events.emit(topic("orders"), "Refused", "no")
        await asyncio.sleep(200)
        await events.emit(topic("orders"), "Refused", "no", repeat=True)
        await asyncio.sleep(200)
        await events.emit(topic("orders"), "Refused", "no")
        await events.emit(topic("orders"), "Refused", "yes")

    with virtual_wall_clock(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())
    assert [message for _, message in server.events] == ["no", "no", "yes"]
