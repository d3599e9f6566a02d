"""Rows become messages: which column is what, and the schema of the topic they are for."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable
from datetime import datetime
from typing import Any

import _pulsar
import fastavro
import pulsar
from pyspark.sql import types as t

from heliograph_spark.plan.errors import SchemaError
from heliograph_spark.plan.timestamps import since_1970

from .schemas import VALUE, TopicSchema

#: Columns that say something of a message; reading gives two more, which only the broker can say.
_WRITTEN: dict[str, tuple[type[t.DataType], ...]] = {
    "__key": (t.StringType, t.BinaryType),
    "__topic": (t.StringType,),
    "__eventTime": (t.TimestampType,),
    "__messageProperties": (t.MapType,),
}
_BY_BROKER = ("__messageId", "__publishTime")

_PRIMITIVES: dict[type[t.DataType], tuple[str, Callable[[Any], bytes]]] = {
    t.BinaryType: ("BYTES", bytes),
    t.StringType: ("STRING", str.encode),
    t.ByteType: ("INT8", struct.Struct(">b").pack),
    t.ShortType: ("INT16", struct.Struct(">h").pack),
    t.IntegerType: ("INT32", struct.Struct(">i").pack),
    t.LongType: ("INT64", struct.Struct(">q").pack),
    t.FloatType: ("FLOAT", struct.Struct(">f").pack),
    t.DoubleType: ("DOUBLE", struct.Struct(">d").pack),
}
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


def _fitting(schema: TopicSchema, names: list[str]) -> Any:
    """Return the definition, if a record of these columns can be written with it."""
    if schema.definition is None:
        raise SchemaError(f"the topic's schema is {schema.kind}, and the columns {', '.join(names)} are a record")
    definition = json.loads(schema.definition)
    fields = {field["name"]: field for field in definition.get("fields", ())}
    if others := [name for name in names if name not in fields]:
        raise SchemaError(f"column {others[0]!r} is not a field of the topic's schema, which has {', '.join(fields)}")
    for name, field in fields.items():
        if name not in names and "default" not in field and "null" not in field["type"]:
            raise SchemaError(f"field {name!r} of the topic's schema has no column and no default")
    return definition


def _in_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"JSON has no type for {type(value).__name__}")


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
            elif field.name not in _BY_BROKER:
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
        kind = values[0].dataType
        if self._names == [VALUE] and type(kind) in _PRIMITIVES:
            self._kind, self._plain = _PRIMITIVES[type(kind)]
            self._definition = None
            if schema is not None and schema.kind != self._kind:
                raise SchemaError(f"column 'value' is {kind.simpleString()}, and the topic's schema {schema.kind}")
            return
        self._kind = "AVRO"
        if schema is None:
            self._definition = avro_definition(t.StructType(values), "row")
        else:
            self._kind = schema.kind
            self._definition = _fitting(schema, self._names)
        self._parsed = fastavro.parse_schema(json.loads(json.dumps(self._definition)))

    @property
    def kind(self) -> str:
        """The type of the schema that is written, by Pulsar's name."""
        return self._kind

    def schema(self) -> pulsar.schema.Schema:
        """Return the schema that the producer registers with the topic; bytes are sent without any."""
        return pulsar.schema.BytesSchema() if self._kind == "BYTES" else _Sent(self._kind, self._definition)

    def content(self, row: dict[str, Any]) -> bytes | None:
        """Return the message itself; None for a ``value`` that is null, which is a message without one."""
        if self._plain is not None:
            return None if row[VALUE] is None else self._plain(row[VALUE])
        record = {name: row[name] for name in self._names}
        if self._kind == "JSON":
            return json.dumps(record, ensure_ascii=False, default=_in_json).encode()
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, self._parsed, record)
        return buffer.getvalue()

    def metadata(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the client's ``send`` beside the content.

        Raises :class:`SchemaError` for a key that it cannot send.
        """
        found: dict[str, Any] = {}
        key, event_time, properties = (row.get(each) for each in ("__key", "__eventTime", "__messageProperties"))
        if key is not None:
            try:
                found["partition_key"] = key.decode() if isinstance(key, bytes) else key
            except UnicodeDecodeError as error:
                raise SchemaError(f"column '__key': {key!r} is not UTF-8, which the client's keys are") from error
        if isinstance(event_time, datetime):
            found["event_timestamp"] = since_1970(event_time)
        if properties:
            found["properties"] = {name: value or "" for name, value in dict(properties).items()}
        return found
