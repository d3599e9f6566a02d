"""A topic's schema, and what Spark's columns are for it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph_api.protocol import wire_pb2 as wire
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema

from heliograph_spark.decode.avro_lengths import boundless_array
from heliograph_spark.decode.avro_unions import members_of, number_of
from heliograph_spark.decode.kept_values import BAD_RECORD
from heliograph_spark.decode.key_values import parts_of
from heliograph_spark.decode.protobuf_types import ProtobufSchemaError, message_columns, message_type
from heliograph_spark.plan.errors import OptionError, SchemaError
from heliograph_spark.plan.side_by_side import for_each
from heliograph_spark.wire.brokers import Brokers

from .primitives import PRIMITIVES, UNNAMED

#: What every query has, in the order of the Scala connector.
_USUAL = [
    t.StructField("__key", t.BinaryType()),
    t.StructField("__topic", t.StringType()),
    t.StructField("__messageId", t.BinaryType()),
    t.StructField("__publishTime", t.TimestampType()),
    t.StructField("__eventTime", t.TimestampType()),
    t.StructField("__messageProperties", t.MapType(t.StringType(), t.StringType())),
]
#: What a query has that asks for it.
_FURTHER = [
    t.StructField("__ledger", t.LongType()),
    t.StructField("__entry", t.LongType()),
    t.StructField("__batchIndex", t.IntegerType()),
    t.StructField("__partition", t.IntegerType()),
    t.StructField("__orderingKey", t.BinaryType()),
    t.StructField("__producer", t.StringType()),
    t.StructField("__sequenceId", t.LongType()),
    t.StructField("__schemaVersion", t.BinaryType()),
    t.StructField("__redeliveryCount", t.IntegerType()),
]
#: All columns that say something of a message and are no part of it.
METADATA = t.StructType([*_USUAL, *_FURTHER])
#: The bytes that cannot be read and why, of a query that is not to end there; null for all other messages.
BAD_RECORD_FIELD = t.StructField(
    BAD_RECORD, t.StructType([t.StructField("value", t.BinaryType()), t.StructField("reason", t.StringType())])
)
#: The properties once more, in the shape of Kafka's headers, of a query that asks for it; null for no properties.
HEADERS = t.StructField(
    "headers",
    t.ArrayType(t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])),
)
#: The one column of a topic whose messages are no records.
VALUE = "value"
#: The boundary of two words in the protocol's names of types.
_WORD = re.compile("(?<=[a-z])(?=[A-Z])")
_RAW_HINT = "allowDifferentTopicSchemas=true gives the bytes"

_AVRO: dict[str, t.DataType] = {
    "null": t.NullType(),
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
    "enum": t.StringType(),
    "fixed": t.BinaryType(),
}
_LOGICAL: dict[str, t.DataType] = {
    "date": t.DateType(),
    "timestamp-millis": t.TimestampType(),
    "timestamp-micros": t.TimestampType(),
    "uuid": t.StringType(),
}


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """The schema of a topic's messages: ``kind`` by Pulsar's name, and a record's ``definition``.

    That is Avro's for AVRO and JSON, and descriptors as Java's client writes them for PROTOBUF_NATIVE.

    A key-value schema has ``parts``, those of the key and the value; ``separated`` is whether the message's key is the
    key.
    """

    kind: str
    definition: str | None = None
    parts: tuple[TopicSchema, TopicSchema] | None = None
    separated: bool = False

    @property
    def in_avro(self) -> bool:
        """Whether the definition is Avro's."""
        return self.kind in ("AVRO", "JSON")


def _kind(number: wire.Schema.Type.ValueType) -> str:
    return UNNAMED.get(number) or _WORD.sub("_", wire.Schema.Type.Name(number)).upper()


_NUMBERS = {_kind(number): number for number in wire.Schema.Type.values()}
RAW = TopicSchema("BYTES")
_NO_SCHEMA = ("NONE", "BYTES")


def schema_of_topic(brokers: Brokers, topic: str) -> TopicSchema:
    """Return the topic's newest schema; a topic without one holds bytes."""
    found = brokers.schema(topic)
    return RAW if found is None else read_schema(found.schema, topic)


def number_of_kind(kind: str) -> wire.Schema.Type.ValueType:
    """Return the number in the protocol of a type of schema, by Pulsar's name."""
    return _NUMBERS[kind]


