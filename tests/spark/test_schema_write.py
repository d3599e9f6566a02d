"""Rows are written with the schema that a topic has, or are refused before one is sent."""

from __future__ import annotations

import base64
import io
import json
import struct
from datetime import UTC, date, datetime
from typing import Any

import fastavro
import pulsar
import pyarrow as pa
import pytest
from heliograph_spark.plan.errors import SchemaError
from heliograph_spark.run.fitting import holds
from heliograph_spark.run.primitives import PRIMITIVES
from heliograph_spark.run.sink import Sender
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from tests.support.broker_process import BrokerProcess
from tests.support.clients import rest

from .test_sender import rows, stored, writing

RECORD = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "place", "type": "string"},
        {"name": "degrees", "type": ["null", "double"], "default": None},
        {"name": "raw", "type": ["null", "bytes"], "default": None},
    ],
}
READING = t.StructType().add("degrees", "float").add("place", "string").add("raw", "binary")


def give_schema(broker: BrokerProcess, topic: str, kind: str, definition: Any = "") -> None:
    text = json.dumps(definition) if definition else ""
    rest(broker, "POST", f"schemas/public/default/{topic}/schema", {"type": kind, "schema": text, "properties": {}})


def send(broker: BrokerProcess, topic: str, columns: t.StructType, *found: tuple[Any, ...]) -> None:
    with Sender(columns, writing(broker, topic)) as sender:
        sender.send(rows(columns, *found))
        sender.finish()


@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
def test_columns_are_written_by_name_with_the_schema_of_the_topic(
    broker: BrokerProcess, client: pulsar.Client, topic: str, kind: str
) -> None:
    give_schema(broker, topic, kind, RECORD)
    send(broker, topic, READING, (21.5, "Kyoto", b"\xff\x00"), (None, "Oslo", None))
    found = stored(client, topic)
    if kind == "JSON":
        # Bytes as Java's JSON schema writes them.
        assert json.loads(found[0]) == {
            "place": "Kyoto",
            "degrees": 21.5,
            "raw": base64.b64encode(b"\xff\x00").decode(),
        }
        assert json.loads(found[1]) == {"place": "Oslo", "degrees": None, "raw": None}
    else:
        assert found == [avro("Kyoto", 21.5, b"\xff\x00"), avro("Oslo", None, None)]


