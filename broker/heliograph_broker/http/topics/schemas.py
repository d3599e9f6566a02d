"""Schemas of topics: /admin/v2/schemas."""

from __future__ import annotations

import struct

import msgspec
from aiohttp import web
from heliograph_api.values.names import TopicName

from heliograph_broker.http.base.context import BROKER, as_json, committed, required_body, topic_of
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.message_ids import number_in_path
from heliograph_broker.http.base.operations import operation
from heliograph_broker.messaging.base.records import SchemaRecord
from heliograph_broker.messaging.schemas.schema_compatibility import FULL
from heliograph_broker.messaging.schemas.schema_registry import schema_key
from heliograph_broker.messaging.schemas.schema_types import STORED_TYPES, type_name
from heliograph_broker.security.authorization.needs import Need

_EXAMPLE = '{"type": "STRING", "schema": "", "properties": {}}'


class SchemaDocument(msgspec.Struct):
    """Pulsar's PostSchemaPayload; ``schema`` is the definition as text."""

    type: str
    schema: str = ""
    properties: dict[str, str] = {}


class SchemaAnswer(msgspec.Struct):
    """Pulsar's GetSchemaResponse; ``timestamp`` is when the version was added, in ms, ``data`` the definition."""

    version: int
    type: str
    timestamp: int
    data: str
    properties: dict[str, str]


class SchemaVersions(msgspec.Struct, rename="camel"):
    """Pulsar's GetAllVersionsSchemaResponse, oldest first."""

    get_schema_responses: list[SchemaAnswer]


class SchemaVersion(msgspec.Struct):
    """Pulsar's SchemaVersion."""

    version: int


class SchemaVersionAnswer(msgspec.Struct):
    """Pulsar's PostSchemaResponse."""

    version: SchemaVersion


class Compatibility(msgspec.Struct, rename="camel"):
    """Pulsar's IsCompatibilityResponse."""

    compatibility: bool
    schema_compatibility_strategy: str


class SchemaPlace(msgspec.Struct, rename="camel"):
    """Pulsar's SchemaMetadata.Entry; a schema is a record of this broker, so it has no ledger and entry (-1)."""

    version: int
    ledger_id: int = -1
    entry_id: int = -1


class SchemaMetadata(msgspec.Struct):
    """Pulsar's SchemaMetadata: the newest version, and all of them."""

    info: SchemaPlace
    index: list[SchemaPlace]


class SchemaDeletionAnswer(msgspec.Struct):
    """Pulsar's DeleteSchemaResponse: the version that the deletion counts as, in plain."""

    version: int


def _type_value(name: str) -> int:
    if name.upper() in STORED_TYPES:
        return STORED_TYPES[name.upper()]
    raise ApiError(422, f"schema type '{name}' is not one of {', '.join(sorted(STORED_TYPES))}")


def _data_text(record: SchemaRecord) -> str:
    """Return the definition as text; a key/value schema's two parts as one JSON object."""
    data = record.data
    if type_name(record.type) == "KEY_VALUE" and len(data) >= 8:
        (key_size,) = struct.unpack_from(">i", data)
        key_size = max(key_size, 0)
        key, value = data[4 : 4 + key_size], data[8 + key_size :]
        parts = {"key": key.decode("utf-8", "replace"), "value": value.decode("utf-8", "replace")}
        return msgspec.json.encode(parts).decode()
    return data.decode("utf-8", "replace")


def _document(record: SchemaRecord, version: int) -> SchemaAnswer:
    return SchemaAnswer(version, type_name(record.type), record.created_ms, _data_text(record), record.properties)


