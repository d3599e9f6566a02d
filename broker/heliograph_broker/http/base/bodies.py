"""Bodies of requests: none is compressed, each has to arrive in time, and those of a role together take limited memory.

A body is read as a whole and decoded on the event loop. On a broker with authentication, only superusers may send large
ones, and of every other role only some are under way at a time; the others wait. A client that asks before it sends its
body (``Expect: 100-continue``) is answered when the body is read, so that nobody is asked for one that is refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.typedefs import Handler

from .context import BROKER, CONFIG
from .errors import ApiError

_IDENTITY: Final = "identity"
_CONTINUE: Final = "100-continue"
#: The largest body (bytes) of a superuser, and of everybody on a broker without authentication: enough for manifests of
#: tens of thousands of topics.
LARGEST_BODY_BYTES: Final = 16 * 1024 * 1024
#: The largest body (bytes) of a client that is no superuser: enough for thousands of grants.
LARGEST_ROLE_BODY_BYTES: Final = 1024 * 1024
#: Bytes that have to arrive in a second once the time that every body has (``handshake_timeout_s``) is over.
LEAST_BYTES_PER_S: Final = 32 * 1024
#: Bodies (bytes) of a role that are under way together, and the largest one that does not count: a client that sends
#: its body slowly must not keep the usual ones of its role waiting.
ROOM_BYTES: Final = 16 * LARGEST_ROLE_BODY_BYTES
FREE_BYTES: Final = 64 * 1024


@web.middleware
async def uncompressed(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a request whose body is compressed (:class:`ApiError` 415); nothing has decompressed it."""
    encoding = request.headers.get("Content-Encoding", _IDENTITY)
    if encoding.strip().lower() != _IDENTITY:
        raise ApiError(415, f"the header Content-Encoding is {encoding!r}; valid: {_IDENTITY}, a body as it is")
    return await handler(request)


@web.middleware
async def arrived(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Read the body before the request is handled. Raises as :func:`read_in_time`."""
    if request.can_read_body:
        await read_in_time(request)
    return await handler(request)


async def asked_for_later(_: web.Request) -> None:
    """Do nothing yet about the header ``Expect``: :func:`read_in_time` does."""


async def read_in_time(request: web.Request) -> None:
    """Read the body, and ask for it first if the client waits for that.

    Raises :class:`ApiError` 408 for a body that arrives too slowly, and 417 for a header ``Expect`` with anything else;
    :class:`web.HTTPRequestEntityTooLarge` for a body that is larger than the request may have.
    """
    expected = request.headers.get("Expect", "")
    if expected and expected.lower() != _CONTINUE:
        raise ApiError(417, f"the header Expect is {expected!r}; valid: {_CONTINUE}")
    if expected and request.version == HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # The answer itself has not begun.
        request.writer.output_size = 0
    first_s = request.app[CONFIG].handshake_timeout_s
    try:
        async with _in_time(request.content, first_s):
            await request.read()
    except TimeoutError:
        request.app[BROKER].metrics.http_connections.cut["slow"] += 1
        raise ApiError(
            408,
            f"the body arrives too slowly; valid: all of it within {first_s:g} s, and another second for each "
            f"{LEAST_BYTES_PER_S} bytes",
        ) from None


@asynccontextmanager
async def _in_time(body: StreamReader, first_s: float) -> AsyncIterator[None]:
    """Raise :class:`TimeoutError` once less of the body has arrived than has to."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(None) as limit:
        timers: list[asyncio.TimerHandle] = []

        def check() -> None:
            timers.clear()
            due = began + first_s + body.total_bytes / LEAST_BYTES_PER_S
            if due > loop.time():
                timers.append(loop.call_at(due, check))
            else:
                limit.reschedule(due)

        check()
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()


def limited(request: web.Request) -> web.Request:
    """Return the request with a body of at most :data:`LARGEST_ROLE_BODY_BYTES`. Raises :class:`ApiError` 413."""
    size = request.content_length
    if size is not None and size > LARGEST_ROLE_BODY_BYTES:
        raise too_large()
    return request.clone(client_max_size=LARGEST_ROLE_BODY_BYTES)


def too_large() -> ApiError:
    """Return the refusal of a body that is too large."""
    return ApiError(
        413, f"the body is too large; valid: up to {LARGEST_ROLE_BODY_BYTES} bytes, and more from superusers"
    )


class _Room:
    """The bodies of one role: the bytes of those under way, and those that wait."""

    __slots__ = ("taken", "waiting")

    def __init__(self) -> None:
        self.taken = 0
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()


class BodyRoom:
    """Room for the bodies of each role."""

    __slots__ = ("_rooms",)

    def __init__(self) -> None:
        self._rooms: dict[str, _Room] = {}

    @asynccontextmanager
    async def taken(self, role: str, size: int | None) -> AsyncIterator[None]:
        """Keep room for a body of ``size`` bytes, None for any; wait for it behind those that came before."""
        needed = LARGEST_ROLE_BODY_BYTES if size is None else size
        if needed <= FREE_BYTES:
            yield
            return
        room = self._rooms.setdefault(role, _Room())
        turn = asyncio.get_running_loop().create_future()
        room.waiting.append((needed, turn))
        self._admit(role, room)
        try:
            await turn
            yield
        finally:
            if turn.cancelled():
                room.waiting.remove((needed, turn))
            else:
                room.taken -= needed
            self._admit(role, room)

    def _admit(self, role: str, room: _Room) -> None:
        while room.waiting and room.taken + room.waiting[0][0] <= ROOM_BYTES:
            needed, turn = room.waiting.popleft()
            room.taken += needed
            turn.set_result(None)
        if not room.taken and not room.waiting:
            self._rooms.pop(role, None)


BODIES: Final[web.AppKey[BodyRoom]] = web.AppKey("bodies", BodyRoom)
