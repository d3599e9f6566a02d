"""The columns of a query, and what fills them from the entries of a topic."""

from __future__ import annotations

import re

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from heliograph_spark.decode.columns import METADATA_COLUMNS, EntryColumns
from heliograph_spark.decode.values import values_of
from heliograph_spark.plan.errors import SchemaError
from heliograph_spark.wire.brokers import Brokers

from .schemas import TopicSchema, columns_of

_PARTITION = re.compile(r"-partition-(\d+)$")


def check_columns(wanted: StructType, schema: TopicSchema, topic: str) -> None:
    """Raise :class:`SchemaError`, naming the column, if a query's own schema has one that the topic has not."""
    offered = {field.name: field.dataType for field in columns_of(schema, topic).fields}
    for field in wanted.fields:
        if field.name not in offered:
            raise SchemaError(f"{topic} has no column {field.name!r}; it has {', '.join(offered)}")
        if offered[field.name] != field.dataType:
            kind = offered[field.name].simpleString()
            raise SchemaError(f"column {field.name!r} of {topic} is {kind}, not {field.dataType.simpleString()}")


def entry_columns(brokers: Brokers, topic: str, columns: StructType, schema: TopicSchema) -> EntryColumns:
    """Return the columns of a partition's messages; ``schema`` is the one that the query was planned with.

    A message written with another version is read as Avro resolves the two: what is new is left out, what is missing is
    null or has its default.
    """
    arrow = to_arrow_schema(columns, timezone="UTC")
    fields = pa.schema([field for field in arrow if field.name not in METADATA_COLUMNS])

    def definition_of(version: bytes) -> str:
        written = brokers.schema(topic, version)
        if written is None:
            raise ValueError(f"the topic has no schema of version {version.hex()}")
        return bytes(written.schema.schema_data).decode()

    found = _PARTITION.search(topic)
    return EntryColumns(
        topic,
        arrow,
        partition=int(found[1]) if found else -1,
        values=values_of(schema.kind, schema.definition, fields, definition_of),
    )
