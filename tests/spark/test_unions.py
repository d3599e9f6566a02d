"""Unions of several types in Avro: a struct with a member for each type, read and written as Avro's own bytes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pulsar
import pyarrow as pa
import pytest
from heliograph_spark.decode.kept_values import UnfitValue
from heliograph_spark.decode.values import AvroValues
from heliograph_spark.plan.errors import SchemaError
from heliograph_spark.run.encoding import Encoder
from heliograph_spark.run.schemas import METADATA, TopicSchema, columns_of
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from tests.support.broker_process import BrokerProcess

from .test_batch_read import read
from .test_schema_write import give_schema
from .test_sender import rows

INNER = {"type": "record", "name": "Inner", "namespace": "of.tests", "fields": [{"name": "n", "type": "int"}]}
COLOR = {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}
INTS = st.integers(-(1 << 31), (1 << 31) - 1)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
#: Each type that a union may have once, by what fastavro calls it, with its values.
BRANCHES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", st.booleans()),
    "int": ("int", INTS),
    "long": ("long", LONGS),
    "float": ("float", st.floats(width=32, allow_nan=False)),
    "double": ("double", st.floats(allow_nan=False)),
    "string": ("string", st.text(max_size=4)),
    "bytes": ("bytes", st.binary(max_size=4)),
    "of.tests.Inner": (INNER, INTS.map(lambda n: {"n": n})),
    "Color": (COLOR, st.sampled_from(COLOR["symbols"])),
    "array": ({"type": "array", "items": ["null", "string"]}, st.lists(st.none() | st.text(max_size=3), max_size=2)),
    "map": ({"type": "map", "values": "long"}, st.dictionaries(st.text(max_size=3), LONGS, max_size=2)),
}


def record(kind: Any, name: str = "R", **field: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "u", "type": kind, **field}]}


def schema_of(definition: Any) -> TopicSchema:
    return TopicSchema("AVRO", json.dumps(definition))


def columns(definition: Any) -> t.StructType:
    found = columns_of(schema_of(definition), "t")
    return t.StructType([field for field in found if field.name not in METADATA.names])


def encoded(definition: Any, value: dict[str, Any]) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(json.loads(json.dumps(definition))), value)
    return written.getvalue()


def decoded(reader: Any, *values: bytes | None, writer: Any = None) -> list[Any]:
    """Decode values of the field ``u``; what they were written with is ``writer``."""
    fields = to_arrow_schema(columns(reader), timezone="UTC")
    decoder = AvroValues(json.dumps(reader), fields, lambda version: json.dumps(writer))
    versions = pa.array([None if writer is None else b"1"] * len(values), pa.binary())
    (column,) = decoder.columns(pa.array(values, pa.binary()), versions)
    found: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return found


def of(at: int, members: int, value: Any) -> dict[str, Any]:
    """Return the struct of a value that is of the type ``at``."""
    return {f"member{each}": value if each == at else None for each in range(members)}


def written_as(definition: Any, value: Any) -> bytes:
    """Return the message that a row with this ``u`` becomes."""
    encoder = Encoder(columns(definition), topic_given=True, schema=schema_of(definition))
    content: bytes = encoder.messages(rows(columns(definition), (value,))).column("value")[0].as_py()
    return content


@given(st.data())
def test_a_value_is_in_the_member_of_the_type_that_it_was_written_with(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(BRANCHES)), min_size=2, max_size=5, unique=True))
    if set(names) in ({"int", "long"}, {"float", "double"}):
        names.append("string")
    union = [BRANCHES[name][0] for name in names]
    null_at = data.draw(st.none() | st.integers(0, len(union)))
    if null_at is not None:
        union.insert(null_at, "null")
    deep = data.draw(st.sampled_from(["alone", "array", "map"]))
    kind = {"alone": union, "array": {"type": "array", "items": union}, "map": {"type": "map", "values": union}}[deep]
    at = data.draw(st.integers(0, len(names) - 1))
    value = data.draw(BRANCHES[names[at]][1])
    written = {"alone": (names[at], value), "array": [(names[at], value)], "map": {"k": (names[at], value)}}[deep]
    definition = record(kind)
    content = encoded(definition, {"u": written})
    member = of(at, len(names), value)
    expected = {"alone": member, "array": [member], "map": {"k": member}}[deep]
    assert decoded(definition, content, None) == [expected, None]
    assert written_as(definition, expected) == content


@pytest.mark.parametrize(
    ("union", "column"),
    [
        (["int", "long"], "bigint"),
        (["null", "long", "int"], "bigint"),
        (["float", "null", "double"], "double"),
        (["int", "string"], "struct<member0:int,member1:string>"),
        (["string", "null", "int"], "struct<member0:string,member1:int>"),
        (["int", "long", "string"], "struct<member0:int,member1:bigint,member2:string>"),
        (["int", "double"], "struct<member0:int,member1:double>"),
        ([{"type": "int", "logicalType": "date"}, "long"], "struct<member0:date,member1:bigint>"),
        (["null", {"type": "array", "items": ["int", "boolean"]}], "array<struct<member0:int,member1:boolean>>"),
        ([INNER, "null"], "struct<n:int>"),
    ],
)
def test_the_column_of_a_union(union: list[Any], column: str) -> None:
    assert columns(record(union))["u"].dataType.simpleString() == column


def test_two_numbers_are_one_column() -> None:
    for union, values in ((["int", "long"], [("int", 5), ("long", 1 << 40)]), (["float", "double"], [("float", 0.5)])):
        for value in values:
            assert decoded(record(union), encoded(record(union), {"u": value})) == [value[1]]


@pytest.mark.parametrize(
    ("writer", "value", "reader", "expected"),
    [
        # A type is added, first or last, or the only one gets another one beside it.
        (["int", "string"], ("string", "x"), ["boolean", "string", "int"], of(1, 3, "x")),
        (["null", "string"], "x", ["null", "int", "string"], of(1, 2, "x")),
        (["null", "string"], None, ["null", "int", "string"], None),
        ("string", "x", ["int", "string"], of(1, 2, "x")),
        # It is read as a wider one, also two as the same.
        (["int", "float", "string"], ("int", 5), ["double", "string"], of(0, 2, 5.0)),
        (["int", "float", "string"], ("float", 0.5), ["double", "string"], of(0, 2, 0.5)),
        ("int", 5, ["string", "long"], of(1, 2, 5)),
        # Only one is left, or a number.
        (["int", "string"], ("string", "x"), "string", "x"),
        (["int", "string"], ("int", 5), ["long", "int"], 5),
        # Inside others.
        (
            {"type": "array", "items": "int"},
            [5],
            {"type": "array", "items": ["string", "int"]},
            [of(1, 2, 5)],
        ),
        (["null", INNER], {"n": 5}, ["string", "null", INNER], of(1, 2, {"n": 5})),
        (
            record({"type": "map", "values": ["null", "int"]}, "Deep"),
            {"u": {"k": 5}},
            ["string", record({"type": "map", "values": ["int", "string"]}, "Deep")],
            of(1, 2, {"u": {"k": of(0, 2, 5)}}),
        ),
    ],
)
def test_values_of_an_older_version_are_read_with_the_new_union(
    writer: Any, value: Any, reader: Any, expected: Any
) -> None:
    content = encoded(record(writer, "Old"), {"u": value})
    assert decoded(record(reader), content, writer=record(writer, "Old")) == [expected]


def test_only_a_value_of_a_type_that_is_gone_does_not_fit() -> None:
    writer, reader = record(["boolean", "int", "string"]), record(["int", "string"])
    assert decoded(reader, encoded(writer, {"u": ("int", 5)}), writer=writer) == [of(0, 2, 5)]
    with pytest.raises(UnfitValue, match="it is not AVRO as the topic's schema says") as unfit:
        decoded(reader, encoded(writer, {"u": 5}), encoded(writer, {"u": True}), writer=writer)
    assert unfit.value.row == 1


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        (["null", "int", "string"], None, None),
        (["string", "null", "int"], "x", of(0, 2, "x")),
        ({"type": "array", "items": ["int", "string"]}, [5, 6], [of(0, 2, 5), of(0, 2, 6)]),
        (record(["string", "int"], "Deep"), {"u": "x"}, {"u": of(0, 2, "x")}),
    ],
)
def test_a_field_that_an_older_version_lacks_has_its_default(kind: Any, default: Any, expected: Any) -> None:
    older = {"type": "record", "name": "R", "fields": []}
    assert decoded(record(kind, default=default), b"", writer=older) == [expected]


def test_a_row_with_two_members_or_none_is_not_written() -> None:
    definition = record(["int", "string"])
    assert written_as(definition, of(1, 2, "x")) == encoded(definition, {"u": "x"})
    for wrong in ({"member0": 5, "member1": "x"}, {"member0": None, "member1": None}, None):
        with pytest.raises(SchemaError, match="a row does not fit the schema"):
            written_as(definition, wrong)


def test_json_has_no_unions_of_several_types() -> None:
    definition = json.dumps(record(["int", "string"]))
    with pytest.raises(SchemaError, match="field u of t: a union of several types is no column, as JSON does not say"):
        columns_of(TopicSchema("JSON", definition), "t")
    assert columns_of(TopicSchema("JSON", json.dumps(record(["int", "long"]))), "t")["u"].dataType == t.LongType()


def test_a_topic_with_unions_in_spark(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    definition = record(["null", "long", "string", INNER], default=None)
    give_schema(broker, topic, "AVRO", definition)
    rows = [of(0, 3, 1 << 40), of(1, 3, "x"), of(2, 3, {"n": 5}), None]
    frame = spark.createDataFrame([(each,) for each in rows], columns(definition))
    sink = frame.write.format("pulsar").option("service.url", broker.service_url).option("topic", topic)
    sink.mode("append").save()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    contents = [reader.read_next(60_000).data() for _ in rows]
    names = ["long", "string", "of.tests.Inner"]
    plain = [("long", 1 << 40), ("string", "x"), (names[2], {"n": 5}), None]
    assert sorted(contents) == sorted(encoded(definition, {"u": each}) for each in plain)
    client.create_producer(topic).send(b"\x08")
    found = read(spark, broker, topic=topic, badRecords="column").selectExpr("u", "__badRecord.reason").collect()
    assert sorted((json.dumps(row.u and row.u.asDict(recursive=True)) for row in found if not row.reason), key=str) == (
        sorted(map(json.dumps, rows))
    )
    (reason,) = (row.reason for row in found if row.reason)
    assert reason.startswith("it is not AVRO as the topic's schema says")
