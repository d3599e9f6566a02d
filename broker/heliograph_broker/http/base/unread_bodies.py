"""The rest of a body whose request is answered before all of it has arrived: a limited number of bytes of it is read.

They are read because many clients send all of a body before they read the answer, and so that the next request of the
connection is found. A client that sends more is cut.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from .access import is_on
from .authentication import IDENTITY
from .bodies import LARGEST_BODY_BYTES
from .connection import HttpConnection

#: The bytes that are read of a request whose client is unknown. They cost the broker time and are of no use.
_OF_UNKNOWN_BYTES: Final = 1024 * 1024


async def limit_unread(request: web.Request, _: web.StreamResponse) -> None:
    """Limit the bytes that are read of a request from its answer on, if its body has not arrived in full."""
    transport = request.transport
    if transport is None or request.content.is_eof():
        return
    connection = transport.get_protocol()
    if isinstance(connection, HttpConnection):
        known = IDENTITY in request or not is_on(request)
        connection.answered_before(request.content, LARGEST_BODY_BYTES if known else _OF_UNKNOWN_BYTES)
