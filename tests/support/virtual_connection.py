"""Connections of a listener without sockets: an event loop on virtual time, and the far side of a transport."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, cast

from heliograph_broker.clock import VirtualClock, monotonic_ms
from heliograph_broker.server.connection import Connection
from heliograph_broker.server.listener import Listener
from heliograph_broker.server.session import Session

from .core import Core
from .wire_client import Frame, Type, encode, take_frames


class _Handle:
    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._callback: Callable[[], object] | None = lambda: callback(*args)

    def cancel(self) -> None:
        self._callback = None

    @property
    def cancelled(self) -> bool:
        return self._callback is None

    def run(self) -> None:
        if self._callback is not None:
            self._callback()


class VirtualLoop:
    """The part of an event loop that a listener and its sessions use; only :meth:`run` and :meth:`advance` run it."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[int, int, _Handle]] = []
        self._order = itertools.count()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> _Handle:
        handle = _Handle(callback, args)
        self._ready.append(handle)
        return handle

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> _Handle:
        handle = _Handle(callback, args)
        heapq.heappush(self._timers, (self._now_ms() + round(delay_s * 1000), next(self._order), handle))
        return handle

    def create_task(self, work: Coroutine[Any, Any, object]) -> None:
        """Do work that has to wait for nothing."""
        with contextlib.suppress(StopIteration):
            raise AssertionError(f"it waits for {work.send(None)}")

    def _now_ms(self) -> int:
        """Timers do not follow a wall clock that is set."""
        return monotonic_ms(self._clock)

    @property
    def timers(self) -> int:
        """The number of callbacks that wait for their time."""
        # On a clock that stands still those that are cancelled would stay for good.
        self._timers = [timer for timer in self._timers if not timer[2].cancelled]
        heapq.heapify(self._timers)
        return len(self._timers)

    def run(self) -> None:
        """Run what is ready and what becomes ready by it."""
        while True:
            while self._timers and self._timers[0][0] <= self._now_ms():
                self._ready.append(heapq.heappop(self._timers)[2])
            if not self._ready:
                return
            self._ready.popleft().run()

    def advance(self, ms: int) -> None:
        """Let time pass, each timer at its own moment."""
        end = self._now_ms() + ms
        self.run()
        while self._timers and self._timers[0][0] <= end:
            self._clock.advance_ms(self._timers[0][0] - self._now_ms())
            self.run()
        self._clock.advance_ms(end - self._now_ms())


class FarSide:
    """A client's side of one connection, and the transport the connection writes to.

    While :attr:`reads` is false nothing is taken of what the broker sends, as from a process that is stopped.
    """

    def __init__(self, listener: Listener, loop: VirtualLoop, *, connect: bool = True) -> None:
        self.loop = loop
        self.reads = True
        self.sent_to = bytearray()
        self.reading = True
        self.closing = False
        self.lost = False
        self.unread = bytearray()
        self._high = 64 * 1024
        self._paused = False
        self.connection = Connection(listener)
        assert isinstance(self.connection.session, Session)
        self.session = self.connection.session
        self.connection.connection_made(cast(asyncio.Transport, self))
        if connect:
            self.send(Type.CONNECT, client_version="test", protocol_version=21)
            self.take()

    # As a transport

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("192.0.2.7", 4711)

    def get_write_buffer_size(self) -> int:
        return len(self.unread)

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def writelines(self, data: list[bytes]) -> None:
        assert not self.lost
        self.unread += b"".join(data)
        if self.reads:
            self.read()
        elif len(self.unread) > self._high and not self._paused:
            self._paused = True
            self.connection.pause_writing()

    def close(self) -> None:
        self.closing = True
        if not self.unread:
            self._lose()

    def abort(self) -> None:
        self.closing = True
        self.unread.clear()
        self._lose()

    def _lose(self) -> None:
        if not self.lost:
            self.lost = True
            self.loop.call_soon(self.connection.connection_lost, None)

    # As a client

    def read(self, count: int | None = None) -> None:
        """Take what the broker has written, or ``count`` bytes of it."""
        count = len(self.unread) if count is None else count
        self.sent_to += self.unread[:count]
        del self.unread[:count]
        if self._paused and len(self.unread) <= self._high // 4:
            self._paused = False
            self.connection.resume_writing()
        if self.closing and not self.unread:
            self._lose()

    def send_raw(self, data: bytes) -> None:
        """Let the connection receive bytes, in reads as large as its buffer, while it reads."""
        at = 0
        while at < len(data) and self.reading and not self.closing:
            room = self.connection.get_buffer(-1)
            assert len(room)
            count = min(len(room), len(data) - at)
            room[:count] = data[at : at + count]
            self.connection.buffer_updated(count)
            at += count

    def send(self, kind: int, entry: bytes = b"", **fields: Any) -> None:
        self.send_raw(encode(kind, entry, **fields))

    def take(self) -> list[Frame]:
        """Run the loop and return the frames that came since the last call."""
        self.loop.run()
        return list(take_frames(self.sent_to))

    def request(self, kind: int, **fields: Any) -> Any:
        """Send a request and return the last answer's body, after a commit."""
        return self.answers(kind, **fields)[-1].body

    def answers(self, kind: int, **fields: Any) -> list[Frame]:
        """Send a request and return everything that came, after a commit."""
        self.send(kind, request_id=1, **fields)
        self.session.broker.store.writer.commit()
        return self.take()


class VirtualServer:
    """A broker's listener on virtual time."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.loop = VirtualLoop(core.clock)
        self.listener = Listener(core.broker, cast(asyncio.AbstractEventLoop, self.loop))
        self.listener.keep_watch()

    def connect(self, *, handshake: bool = True) -> FarSide:
        return FarSide(self.listener, self.loop, connect=handshake)

    def advance(self, ms: int) -> None:
        self.loop.advance(ms)
        self.core.advance(0)
        self.loop.run()

    def publish(self, count: int, payload: bytes = b"x") -> None:
        """Publish to the topic ``t`` from a producer of the core's, which no connection has."""
        self.core.publish_all(self.core.topic(), payload, count=count)
        self.loop.run()
