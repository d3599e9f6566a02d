"""Rows become messages: which column is what, and the schema of the topic they are for."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa
from heliograph_api.protocol import wire_pb2 as wire
from pyspark.sql import types as t

from heliograph_spark.decode.avro_unions import UnionsAsRecords
from heliograph_spark.encode.columns import messages
from heliograph_spark.encode.primitives import encoded
from heliograph_spark.encode.records import record_encoder
from heliograph_spark.plan.errors import SchemaError

from .fitting import holds, record_for
from .primitives import PRIMITIVES
from .schemas import METADATA, VALUE, TopicSchema, number_of_kind
from .spark_versions import arrow_schema

#: Columns that say something of a message; reading gives more, which only the broker or the producer can say.
_WRITTEN: dict[str, tuple[type[t.DataType], ...]] = {
    "__key": (t.StringType, t.BinaryType),
    "__orderingKey": (t.StringType, t.BinaryType),
    "__topic": (t.StringType,),
    "__eventTime": (t.TimestampType,),
    "__messageProperties": (t.MapType,),
}
_NOT_WRITTEN = frozenset(METADATA.names) - _WRITTEN.keys()

#: A value whose topic has no schema gets this one.
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


class UnfitRow(SchemaError):
    """A row, by its number in its record batch, does not fit the schema."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def _in_json(value: Any) -> Any:
    if isinstance(value, bytes):
        # As Java's JSON schema writes and reads it.
        return base64.b64encode(value).decode("ascii")
    raise TypeError(f"JSON has no type for {type(value).__name__}")


def _check_plain(values: Sequence[t.StructField], schema: TopicSchema) -> None:
    """Raise :class:`SchemaError` if the columns are not one ``value`` as a topic's primitive schema has it."""
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
        self._written = [name for name in columns.names if name in _WRITTEN and name != "__topic"]
        self._definition: Any = None
        self._schema = schema
        kind = values[0].dataType
        if schema is not None and schema.in_avro:
            self._kind = schema.kind
            self._definition = record_for(values, schema)
        elif schema is not None:
            self._kind = schema.kind
            _check_plain(values, schema)
        elif self._names == [VALUE] and type(kind) in _PRIMITIVES:
            self._kind = _PRIMITIVES[type(kind)]
        else:
            self._kind = "AVRO"
            self._definition = avro_definition(t.StructType(values), "row")
        if self._definition is not None:
            definition = json.loads(json.dumps(self._definition))
            if self._kind == "AVRO":
                definition = UnionsAsRecords(definition).definition
            self._parsed = fastavro.parse_schema(definition)
            arrow = arrow_schema(t.StructType(values))
            self._records = record_encoder(definition, arrow, in_json=self._kind == "JSON")

    @property
    def kind(self) -> str:
        """The type of the schema that is written, by Pulsar's name."""
        return self._kind

    def schema(self) -> wire.Schema | None:
        """Return the schema that the producer registers with the topic; None for bytes, which are sent without any."""
        if self._kind in ("NONE", "BYTES"):
            return None
        text = ""
        if self._definition is not None:
            # The topic's own as it is: another text for the same would be another version.
            own = self._schema.definition if self._schema is not None else None
            text = own or json.dumps(self._definition, indent=True)
        return wire.Schema(name=self._kind, type=number_of_kind(self._kind), schema_data=text.encode())

    def messages(self, rows: pa.RecordBatch, *, null_records: bool = False) -> pa.RecordBatch:
        """Return the rows as messages: columns of :data:`~heliograph_spark.encode.messages.MESSAGE_COLUMNS`.

        With ``null_records`` a record whose columns are all null is a message without a value. Raises
        :class:`SchemaError`, naming the column, for rows that do not fit; where one row is known, :class:`UnfitRow`.
        """
        return messages(
            self._values(rows, null_records=null_records), {name: rows.column(name) for name in self._written}
        )

    def _values(self, rows: pa.RecordBatch, *, null_records: bool) -> pa.Array:
        if self._definition is None:
            column = rows.column(VALUE)
            try:
                found = encoded(self._kind, column)
                if found is not None:
                    return found
                encode = PRIMITIVES[self._kind].encode
                return pa.array([None if each is None else encode(each) for each in column.to_pylist()], pa.binary())
            except (ValueError, OverflowError) as error:
                raise SchemaError(f"column 'value': {error}") from error
        if self._records is not None and not null_records and (found := self._records.values(rows)) is not None:
            return found
        records = rows.select(self._names).to_pylist(maps_as_pydicts="lossy")
        contents = [
            None if null_records and all(each is None for each in record.values()) else self._content(row, record)
            for row, record in enumerate(records)
        ]
        return pa.array(contents, pa.binary())

    def _content(self, row: int, record: dict[str, Any]) -> bytes:
        try:
            if self._kind == "JSON":
                fastavro.validate(record, self._parsed)
                return json.dumps(record, ensure_ascii=False, default=_in_json).encode()
            buffer = io.BytesIO()
            fastavro.schemaless_writer(buffer, self._parsed, record)
            return buffer.getvalue()
        except (fastavro.validation.ValidationError, *_UNFIT) as error:
            raise UnfitRow(row, f"a row does not fit the schema: {self._unfit(record) or error}") from error

    def _unfit(self, record: dict[str, Any]) -> str:
        """Return which fields of the record do not fit, and why; empty if that cannot be found."""
        try:
            fastavro.validate(record, self._parsed)
        except fastavro.validation.ValidationError as error:
            return "; ".join(str(each) for each in error.errors)
        return ""
