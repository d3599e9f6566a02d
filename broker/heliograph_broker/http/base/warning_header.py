"""Warnings beside an answer that succeeded: what of a request was ignored, or has no effect here."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

WARNING: Final = "Warning"
_TEXTS: web.RequestKey[list[str]] = web.RequestKey("warnings", list[str])
#: A header of more characters could be refused on the way.
_MAX_CHARACTERS: Final = 1000


def warn(request: web.Request, text: str) -> None:
    """Add a sentence to the answer's warnings."""
    if _TEXTS not in request:
        request[_TEXTS] = []
    request[_TEXTS].append(text)


def _quoted(text: str) -> str:
    """Return a quoted string of HTTP: ASCII, without characters that would end it."""
    plain = "".join(each if " " <= each <= "~" else "?" for each in text[:_MAX_CHARACTERS])
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


@web.middleware
async def warnings_as_header(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Send what handlers said with :func:`warn` as one ``Warning`` header each (code 299)."""
    response = await handler(request)
    if not response.prepared and response.status < 300:
        for text in request.get(_TEXTS, ()):
            response.headers.add(WARNING, f"299 - {_quoted(text)}")
    return response
