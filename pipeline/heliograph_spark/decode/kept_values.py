"""Values that do not fit their schema: refused, or kept in a column of their own beside those that fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

#: The column of what cannot be read, where a query does not end there: its bytes, and why.
BAD_RECORD = "__badRecord"
BAD_RECORD_TYPE = pa.struct([("value", pa.binary()), ("reason", pa.string())])


class UnfitValue(Exception):
    """The value of a row does not become columns."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row = row
        self.reason = reason


class Values(Protocol):
    """Decodes the values of messages."""

    def columns(self, values: pa.Array, versions: pa.Array) -> Sequence[pa.Array]:
        """Return the columns for an array of bytes, null for a message without a value.

        ``versions`` are those of the schema that each was written with, null for none. Raises :class:`UnfitValue` for
        the first value that does not fit.
        """


def kept_values(
    decoder: Values | None,
    values: pa.Array,
    versions: pa.Array | None,
    reasons: dict[int, str],
    raw: pa.Array | None = None,
) -> list[pa.Array]:
    """Return :data:`BAD_RECORD` and the columns of the values, which are null for those that do not fit.

    ``reasons`` are the rows that are known not to be values. Without a decoder the only column are the bytes. ``raw``
    are the bytes to keep where they are not the values.
    """
    reasons = dict(reasons)
    fitting = values
    if reasons:
        gone = pa.array([row in reasons for row in range(len(values))])
        fitting = pc.if_else(gone, pa.scalar(None, pa.binary()), values)
    columns = [fitting]
    if decoder is not None and versions is not None:
        parts = _fitting(decoder, fitting, versions, 0, reasons)
        columns = [pa.concat_arrays(each) for each in zip(*parts, strict=True)]
    why = pa.array([reasons.get(row) for row in range(len(values))], pa.string())
    fits = pc.is_null(why)
    kept = pc.if_else(fits, pa.scalar(None, pa.binary()), values if raw is None else raw)
    bad = pa.StructArray.from_arrays([kept, why], fields=list(BAD_RECORD_TYPE), mask=fits)
    return [bad, *columns]


def _fitting(
    decoder: Values, values: pa.Array, versions: pa.Array, first: int, reasons: dict[int, str]
) -> list[Sequence[pa.Array]]:
    """Return the columns of the values in parts, with nulls for those that do not fit, which ``reasons`` gets.

    ``first`` is the row of the first value. By halves: of n values each is decoded log n times at most.
    """
    try:
        return [decoder.columns(values, versions)]
    except UnfitValue as error:
        if len(values) == 1:
            reasons[first] = error.reason
            return [decoder.columns(pa.nulls(1, pa.binary()), versions)]
    half = len(values) // 2
    return [
        *_fitting(decoder, values.slice(0, half), versions.slice(0, half), first, reasons),
        *_fitting(decoder, values.slice(half), versions.slice(half), first + half, reasons),
    ]
