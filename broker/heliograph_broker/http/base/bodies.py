"""The form of requests' bodies: none is compressed, since a small one could become a large one."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from .errors import ApiError

_IDENTITY: Final = "identity"


@web.middleware
async def uncompressed(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a request whose body is compressed (:class:`ApiError` 415); nothing has decompressed it."""
    encoding = request.headers.get("Content-Encoding", _IDENTITY)
    if encoding.strip().lower() != _IDENTITY:
        raise ApiError(415, f"the header Content-Encoding is {encoding!r}; valid: {_IDENTITY}, a body as it is")
    return await handler(request)
