"""Requests as aiohttp's server hands them to an application, without a connection; their answers go nowhere.

aiohttp's own helper for tests makes a dozen mocks for each, which takes longer than most requests.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL


class _Transport:
    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def get_protocol(self) -> None:
        return None


class _Protocol:
    """The connection of a request and its body."""

    _reading_paused = False
    connected = True
    peername = ("192.0.2.7", 4711)
    sockname = ("192.0.2.1", 8080)
    ssl_context = None
    max_field_size = 8190
    max_line_size = 8190
    max_headers = 128
    transport = _Transport()

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self, resume_parser: bool = True) -> None:
        self._reading_paused = False


class _Writer(AbstractStreamWriter):
    """Counts what an answer has, and forgets it."""

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self.output_size += len(chunk)

    async def write_eof(self, chunk: bytes = b"") -> None:
        self.output_size += len(chunk)

    async def drain(self) -> None:
        pass

    def enable_compression(self, encoding: str = "deflate", *args: object, **options: object) -> None:
        pass

    def enable_chunking(self) -> None:
        pass

    async def write_headers(self, status_line: str, headers: CIMultiDict[str]) -> None:
        pass


def make_request(method: str, target: str, headers: dict[str, str], body: bytes) -> web.Request:
    """Return a request whose body has come in full; ``target`` is the path with the query. Needs a running loop."""
    loop = asyncio.get_running_loop()
    protocol = cast(Any, _Protocol())
    reader = StreamReader(protocol, 1 << 16, loop=loop)
    reader.feed_data(body)
    reader.feed_eof()
    fields = CIMultiDictProxy(CIMultiDict(headers))
    raw = tuple((name.encode(), value.encode()) for name, value in headers.items())
    # As the parser does.
    path, _, query = target.partition("?")
    url = URL.build(path=path, query_string=query, encoded=True)
    message = RawRequestMessage(method, target, HttpVersion11, fields, raw, False, None, False, False, url)
    return web.Request(message, reader, protocol, _Writer(), cast(Any, None), loop)
