"""Records in Avro are the same from the compiled module and from the reference, whatever bytes they are."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from heliograph_spark.decode.avro_buffers import COMPILED, AvroBuffers
from heliograph_spark.decode.kept_values import UnfitValue
from heliograph_spark.decode.values import AvroValues
from heliograph_spark.run.schemas import TopicSchema, columns_of
from heliograph_spark.run.spark_versions import arrow_schema
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

pytestmark = pytest.mark.skipif(not COMPILED, reason="the pipeline's modules are not compiled")

Draw = st.DrawFn
#: Types, with the values that are written of each.
_FLOATS = {"float": 32, "double": 64}
_PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    **{name: st.floats(width=width) for name, width in _FLOATS.items()},  # type: ignore[arg-type]
    "string": st.text(max_size=4),
    "bytes": st.binary(max_size=4),
}
_LOGICAL = {
    ("int", "date"): st.integers(-719_162, 2_932_896),
    ("long", "timestamp-millis"): st.integers(-62_135_596_800_000, 253_402_300_799_999),
    ("long", "timestamp-micros"): st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
}


class Types:
    """Draws types, each with what draws values of it, and names those that have one."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._names = 0

    def _name(self) -> str:
        self._names += 1
        return f"N{self._names}"

    def of(self, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
        kinds = ["plain", "plain", "logical", "enum", "fixed", "nullable"]
        kind = self._draw(st.sampled_from([*kinds, "record", "array", "map"] if depth else kinds))
        if kind == "plain":
            name = self._draw(st.sampled_from(list(_PLAIN)))
            return name, _PLAIN[name]
        if kind == "logical":
            base, logical = self._draw(st.sampled_from(list(_LOGICAL)))
            return {"type": base, "logicalType": logical}, _LOGICAL[base, logical]
        if kind == "enum":
            symbols = ["A", "B", "C"][: self._draw(st.integers(1, 3))]
            return {"type": "enum", "name": self._name(), "symbols": symbols}, st.sampled_from(symbols)
        if kind == "fixed":
            size = self._draw(st.integers(1, 5))
            return {"type": "fixed", "name": self._name(), "size": size}, st.binary(min_size=size, max_size=size)
        if kind == "record":
            return self.record(depth - 1)
        inner, values = self.of(depth - 1 if depth else 0)
        if kind == "array":
            return {"type": "array", "items": inner}, st.lists(values, max_size=3)
        if kind == "map":
            return {"type": "map", "values": inner}, st.dictionaries(st.text(max_size=2), values, max_size=3)
        if isinstance(inner, list):
            return inner, values
        return self._draw(st.permutations(["null", inner])), st.none() | values

    def record(self, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
        fields = {f"f{at}": self.of(depth) for at in range(self._draw(st.integers(1, 4)))}
        made = [{"name": name, "type": kind} for name, (kind, _) in fields.items()]
        strategy = st.fixed_dictionaries({name: values for name, (_, values) in fields.items()})
        return {"type": "record", "name": self._name(), "fields": made}, strategy


@st.composite
def topics(draw: Draw) -> tuple[dict[str, Any], pa.Schema, list[bytes | None]]:
    """Return a definition, the columns that are asked for, and written values."""
    definition, values = Types(draw).record(2)
    parsed = fastavro.parse_schema(_without_logical(definition))
    columns = [each for each in columns_of(TopicSchema("AVRO", json.dumps(definition)), "t") if each.name[0] == "f"]
    asked = draw(st.lists(st.sampled_from(columns), min_size=1, unique_by=lambda each: each.name))
    return (
        definition,
        arrow_schema(StructType(asked)),
        [None if each is None else _written(parsed, each) for each in draw(st.lists(st.none() | values, max_size=5))],
    )


def _without_logical(definition: Any) -> Any:
    """Return a definition whose values are numbers where they are moments."""
    if isinstance(definition, list):
        return [_without_logical(each) for each in definition]
    if isinstance(definition, dict):
        return {name: _without_logical(each) for name, each in definition.items() if name != "logicalType"}
    return definition


def _written(parsed: Any, record: dict[str, Any]) -> bytes:
    to = io.BytesIO()
    fastavro.schemaless_writer(to, parsed, record)
    return to.getvalue()


def _no_writer(version: bytes) -> str:
    raise AssertionError("nobody asks for a version here")


def _decoded(
    definition: Any, fields: pa.Schema, values: list[bytes | None], *, compiled: bool
) -> tuple[int, str] | list[list[str]]:
    """Decode the values as a part of more, as batches are cut; NaN is itself in what is returned."""
    more = pa.array([b"before", *values, b"after"], pa.binary()).slice(1, len(values))
    decoder = AvroValues(json.dumps(definition), fields, _no_writer, compiled=compiled)
    try:
        found = list(decoder.columns(more, pa.nulls(len(values), pa.binary())))
    except UnfitValue as error:
        return error.row, error.reason
    for each, field in zip(found, fields, strict=True):
        each.validate(full=True)
        assert (each.type, len(each)) == (field.type, len(values))
    return [list(map(repr, each.to_pylist())) for each in found]


@given(topics())
@settings(max_examples=200)
def test_what_is_written_is_read_by_the_module_as_by_the_reference(
    topic: tuple[dict[str, Any], pa.Schema, list[bytes | None]],
) -> None:
    definition, fields, values = topic
    buffers = AvroBuffers.for_fields(definition, fields)
    assert buffers is not None
    found = buffers.columns(pa.array(values, pa.binary()))
    assert found is not None or not any(values)
    assert _decoded(definition, fields, values, compiled=True) == _decoded(definition, fields, values, compiled=False)


@given(topics(), st.data())
@settings(max_examples=300)
def test_damaged_values_are_the_same_from_both(
    topic: tuple[dict[str, Any], pa.Schema, list[bytes | None]], data: st.DataObject
) -> None:
    definition, fields, values = topic
    spoiled: list[bytes | None] = []
    for each in values:
        if each:
            at = data.draw(st.integers(0, len(each) - 1))
            inserted = data.draw(st.binary(max_size=3))
            each = each[:at] + inserted + each[at + data.draw(st.integers(0, 2)) :]
        spoiled.append(each)
    assert _decoded(definition, fields, spoiled, compiled=True) == _decoded(definition, fields, spoiled, compiled=False)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", b"\x80\x80\x80\x80\x20"),
        ("int", b"\x80\x00"),
        ("long", b"\xff" * 9 + b"\x01"),
        ("long", b"\xff" * 9 + b"\x02"),
        ("long", b"\xff" * 10 + b"\x01"),
        ("boolean", b"\x02"),
        ("string", b"\x02\xff"),
        ("string", b"\x06\xed\xa0\x80"),
        ("string", b"\x01"),
        (["null", "int"], b"\x04\x02"),
        ({"type": "array", "items": "int"}, b"\x01\x02\x02\x00"),
        ({"type": "array", "items": "int"}, b"\x04\x02\x04\x02\x06\x00"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f\x02\x02\x00"),
        ({"type": "map", "values": "int"}, b"\x04\x02a\x02\x02a\x04\x00"),
        (
            {"type": "map", "values": "int"},
            b"".join([b"\x50", *(b"\x04%02d\x02" % each for each in range(40)), b"\x00"]),
        ),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02"),
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f"),
        ("int", b"\x02rest"),
    ],
)
@pytest.mark.parametrize("asked", ["f", "other"])
def test_odd_values_are_the_same_from_both(kind: Any, value: bytes, asked: str) -> None:
    fields = [{"name": "f", "type": kind}, {"name": "other", "type": "string"}]
    definition = {"type": "record", "name": "R", "fields": fields}
    found = columns_of(TopicSchema("AVRO", json.dumps(definition)), "t")
    schema = arrow_schema(StructType([found[asked]]))
    assert AvroBuffers.for_fields(definition, schema) is not None
    values: list[bytes | None] = [value + b"\x02x", None, value]
    assert _decoded(definition, schema, values, compiled=True) == _decoded(definition, schema, values, compiled=False)


@pytest.mark.parametrize(
    "kind",
    [
        ["null", "int", "string"],
        ["int", "long"],
        {"type": "string", "logicalType": "uuid"},
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
    ],
)
def test_types_that_the_module_does_not_read_are_left_to_the_reference(kind: Any) -> None:
    definition = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
    found = columns_of(TopicSchema("AVRO", json.dumps(definition)), "t")
    assert AvroBuffers.for_fields(definition, arrow_schema(StructType([found["f"]]))) is None


def test_a_name_of_two_types_in_different_namespaces_is_not_guessed() -> None:
    def enum(namespace: str, *symbols: str) -> dict[str, Any]:
        return {"type": "enum", "name": "E", "namespace": namespace, "symbols": list(symbols)}

    fields: list[dict[str, Any]] = [
        {"name": "a", "type": enum("one", "X")},
        {"name": "b", "type": enum("two", "Y")},
        {"name": "c", "type": "E"},
    ]
    definition = {"type": "record", "name": "R", "fields": fields}
    assert AvroBuffers.for_fields(definition, pa.schema([("c", pa.string())])) is None
    fields[2]["type"] = "two.E"
    assert AvroBuffers.for_fields(definition, pa.schema([("c", pa.string())])) is not None
