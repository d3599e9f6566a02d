"""Pulsar's own Java client sends what its schemas have; it becomes the columns that it is."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from heliograph_spark.plan.errors import SchemaError
from heliograph_spark.plan.options import read_options
from heliograph_spark.plan.ranges import Range
from heliograph_spark.run.decoding import entry_columns
from heliograph_spark.run.reading import read_range
from heliograph_spark.run.schemas import METADATA, columns_of, schema_of_topic
from heliograph_spark.wire.brokers import shared
from heliograph_spark.wire.partitions import end_of, start_of
from pyspark.sql import types as t

from tests.support import java_client, java_tools
from tests.support.clients import RunningBroker, fresh_name

pytestmark = pytest.mark.skipif(java_client.missing() is not None, reason=f"{java_client.missing()}")

SOURCE = Path(__file__).parent / "java" / "client" / "SendsRecords.java"


@pytest.fixture(scope="module")
def prefix(broker: RunningBroker) -> str:
    """The beginning of the names of the topics that the program has sent everything to."""
    name = fresh_name()
    command = [*java_tools.QUICK, java_client.JARS, str(SOURCE), broker.service_url, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return name


def rows(broker: RunningBroker, topic: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the columns of a topic's messages, and the messages."""
    options = read_options({"service.url": broker.service_url, "topic": topic}, streaming=False)
    brokers, (name,) = shared(options.connection), options.topics
    schema = schema_of_topic(brokers, name)
    columns = t.StructType([each for each in columns_of(schema, topic) if each.name not in METADATA.names])
    start, end = start_of(brokers, name, options, "earliest"), end_of(brokers, name, options)
    assert end is not None
    batches = read_range(brokers, Range(name, start, end), options, entry_columns(brokers, name, columns, schema))
    found = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
    return columns.simpleString(), found


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_keys_and_values(broker: RunningBroker, prefix: str, encoding: str) -> None:
    order = {"id": "a", "count": 7}
    columns, found = rows(broker, f"{prefix}longs-{encoding}")
    assert columns == "struct<value:struct<key:bigint,value:struct<count:int,id:string>>>"
    pairs = [(-5, order), (5, None), (None, order)]
    assert found == [*({"value": {"key": key, "value": value}} for key, value in pairs), {"value": None}]
    columns, found = rows(broker, f"{prefix}orders-{encoding}")
    assert columns == "struct<value:struct<key:struct<count:int,id:string>,value:timestamp>>"
    at = datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)
    assert found == [{"value": {"key": order, "value": at}}]


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_values_of_two_versions(broker: RunningBroker, prefix: str, encoding: str) -> None:
    columns, found = rows(broker, f"{prefix}versions-{encoding}")
    assert columns == "struct<value:struct<key:string,value:struct<id:int,more:string>>>"
    assert found == [{"value": {"key": "k", "value": {"id": 5, "more": more}}} for more in ("none", "text")]


@pytest.mark.parametrize(
    ("topic", "numbers"),
    [
        ("times", [45_000_123, -1, None]),
        ("local-times", [0, 45_000_123_456_789, 86_400_000_000_000 - 1, None]),
    ],
)
def test_times_of_day(broker: RunningBroker, prefix: str, topic: str, numbers: list[int | None]) -> None:
    columns, found = rows(broker, prefix + topic)
    assert columns == "struct<value:bigint>"
    assert found == [{"value": each} for each in numbers]


def test_protobuf(broker: RunningBroker, prefix: str) -> None:
    columns, found = rows(broker, f"{prefix}protobuf")
    assert ",oneofs:array<string>," in columns
    assert "number:int" in columns
    full, empty = found
    assert (full["name"], full["oneofs"], full["syntax"]) == ("a type", ["x", "y"], "17")
    assert full["source_context"] == {"file_name": "a.proto"}
    (field,) = full["fields"]
    assert (field["kind"], field["number"], field["name"], field["packed"]) == ("TYPE_INT32", 7, "f", False)
    assert field["options"] == [{"name": "o", "value": {"type_url": "", "value": b"bytes"}}]
    assert (empty["name"], empty["fields"], empty["source_context"]) == ("", [], None)
    assert empty["syntax"] == "SYNTAX_PROTO2"


def test_protobuf_whose_schema_is_avro_is_refused_by_name(broker: RunningBroker, prefix: str) -> None:
    with pytest.raises(SchemaError, match=r"the schema of .*protobuf-as-avro is of type PROTOBUF, which"):
        rows(broker, f"{prefix}protobuf-as-avro")


def test_unions(broker: RunningBroker, prefix: str) -> None:
    columns, found = rows(broker, f"{prefix}unions")
    members = "member0:int,member1:bigint,member2:string,member3:struct<n:int>,member4:array<string>"
    assert columns == f"struct<u:struct<{members}>>"
    values = [7, 7, "text", {"n": 5}, ["a", "b"]]
    structs = [{f"member{each}": value if each == at else None for each in range(5)} for at, value in enumerate(values)]
    assert found == [{"u": each} for each in [*structs, None]]
