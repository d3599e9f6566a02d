"""/admin/v2/openapi.json: what this API takes and answers (OpenAPI 3.1), made from the routes and their operations."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web
from heliograph_api import __version__

from heliograph_broker.security.authorization.needs import Need

from .operations import JSON, Media, Operation, Refusal, operation, operation_of
from .warning_header import WARNING


class Cached:
    """The description, once it is generated."""

    __slots__ = ("body",)

    def __init__(self) -> None:
        self.body: bytes | None = None


DESCRIPTION: web.AppKey[Cached] = web.AppKey("openapi_description", Cached)

_REFERENCE = "#/components/schemas/{name}"
_PART = {"type": "string", "pattern": "^[-=:.A-Za-z0-9_]+$", "maxLength": 200}
_LOCAL = {"type": "string", "pattern": r"^\S(.*\S)?$", "maxLength": 240}
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_POSITION = {"type": "integer", "minimum": -1, "maximum": 2**63 - 1}

#: The parameters of paths, by name: their meaning and schema.
_PATH_PARAMETERS: dict[str, tuple[str, dict[str, Any]]] = {
    "domain": (
        "Whether the topic's messages are stored.",
        {"type": "string", "enum": ["persistent", "non-persistent"]},
    ),
    "tenant": ("The tenant's name.", _PART),
    "namespace": ("The namespace's own name, without its tenant.", _PART),
    "topic": ("The topic's own name, URL-encoded; -partition-N names one partition.", _LOCAL),
    "subscription": ("The subscription's name, URL-encoded.", _LOCAL),
    "cluster": ("The cluster's name.", _PART),
    "group": ("The name of the group.", _PART),
    "role": ("The role, as authentication names it.", _LOCAL),
    "key": ("The property's name, URL-encoded.", _LOCAL),
    "value": ("The property's value, URL-encoded.", _LOCAL),
    "resourcegroup": ("The resource group's name.", _PART),
    "version": ("The schema's version, from 0 on.", {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}),
    "timestamp": ("A wall-clock time in ms since 1970.", _NUMBER),
    "ledger": ("The ledger of a message id.", _POSITION),
    "entry": ("The entry of a message id.", _POSITION),
    "position": ("Number of the entry in the backlog, from 1.", {**_NUMBER, "minimum": 1}),
    "messages": ("Number of messages.", _NUMBER),
    "seconds": ("An age in seconds.", _NUMBER),
    "bundle": (
        "A range of hashes, like 0x00000000_0x40000000.",
        {"type": "string", "pattern": "^0x[0-9a-f]{8}_0x[0-9a-f]{8}$"},
    ),
    "broker": ("The broker's host and port.", {"type": "string", "pattern": r"^[^/\\s]+$"}),
    "setting": ("The name of a setting.", _PART),
    "failuredomain": ("The failure domain's name.", _PART),
    "policy": ("The isolation policy's name.", _PART),
    "allocator": ("The name of an allocator.", _PART),
    "bookie": ("The name of a bookie.", _PART),
}

_BINARY = {"type": "string", "contentMediaType": "application/octet-stream"}
_SERVED_AT = ("/admin/v2/openapi.json", "/openapi.json")


def described_routes(app: web.Application) -> Iterator[tuple[str, str, Operation | None]]:
    """Yield (method in capitals, path with ``{parameters}``, operation) of every route but the automatic HEADs."""
    for route in app.router.routes():
        if route.method != "HEAD" and route.resource is not None:
            yield route.method, route.resource.canonical, operation_of(route.handler)


def describe(routes: Iterable[tuple[str, str, Operation]]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes."""
    listed = list(routes)
    types = list(_types(described for _, _, described in listed))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    schema_of = _SchemaOf(types, list(schemas))
    ids = _operation_ids([(method, path) for method, path, _ in listed])
    paths: dict[str, dict[str, Any]] = {}
    for method, path, described in listed:
        entry = _operation(method, path, described, schema_of)
        paths.setdefault(path, {})[method.lower()] = {"operationId": ids[method, path], **entry}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Heliograph",
            "version": __version__,
            "description": "Apache Pulsar's admin REST API (v2) and lookup, and Heliograph's own endpoints.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The broker that serves this description."}],
        "tags": [{"name": tag} for tag in sorted({_tag(path) for path in paths})],
        "paths": paths,
        "components": {
            "schemas": components,
            "headers": {
                WARNING: {
                    "description": "Code 299 with what of the request was ignored, or has no effect on this broker.",
                    "schema": {"type": "string"},
                }
            },
            "parameters": {name: _path_parameter(name) for name in sorted(set(_parameter_names("".join(paths))))},
            "responses": {
                name: {"description": HTTPStatus(status).phrase, "content": _content(Refusal, schema_of, text=JSON)}
                for name, status in _refusal_names(paths)
            },
        },
    }


class _SchemaOf:
    """The JSON schema of a type; types are found by equality, as not every annotation can be hashed."""

    __slots__ = ("_schemas", "_types")

    def __init__(self, types: list[Any], schemas: list[dict[str, Any]]) -> None:
        self._types = types
        self._schemas = schemas

    def __call__(self, kind: Any) -> dict[str, Any]:
        return self._schemas[self._types.index(kind)]


def _types(operations: Iterable[Operation]) -> Iterator[Any]:
    """Yield every type that needs a schema, each once."""
    seen: list[Any] = []
    for described in operations:
        for value in (described.body, *described.answers.values(), Refusal):
            kind = value.kind if isinstance(value, Media) else value
            if kind is not None and kind not in seen:
                seen.append(kind)
                yield kind


