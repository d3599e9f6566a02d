"""Records as Python's objects become columns, and what JSON and Avro write in another way than Arrow takes it."""

from __future__ import annotations

import binascii
import math
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa

from .kept_values import UnfitValue

Converter = Callable[[Any], Any]
_UNFIT = (pa.ArrowException, ValueError, TypeError, OverflowError)


def record_columns(rows: Sequence[dict[str, Any]], fields: pa.Schema) -> list[pa.Array]:
    """Return a column for each field; what a row lacks is null. Raises :class:`UnfitValue`, naming the field."""
    return [_column([row.get(field.name) for row in rows], field) for field in fields]


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except _UNFIT:
        for row, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except _UNFIT as error:
                raise UnfitValue(row, f"field {field.name!r} is not {field.type}: {error}") from error
        raise


def from_json(kind: pa.DataType) -> Converter | None:
    """Return what turns a value of JSON into one of this type; None where it is that already.

    The bytes in JSON are text in base64, as Java's schema writes them. The converter raises :class:`ValueError`.
    """
    if pa.types.is_binary(kind):
        return _from_base64
    if pa.types.is_floating(kind):
        return _as_float
    if pa.types.is_struct(kind):
        return _each_field({field.name: from_json(field.type) for field in kind})
    if pa.types.is_map(kind):
        return _each_item(from_json(kind.item_type))
    if pa.types.is_list(kind):
        return _each_item(from_json(kind.value_type))
    return None


def integer(text: str) -> int | float:
    """Return an integer of JSON; one of more digits than Python converts is a float, and so is a zero with a sign."""
    try:
        return int(text) if text != "-0" else -0.0
    except ValueError:
        return float(text)


def _as_float(value: Any) -> Any:
    """Return an integer where a floating-point number is meant as the nearest of these, which Arrow refuses to do."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _each_item(converter: Converter | None) -> Converter | None:
    if converter is None:
        return None

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: converter(each) for name, each in value.items()}
        return [converter(each) for each in value] if isinstance(value, list) else value

    return convert


def from_json_record(fields: pa.Schema) -> Converter | None:
    """As :func:`from_json`, for a whole record."""
    return _each_field({field.name: from_json(field.type) for field in fields})


def _each_field(converters: dict[str, Converter | None]) -> Converter | None:
    needed = [(name, converter) for name, converter in converters.items() if converter is not None]
    if not needed:
        return None

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            for name, converter in needed:
                if name in value:
                    value[name] = converter(value[name])
        return value

    return convert


def _from_base64(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError as error:
        raise ValueError(f"{value[:40]!r} is not base64, as bytes are in JSON: {error}") from error


def without_uuids(value: Any) -> Any:
    """Return a value as Avro gives it with text for each UUID, which Arrow has no type for."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: without_uuids(each) for name, each in value.items()}
    if isinstance(value, list):
        return [without_uuids(each) for each in value]
    return value
