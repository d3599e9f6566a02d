"""The columns of messages from columns of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from heliograph_spark.plan.errors import SchemaError

from .messages import MESSAGE_COLUMNS
from .primitives import milliseconds

_TEXTS = MESSAGE_COLUMNS["properties"]


def _keys(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())


def _event_times(column: pa.Array) -> pa.Array:
    times = milliseconds(column.cast(pa.timestamp("us", tz=column.type.tz)))
    if (first := pc.min(times).as_py()) is not None and first < 0:
        raise ValueError(f"{first} ms since 1970 is before 1970, and messages have no such event time")
    return times


def _properties(column: pa.Array) -> pa.Array:
    """Return properties of which a null is an empty text."""
    column = column.cast(_TEXTS)
    if column.null_count:
        # A null may have a place in memory, which would be that of the list before it; what is taken has none.
        column = column.take(pa.array(range(len(column)), pa.int64()))
    names, texts = column.keys, pc.fill_null(column.items, "")
    names.validate(full=True)
    texts.validate(full=True)
    offsets = column.offsets
    if column.null_count:
        # A list without an offset is null.
        starts = pc.if_else(pc.is_valid(column), offsets[:-1], pa.scalar(None, pa.int32()))
        offsets = pa.concat_arrays([starts, offsets[-1:]])
    return pa.MapArray.from_arrays(offsets, names, texts)


#: By the data source's names: the columns of messages, and what makes them.
_MADE: dict[str, tuple[str, Callable[[pa.Array], pa.Array]]] = {
    "__key": ("key", _keys),
    "__orderingKey": ("ordering_key", _keys),
    "__messageProperties": ("properties", _properties),
    "__eventTime": ("event_ms", _event_times),
}


def messages(values: pa.Array, metadata: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return messages with these values, which are bytes, and columns of metadata by the data source's names.

    Keys may be texts or bytes. Raises :class:`SchemaError`, naming the column, for an event time before 1970 and for
    properties that are not UTF-8.
    """
    found = {"value": values}
    for name, column in metadata.items():
        own, make = _MADE[name]
        try:
            found[own] = make(column)
        except (ValueError, NotImplementedError) as error:
            raise SchemaError(f"column {name!r}: {error}") from error
    schema = pa.schema([(name, MESSAGE_COLUMNS[name]) for name in found])
    return pa.RecordBatch.from_arrays(list(found.values()), schema=schema)
