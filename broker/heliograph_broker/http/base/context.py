"""The handlers' context: the broker behind the application, and requests read into checked values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.values.names import TopicName, check_part

from heliograph_broker.messaging.base.errors import Done, or_persistence_error
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.messaging.log.record_set import RecordSet
from heliograph_broker.storage.base.completion import Completion, completed

from .errors import ApiError
from .json_bodies import decode, is_scalar
from .rates import RateSampler
from .warning_header import warn

T = TypeVar("T")


@dataclass(slots=True)
class Endpoints:
    """The URLs clients reach this broker at, filled in when the ports are bound; empty for those that are not open."""

    broker_url: str
    http_url: str
    broker_tls_url: str = ""
    https_url: str = ""

    @property
    def admin_url(self) -> str:
        """The URL without TLS, if there is one."""
        return self.http_url or self.https_url


BROKER: web.AppKey[Broker] = web.AppKey("broker", Broker)
CONFIG: web.AppKey[BrokerConfig] = web.AppKey("config", BrokerConfig)
ENDPOINTS: web.AppKey[Endpoints] = web.AppKey("endpoints", Endpoints)
RATES: web.AppKey[RateSampler] = web.AppKey("rates", RateSampler)


async def committed(broker: Broker, rests_on: Collection[RecordSet] | None = None) -> None:
    """Wait until everything submitted so far is durable. Raises :class:`PersistenceError` if it is not.

    ``rests_on`` names the sets of records that the answer rests on; without it they are those that were changed since
    the last group, by this request among others.
    """

    def start(done: Done) -> None:
        broker.store.writer.after_commit(or_persistence_error(done), rests_on)

    await completed(start)


async def grown(broker: Broker, name: TopicName) -> None:
    """Wait until all partitions of a topic are created. Raises the error if it is deleted, or the broker stops."""

    def start(done: Completion[None]) -> None:
        broker.topics.growth.when_complete(name, done)

    await completed(start)


async def accepted(broker: Broker) -> web.Response:
    """Answer 204 once the change is durable."""
    await committed(broker)
    return web.Response(status=204)


def as_json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def as_text(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/plain")


async def body_as(request: web.Request, kind: type[T]) -> T | None:
    """Return the JSON body as ``kind``; None without one, for null, and for "" where that is not a value of ``kind``.

    Fields that ``kind`` has not are ignored, with a warning. Raises :class:`ApiError` 400 with the problem.
    """
    try:
        value, ignored = decode(await request.read(), kind)
    except msgspec.ValidationError as error:
        raise ApiError(400, f"the body does not fit: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
    if ignored:
        warn(request, f"unknown fields are ignored: {', '.join(ignored)}")
    return value


async def required_body(request: web.Request, kind: type[T], example: str) -> T:
    """As :func:`body_as`, and refuse an empty body showing what one looks like."""
    value = await body_as(request, kind)
    if value is None:
        raise ApiError(400, f"the request needs a JSON body, for example {example}")
    return value


async def new_setting(request: web.Request, kind: type[T], example: str) -> T | None:
    """Return the value to be set, None for null, which removes a setting as DELETE does.

    So does no body at all where a document is wanted. Raises :class:`ApiError` 400 for a missing number or boolean.
    """
    if is_scalar(kind) and not (await request.read()).strip():
        raise ApiError(400, f"the request needs a JSON body, for example {example}")
    return await body_as(request, kind)


def flag(request: web.Request, name: str, default: bool = False) -> bool:
    """Return a boolean query parameter. Raises :class:`ApiError` 400 for anything but true and false."""
    text = request.query.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ApiError(400, f"query parameter {name} should be true or false, not '{text}'")
    return text.lower() == "true"


def tenant_of(request: web.Request) -> str:
    """Return the tenant of the path. Raises :class:`InvalidName`."""
    tenant = request.match_info["tenant"]
    check_part("tenant", tenant)
    return tenant


def namespace_of(request: web.Request) -> str:
    """Return ``tenant/namespace`` of the path. Raises :class:`InvalidName`."""
    namespace = request.match_info["namespace"]
    check_part("namespace", namespace)
    return f"{tenant_of(request)}/{namespace}"


def topic_of(request: web.Request) -> TopicName:
    """Return the topic of the path, URL-decoded (it may hold a slash). Raises :class:`InvalidName`."""
    domain = request.match_info.get("domain", "persistent")
    return TopicName.parse(f"{domain}://{namespace_of(request)}/{request.match_info['topic']}")
