"""GET_SCHEMA and GET_OR_CREATE_SCHEMA."""

from __future__ import annotations

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.values.names import InvalidName, TopicName

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import BrokerError
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.messaging.schemas.schema_registry import decode_version, encode_version
from heliograph_broker.server.error_codes import error_code
from heliograph_broker.server.session import Session
from heliograph_broker.usecases.unconfirmed import Creation

from .properties import properties_of

_NONE = wire.Schema.Type.Value("None")


def store_schema(
    broker: Broker, name: TopicName, schema: wire.Schema, creation: Creation | None, *, reads_only: bool = False
) -> int | None:
    """Store a client's schema for a request as the topic's policies allow; return its version, None for "no schema".

    One who ``reads_only`` may have another one that is compatible, also where clients may not add to the topic's
    schemas. Without ``creation`` it is only checked whether it could be. Raises :class:`IncompatibleSchema`.
    """
    if schema.type == _NONE:
        return None
    record = records.SchemaRecord(
        name=schema.name,
        type=schema.type,
        data=schema.schema_data,
        properties=properties_of(schema.properties, "schema properties"),
        created_ms=broker.clock.now_ms(),
    )
    policies = broker.effective_policies(name)
    key = broker.schema_key(name)
    may_update = policies.auto_update_schema is not False
    if reads_only and not may_update and broker.schemas.latest(key) is not None:
        broker.schemas.check(key, record, policies.schema_compatibility)
        return None
    if creation is None:
        return broker.schemas.check_addition(key, record, policies.schema_compatibility, may_update=may_update)
    version = broker.schemas.claim(key, record, policies.schema_compatibility, may_update=may_update)
    creation.schema(key, version)
    return version


def get_schema(session: Session, command: wire.BaseCommand) -> None:
    """Answer with a stored version, the latest if none is named."""
    request = command.getSchema
    answer = wire.BaseCommand(type=wire.BaseCommand.GET_SCHEMA_RESPONSE)
    response = answer.getSchemaResponse
    response.request_id = request.request_id
    broker = session.broker
    try:
        name = TopicName.parse(request.topic)
        version = decode_version(request.schema_version) if request.schema_version else None
        found = broker.schemas.get(broker.schema_key(name), version)
    except InvalidName as error:
        response.error_code = wire.InvalidTopicName
        response.error_message = str(error)
    except BrokerError as error:
        response.error_code = error_code(error)
        response.error_message = str(error)
    else:
        if found is None:
            response.error_code = wire.TopicNotFound
            response.error_message = "Topic not found or no-schema"
        else:
            record, at = found
            response.schema.name = record.name or name.local
            response.schema.type = record.type  # type: ignore[assignment]
            response.schema.schema_data = record.data
            for key, value in record.properties.items():
                response.schema.properties.add(key=key, value=value)
            response.schema_version = encode_version(at)
    session.send(answer)


def get_or_create_schema(session: Session, command: wire.BaseCommand) -> None:
    """Store a schema (a producer that learns one while it runs); answer when it is durable."""
    request = command.getOrCreateSchema
    broker = session.broker

    def answer(version: int | None, error_code: int | None, message: str) -> None:
        command = wire.BaseCommand(type=wire.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
        response = command.getOrCreateSchemaResponse
        response.request_id = request.request_id
        if error_code is not None:
            response.error_code = error_code  # type: ignore[assignment]
            response.error_message = message
        else:
            response.schema_version = encode_version(version) if version is not None else b""
        session.send(command)

    creation = Creation(broker)
    try:
        name = TopicName.parse(request.topic)
        topic = creation.topic(name)
        version = store_schema(broker, name, request.schema, creation)
    except InvalidName as error:
        answer(None, wire.InvalidTopicName, str(error))
        return
    except BrokerError as error:
        creation.refused()
        answer(None, error_code(error), str(error))
        return

    def committed(error: Exception | None) -> None:
        if error is not None:
            creation.refused()
            answer(None, wire.PersistenceError, f"not stored: {error}")
        else:
            creation.confirmed()
            answer(version, None, "")

    broker.when_durable(topic, committed)