def avro(place: str, degrees: float | None, raw: bytes | None) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(RECORD), {"place": place, "degrees": degrees, "raw": raw})
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
@pytest.mark.parametrize(
    ("columns", "output"),
    [
        (
            "place string, height integer",
            "column 'height' is not a field of the topic's schema, which has place, degrees",
        ),
        ("degrees double", "field 'place' of the topic's schema has no column and no default"),
        ("place integer", "column 'place' is int, and in the topic's schema it is string"),
        ("place string, degrees decimal(3,1)", "column 'degrees' is decimal(3,1), and in the topic's schema it is"),
        ("value string", "column 'value' is not a field of the topic's schema"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_a_row_is_sent(
    broker: BrokerProcess, client: pulsar.Client, topic: str, kind: str, columns: str, output: str
) -> None:
    give_schema(broker, topic, kind, RECORD)
    given_columns = t.StructType()
    for each in columns.split(", "):
        given_columns.add(*each.split(" "))
    with pytest.raises(SchemaError) as refused:
        send(broker, topic, given_columns, tuple(None for _ in given_columns))
    assert output in str(refused.value)
    assert f"persistent://public/default/{topic}" in str(refused.value)
    assert stored(client, topic) == []


@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
def test_a_null_in_a_field_that_cannot_be_null_is_refused_by_field(
    broker: BrokerProcess, topic: str, kind: str
) -> None:
    give_schema(broker, topic, kind, RECORD)
    with pytest.raises(SchemaError, match=rf"{topic}: .*place"):
        send(broker, topic, READING, (1.0, None, None))


def test_bytes_go_to_any_topic_as_they_are(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    give_schema(broker, topic, "JSON", RECORD)
    send(broker, topic, t.StructType().add("value", "binary"), (b'{"place":"Oslo"}',))
    assert stored(client, topic) == [b'{"place":"Oslo"}']


AT = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
AT_MS = 1_772_368_200_123


@pytest.mark.parametrize(
    ("kind", "column", "value", "content"),
    [
        ("BOOLEAN", "boolean", True, b"\x01"),
        ("INT64", "integer", 7, struct.pack(">q", 7)),
        ("DOUBLE", "float", 0.5, struct.pack(">d", 0.5)),
        ("DATE", "date", date(1969, 12, 31), struct.pack(">q", -86_400_000)),
        ("TIMESTAMP", "timestamp", AT, struct.pack(">q", AT_MS)),
        ("INSTANT", "timestamp", AT, struct.pack(">qi", AT_MS // 1000, 123_456_000)),
        ("LOCAL_DATE", "date", date(1969, 12, 31), struct.pack(">q", -1)),
        ("TIME", "long", 45_000_123, struct.pack(">q", 45_000_123)),
        ("LOCAL_TIME", "long", 45_000_123_456_789, struct.pack(">q", 45_000_123_456_789)),
        ("LOCAL_DATE_TIME", "timestamp_ntz", datetime(1970, 1, 2, 0, 0, 1), struct.pack(">qq", 1, 10**9)),
    ],
)
def test_a_value_is_written_as_the_topics_primitive_schema_says(
    broker: BrokerProcess, client: pulsar.Client, topic: str, kind: str, column: str, value: Any, content: bytes
) -> None:
    give_schema(broker, topic, kind)
    send(broker, topic, t.StructType().add("value", column), (value,))
    assert stored(client, topic) == [content]
    # And as reading gives it, to the millisecond where the schema has no more.
    primitive = PRIMITIVES[kind]
    back = pa.array([primitive.decode(content)], to_arrow_type(primitive.column, timezone="UTC")).to_pylist()
    assert back == [value.replace(microsecond=123_000) if kind == "TIMESTAMP" else value]


@pytest.mark.parametrize(
    ("kind", "column", "output"),
    [
        ("INT32", "long", "column 'value' is bigint, and the topic's schema is INT32: int"),
        ("LOCAL_TIME", "string", "column 'value' is string, and the topic's schema is LOCAL_TIME: bigint"),
    ],
)
def test_a_value_that_the_topics_primitive_schema_does_not_hold_is_refused(
    broker: BrokerProcess, client: pulsar.Client, topic: str, kind: str, column: str, output: str
) -> None:
    give_schema(broker, topic, kind)
    with pytest.raises(SchemaError, match=output):
        send(broker, topic, t.StructType().add("value", column), (None,))
    assert stored(client, topic) == []


def test_a_row_for_a_topic_of_its_own_is_written_with_that_topics_schema(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    give_schema(broker, f"{topic}-json", "JSON", RECORD)
    columns = t.StructType().add("__topic", "string").add("place", "string")
    with Sender(columns, writing(broker, None)) as sender:
        sender.send(rows(columns, (f"{topic}-json", "Oslo"), (f"{topic}-new", "Kyoto")))
        sender.finish()
    assert stored(client, f"{topic}-json") == [b'{"place": "Oslo"}']
    assert stored(client, f"{topic}-new") == [b"\x02\x0aKyoto"]


MICROSECONDS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))


@given(MICROSECONDS)
def test_moments_days_and_local_times_come_back_as_they_were(at: datetime) -> None:
    since = (at - datetime(1970, 1, 1)) // (datetime.resolution)
    for kind in ("INSTANT", "TIMESTAMP"):
        exact = since if kind == "INSTANT" else since // 1000 * 1000
        assert PRIMITIVES[kind].decode(PRIMITIVES[kind].encode(at.replace(tzinfo=UTC))) == exact
    local = PRIMITIVES["LOCAL_DATE_TIME"]
    assert local.decode(local.encode(at)) == since
    day = PRIMITIVES["LOCAL_DATE"]
    assert day.decode(day.encode(at.date())) == since // 86_400_000_000


NUMBERS = [t.ByteType(), t.ShortType(), t.IntegerType(), t.LongType(), t.FloatType(), t.DoubleType()]


def test_a_number_goes_where_every_value_of_its_type_fits() -> None:
    held = {(a.simpleString(), b.simpleString()) for a in NUMBERS for b in NUMBERS if a != b and holds(a, b)}
    assert held == {
        *(("smallint", "tinyint"), ("int", "tinyint"), ("int", "smallint")),
        *(("bigint", "tinyint"), ("bigint", "smallint"), ("bigint", "int")),
        *(("double", "tinyint"), ("double", "smallint"), ("double", "int"), ("double", "float")),
    }


def test_nested_columns_hold_the_same_fields() -> None:
    inner = t.StructType().add("a", "long")
    assert holds(inner, t.StructType().add("a", "integer"))
    assert not holds(inner, t.StructType().add("b", "long"))
    assert not holds(inner, t.StructType().add("a", "long").add("b", "long"))
    assert holds(t.ArrayType(inner), t.ArrayType(t.StructType().add("a", "integer")))
    assert holds(t.DecimalType(10, 2), t.DecimalType(5, 2))
    assert not holds(t.DecimalType(10, 2), t.DecimalType(5, 3))
