"""The column ``headers``: a message's properties in the shape that Kafka's source gives its headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from heliograph_spark.plan.options import ReadOptions

from .schemas import HEADERS, METADATA
from .spark_versions import arrow_schema

_PROPERTIES = METADATA["__messageProperties"]


def columns_to_read(columns: StructType, options: ReadOptions) -> StructType:
    """Return the columns that are read for a query's: the properties instead of headers made from them."""
    if not _asked(columns, options):
        return columns
    fields = [field for field in columns.fields if field.name != HEADERS.name]
    return StructType(fields if _PROPERTIES.name in columns.names else [*fields, _PROPERTIES])


def with_headers(
    batches: Iterable[pa.RecordBatch], columns: StructType, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of what :func:`columns_to_read` returned with the query's ``columns``."""
    if not _asked(columns, options):
        yield from batches
        return
    schema = arrow_schema(columns)
    kind = schema.field(HEADERS.name).type
    for batch in batches:
        listed = batch.column(_PROPERTIES.name).cast(kind)
        # Kafka's source gives null where there are none.
        headers = pc.if_else(pc.equal(pc.list_value_length(listed), 0), pa.scalar(None, kind), listed)
        arrays = [headers if name == HEADERS.name else batch.column(name) for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _asked(columns: StructType, options: ReadOptions) -> bool:
    # Without the option it is a field of the messages.
    return options.headers and HEADERS.name in columns.names
