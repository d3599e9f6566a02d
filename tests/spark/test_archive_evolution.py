"""A topic's schema goes on: its archive takes what Avro calls compatible, and old files are read as what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, archive
from heliograph_spark.jobs.archiving.parquet import ParquetTopic
from heliograph_spark.plan.errors import SchemaError
from heliograph_spark.run.archived import archived_columns, keep_columns, read_archive, topic_directory
from heliograph_spark.run.session import Broker
from heliograph_spark.run.widening import widened
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_namespace

NAME = "persistent://public/default/readings"
NUMBERS = [t.ByteType(), t.ShortType(), t.IntegerType(), t.LongType(), t.FloatType(), t.DoubleType()]
PLAIN = [*NUMBERS, t.StringType(), t.BinaryType(), t.BooleanType(), t.DateType(), t.TimestampType()]


def nested(inner: st.SearchStrategy[t.DataType]) -> st.SearchStrategy[t.DataType]:
    names = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)
    structs = names.flatmap(
        lambda found: st.tuples(*[inner for _ in found]).map(
            lambda kinds: t.StructType([t.StructField(*each) for each in zip(found, kinds, strict=True)])
        )
    )
    return structs | inner.map(t.ArrayType) | inner.map(lambda kind: t.MapType(t.StringType(), kind))


TYPES = st.recursive(st.sampled_from(PLAIN), nested, max_leaves=6)


def attempt(old: t.DataType, new: t.DataType) -> t.DataType | None:
    try:
        return widened(old, new, "field", NAME)
    except SchemaError:
        return None


def same(one: t.DataType | None, other: t.DataType | None) -> bool:
    """Whether two types are the same but for the order of fields."""
    if isinstance(one, t.StructType) and isinstance(other, t.StructType):
        return set(one.names) == set(other.names) and all(
            same(each.dataType, other[each.name].dataType) for each in one
        )
    if isinstance(one, t.ArrayType) and isinstance(other, t.ArrayType):
        return same(one.elementType, other.elementType)
    if isinstance(one, t.MapType) and isinstance(other, t.MapType):
        return same(one.valueType, other.valueType)
    return one == other


@given(TYPES, TYPES)
def test_widening_knows_no_direction_and_widens_once(one: t.DataType, other: t.DataType) -> None:
    whole = attempt(one, other)
    assert same(whole, attempt(other, one))
    assert attempt(one, one) == one
    if whole is not None:
        assert attempt(whole, one) == whole
        assert attempt(whole, other) == whole


@pytest.mark.parametrize("first", NUMBERS)
@pytest.mark.parametrize("second", NUMBERS)
def test_a_number_widens_to_a_type_that_has_all_values_of_both(first: t.DataType, second: t.DataType) -> None:
    bits = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
    exact = {"float": 24, "double": 53}
    found = attempt(first, second)
    kinds = first.simpleString(), second.simpleString()
    if found is None:
        assert "bigint" in kinds
        assert exact.keys() & set(kinds)
        return
    wide = found.simpleString()
    for kind in kinds:
        if kind in bits:
            assert bits[kind] <= bits.get(wide, exact.get(wide, 0))
        else:
            assert exact[kind] <= exact.get(wide, 0)


def test_a_type_that_does_not_fit_is_named_with_its_place() -> None:
    old = t.StructType().add("a", t.ArrayType(t.StructType().add("b", "string")))
    new = t.StructType().add("a", t.ArrayType(t.StructType().add("b", t.IntegerType())))
    with pytest.raises(
        SchemaError, match=r"field 'a\[\]\.b' of .*readings is string in the archive and int in the top"
    ):
        widened(old, new, "", NAME)
    dates = t.MapType(t.StringType(), t.DateType())
    for other in (t.MapType(t.StringType(), t.LongType()), t.DecimalType(9, 2), t.ArrayType(t.DateType())):
        with pytest.raises(SchemaError, match="field 'm"):
            widened(dates, other, "m", NAME)


OLD = (
    "n int, f float, g int, s struct<a: int, f: float>, l array<struct<a: int>>, i array<int>,"
    " m map<string, struct<a: int>>"
)
NEW = (
    "n bigint, f double, g double, s struct<a: bigint, f: double, more: string>, l array<struct<a: double, b: string>>,"
    " i array<bigint>, m map<string, struct<a: bigint, b: array<int>>>, added string"
)
LARGEST = (1 << 31) - 1


def old_row(number: int) -> dict[str, Any]:
    value = (LARGEST - number, -LARGEST - 1 + number, number % 3, number)[number % 4]
    of = {"a": value}
    empty = number % 11 == 0
    return {
        "n": None if empty else value,
        "f": number / 4,
        "g": value,
        "s": None if number % 7 == 0 else of | {"f": None if empty else number / 8},
        "l": None if number % 5 == 0 else [of, None, {"a": None}][: number % 4],
        "i": [value, None, number],
        "m": {"k": of, "none": None},
    }


def in_new_columns(row: dict[str, Any]) -> dict[str, Any]:
    wider = dict(row) | {"added": None}
    if row["s"] is not None:
        wider["s"] = row["s"] | {"more": None}
    if row["l"] is not None:
        wider["l"] = [None if each is None else each | {"b": None} for each in row["l"]]
    wider["m"] = {key: None if each is None else each | {"b": None} for key, each in row["m"].items()}
    return wider


@pytest.mark.parametrize("vectorized", [True, False])
@pytest.mark.parametrize("more", [0, 120])
def test_files_of_narrower_types_are_read_as_what_they_say(
    spark: SparkSession, tmp_path: Path, vectorized: bool, more: int
) -> None:
    # Above a hundred columns Spark hands over rows instead of columns.
    others = "".join(f", o{number} int" for number in range(more))
    old, new = (spark.createDataFrame([], kind + others).schema for kind in (OLD, NEW))
    path, name = str(tmp_path), NAME
    rows = [old_row(number) for number in range(400)]
    keep_columns(spark, path, name, old)
    frame = spark.createDataFrame([tuple(row.get(each) for each in old.names) for row in rows], old)
    directory = f"{topic_directory(path, name)}/date=2024-01-01"
    frame.coalesce(1).write.mode("append").parquet(directory)
    merged = keep_columns(spark, path, name, new)
    newest = {
        "n": 1 << 40,
        "f": 0.1,
        "g": 0.1,
        "s": {"a": 1 << 40, "f": 0.1, "more": "x"},
        "l": [{"a": 0.1, "b": "x"}],
        "i": [1 << 40],
        "m": {"k": {"a": 1 << 40, "b": [1]}},
        "added": "x",
    }
    given_rows = spark.createDataFrame([tuple(newest.get(each) for each in new.names)], new)
    given_rows.to(merged).coalesce(1).write.mode("append").parquet(directory)
    expected = [in_new_columns(row) for row in rows] + [newest]
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", str(vectorized).lower())
    try:
        found = read_archive(spark, path, name)
        as_read = [row.asDict(recursive=True) for row in found.select(*in_new_columns(rows[0])).collect()]
        wide = found.where("n > 2147483642").count(), found.where("g = 0.1 OR g > 2147483646.5").count()
        inside = found.where("s.a = 2147483643").count()
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")

    def order(row: dict[str, Any]) -> float:
        return float(row["f"]) * 1000

    assert sorted(as_read, key=order) == sorted(expected, key=order)
    assert wide == (2, 2)
    assert inside == 1
    assert archived_columns(spark, path, name) == merged


def definition(number: str, *inner: tuple[str, str]) -> dict[str, Any]:
    fields = [{"name": name, "type": ["null", kind], "default": None} for name, kind in inner]
    part = {"type": "record", "name": "Part", "fields": fields}
    return {
        "type": "record",
        "name": "Reading",
        "fields": [{"name": "n", "type": number}, {"name": "s", "type": ["null", part], "default": None}],
    }


@pytest.mark.usefixtures("planner")
def test_an_archive_goes_on_when_the_topics_schema_widens(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_namespace(broker, topic, "BACKWARD")
    name = f"persistent://public/{topic}/readings"

    def send(schema: dict[str, Any], value: dict[str, Any]) -> None:
        producer = client.create_producer(name, schema=pulsar.schema.AvroSchema(None, schema_definition=schema))
        producer.send(value)
        producer.close()

    def run() -> None:
        options = ArchiveOptions(Broker(broker.service_url, broker.http_url), str(tmp_path), (name,))
        done = archive(spark, options)
        assert (done.rows, done.error) == (1, None)

    send(definition("int", ("a", "float")), {"n": LARGEST, "s": {"a": 0.5}})
    run()
    send(definition("long", ("a", "double"), ("b", "string")), {"n": 1 << 40, "s": {"a": 0.1, "b": "x"}})
    run()
    rows = read_archive(spark, str(tmp_path), name).orderBy("n")
    assert rows.select("n", "s").schema.simpleString() == "struct<n:bigint,s:struct<a:double,b:string>>"
    assert [(row.n, tuple(row.s)) for row in rows.collect()] == [(LARGEST, (0.5, None)), (1 << 40, (0.1, "x"))]


@pytest.mark.usefixtures("planner")
def test_fields_that_are_added_while_an_archive_runs_are_archived(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create_namespace(broker, topic, "BACKWARD")
    name = f"persistent://public/{topic}/readings"
    later = [("b", "string"), ("c", "long")]
    fields: list[tuple[str, str]] = []

    def send() -> None:
        added = [{"name": each, "type": ["null", kind], "default": None} for each, kind in fields]
        whole = {"type": "record", "name": "Reading", "fields": [{"name": "n", "type": "int"}, *added]}
        producer = client.create_producer(name, schema=pulsar.schema.AvroSchema(None, schema_definition=whole))
        producer.send({"n": len(fields)} | {each: "x" if kind == "string" else 1 for each, kind in fields})
        producer.close()

    send()
    whole: Callable[[ParquetTopic, t.StructType], t.StructType] = ParquetTopic.keep_columns

    def keep_columns(target: ParquetTopic, columns: t.StructType) -> t.StructType:
        """Keep them while a producer comes with a schema that has another field."""
        kept = whole(target, columns)
        if later:
            fields.append(later.pop(0))
            send()
        return kept

    monkeypatch.setattr(ParquetTopic, "keep_columns", keep_columns)
    done = archive(spark, ArchiveOptions(Broker(broker.service_url, broker.http_url), str(tmp_path), (name,)))
    assert (done.rows, done.error) == (3, None)
    rows = read_archive(spark, str(tmp_path), name).orderBy("n")
    assert [(row.n, row.b, row.c) for row in rows.collect()] == [(0, None, None), (1, "x", None), (2, "x", 1)]
