"""Key-value schemas: a struct of key and value, whether they are in one payload or in the message's key and payload."""

from __future__ import annotations

import json
import struct
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.decode.columns import EntryColumns
from heliograph_spark.decode.entries import Entry, UndecodableMessage
from heliograph_spark.decode.kept_values import BAD_RECORD, BAD_RECORD_TYPE, UnfitValue
from heliograph_spark.decode.key_values import KeyValues, joined, parts_of
from heliograph_spark.decode.primitives import PrimitiveValues
from heliograph_spark.decode.rows import COMPILED
from heliograph_spark.decode.values import JsonValues
from heliograph_spark.jobs.last_messages import last_values
from heliograph_spark.plan.errors import SchemaError
from heliograph_spark.run.schemas import TopicSchema, columns_of, read_schema
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient

from .test_batch_read import read

PARTS = st.none() | st.binary(max_size=6)
BYTES = pa.struct([("key", pa.binary()), ("value", pa.binary())])
RECORD = {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "int"]}]}


def with_length(part: bytes | None) -> bytes:
    return struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part


def key_value(encoding: str | None, key: str, value: str, *data: Any) -> wire.Schema:
    """Return a key-value schema of parts of these types, with their definitions."""
    parts = [json.dumps(each).encode() if each else b"" for each in (*data, None, None)][:2]
    properties = {"key.schema.type": key, "value.schema.type": value, "key.schema.properties": "{}"}
    if encoding is not None:
        properties["kv.encoding.type"] = encoding
    found = wire.Schema(name="KeyValue", type=wire.Schema.KeyValue, schema_data=b"".join(map(with_length, parts)))
    found.properties.extend(wire.KeyValue(key=name, value=text) for name, text in properties.items())
    return found


@given(st.lists(st.tuples(PARTS, PARTS), max_size=8))
def test_what_is_joined_comes_apart_again(pairs: list[tuple[bytes | None, bytes | None]]) -> None:
    keys, values = (pa.array([pair[at] for pair in pairs], pa.binary()) for at in (0, 1))
    whole = joined(keys, values)
    written = [None if pair == (None, None) else with_length(pair[0]) + with_length(pair[1]) for pair in pairs]
    assert whole.to_pylist() == written
    assert [parts_of(each) for each in written if each is not None] == [pair for pair in pairs if pair != (None, None)]
    (column,) = KeyValues(BYTES, None, None).columns(whole, pa.nulls(len(pairs), pa.binary()))
    column.validate(full=True)
    expected = [None if pair == (None, None) else dict(zip(("key", "value"), pair, strict=True)) for pair in pairs]
    assert column.to_pylist() == expected


@given(st.binary(max_size=20))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    try:
        parts = parts_of(data)
    except ValueError:
        return
    assert b"".join(map(with_length, parts)) == data


def test_each_part_has_its_own_schema() -> None:
    inner = pa.struct([("n", pa.int32())])
    decoder = KeyValues(
        pa.struct([("key", pa.int64()), ("value", inner)]), PrimitiveValues("INT64"), JsonValues(pa.schema(list(inner)))
    )
    key = struct.pack(">q", 5)
    given = [
        with_length(key) + with_length(b'{"n": 1}'),
        with_length(None) + with_length(b"{}"),
        with_length(key) + with_length(None),
        None,
    ]
    (column,) = decoder.columns(pa.array(given, pa.binary()), pa.nulls(4, pa.binary()))
    assert column.to_pylist() == [
        {"key": 5, "value": {"n": 1}},
        {"key": None, "value": {"n": None}},
        {"key": 5, "value": None},
        None,
    ]
    for wrong, why in (
        (with_length(b"x") + with_length(None), "its key: it is not INT64"),
        (with_length(key) + with_length(b"x"), "its value: it is not JSON"),
        (b"\0\0\0\1", "it is not KEY_VALUE as the topic's schema says: its key has 1 bytes, and 0 are there"),
        (b"", "it ends before the length of its key"),
        (with_length(None) * 2 + b"x", "1 bytes are after its value"),
    ):
        with pytest.raises(UnfitValue, match=why) as unfit:
            decoder.columns(pa.array([given[0], wrong]), pa.nulls(2, pa.binary()))
        assert unfit.value.row == 1


