"""Bodies of requests: none is compressed, and those of a role together take a limited amount of memory.

A body is read as a whole and decoded on the event loop. On a broker with authentication, only superusers may send large
ones, and of every other role only some are under way at a time; the others wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from .errors import ApiError

_IDENTITY: Final = "identity"
#: The largest body (bytes) of a client that is no superuser: enough for thousands of grants.
MAX_BYTES: Final = 1024 * 1024
#: Bodies (bytes) of a role that are under way together, and the largest one that does not count: a client that sends
#: its body slowly must not keep the usual ones of its role waiting.
ROOM_BYTES: Final = 16 * MAX_BYTES
FREE_BYTES: Final = 64 * 1024


@web.middleware
async def uncompressed(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a request whose body is compressed (:class:`ApiError` 415); nothing has decompressed it."""
    encoding = request.headers.get("Content-Encoding", _IDENTITY)
    if encoding.strip().lower() != _IDENTITY:
        raise ApiError(415, f"the header Content-Encoding is {encoding!r}; valid: {_IDENTITY}, a body as it is")
    return await handler(request)


def limited(request: web.Request) -> web.Request:
    """Return the request with a body that is no larger than :data:`MAX_BYTES`. Raises :class:`ApiError` 413."""
    size = request.content_length
    if size is not None and size > MAX_BYTES:
        raise too_large()
    return request.clone(client_max_size=MAX_BYTES)


def too_large() -> ApiError:
    """Return the refusal of a body that is too large."""
    return ApiError(413, f"the body is too large; valid: up to {MAX_BYTES} bytes, and more from superusers")


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
        needed = MAX_BYTES if size is None else size
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
