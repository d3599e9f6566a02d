"""The turns of handshakes: few at a time, addresses one after another, and time for everybody else in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from heliograph_broker.messaging.base.tls_metrics import TlsMetrics
from heliograph_broker.server.handshake_turns import HandshakeTurns, Turn


class Loop:
    """The running event loop, whose timers are due when :meth:`fire` says so."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def create_future(self) -> asyncio.Future[None]:
        return self._loop.create_future()

    def call_soon(self, callback: Callable[[], object]) -> asyncio.Handle:
        return self._loop.call_soon(callback)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> object:
        self.timers.append((delay_s, callback))
        return callback

    def fire(self) -> float:
        """Run the only timer; return its delay (s)."""
        [(delay_s, callback)] = self.timers
        self.timers.clear()
        callback()
        return delay_s


class Handshakes:
    """Handshakes of clients by address, which begin and end when told."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.metrics = TlsMetrics()
        self.now_s = 0.0
        self.turns = HandshakeTurns(cast(Any, self.loop), self.metrics, lambda: self.now_s)
        self.given: list[tuple[str, Turn, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, address: str, times: int = 1) -> None:
        self.tasks += [asyncio.create_task(self._shake_hands(address)) for _ in range(times)]
        await settled()

    async def _shake_hands(self, address: str) -> None:
        async with self.turns.turn(address) as turn:
            ending = asyncio.Event()
            self.given.append((address, turn, ending))
            await ending.wait()

    async def go_on(self, took_s: float = 0.0) -> tuple[list[str], float]:
        """All that were given a turn begin; return their addresses, and the pause (s) that follows, which is over."""
        given, self.given = self.given, []
        self.now_s += took_s
        for _, turn, _ in given:
            turn.begun()
        pause_s = self.loop.fire()
        await settled()
        self.begun = given
        return [address for address, _, _ in given], pause_s

    def counts(self) -> tuple[int, int]:
        return self.metrics.handshakes_running, self.metrics.handshakes_waiting

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        assert self.counts() == (0, 0)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_few_begin_together_and_then_others_have_as_much_time() -> None:
    handshakes = Handshakes()
    await handshakes.ask("a", 6)
    assert handshakes.counts() == (4, 2)
    assert await handshakes.go_on(took_s=0.25) == (["a"] * 4, 0.25)
    assert handshakes.counts() == (6, 0)
    assert await handshakes.go_on(took_s=0.5) == (["a"] * 2, 0.5)
    await handshakes.end()


async def test_addresses_take_turns() -> None:
    handshakes = Handshakes()
    await handshakes.ask("flood", 100)
    await handshakes.ask("b")
    await handshakes.ask("c")
    assert (await handshakes.go_on())[0] == ["flood"] * 4
    assert sorted((await handshakes.go_on())[0]) == ["b", "c", "flood", "flood"]
    await handshakes.end()


async def test_an_address_has_a_limited_number_under_way() -> None:
    handshakes = Handshakes()
    await handshakes.ask("flood", 200)
    begun: list[str] = []
    while handshakes.given:
        begun += (await handshakes.go_on())[0]
    assert len(begun) == 128
    assert handshakes.counts() == (128, 72)
    # Another address is none the worse for it, and one that ends makes room.
    await handshakes.ask("b")
    assert [address for address, _, _ in handshakes.given] == ["b"]
    await handshakes.go_on()
    handshakes.tasks[0].cancel()
    await settled()
    assert [address for address, _, _ in handshakes.given] == ["flood"]
    await handshakes.end()


async def test_clients_that_leave_before_their_turn_or_just_then_take_none() -> None:
    handshakes = Handshakes()
    await handshakes.ask("a", 5)
    handshakes.tasks[4].cancel()
    await settled()
    assert handshakes.counts() == (4, 0)
    # Given a turn, and gone before it knows.
    going = asyncio.create_task(handshakes.turns.wait("b"))
    await settled()
    for _, turn, _ in handshakes.given:
        turn.begun()
    handshakes.loop.fire()
    going.cancel()
    await settled()
    assert handshakes.counts() == (4, 0)
    # The pause after it.
    handshakes.loop.fire()
    await handshakes.ask("c")
    assert handshakes.counts() == (5, 0)
    await handshakes.end()


async def test_a_client_whose_time_ends_as_turns_are_given_takes_none() -> None:
    handshakes = Handshakes()
    await handshakes.ask("flood", 6)
    for _, turn, _ in handshakes.given:
        turn.begun()
    # The oldest one that waits: its task has not heard of it when the timer of the next turns fires.
    handshakes.tasks[4].cancel()
    handshakes.given.clear()
    handshakes.loop.fire()
    await settled()
    assert len(handshakes.given) == 1
    assert handshakes.counts() == (5, 0)
    await handshakes.end()
