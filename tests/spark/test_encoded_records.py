"""Records are encoded alike by the compiled module, a whole record batch at a time, and one by one in Python."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from heliograph_spark.plan.errors import SchemaError
from heliograph_spark.run.encoding import Encoder
from heliograph_spark.run.schemas import TopicSchema
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from .test_encoded_messages import WHERE_COMPILED

pytestmark = WHERE_COMPILED

#: Columns: Spark's type, Avro's type in a schema, one that is wider, and the values.
SIMPLE: dict[str, tuple[t.DataType, Any, Any, st.SearchStrategy[Any]]] = {
    "boolean": (t.BooleanType(), "boolean", "boolean", st.booleans()),
    "short": (t.ShortType(), "int", "double", st.integers(-(1 << 15), (1 << 15) - 1)),
    "int": (t.IntegerType(), "int", "long", st.integers(-(1 << 31), (1 << 31) - 1)),
    "long": (t.LongType(), "long", "long", st.integers(-(1 << 63), (1 << 63) - 1)),
    "float": (t.FloatType(), "float", "double", st.floats(width=32)),
    "double": (t.DoubleType(), "double", "double", st.floats()),
    "string": (t.StringType(), "string", "string", st.text(max_size=8)),
    "binary": (t.BinaryType(), "bytes", "bytes", st.binary(max_size=8)),
}
TIMES: dict[str, tuple[t.DataType, Any, Any, st.SearchStrategy[Any]]] = {
    "date": (t.DateType(), *[{"type": "int", "logicalType": "date"}] * 2, st.dates()),
    "timestamp": (
        t.TimestampType(),
        *[{"type": "long", "logicalType": "timestamp-micros"}] * 2,
        st.datetimes(timezones=st.just(UTC)),
    ),
}


class _Drawn:
    """A type that was drawn, in Spark, Avro and as values."""

    def __init__(self, column: t.DataType, avro: Any, values: st.SearchStrategy[Any]) -> None:
        self.column = column
        self.avro = avro
        self.values = values


def _nullable(data: st.DataObject, of: _Drawn) -> _Drawn:
    where = data.draw(st.sampled_from([None, 0, 1]))
    if where is None:
        return of
    union = [of.avro, "null"] if where else ["null", of.avro]
    return _Drawn(of.column, union, st.one_of(st.none(), of.values))


def _drawn(data: st.DataObject, name: str, depth: int, *, in_json: bool) -> _Drawn:
    kinds = SIMPLE if in_json else SIMPLE | TIMES
    kind = data.draw(st.sampled_from([*kinds, *(["list", "map", "record"] if depth else [])]))
    if kind in kinds:
        column, avro, wider, values = kinds[kind]
        # A narrower column is as good as one of the type.
        return _nullable(data, _Drawn(column, data.draw(st.sampled_from([avro, wider])), values))
    if kind == "record":
        parts = {
            f"f{at}": _drawn(data, f"{name}_{at}", depth - 1, in_json=in_json)
            for at in range(data.draw(st.integers(1, 3)))
        }
        order = data.draw(st.permutations(list(parts)))
        fields = [{"name": each, "type": parts[each].avro} for each in order]
        columns = t.StructType([t.StructField(each, part.column) for each, part in parts.items()])
        values = st.fixed_dictionaries({each: part.values for each, part in parts.items()})
        return _nullable(data, _Drawn(columns, {"type": "record", "name": f"R{name}", "fields": fields}, values))
    inner = _drawn(data, f"{name}_i", depth - 1, in_json=in_json)
    if kind == "list":
        return _nullable(
            data,
            _Drawn(
                t.ArrayType(inner.column), {"type": "array", "items": inner.avro}, st.lists(inner.values, max_size=3)
            ),
        )
    values = st.dictionaries(st.text(max_size=3), inner.values, max_size=3).map(lambda found: list(found.items()))
    return _nullable(
        data, _Drawn(t.MapType(t.StringType(), inner.column), {"type": "map", "values": inner.avro}, values)
    )


def batch_of(columns: t.StructType, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows as an array that does not begin where its memory does."""
    schema = to_arrow_schema(columns, timezone="UTC")
    # Spark's columns may be null whatever the topic's schema says.
    return pa.RecordBatch.from_pylist([dict.fromkeys(columns.names), *rows, dict.fromkeys(columns.names)], schema)[1:-1]