def test_the_columns_of_a_schema() -> None:
    found = read_schema(key_value("SEPARATED", "INSTANT", "AVRO", None, RECORD), "t")
    assert found == TopicSchema(
        "KEY_VALUE", None, (TopicSchema("INSTANT"), TopicSchema("AVRO", json.dumps(RECORD))), separated=True
    )
    assert columns_of(found, "t")["value"].dataType.simpleString() == "struct<key:timestamp,value:struct<n:int>>"
    for encoding in ("INLINE", None):
        assert not read_schema(key_value(encoding, "STRING", "BYTES"), "t").separated
    with pytest.raises(SchemaError, match="the schema of the key of t is of type KEY_VALUE, which has no columns here"):
        columns_of(read_schema(key_value("INLINE", "KEY_VALUE", "BYTES"), "t"), "t")
    broken = key_value("INLINE", "STRING", "BYTES")
    broken.schema_data = b"\0"
    with pytest.raises(SchemaError, match="the schema of t cannot be read: it ends before the length of its key"):
        read_schema(broken, "t")


@pytest.mark.parametrize("compiled", [False, True] if COMPILED else [False])
def test_a_key_apart_is_read_also_if_nobody_asks_for_the_messages_keys(compiled: bool) -> None:
    kind = pa.struct([("key", pa.int32()), ("value", pa.string())])
    schema = pa.schema([("value", kind)])

    def columns(schema: pa.Schema) -> EntryColumns:
        values = KeyValues(kind, PrimitiveValues("INT32"), PrimitiveValues("STRING"))
        return EntryColumns("t", schema, values=values, separated=True, compiled=compiled)

    def entry(at: int, payload: bytes | None, **key: Any) -> Entry:
        metadata = wire.MessageMetadata(producer_name="p", sequence_id=at, publish_time=1, null_value=payload is None)
        for name, value in key.items():
            setattr(metadata, name, value)
        return Entry(5, at, metadata, payload or b"")

    good = [
        entry(0, b"x", partition_key="AAAABQ==", partition_key_b64_encoded=True),
        entry(1, None, partition_key="AAAABQ==", partition_key_b64_encoded=True),
        entry(2, b"x", null_partition_key=True),
        entry(3, None, null_partition_key=True),
        entry(4, b"x", partition_key="four"),
    ]
    bad = entry(5, b"payload", partition_key="no number")
    refusing, keeping = columns(schema), columns(pa.schema([*schema, (BAD_RECORD, BAD_RECORD_TYPE)]))
    for each in good:
        refusing.add(each)
        keeping.add(each)
    expected = [
        {"key": 5, "value": "x"},
        {"key": 5, "value": None},
        {"key": None, "value": "x"},
        None,
        {"key": int.from_bytes(b"four", "big"), "value": "x"},
    ]
    assert [row["value"] for batch in refusing.take() for row in batch.to_pylist()] == expected
    refusing.add(bad)
    with pytest.raises(UndecodableMessage, match="message 5:5 of t cannot be read: its key: it is not INT32"):
        list(refusing.take())
    keeping.add(bad)
    rows = [row for batch in keeping.take() for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == [*expected, None]
    assert [row[BAD_RECORD] for row in rows[:-1]] == [None] * 5
    assert rows[-1][BAD_RECORD]["value"] == b"payload"


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_a_topic_of_keys_and_values_in_spark(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, encoding: str
) -> None:
    name = f"persistent://public/default/{topic}"
    with WireClient(broker.service_url) as wire_client:
        wire_client.producer(name, schema=key_value(encoding, "STRING", "JSON", None, RECORD))
    producer = client.create_producer(topic)
    values = [b'{"n": 1}', b'{"n": 2}', b"no json"]
    if encoding == "INLINE":
        for number, value in enumerate(values):
            producer.send(with_length(b"k%d" % number) + with_length(value), partition_key="of the message")
        producer.send(with_length(b"k0") + with_length(None), partition_key="of the message")
    else:
        for number, value in enumerate(values):
            producer.send(value, partition_key=f"k{number}")
        producer.send(None, partition_key="k0")
    frame = read(spark, broker, topic=topic, badRecords="column")
    assert frame.schema["value"].dataType.simpleString() == "struct<key:string,value:struct<n:int>>"
    rows = frame.orderBy("__publishTime", "__messageId").selectExpr("to_json(value) AS v", "__badRecord.reason AS r")
    found = [(row.v, row.r) for row in rows.collect()]
    assert found[0] == ('{"key":"k0","value":{"n":1}}', None)
    assert found[1] == ('{"key":"k1","value":{"n":2}}', None)
    assert found[2][0] is None
    assert found[2][1].startswith("its value: it is not JSON as the topic's schema says")
    assert found[3] == ('{"key":"k0"}', None)
    # A table leaves out what has no value, as that is how such a key is deleted.
    last = {bytes(row["__key"]) for row in last_values(frame.where("__badRecord IS NULL")).collect()}
    assert last == (set() if encoding == "INLINE" else {b"k1"})
