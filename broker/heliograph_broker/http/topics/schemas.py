"""Schemas of topics: /admin/v2/schemas."""

from __future__ import annotations

import struct

import msgspec
from aiohttp import web
from heliograph_api.protocol import wire_pb2 as wire

from heliograph_broker.http.base.context import BROKER, as_json, committed, required_body, topic_of
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import operation
from heliograph_broker.messaging.base.records import SchemaRecord
from heliograph_broker.messaging.schemas.schema_registry import schema_key

_EXAMPLE = '{"type": "JSON", "schema": "{...}", "properties": {}}'


class SchemaDocument(msgspec.Struct, forbid_unknown_fields=True):
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
    """Pulsar's PostSchemaResponse and DeleteSchemaResponse."""

    version: SchemaVersion


def _type_name(value: int) -> str:
    """Return the REST name of a wire type: KeyValue is KEY_VALUE there."""
    name = wire.Schema.Type.Name(value)  # type: ignore[arg-type]
    return "KEY_VALUE" if name == "KeyValue" else name.upper()


def _type_value(name: str) -> int:
    for wire_name, value in wire.Schema.Type.items():
        if _type_name(value) == name.upper() and wire_name != "None":
            return value
    valid = ", ".join(sorted(_type_name(value) for key, value in wire.Schema.Type.items() if key != "None"))
    raise ApiError(422, f"schema type '{name}' is not one of {valid}")


def _data_text(record: SchemaRecord) -> str:
    """Return the definition as text; a key/value schema's two parts as one JSON object."""
    data = record.data
    if _type_name(record.type) == "KEY_VALUE" and len(data) >= 8:
        (key_size,) = struct.unpack_from(">i", data)
        key_size = max(key_size, 0)
        key, value = data[4 : 4 + key_size], data[8 + key_size :]
        parts = {"key": key.decode("utf-8", "replace"), "value": value.decode("utf-8", "replace")}
        return msgspec.json.encode(parts).decode()
    return data.decode("utf-8", "replace")


def _document(record: SchemaRecord, version: int) -> SchemaAnswer:
    return SchemaAnswer(version, _type_name(record.type), record.created_ms, _data_text(record), record.properties)


@operation("Get the newest version of a topic's schema, or the version in the path.", answers={200: SchemaAnswer})
async def get_schema(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    text = request.match_info.get("version")
    if text is not None and not (text.isascii() and text.isdigit()):
        raise ApiError(400, f"a schema version is a number from 0 on, not '{text}'")
    found = broker.schemas.get(schema_key(topic_of(request)), None if text is None else int(text))
    if found is None:
        raise ApiError(404, "Schema not found")
    return as_json(_document(*found))


@operation("Get all versions of a topic's schema.", answers={200: SchemaVersions})
async def list_schemas(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    versions = broker.schemas.versions(schema_key(topic_of(request)))
    if not versions:
        raise ApiError(404, "Schema not found")
    return as_json(SchemaVersions([_document(record, at) for at, record in enumerate(versions)]))


@operation(
    "Add a schema version if it is compatible with the existing ones.",
    body=SchemaDocument,
    body_required=True,
    example='{"type": "STRING", "schema": "", "properties": {}}',
    answers={200: SchemaVersionAnswer},
)
async def post_schema(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = topic_of(request)
    document = await required_body(request, SchemaDocument, _EXAMPLE)
    record = SchemaRecord(
        name=name.local,
        type=_type_value(document.type),
        data=document.schema.encode(),
        properties=document.properties,
        created_ms=broker.clock.now_ms(),
    )
    broker.directory.namespace(name.namespace_name)
    # An administrator may always add one: that clients may not is what auto_update_schema is for.
    version = broker.schemas.add(schema_key(name), record, broker.policies.effective(name).schema_compatibility)
    await committed(broker)
    return as_json(SchemaVersionAnswer(SchemaVersion(version)))


@operation("Delete a topic's schema with all its versions.", answers={200: SchemaVersionAnswer})
async def delete_schema(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    version = broker.schemas.delete(schema_key(topic_of(request)))
    if version is None:
        raise ApiError(404, "Schema not found")
    await committed(broker)
    return as_json(SchemaVersionAnswer(SchemaVersion(version)))


def routes() -> list[web.RouteDef]:
    path = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
    return [
        web.get(f"{path}/schema", get_schema),
        web.get(f"{path}/schema/{{version}}", get_schema),
        web.get(f"{path}/schemas", list_schemas),
        web.post(f"{path}/schema", post_schema),
        web.delete(f"{path}/schema", delete_schema),
    ]
