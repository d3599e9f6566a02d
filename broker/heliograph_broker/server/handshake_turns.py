"""Handshakes of TLS begin in turns, so that a flood of them leaves time and memory to clients that are connected.

A handshake's signature takes about a millisecond of the event loop, and anybody may ask for it. A few begin together;
then the loop belongs to everybody else for as long as they took. Addresses take turns, so that a flood from one delays
others little. A client that has sent nothing has no turn, and costs none.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from heliograph_broker.messaging.base.tls_metrics import TlsMetrics

#: Handshakes that begin together.
_TOGETHER: Final = 4
#: Most handshakes that have begun and not ended: in total, which bounds their memory (50 KB each), and by address.
_MOST: Final = 1024
_MOST_PER_ADDRESS: Final = 128


class HandshakeTurns:
    """The turns of all ports of a broker. ``now`` returns seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, metrics: TlsMetrics, now: Callable[[], float]) -> None:
        self._loop = loop
        self._metrics = metrics
        self._now = now
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._running: Counter[str] = Counter()
        #: Turns that were given and whose costly part has not been done yet, and when the first of these was given.
        self._beginning = 0
        self._given_at = 0.0
        self._next: asyncio.Handle | None = None

    def turn(self, address: str) -> Turn:
        """Return a turn of a client, which is waited for by ``async with``."""
        return Turn(self, address)

    async def wait(self, address: str) -> None:
        """Wait for a turn, which has to be ended."""
        mine = self._loop.create_future()
        self._waiting.setdefault(address, deque()).append(mine)
        self._metrics.handshakes_waiting += 1
        self._go_on()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.cancelled():
                self._leave(address, mine)
            else:
                self.begun()
                self.end(address)
            raise

    def begun(self) -> None:
        """The costly part of a turn is done: after that of the last one, others have their time."""
        self._beginning -= 1
        if not self._beginning and self._next is None:
            self._next = self._loop.call_later(max(0.0, self._now() - self._given_at), self._give)

    def end(self, address: str) -> None:
        """A handshake has ended."""
        self._metrics.handshakes_running -= 1
        self._running[address] -= 1
        if not self._running[address]:
            del self._running[address]
        self._go_on()

    def _go_on(self) -> None:
        if self._next is None and not self._beginning:
            self._next = self._loop.call_soon(self._give)

    def _give(self) -> None:
        self._next = None
        self._given_at = self._now()
        while self._beginning < _TOGETHER and self._metrics.handshakes_running < _MOST:
            address = self._whose_turn()
            if not address:
                return
            mine = self._waiting[address][0]
            self._leave(address, mine)
            if mine.cancelled():
                # In this iteration of the loop, so that its task does not know yet.
                continue
            self._metrics.handshakes_running += 1
            self._running[address] += 1
            self._beginning += 1
            mine.set_result(None)

    def _whose_turn(self) -> str:
        """Return the address that has waited longest for a turn and may have one; empty: none."""
        for _ in range(len(self._waiting)):
            address = next(iter(self._waiting))
            self._waiting.move_to_end(address)
            if self._running[address] < _MOST_PER_ADDRESS:
                return address
        return ""

    def _leave(self, address: str, mine: asyncio.Future[None]) -> None:
        """Let one wait no longer, if it does."""
        waiting = self._waiting.get(address)
        if waiting is not None and mine in waiting:
            self._metrics.handshakes_waiting -= 1
            waiting.remove(mine)
            if not waiting:
                del self._waiting[address]


class Turn:
    """See :meth:`HandshakeTurns.turn`. :meth:`begun` is called as soon as the costly part is done."""

    def __init__(self, turns: HandshakeTurns, address: str) -> None:
        self._turns = turns
        self._address = address
        self._begun = False

    async def __aenter__(self) -> Self:
        await self._turns.wait(self._address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.begun()
        self._turns.end(self._address)

    def begun(self) -> None:
        if not self._begun:
            self._begun = True
            self._turns.begun()