def _operation(method: str, path: str, described: Operation, schema_of: _SchemaOf) -> dict[str, Any]:
    entry: dict[str, Any] = {"summary": described.summary, "tags": [_tag(path)]}
    parameters: list[dict[str, Any]] = [{"$ref": f"#/components/parameters/{name}"} for name in _parameter_names(path)]
    for parameter in described.query:
        schema = dict(msgspec.json.schema(parameter.kind))
        if parameter.choices:
            schema["enum"] = list(parameter.choices)
        parameters.append(
            {
                "name": parameter.name,
                "in": "query",
                "required": parameter.required,
                "description": parameter.description,
                "schema": schema,
            }
        )
    if parameters:
        entry["parameters"] = parameters
    if described.body is not None:
        entry["requestBody"] = {
            "required": described.body_required,
            "content": _content(described.body, schema_of, text=JSON, example=described.example),
        }
    answers: dict[int, Any] = dict.fromkeys(_refusals(method, path, described), Refusal)
    answers |= described.answers
    entry["responses"] = {
        str(status): _answer(status, answers[status], schema_of, warns=method != "GET") for status in sorted(answers)
    }
    return entry


def _answer(status: int, kind: Any, schema_of: _SchemaOf, *, warns: bool) -> dict[str, Any]:
    if kind is Refusal:
        return {"$ref": f"#/components/responses/{_refusal_name(status)}"}
    answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if warns:
        answer["headers"] = {WARNING: {"$ref": f"#/components/headers/{WARNING}"}}
    if kind is not None:
        answer["content"] = _content(kind, schema_of, text="text/plain")
    return answer


def _refusal_name(status: int) -> str:
    return "".join(word.capitalize() for word in re.split(r"[^A-Za-z]+", HTTPStatus(status).phrase))


def _refusal_names(paths: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Return name and status of every refusal that is referred to."""
    found = {
        int(status)
        for item in paths.values()
        for described in item.values()
        for status, answer in described["responses"].items()
        if "$ref" in answer
    }
    return [(_refusal_name(status), status) for status in sorted(found)]


def _content(kind: Any, schema_of: _SchemaOf, *, text: str, example: str = "") -> dict[str, Any]:
    """Return the content map of a body or answer; ``text`` is the content type of a bare ``str``."""
    content = _media(kind, schema_of, text)
    if example:
        for media in content.values():
            media["example"] = msgspec.json.decode(example)
    return content


def _media(kind: Any, schema_of: _SchemaOf, text: str) -> dict[str, dict[str, Any]]:
    if isinstance(kind, Media):
        schema = _BINARY if kind.kind is bytes else schema_of(kind.kind)
        return {media_type: {"schema": schema} for media_type in kind.types}
    if kind is bytes:
        return {"application/octet-stream": {"schema": _BINARY}}
    return {text if kind is str else JSON: {"schema": schema_of(kind)}}


def _refusals(method: str, path: str, described: Operation) -> set[int]:
    """Return the statuses of refusals that any request of this kind may meet."""
    statuses: set[int] = set()
    if described.query:
        statuses.add(400)
    if "{" in path:
        # The path may name something that is misspelt, missing, of the other kind, in use or in a wrong state.
        statuses |= {400, 404, 405, 409, 412}
    if described.body is not None:
        statuses |= {400, 412, 413, 422}
    if method != "GET":
        # A disk that is full, or that fails.
        statuses |= {409, 503}
    return statuses


def _parameter_names(path: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", path)


def _path_parameter(name: str) -> dict[str, Any]:
    description, schema = _PATH_PARAMETERS.get(name, ("", {"type": "string"}))
    parameter: dict[str, Any] = {"name": name, "in": "path", "required": True, "schema": schema}
    if description:
        parameter["description"] = description
    return parameter


def _tag(path: str) -> str:
    """Return the group of a path, by its subject rather than its place."""
    words = path.split("/")[1:]
    if words[:2] != ["admin", "v2"]:
        return words[0].partition(".")[0]
    if "{domain}" not in words:
        return words[2].partition(".")[0]
    return "subscriptions" if any(word.startswith(("subscription", "all_subscription")) for word in words) else "topics"


def _operation_ids(routes: list[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
    """Name each operation by its method and path: as short as it can be, other spellings of a path with a number."""
    short = Counter(_operation_id(*route, parameters=False) for route in routes)
    names: dict[tuple[str, str], str] = {}
    taken: Counter[str] = Counter()
    for route in routes:
        name = _operation_id(*route, parameters=False)
        if short[name] > 1:
            name = _operation_id(*route, parameters=True)
        taken[name] += 1
        names[route] = name if taken[name] == 1 else f"{name}{taken[name]}"
    return names


def _operation_id(method: str, path: str, *, parameters: bool) -> str:
    words = path.replace("/admin/v2/{domain}", "/topics").removeprefix("/admin/v2").split("/")
    named = [word for word in words if not word.startswith("{")]
    if parameters and (names := _parameter_names(path)):
        named += ["by", *names]
    return method.lower() + "".join(_capital(part) for word in named for part in re.split(r"[^A-Za-z0-9]+", word))


def _capital(word: str) -> str:
    return word[:1].upper() + word[1:]


def document(app: web.Application) -> bytes:
    """Return the description as JSON. A route that says nothing of itself is left out; a test finds it."""
    described = [(method, path, found) for method, path, found in described_routes(app) if found is not None]
    return msgspec.json.encode(describe(described))


@operation("Get this description.", answers={200: dict[str, Any]}, needs=Need.IDENTITY)
async def get_description(request: web.Request) -> web.Response:
    """Return the description, generated at the first request, outside the event loop, in about 10 ms."""
    cached = request.app[DESCRIPTION]
    if cached.body is None:
        cached.body = await asyncio.to_thread(document, request.app)
    return web.Response(body=cached.body, content_type=JSON)


def routes() -> list[web.RouteDef]:
    return [web.get(path, get_description) for path in _SERVED_AT]