def read_schema(stored: wire.Schema, topic: str) -> TopicSchema:
    """Return a schema as the protocol has it. Raises :class:`SchemaError`, naming the topic."""
    kind = _kind(stored.type)
    try:
        return _schema_of(kind, stored.schema_data, {each.key: each.value for each in stored.properties})
    except ValueError as error:
        raise SchemaError(f"the schema of {topic} cannot be read: {error}; {_RAW_HINT}") from error


def _schema_of(kind: str, data: bytes, properties: Mapping[str, str]) -> TopicSchema:
    if kind in ("AVRO", "JSON", "PROTOBUF_NATIVE"):
        return TopicSchema(kind, data.decode())
    if kind != "KEY_VALUE":
        return TopicSchema(kind)

    def part(name: str, of_part: bytes | None) -> TopicSchema:
        found = properties.get(f"{name}.schema.type", "BYTES")
        # One within another is not read: where its messages have the inner key nobody says.
        return TopicSchema(found) if found == kind else _schema_of(found, of_part or b"", {})

    key, value = parts_of(data)
    separated = properties.get("kv.encoding.type") == "SEPARATED"
    return TopicSchema(kind, parts=(part("key", key), part("value", value)), separated=separated)


def common_schema(brokers: Brokers, topics: Sequence[str]) -> TopicSchema:
    """Return the one schema that all topics share. Raises :class:`SchemaError`, naming two topics that differ."""
    found = dict(zip(topics, for_each(topics, lambda topic: schema_of_topic(brokers, topic)), strict=True))
    if not found:
        return RAW
    first, *others = found.items()
    for topic, schema in others:
        if not _same(schema, first[1]):
            raise SchemaError(f"{first[0]} and {topic} have different schemas; {_RAW_HINT}")
    return first[1]


def with_schema(brokers: Brokers, topics: Sequence[str], planned: TopicSchema) -> set[str]:
    """Return the topics that have the schema which a query was planned with; the others have none yet.

    Raises :class:`SchemaError`, naming the topic, if one has another schema.
    """
    found = set()
    for topic in topics:
        schema = schema_of_topic(brokers, topic)
        if schema.kind in _NO_SCHEMA and planned.kind not in _NO_SCHEMA:
            continue
        if not _same(schema, planned):
            raise SchemaError(
                f"{topic} has a schema of type {schema.kind}, and the query was planned with another one, of type"
                f" {planned.kind}, before it found this topic: start the query again; {_RAW_HINT}"
            )
        found.add(topic)
    return found


def _same(one: TopicSchema, other: TopicSchema) -> bool:
    if one.kind in _NO_SCHEMA and other.kind in _NO_SCHEMA:
        return True
    if one.kind != other.kind or one.separated != other.separated or _parsed(one) != _parsed(other):
        return False
    return all(map(_same, one.parts or (), other.parts or ()))


def _parsed(schema: TopicSchema) -> Any:
    return None if schema.definition is None else json.loads(schema.definition)


def columns_of(
    schema: TopicSchema,
    topic: str,
    further: Sequence[str] = (),
    *,
    keeps_bad: bool = False,
    headers: bool = False,
) -> t.StructType:
    """Return the columns of a topic's messages, metadata last: the usual ones, and of the others those of ``further``.

    ``headers`` adds that column, ``keeps_bad`` the one of what cannot be read. Raises :class:`SchemaError`, naming the
    field, and :class:`OptionError` for a name in ``further`` that is none.
    """
    if unknown := [name for name in further if name not in METADATA.names]:
        names = ", ".join(field.name for field in _FURTHER)
        raise OptionError(f"includeColumns: {unknown[0]!r} is no column of metadata; there are {names}")
    if schema.parts is not None:
        parts = zip(("key", VALUE), schema.parts, strict=True)
        both = [t.StructField(name, _content(part, f"the {name} of {topic}")) for name, part in parts]
        values = [t.StructField(VALUE, t.StructType(both))]
    else:
        content = _content(schema, topic)
        values = list(content.fields) if isinstance(content, t.StructType) else [t.StructField(VALUE, content)]
    for field in values:
        if field.name in (*METADATA.names, BAD_RECORD):
            raise SchemaError(f"field {field.name!r} of {topic} has the name of a column of metadata; {_RAW_HINT}")
        if headers and field.name == HEADERS.name:
            raise SchemaError(f"field {field.name!r} of {topic} has the name of the column that includeHeaders adds")
    usual = [field.name for field in _USUAL]
    asked = [METADATA[name] for name in further if name not in usual]
    return t.StructType(
        [*values, *_USUAL, *asked, *([HEADERS] if headers else []), *([BAD_RECORD_FIELD] if keeps_bad else [])]
    )


