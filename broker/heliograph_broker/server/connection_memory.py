"""Limits what all connections together hold in memory: unread answers, unfinished frames, and requests that wait.

Limits of single connections do not bound the sum over thousands of them. So the sum is checked ten times a second,
and as soon as the buffers of large frames exceed it; the handling of messages is not slowed down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from operator import attrgetter

import structlog

from heliograph_broker.clock import Clock

from .connection import Connection

log = structlog.get_logger(__name__)

#: The least time (s) between two checks, and how many times the duration of a check the broker waits at least.
_INTERVAL_S = 0.1
_COST_FACTOR = 50


class ConnectionMemory:
    """Keeps what ``connections`` hold below ``limit`` bytes; 0 is no limit.

    Above half of the limit, a connection with unread answers gets no more messages, and nothing is read from it, until
    its client has read them. Above the limit, those that hold most are aborted.
    """

    def __init__(
        self,
        connections: Collection[Connection],
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], object],
        limit: int,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._call_soon = call_soon
        self._limit = limit
        self._scheduled = False
        self._throttled: dict[Connection, None] = {}
        self._next_check = 0.0

    def total(self) -> int:
        """Return the bytes that all connections hold."""
        return sum(connection.held_bytes for connection in self._connections)

    def check(self) -> None:
        """Throttle or abort connections if they hold too much, and release those that may go on.

        Every tick calls this; it does nothing if the last check was a moment ago.
        """
        if self._limit and self._clock.monotonic() >= self._next_check:
            self._check()

    def check_soon(self) -> None:
        """Check in the next iteration of the event loop."""
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._check)

    def _check(self) -> None:
        began = self._clock.monotonic()
        self._scheduled = False
        total = self.total()
        pressed = total > self._limit // 2
        if self._throttled or pressed:
            self._release(all_that_can=not pressed)
        if pressed:
            self._throttle()
        if total > self._limit:
            self._abort(total)
        ended = self._clock.monotonic()
        self._next_check = ended + max(_INTERVAL_S, _COST_FACTOR * (ended - began))

    def _release(self, *, all_that_can: bool) -> None:
        """Resume throttled connections that have read everything, or enough if there is room again."""
        for connection in list(self._throttled):
            if connection not in self._connections:
                del self._throttled[connection]
            elif connection.output.has_drained if all_that_can else not connection.output.unread_bytes:
                del self._throttled[connection]
                connection.resume_writing()

    def _throttle(self) -> None:
        for connection in self._connections:
            if connection.alive and connection.output.unread_bytes:
                self._throttled[connection] = None
                connection.throttle()

    def _abort(self, total: int) -> None:
        limit = self._limit
        for connection in sorted(self._connections, key=attrgetter("held_bytes"), reverse=True):
            if total <= limit:
                return
            held = connection.held_bytes
            total -= held
            connection.abort(
                "memory",
                f"it holds {held} bytes, the most of all connections, which may hold {limit} bytes together "
                "(connection_memory_bytes)",
            )
