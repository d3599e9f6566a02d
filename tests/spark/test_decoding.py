"""Messages become columns as Java's schemas mean them, without Spark."""

from __future__ import annotations

import base64
import json
from typing import Any
from uuid import UUID

import pulsar
import pytest
from heliograph_spark.decode.entries import UndecodableMessage
from heliograph_spark.plan.options import read_options
from heliograph_spark.plan.ranges import Range
from heliograph_spark.run.decoding import entry_columns
from heliograph_spark.run.encoding import Encoder
from heliograph_spark.run.reading import read_range
from heliograph_spark.run.schemas import TopicSchema, columns_of
from heliograph_spark.wire.brokers import shared
from heliograph_spark.wire.partitions import end_of, start_of
from pyspark.sql import types as t

from tests.support.clients import RunningBroker

from .test_sender import rows

UUIDS = [UUID(int=number) for number in range(3)]


def _record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def _rows(broker: RunningBroker, topic: str, schema: TopicSchema) -> list[dict[str, Any]]:
    columns = t.StructType([each for each in columns_of(schema, topic) if not each.name.startswith("__")])
    options = read_options({"service.url": broker.service_url, "topic": topic}, streaming=False)
    brokers, (name,) = shared(options.connection), options.topics
    start, end = start_of(brokers, name, options, "earliest"), end_of(brokers, name, options)
    assert end is not None
    batches = read_range(brokers, Range(name, start, end), options, entry_columns(brokers, name, columns, schema))
    return [row for batch in batches for row in batch.to_pylist()]


def test_uuids_in_avro_are_text(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    uuid = {"type": "string", "logicalType": "uuid"}
    definition = _record(("id", uuid), ("more", {"type": "array", "items": ["null", uuid]}))
    producer = client.create_producer(topic, schema=pulsar.schema.AvroSchema(None, schema_definition=definition))
    producer.send({"id": UUIDS[0], "more": [UUIDS[1], None, UUIDS[2]]})
    texts = list(map(str, UUIDS))
    rows = _rows(broker, topic, TopicSchema("AVRO", json.dumps(definition)))
    assert rows == [{"id": texts[0], "more": [texts[1], None, texts[2]]}]


def test_bytes_in_json_are_base64_as_java_writes_them(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    data = bytes(range(256))
    schema = TopicSchema(
        "JSON",
        json.dumps(
            _record(
                ("data", ["null", "bytes"]),
                ("inner", {"type": "record", "name": "I", "fields": [{"name": "data", "type": "bytes"}]}),
                ("list", {"type": "array", "items": "bytes"}),
                ("map", {"type": "map", "values": "bytes"}),
            )
        ),
    )
    text = base64.b64encode(data).decode()
    producer = client.create_producer(topic)
    full = {"data": data, "inner": {"data": data}, "list": [data, b""], "map": {"k": data}}
    producer.send(json.dumps({"data": text, "inner": {"data": text}, "list": [text, ""], "map": {"k": text}}).encode())
    producer.send(json.dumps({"data": None, "list": [None]}).encode())
    # The sink writes the same.
    columns = t.StructType([each for each in columns_of(schema, topic) if not each.name.startswith("__")])
    messages = Encoder(columns, topic_given=True, schema=schema).messages(rows(columns, tuple(full.values())))
    producer.send(messages.column("value")[0].as_py())
    expected = full | {"map": [("k", data)]}
    nothing = {"data": None, "inner": None, "list": [None], "map": None}
    assert _rows(broker, topic, schema) == [expected, nothing, expected]


def test_text_that_is_no_base64_names_its_message(broker: RunningBroker, client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).send(b'{"data": "not base64"}')
    with pytest.raises(
        UndecodableMessage, match=r"message .* of .* cannot be read: .* JSON .*'not base64' is not base64"
    ):
        _rows(broker, topic, TopicSchema("JSON", json.dumps(_record(("data", "bytes")))))