def _content(schema: TopicSchema, topic: str) -> t.DataType:
    """Return the type of what has this schema, a struct for a record."""
    if schema.in_avro:
        definition = _parsed(schema)
        record = _Types(topic, in_avro=schema.kind == "AVRO").of(definition, "")
        if schema.kind == "AVRO" and (field := boundless_array(definition)) is not None:
            what = "is an array of items without bytes, of which a short message may have any number"
            raise SchemaError(f"field {field} of {topic} {what}; {_RAW_HINT}")
        if not isinstance(record, t.StructType):
            raise SchemaError(f"the schema of {topic} is no record; {_RAW_HINT}")
        return record
    if schema.kind == "PROTOBUF_NATIVE" and schema.definition is not None:
        try:
            return from_arrow_schema(message_columns(message_type(schema.definition)), prefer_timestamp_ntz=True)
        except ProtobufSchemaError as error:
            raise SchemaError(f"the schema of {topic} has no columns here: {error}; {_RAW_HINT}") from error
    if schema.kind in PRIMITIVES:
        return PRIMITIVES[schema.kind].column
    raise SchemaError(f"the schema of {topic} is of type {schema.kind}, which has no columns here; {_RAW_HINT}")


def field_types(schema: TopicSchema, names: Collection[str]) -> dict[str, t.DataType]:
    """Return Spark's types of these fields of a record. Raises :class:`SchemaError`, naming the field."""
    types = _Types("the topic's schema", in_avro=schema.kind == "AVRO")
    found = {}
    for field in _parsed(schema)["fields"]:
        try:
            found[field["name"]] = types.of(field["type"], field["name"])
        except SchemaError as error:
            if field["name"] in names:
                raise SchemaError(str(error).removesuffix(f"; {_RAW_HINT}")) from error
    return found


class _Types:
    """Spark's types for the types of one Avro definition, which names some of them once and refers to them later."""

    def __init__(self, topic: str, *, in_avro: bool) -> None:
        self._topic = topic
        self._in_avro = in_avro
        self._named: dict[str, t.DataType] = {}

    def _refuse(self, where: str, what: str) -> SchemaError:
        return SchemaError(f"field {where or '(the whole)'} of {self._topic}: {what}; {_RAW_HINT}")

    def of(self, avro: Any, where: str) -> t.DataType:
        if isinstance(avro, list):
            return self._union(avro, where)
        if isinstance(avro, str):
            found = _AVRO.get(avro) or self._named.get(avro)
            if found is None:
                raise self._refuse(where, f"type {avro!r} is not defined before it is used, or within itself")
            return found
        kind = avro["type"]
        if isinstance(kind, (dict, list)):
            return self.of(kind, where)
        made = self._complex(kind, avro, where)
        if "name" in avro and kind in ("record", "enum", "fixed"):
            self._named[avro["name"]] = made
            self._named[f"{avro.get('namespace', '')}.{avro['name']}"] = made
        return made

    def _complex(self, kind: str, avro: dict[str, Any], where: str) -> t.DataType:
        if kind == "record":
            return t.StructType(
                [
                    t.StructField(f["name"], self.of(f["type"], f"{where}.{f['name']}".lstrip(".")))
                    for f in avro["fields"]
                ]
            )
        if kind == "array":
            return t.ArrayType(self.of(avro["items"], f"{where}[]"))
        if kind == "map":
            return t.MapType(t.StringType(), self.of(avro["values"], f"{where}{{}}"))
        logical = avro.get("logicalType") if self._in_avro else None
        if logical == "decimal":
            return t.DecimalType(avro["precision"], avro.get("scale", 0))
        if logical is not None and logical not in _LOGICAL:
            raise self._refuse(where, f"logical type {logical!r} has no type of Spark's here")
        return _LOGICAL[logical] if logical else self.of(kind, where)

    def _union(self, branches: list[Any], where: str) -> t.DataType:
        if number := number_of(branches):
            return _AVRO[number]
        if members := members_of(branches):
            if not self._in_avro:
                raise self._refuse(where, "a union of several types is no column, as JSON does not say which one it is")
            types = [(f"member{at}", each) for at, each in enumerate(members)]
            return t.StructType([t.StructField(name, self.of(each, f"{where}.{name}")) for name, each in types])
        real = [each for each in branches if each != "null"]
        if not real:
            raise self._refuse(where, "nothing but null is no column")
        return self.of(real[0], where)
