"""GET_SCHEMA and GET_OR_CREATE_SCHEMA."""

from __future__ import annotations

from heliograph_api.protocol import wire_pb2 as wire

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import BrokerError, IncompatibleSchema
from heliograph_broker.messaging.schemas.schema_registry import decode_version, encode_version, schema_key
from heliograph_broker.server.error_codes import error_code
from heliograph_broker.server.session import Session
from heliograph_broker.usecases.schemas import store_schema
from heliograph_broker.usecases.unconfirmed import Creation

from .request_fields import parse_topic, properties_of

#: The type of a schema of bytes. A producer or consumer that declares it has a schema like any other.
_BYTES = wire.Schema.Type.Value("None")


def schema_record(session: Session, schema: wire.Schema) -> records.SchemaRecord:
    """Return a schema as it is stored. Raises :class:`IncompatibleSchema` for one that only clients know."""
    if schema.type == wire.Schema.AutoConsume:
        raise IncompatibleSchema("Schema AUTO_CONSUME is a client-side schema type")
    return records.SchemaRecord(
        name=schema.name,
        type=schema.type,
        data=schema.schema_data,
        properties=properties_of(schema.properties),
        created_ms=session.broker.clock.now_ms(),
    )


def get_schema(session: Session, command: wire.BaseCommand) -> None:
    """Answer with a stored version, the latest if none is named."""
    request = command.getSchema
    answer = wire.BaseCommand(type=wire.BaseCommand.GET_SCHEMA_RESPONSE)
    response = answer.getSchemaResponse
    response.request_id = request.request_id
    broker = session.broker
    try:
        name = parse_topic(request.topic)
        version = decode_version(request.schema_version) if request.schema_version else None
        found = broker.schemas.get(schema_key(name), version)
    except BrokerError as error:
        refuse_get_schema(session, request, error)
        return
    if found is None:
        response.error_code = wire.TopicNotFound
        response.error_message = "Topic not found or no-schema"
    else:
        record, at = found
        response.schema.name = f"{name.namespace_name}/{name.base.local}"
        response.schema.type = record.type  # type: ignore[assignment]
        response.schema.schema_data = record.data
        for key, value in record.properties.items():
            response.schema.properties.add(key=key, value=value)
        response.schema_version = encode_version(at)
    session.output.send(answer)


def refuse_get_schema(session: Session, request: wire.CommandGetSchema, error: BrokerError) -> None:
    """Answer a GET_SCHEMA with the reason why it fails."""
    answer = wire.BaseCommand(type=wire.BaseCommand.GET_SCHEMA_RESPONSE)
    answer.getSchemaResponse.request_id = request.request_id
    answer.getSchemaResponse.error_code = error_code(error)
    answer.getSchemaResponse.error_message = str(error)
    session.output.send(answer)


def get_or_create_schema(session: Session, command: wire.BaseCommand) -> None:
    """Store a schema (a producer that learns one while it runs); answer when it is durable."""
    request = command.getOrCreateSchema
    broker = session.broker
    creation = Creation(broker)
    try:
        name = parse_topic(request.topic)
        creation.topic(name)
        version = None
        if request.schema.type != _BYTES:
            version = store_schema(broker, name, schema_record(session, request.schema), creation)
    except BrokerError as error:
        creation.refused()
        refuse_get_or_create_schema(session, request, error)
        return

    def durable(error: BrokerError | None) -> None:
        if error is not None:
            refuse_get_or_create_schema(session, request, error)
            return
        answer = wire.BaseCommand(type=wire.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
        response = answer.getOrCreateSchemaResponse
        response.request_id = request.request_id
        response.schema_version = encode_version(version) if version is not None else b""
        session.output.send(answer)

    creation.when_durable(durable)


def refuse_get_or_create_schema(session: Session, request: wire.CommandGetOrCreateSchema, error: BrokerError) -> None:
    """Answer a GET_OR_CREATE_SCHEMA with the reason why it fails."""
    answer = wire.BaseCommand(type=wire.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    response = answer.getOrCreateSchemaResponse
    response.request_id = request.request_id
    response.error_code = error_code(error)
    response.error_message = str(error)
    session.output.send(answer)
