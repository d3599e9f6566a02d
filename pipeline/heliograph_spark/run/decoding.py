"""Messages become Arrow batches with exactly the columns that the query asks for."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import fastavro
import pulsar
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from heliograph_spark.decode.records import from_json_record, without_uuids
from heliograph_spark.plan.errors import SchemaError

from .schemas import METADATA, VALUE, TopicSchema, columns_of, schema_of_topic

#: A batch ends at whichever comes first, so that what a worker holds does not grow with the topic.
BATCH_ROWS = 2_000
BATCH_BYTES = 8 << 20

_NUMBERS = {"INT8": ">b", "INT16": ">h", "INT32": ">i", "INT64": ">q", "FLOAT": ">f", "DOUBLE": ">d"}

#: Each gets the message's metadata by the client; a key or an event time that was never set is null.
_METADATA: dict[str, Callable[[pulsar.Message], Any]] = {
    "__key": lambda message: message.partition_key().encode() or None,
    "__topic": lambda message: message.topic_name(),
    "__messageId": lambda message: message.message_id().serialize(),
    "__publishTime": lambda message: message.publish_timestamp() * 1000,
    "__eventTime": lambda message: message.event_timestamp() * 1000 or None,
    "__messageProperties": lambda message: list(message.properties().items()),
}


def check_columns(wanted: StructType, schema: TopicSchema, topic: str) -> None:
    """Raise :class:`SchemaError`, naming the column, if a query's own schema has one that the topic has not."""
    offered = {field.name: field.dataType for field in columns_of(schema, topic).fields}
    for field in wanted.fields:
        if field.name not in offered:
            raise SchemaError(f"{topic} has no column {field.name!r}; it has {', '.join(offered)}")
        if offered[field.name] != field.dataType:
            kind = offered[field.name].simpleString()
            raise SchemaError(f"column {field.name!r} of {topic} is {kind}, not {field.dataType.simpleString()}")


class Decoder:
    """Turns messages of one topic into columns.

    ``schema`` is what the query was planned with. A message written with another version is read as Avro resolves the
    two: what is new is left out, what is missing is null or has its default. What does not fit
    raises :class:`SchemaError`.
    """

    def __init__(self, client: pulsar.Client, columns: StructType, schema: TopicSchema) -> None:
        self._client = client
        self._arrow = to_arrow_schema(columns, timezone="UTC")
        self._schema = schema
        self._values = [name for name in columns.names if name not in METADATA.names]
        self._writers: dict[tuple[str, int], Any] = {}
        self._reader = None
        fields = pa.schema([field for field in self._arrow if field.name in self._values])
        self._from_json = from_json_record(fields) if schema.kind == "JSON" else None
        if schema.kind == "AVRO":
            definition = json.loads(schema.definition or "null")
            self._record = definition["name"]
            self._reader = fastavro.parse_schema(definition)
            self._uuids = '"uuid"' in json.dumps(definition)

    def batches(self, messages: Iterable[pulsar.Message]) -> Iterator[pa.RecordBatch]:
        """Yield the messages as batches, in order."""
        held: list[pulsar.Message] = []
        size = 0
        for message in messages:
            held.append(message)
            size += len(message.data())
            if len(held) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield self._batch(held)
                held, size = [], 0
        if held:
            yield self._batch(held)

    def _batch(self, messages: list[pulsar.Message]) -> pa.RecordBatch:
        rows = [self._row(message) for message in messages] if self._values else []
        arrays = []
        for field in self._arrow:
            if field.name in _METADATA:
                arrays.append(pa.array([_METADATA[field.name](message) for message in messages], field.type))
            else:
                arrays.append(self._column(field, [row.get(field.name) for row in rows], messages))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _column(self, field: pa.Field, values: list[Any], messages: Sequence[pulsar.Message]) -> pa.Array:
        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            for value, message in zip(values, messages, strict=True):
                try:
                    pa.array([value], field.type)
                except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                    raise _unfit(message, f"field {field.name!r} is not {field.type}: {error}") from error
            raise

    def _row(self, message: pulsar.Message) -> dict[str, Any]:
        if message._message.has_null_value():
            return {}
        data = message.data()
        try:
            if self._schema.kind == "JSON":
                row = json.loads(data)
                if not isinstance(row, dict):
                    raise ValueError("the JSON is no object")
                if self._from_json is not None:
                    self._from_json(row)
                return row
            if self._schema.kind == "AVRO":
                return self._from_avro(message, data)
            if self._schema.kind == "STRING":
                return {VALUE: data.decode()}
            if self._schema.kind in _NUMBERS:
                return {VALUE: struct.unpack(_NUMBERS[self._schema.kind], data)[0]}
            return {VALUE: data}
        except (
            ValueError,
            struct.error,
            EOFError,
            IndexError,
            KeyError,
            TypeError,
            fastavro.read.SchemaResolutionError,
        ) as error:
            raise _unfit(message, f"it is not {self._schema.kind} as the topic's schema says: {error}") from error

    def _from_avro(self, message: pulsar.Message, data: bytes) -> dict[str, Any]:
        topic, version = message.topic_name(), message._message.int_schema_version()
        writer = self._writers.get((topic, version))
        if writer is None:
            written = schema_of_topic(self._client, topic, version)
            if written.kind != "AVRO":
                raise ValueError(f"it was written with a schema of type {written.kind}")
            definition = json.loads(written.definition or "null")
            # Avro resolves records of one name only; what the class is called where it is written does not matter here.
            definition["name"] = self._record
            writer = self._writers[topic, version] = fastavro.parse_schema(definition)
        row: Any = fastavro.schemaless_reader(io.BytesIO(data), writer, self._reader)
        return without_uuids(row) if self._uuids else row  # type: ignore[no-any-return]


def _unfit(message: pulsar.Message, why: str) -> SchemaError:
    return SchemaError(f"message {message.message_id()} of {message.topic_name()} cannot be read: {why}")