@operation(
    "Get the newest version of a topic's schema, or the version in the path.",
    answers={200: SchemaAnswer},
    needs=Need.LOOKUP,
)
async def get_schema(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    version = None
    if "version" in request.match_info:
        version = number_in_path(request, "version", "a number from 0 on")
    found = broker.schemas.get(schema_key(topic_of(request)), version)
    if found is None:
        raise ApiError(404, "Schema not found")
    return as_json(_document(*found))


@operation("Get all versions of a topic's schema.", answers={200: SchemaVersions}, needs=Need.LOOKUP)
async def list_schemas(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    versions = broker.schemas.versions(schema_key(topic_of(request)))
    return as_json(SchemaVersions([_document(record, at) for at, record in enumerate(versions)]))


async def _addition(request: web.Request) -> tuple[TopicName, SchemaRecord, str | None]:
    """Return the topic, the schema in the body, and the compatibility that the topic asks for.

    Raises :class:`ApiError` 400 or 422, or :class:`NamespaceNotFound`.
    """
    broker = request.app[BROKER]
    name = topic_of(request)
    record = await _record(request, name)
    broker.directory.namespace(name.namespace_name)
    return name, record, broker.policies.effective(name).schema_compatibility


async def _record(request: web.Request, name: TopicName) -> SchemaRecord:
    """Return the schema in the body. Raises :class:`ApiError` 400 or 422."""
    document = await required_body(request, SchemaDocument, _EXAMPLE)
    return SchemaRecord(
        name=name.local,
        type=_type_value(document.type),
        data=document.schema.encode(),
        properties=document.properties,
        created_ms=request.app[BROKER].clock.now_ms(),
    )


@operation(
    "Add a schema version if it is compatible with the existing ones.",
    body=SchemaDocument,
    body_required=True,
    example=_EXAMPLE,
    answers={200: SchemaVersionAnswer},
    needs=Need.PRODUCE,
)
async def post_schema(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name, record, strategy = await _addition(request)
    # An administrator may always add one: that clients may not is what auto_update_schema is for.
    version = broker.schemas.add(schema_key(name), record, strategy)
    await committed(broker)
    return as_json(SchemaVersionAnswer(SchemaVersion(version)))


@operation(
    "Check whether a schema could be added; nothing is added.",
    body=SchemaDocument,
    body_required=True,
    example=_EXAMPLE,
    answers={202: Compatibility},
    needs=Need.LOOKUP,
)
async def check_compatibility(request: web.Request) -> web.Response:
    name, record, strategy = await _addition(request)
    # One that is not is refused, as by Pulsar: its tools take every other answer for a yes.
    request.app[BROKER].schemas.check_addition(schema_key(name), record, strategy, may_update=True)
    answer = as_json(Compatibility(True, strategy or FULL))
    answer.set_status(202)
    return answer


@operation(
    "Get the version of a schema, -1 if the topic has none like it.",
    body=SchemaDocument,
    body_required=True,
    example=_EXAMPLE,
    answers={200: SchemaVersion},
    needs=Need.LOOKUP,
)
async def find_version(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = topic_of(request)
    record = await _record(request, name)
    for version, stored in enumerate(broker.schemas.versions(schema_key(name))):
        if (stored.type, stored.data) == (record.type, record.data):
            return as_json(SchemaVersion(version))
    return as_json(SchemaVersion(-1))


@operation(
    "Get the versions of a topic's schema, without the schemas.", answers={200: SchemaMetadata}, needs=Need.LOOKUP
)
async def get_metadata(request: web.Request) -> web.Response:
    versions = request.app[BROKER].schemas.versions(schema_key(topic_of(request)))
    if not versions:
        raise ApiError(404, "Schema not found")
    places = [SchemaPlace(version) for version in range(len(versions))]
    return as_json(SchemaMetadata(places[-1], places))


@operation("Delete a topic's schema with all its versions.", answers={200: SchemaDeletionAnswer}, needs=Need.ADMIN)
async def delete_schema(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    version = broker.schemas.delete(schema_key(topic_of(request)))
    if version is None:
        raise ApiError(404, "Schema not found")
    await committed(broker)
    return as_json(SchemaDeletionAnswer(version + 1))


def routes() -> list[web.RouteDef]:
    path = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
    return [
        web.get(f"{path}/schema", get_schema),
        web.get(f"{path}/schema/{{version}}", get_schema),
        web.get(f"{path}/schemas", list_schemas),
        web.get(f"{path}/metadata", get_metadata),
        web.post(f"{path}/compatibility", check_compatibility),
        web.post(f"{path}/version", find_version),
        web.post(f"{path}/schema", post_schema),
        web.delete(f"{path}/schema", delete_schema),
    ]