def one_by_one(encoder: Encoder, batch: pa.RecordBatch) -> list[bytes | None]:
    encoder._records, natively = None, encoder._records
    try:
        found: list[bytes | None] = encoder.messages(batch).column("value").to_pylist()
        return found
    finally:
        encoder._records = natively


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@given(st.data())
def test_records_are_the_same_bytes(kind: str, data: st.DataObject) -> None:
    drawn = {f"c{at}": _drawn(data, f"c{at}", 2, in_json=kind == "JSON") for at in range(data.draw(st.integers(1, 4)))}
    fields = [{"name": name, "type": each.avro} for name, each in drawn.items()]
    left_out = {"name": "more", "type": ["null", "string"], "default": None}
    fields.insert(data.draw(st.integers(0, len(fields))), left_out)
    fields.append({"name": "last", "type": "long", "default": 5})
    definition = {"type": "record", "name": "Row", "fields": fields}
    columns = t.StructType([t.StructField(name, each.column) for name, each in drawn.items()])
    encoder = Encoder(columns, topic_given=True, schema=TopicSchema(kind, json.dumps(definition)))
    rows = data.draw(st.lists(st.fixed_dictionaries({name: each.values for name, each in drawn.items()}), max_size=5))
    batch = batch_of(columns, rows)
    assert encoder._records is not None
    found = encoder._records.values(batch)
    assert found is not None
    assert found.to_pylist() == one_by_one(encoder, batch)


@given(st.data())
def test_records_of_a_topic_without_a_schema_are_the_same_bytes(data: st.DataObject) -> None:
    drawn = {f"c{at}": _drawn(data, f"c{at}", 2, in_json=False) for at in range(data.draw(st.integers(1, 4)))}
    columns = t.StructType([t.StructField(name, each.column) for name, each in drawn.items()])
    encoder = Encoder(columns, topic_given=True)
    rows = data.draw(
        st.lists(
            st.fixed_dictionaries({name: st.one_of(st.none(), each.values) for name, each in drawn.items()}), max_size=5
        )
    )
    batch = batch_of(columns, rows)
    assert encoder._records is not None
    found = encoder._records.values(batch)
    assert found is not None
    assert found.to_pylist() == one_by_one(encoder, batch)


def record(*fields: Any) -> TopicSchema:
    listed = [{"name": name, "type": kind} for name, kind in fields]
    return TopicSchema("AVRO", json.dumps({"type": "record", "name": "R", "fields": listed}))


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@pytest.mark.parametrize(
    ("column", "avro", "value"),
    [
        (t.IntegerType(), "int", None),
        (t.ArrayType(t.StringType()), {"type": "array", "items": "string"}, ["a", None]),
        (
            t.StructType().add("x", "long"),
            {"type": "record", "name": "I", "fields": [{"name": "x", "type": "long"}]},
            {"x": None},
        ),
    ],
)
def test_a_null_that_cannot_be_is_named_as_ever(kind: str, column: t.DataType, avro: Any, value: Any) -> None:
    columns = t.StructType().add("ok", "long").add("c", column)
    schema = TopicSchema(kind, record(("ok", "long"), ("c", avro)).definition)
    encoder = Encoder(columns, topic_given=True, schema=schema)
    assert encoder._records is not None
    batch = batch_of(columns, [{"ok": 1, "c": value}])
    assert encoder._records.values(batch) is None
    with pytest.raises(SchemaError) as natively:
        encoder.messages(batch)
    with pytest.raises(SchemaError) as in_python:
        one_by_one(encoder, batch)
    assert str(natively.value) == str(in_python.value)
    assert "a row does not fit the schema: " in str(natively.value)


@pytest.mark.parametrize(
    ("column", "avro", "value"),
    [
        (t.DecimalType(5, 2), {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, 1),
        (t.StringType(), {"type": "enum", "name": "E", "symbols": ["A"]}, "A"),
        (t.TimestampType(), {"type": "long", "logicalType": "timestamp-millis"}, datetime(2026, 1, 2, tzinfo=UTC)),
        (t.StringType(), {"type": "string", "logicalType": "uuid"}, "00000000-0000-0000-0000-000000000001"),
        (t.LongType(), ["null", "int", "long"], 7),
    ],
)
def test_types_that_the_module_does_not_know_are_left_to_python(column: t.DataType, avro: Any, value: Any) -> None:
    columns = t.StructType().add("c", column).add("d", "date")
    schema = record(("c", avro), ("d", {"type": "int", "logicalType": "date"}))
    encoder = Encoder(columns, topic_given=True, schema=schema)
    assert encoder._records is None
    assert encoder.messages(batch_of(columns, [{"c": value, "d": date(2026, 1, 1)}])).num_rows == 1
