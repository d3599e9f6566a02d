"""Rows become messages: which column is what, and the schema of the topic they are for."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import _pulsar
import fastavro
import pulsar
from pyspark.sql import types as t

from heliograph_spark.decode.avro_unions import UnionsAsRecords
from heliograph_spark.plan.errors import SchemaError
from heliograph_spark.plan.timestamps import since_1970

from .fitting import holds, record_for
from .primitives import PRIMITIVES
from .schemas import METADATA, VALUE, TopicSchema

#: Columns that say something of a message; reading gives more, which only the broker or the producer can say.
_WRITTEN: dict[str, tuple[type[t.DataType], ...]] = {
    "__key": (t.StringType, t.BinaryType),
    "__orderingKey": (t.StringType, t.BinaryType),
    "__topic": (t.StringType,),
    "__eventTime": (t.TimestampType,),
    "__messageProperties": (t.MapType,),
}
_NOT_WRITTEN = frozenset(METADATA.names) - _WRITTEN.keys()

#: A value whose topic has no schema gets this one; the client cannot register those of booleans and times.
_REGISTERED = ("BYTES", "STRING", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE")
_PRIMITIVES: dict[type[t.DataType], str] = {type(PRIMITIVES[kind].column): kind for kind in _REGISTERED}
_AVRO: dict[type[t.DataType], Any] = {
    t.BooleanType: "boolean",
    t.ByteType: "int",
    t.ShortType: "int",
    t.IntegerType: "int",
    t.LongType: "long",
    t.FloatType: "float",
    t.DoubleType: "double",
    t.BinaryType: "bytes",
    t.StringType: "string",
    t.DateType: {"type": "int", "logicalType": "date"},
    t.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
}

#: What the encoders raise for a value that is none of the schema's.
_UNFIT = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


def avro_definition(kind: t.DataType, name: str) -> Any:
    """Return the Avro type for Spark's; ``name`` is the field's path. Raises :class:`SchemaError`, naming the field."""
    if isinstance(kind, t.StructType):
        fields = [
            {
                "name": field.name,
                "type": ["null", avro_definition(field.dataType, f"{name}_{field.name}")],
                "default": None,
            }
            for field in kind.fields
        ]
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(kind, t.ArrayType):
        return {"type": "array", "items": ["null", avro_definition(kind.elementType, name + "_item")]}
    if isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
        return {"type": "map", "values": ["null", avro_definition(kind.valueType, name + "_value")]}
    if isinstance(kind, t.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if type(kind) not in _AVRO:
        raise SchemaError(f"column {name!r}: Avro has no type for {kind.simpleString()}")
    return _AVRO[type(kind)]


class _Sent(pulsar.schema.Schema):
    """A schema that the producer registers, for messages that are encoded already."""

    def __init__(self, kind: str, definition: Any) -> None:
        super().__init__(bytes, getattr(_pulsar.SchemaType, kind), definition, kind)

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data


def _in_json(value: Any) -> Any:
    if isinstance(value, bytes):
        # As Java's JSON schema writes and reads it.
        return base64.b64encode(value).decode("ascii")
    raise TypeError(f"JSON has no type for {type(value).__name__}")


def _plain(values: Sequence[t.StructField], schema: TopicSchema) -> Callable[[Any], bytes]:
    """Return what encodes the column ``value`` for a topic of a primitive schema."""
    primitive = PRIMITIVES.get(schema.kind)
    if primitive is None:
        raise SchemaError(f"the topic's schema is {schema.kind}, which cannot be written here")
    if [field.name for field in values] != [VALUE]:
        names = ", ".join(field.name for field in values)
        raise SchemaError(f"the topic's schema is {schema.kind}, and the columns {names} are a record")
    given = values[0].dataType
    if not holds(primitive.column, given):
        raise SchemaError(
            f"column 'value' is {given.simpleString()}, and the topic's schema is {schema.kind}:"
            f" {primitive.column.simpleString()}"
        )
    return primitive.encode


class Encoder:
    """Encodes rows of one schema as messages.

    A single column ``value`` of a plain type is the message itself; any other columns are one record: Avro of a
    definition that follows from the columns, or as ``schema`` says, which then must have a field for every column.
    Raises :class:`SchemaError`, naming the column that cannot be written.
    """

    def __init__(self, columns: t.StructType, *, topic_given: bool, schema: TopicSchema | None = None) -> None:
        values = []
        for field in columns.fields:
            if field.name in _WRITTEN:
                if not isinstance(field.dataType, _WRITTEN[field.name]):
                    raise SchemaError(f"column {field.name!r} cannot be {field.dataType.simpleString()}")
            elif field.name not in _NOT_WRITTEN:
                values.append(field)
        if not values:
            raise SchemaError(
                "there is no column to write: the message itself is 'value', or columns of any other name"
            )
        if topic_given == ("__topic" in columns.names):
            given = "both" if topic_given else "neither"
            raise SchemaError(f"{given} of the option topic and the column '__topic' is given; give exactly one")
        self._names = [field.name for field in values]
        self._written = [field.name for field in columns.fields if field.name in _WRITTEN]
        self._plain: Callable[[Any], bytes] | None = None
        self._definition: Any = None
        kind = values[0].dataType
        if schema is not None and schema.in_avro:
            self._kind = schema.kind
            self._definition = record_for(values, schema)
        elif schema is not None:
            self._kind = schema.kind
            self._plain = _plain(values, schema)
        elif self._names == [VALUE] and type(kind) in _PRIMITIVES:
            self._kind = _PRIMITIVES[type(kind)]
            self._plain = PRIMITIVES[self._kind].encode
        else:
            self._kind = "AVRO"
            self._definition = avro_definition(t.StructType(values), "row")
        if self._definition is not None:
            definition = json.loads(json.dumps(self._definition))
            if self._kind == "AVRO":
                definition = UnionsAsRecords(definition).definition
            self._parsed = fastavro.parse_schema(definition)

    @property
    def kind(self) -> str:
        """The type of the schema that is written, by Pulsar's name."""
        return self._kind

    def schema(self) -> pulsar.schema.Schema:
        """Return the schema that the producer registers with the topic; bytes are sent without any.

        So are values of a kind that the client does not know.
        """
        known = self._definition is not None or self._kind in _REGISTERED[1:]
        return _Sent(self._kind, self._definition) if known else pulsar.schema.BytesSchema()

    def content(self, row: dict[str, Any]) -> bytes | None:
        """Return the message itself; None for a ``value`` that is null, which is a message without one.

        Raises :class:`SchemaError`, naming the field, for a row that does not fit.
        """
        if self._plain is not None:
            return None if row[VALUE] is None else self._plain(row[VALUE])
        record = {name: row[name] for name in self._names}
        try:
            if self._kind == "JSON":
                fastavro.validate(record, self._parsed)
                return json.dumps(record, ensure_ascii=False, default=_in_json).encode()
            buffer = io.BytesIO()
            fastavro.schemaless_writer(buffer, self._parsed, record)
            return buffer.getvalue()
        except (fastavro.validation.ValidationError, *_UNFIT) as error:
            raise SchemaError(f"a row does not fit the schema: {self._unfit(record) or error}") from error

    def _unfit(self, record: dict[str, Any]) -> str:
        """Return which fields of the record do not fit, and why; empty if that cannot be found."""
        try:
            fastavro.validate(record, self._parsed)
        except fastavro.validation.ValidationError as error:
            return "; ".join(str(each) for each in error.errors)
        return ""

    def metadata(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the client's ``send`` beside the content.

        Raises :class:`SchemaError` for a key that it cannot send.
        """
        found: dict[str, Any] = {}
        event_time, properties = (row.get(each) for each in ("__eventTime", "__messageProperties"))
        for column, argument in (("__key", "partition_key"), ("__orderingKey", "ordering_key")):
            key = row.get(column)
            if key is None:
                continue
            try:
                found[argument] = key.decode() if isinstance(key, bytes) else key
            except UnicodeDecodeError as error:
                raise SchemaError(f"column {column!r}: {key.hex()} is not UTF-8, as the client's keys are") from error
        if isinstance(event_time, datetime):
            found["event_timestamp"] = since_1970(event_time)
        if properties:
            found["properties"] = {name: value or "" for name, value in dict(properties).items()}
        return found
