"""``badRecords=column``: what cannot be read is kept with the reason, and the query goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pulsar
import pyarrow as pa
import pytest
from heliograph_spark.decode.columns import METADATA_COLUMNS, EntryColumns
from heliograph_spark.decode.entries import Entry, UndecodableMessage
from heliograph_spark.decode.kept_values import BAD_RECORD, BAD_RECORD_TYPE, UnfitValue, Values, kept_values
from heliograph_spark.decode.primitives import PRIMITIVE_TYPES, PrimitiveValues
from heliograph_spark.decode.rows import COMPILED
from heliograph_spark.decode.values import AvroValues, JsonValues
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import publish

from .test_batch_read import Reading, read
from .test_entry_columns import spoiled_batches

WITH_BAD = pa.schema([("value", pa.binary()), *METADATA_COLUMNS.items(), (BAD_RECORD, BAD_RECORD_TYPE)])
EVERYTHING = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "number", "type": ["null", "int"]},
        {"name": "text", "type": "string"},
        {"name": "half", "type": "float"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "who", "type": ["null", {"type": "string", "logicalType": "uuid"}]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
        {"name": "color", "type": {"type": "enum", "name": "C", "symbols": ["RED"]}},
        {"name": "list", "type": {"type": "array", "items": "double"}},
        {"name": "map", "type": {"type": "map", "values": "long"}},
    ],
}
EVERY_FIELD = pa.schema(
    [
        ("number", pa.int32()),
        ("text", pa.string()),
        ("half", pa.float32()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("who", pa.string()),
        ("price", pa.decimal128(4, 2)),
        ("color", pa.string()),
        ("list", pa.list_(pa.float64())),
        ("map", pa.map_(pa.string(), pa.int64())),
    ]
)


def _no_writer(version: bytes) -> str:
    raise ValueError("there are no versions")


DECODERS: dict[str, Values] = {
    "JSON": JsonValues(EVERY_FIELD),
    "AVRO": AvroValues(json.dumps(EVERYTHING), EVERY_FIELD, _no_writer),
    **{kind: PrimitiveValues(kind) for kind in PRIMITIVE_TYPES},
}
TEXTS = st.sampled_from([b'{"number": 1}', b'{"number": "x"}', b'{"day": 99999999999}', b'{"list": 5}', b"{}", b"[]"])


@pytest.mark.parametrize("kind", DECODERS)
@settings(max_examples=30)
@given(values=st.lists(st.none() | st.binary(max_size=40) | TEXTS, max_size=12))
def test_of_any_values_those_that_fit_are_decoded_and_the_others_kept(kind: str, values: list[bytes | None]) -> None:
    decoder = DECODERS[kind]
    bad, *columns = kept_values(decoder, pa.array(values, pa.binary()), pa.nulls(len(values), pa.binary()), {})
    for column in (bad, *columns):
        column.validate(full=True)
    for row, value in enumerate(values):
        alone = pa.array([value], pa.binary())
        try:
            expected, why = [each.cast(each.type) for each in decoder.columns(alone, pa.nulls(1, pa.binary()))], None
        except UnfitValue as error:
            nothing = pa.nulls(1, pa.binary())
            expected, why = list(decoder.columns(nothing, nothing)), {"value": value, "reason": error.reason}
        assert bad[row].as_py() == why
        for column, each in zip(columns, expected, strict=True):
            # A comparison of scalars would call NaN unequal, and some dates are beyond Python's.
            assert str(column.slice(row, 1)) == str(each)


def test_many_values_that_do_not_fit_are_not_decoded_many_times_each() -> None:
    class Counting:
        decoded = 0

        def columns(self, values: pa.Array, versions: pa.Array) -> list[pa.Array]:
            self.decoded += len(values)
            return PrimitiveValues("INT32").columns(values, versions)  # type: ignore[return-value]

    counting, count = Counting(), 4096
    bad, numbers = kept_values(counting, pa.array([b"x"] * count), pa.nulls(count, pa.binary()), {})
    assert (bad.null_count, numbers.null_count) == (0, count)
    assert counting.decoded <= count * 14


@given(spoiled_batches(), st.integers(-1, 3), st.none() | st.integers(0, 5))
def test_an_entry_that_cannot_be_taken_apart_is_one_row_with_its_payload(
    entry: Entry, after: int, up_to: int | None
) -> None:
    for compiled in (False, True) if COMPILED else (False,):
        refusing = EntryColumns("t", pa.schema(list(WITH_BAD)[:-1]), compiled=compiled)
        keeping = EntryColumns("t", WITH_BAD, compiled=compiled)
        keeping.add(entry, after, up_to)
        found = list(keeping.take())
        try:
            refusing.add(entry, after, up_to)
        except UndecodableMessage as error:
            if after >= entry.metadata.num_messages_in_batch - 1 >= 0:
                assert not found, "it was read already"
                continue
            (batch,) = found
            bad = {"value": entry.payload, "reason": str(error)}
            row = {name: batch[name].to_pylist() for name in (BAD_RECORD, "value", "__ledger", "__entry", "__key")}
            assert row == {BAD_RECORD: [bad], "value": [None], "__ledger": [5], "__entry": [6], "__key": [None]}
        else:
            (expected,) = list(refusing.take()) or [None]
            if expected is None:
                assert not found
            else:
                assert found[0].select(expected.schema.names).equals(expected)
                assert found[0][BAD_RECORD].null_count == len(expected)


def test_a_query_goes_on_after_a_message_that_is_not_what_the_schema_says(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    good = client.create_producer(topic, schema=pulsar.schema.JsonSchema(Reading))
    good.send(Reading(place="Kyoto"))
    (wrong,) = publish(client, topic, [b"no json"])
    good.send(Reading(place="Oslo"))
    frame = read(spark, broker, topic=topic, badRecords="column")
    assert dict(frame.dtypes)["__badRecord"] == "struct<value:binary,reason:string>"
    rows = frame.selectExpr("place", "__badRecord.value", "__badRecord.reason", "__messageId").collect()
    found = {row.place: (row.value, row.reason) for row in rows}
    assert found.keys() == {"Kyoto", "Oslo", None}
    assert (found["Kyoto"], found["Oslo"], bytes(found[None][0])) == ((None, None), (None, None), b"no json")
    assert found[None][1].startswith("it is not JSON as the topic's schema says")
    (place,) = (pulsar.MessageId.deserialize(bytes(row["__messageId"])) for row in rows if row.place is None)
    assert (place.ledger_id(), place.entry_id()) == (wrong.ledger_id(), wrong.entry_id())

    stream = spark.readStream.format("pulsar").option("service.url", broker.service_url).option("topic", topic)
    stream = stream.option("startingOffsets", "earliest").option("badRecords", "column")
    writing = stream.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writing = writing.option("path", str(tmp_path / "rows")).trigger(availableNow=True)
    assert writing.start().awaitTermination(120)
    written = spark.read.parquet(str(tmp_path / "rows"))
    assert written.count() == 3
    assert written.filter("__badRecord IS NOT NULL AND place IS NULL").count() == 1


def test_text_that_is_none_is_kept_between_the_others(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, schema=pulsar.schema.StringSchema())
    producer.send("text")
    publish(client, topic, [b"\xff", b"A"])
    rows = read(spark, broker, topic=topic, badRecords="column").orderBy("__publishTime", "__messageId")
    found = rows.selectExpr("value", "hex(__badRecord.value) AS bad").collect()
    assert [tuple(row) for row in found] == [("text", None), (None, "FF"), ("A", None)]


def test_what_is_wrong_with_the_option_is_named(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic).send(b"content")
    with pytest.raises(Exception, match="badRecords: 'drop' is neither fail nor column nor deadLetter"):
        read(spark, broker, topic=topic, badRecords="drop")
    own = spark.read.format("pulsar").option("service.url", broker.service_url).option("topic", topic)
    with pytest.raises(Exception, match="the query's own schema has no column '__badRecord'"):
        own.option("badRecords", "column").schema("value binary").load().collect()
