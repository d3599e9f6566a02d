"""The admin API: every route with any path, query and body, against a broker whose files are in memory.

Requests are as aiohttp's parser hands them over; the parser itself is not fuzzed.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_from_bytes

from aiohttp import web
from heliograph_broker.http.app import create_app
from heliograph_broker.http.base.context import BROKER, CONFIG, RATES, Endpoints
from heliograph_broker.http.base.rates import RateSampler

from tests.fuzz.http_request import make_request
from tests.fuzz.kept_broker import KeptBroker
from tests.fuzz.memory_core import MemoryCore
from tests.fuzz.target import Finding, Source, sized

#: Turns of the event loop within which a request is answered.
_TURNS = 2000
#: The broker has something of these names, so that requests get past the first look-up.
_VALUES = {
    "domain": "persistent",
    "tenant": "public",
    "namespace": "default",
    "topic": "t",
    "subscription": "s",
    "cluster": "standalone",
    "bundle": "0x00000000_0xffffffff",
    "version": "0",
}
#: Streams for as long as the broker has data, through threads and pipes.
_LEFT_OUT = ("/heliograph/v1/backup",)
_PARAMETER = re.compile(r"\{(\w+)(?::[^{}]*)?\}")


class _Application:
    """One for all inputs, because making it takes longer than most of them; each gets a broker of its own."""

    def __init__(self, core: MemoryCore) -> None:
        self.loop = asyncio.new_event_loop()
        self.app = create_app(core.broker, core.config, Endpoints("pulsar://b:6650", "http://b:8080"))
        self.app.freeze()
        found = {
            (route.method, route.resource.canonical)
            for route in self.app.router.routes()
            if route.resource is not None and route.method != "HEAD"
        }
        self.routes = sorted(route for route in found if route[1] not in _LEFT_OUT)

    def serve(self, core: MemoryCore) -> None:
        state: dict[Any, Any] = self.app._state
        state[BROKER] = core.broker
        state[CONFIG] = core.config
        state[RATES] = RateSampler(core.broker, core.clock)

    async def ask(self, core: MemoryCore, method: str, path: str, body: bytes) -> web.StreamResponse:
        """Return the answer. Raises :class:`Finding` if there is none."""
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        answer = asyncio.ensure_future(self.app._handle(make_request(method, path, headers, body)))
        for turn in range(_TURNS):
            await asyncio.sleep(0.001 if turn > _TURNS // 2 else 0)
            core.commit()
            if answer.done():
                return answer.result()
        answer.cancel()
        raise Finding(f"{method} {path} is not answered")


@cache
def _application() -> _Application:
    return _Application(MemoryCore(Path("/memory/data")))


class _Broker:
    def __init__(self) -> None:
        self.core = MemoryCore(Path("/memory/data"))
        topic = self.core.topic("persistent://public/default/t")
        self.core.publish_all(topic, b"a", b"b", key="k")
        topic.create_subscription("s", "earliest")
        self.core.commit()
        _application().serve(self.core)

    def state(self) -> object:
        """Return all that requests change but what is in memory only: any of the others is written."""
        directory = self.core.broker.directory
        return self.core.disk.steps, sorted(directory.topics), sorted(directory.namespaces), sorted(directory.tenants)

    def close(self) -> None:
        self.core.close()


def _attack(broker: _Broker, data: bytes) -> bool:
    before, source = broker.state(), Source(data)
    while not source.ended:
        _request(_application(), broker.core, source)
    broker.core.commit()
    return broker.state() == before


_BROKER = KeptBroker(_Broker, _attack)
run = _BROKER.run


def _request(application: _Application, core: MemoryCore, source: Source) -> None:
    method, template = application.routes[source.number(2) % len(application.routes)]
    flags = source.number()

    def value(match: re.Match[str]) -> str:
        nonlocal flags
        own, flags = flags & 1, flags >> 1
        return quote_from_bytes(source.sized()) if own else quote(_VALUES.get(match[1], match[1]), safe="")

    path = _PARAMETER.sub(value, template)
    if query := source.sized():
        path += "?" + quote_from_bytes(query, safe="=&%+")
    body = source.sized()
    answer = application.loop.run_until_complete(application.ask(core, method, path, body))
    if answer.status == 500:
        raise Finding(f"{method} {path} with {body!r}: {answer.status}")
    if isinstance(answer, web.Response) and answer.content_type == "application/json" and answer.body:
        json.loads(bytes(answer.body))  # type: ignore[arg-type]


def _input(number: int, body: bytes = b"", query: bytes = b"", *values: bytes) -> bytes:
    flags = (1 << len(values)) - 1
    return number.to_bytes(2, "big") + bytes([flags]) + b"".join(map(sized, values)) + sized(query) + sized(body)


_BODIES = [
    b"",
    b"5",
    b"true",
    b'"latest"',
    b'{"ledgerId": 1, "entryId": 0}',
    b'{"retentionTimeInMinutes": 5}',
    b'["a"]',
]


def seeds() -> Iterator[bytes]:
    application = _application()
    for number, (method, path) in enumerate(application.routes):
        yield _input(number, b"" if method == "GET" else _BODIES[number % len(_BODIES)])
        yield _input(number, _BODIES[(number + 3) % len(_BODIES)], b"force=true", b"public", b"default")
        if path.endswith("/apply"):
            yield _input(number, b"apiVersion: heliograph.dev/v1alpha1\nkind: Tenant\nmetadata: {name: a}\nspec: {}\n")
