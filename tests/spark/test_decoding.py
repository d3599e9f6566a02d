"""Messages that the official client gives become columns as Java's schemas mean them, without Spark."""

from __future__ import annotations

import base64
import json
from typing import Any
from uuid import UUID

import pulsar
import pytest
from heliograph_spark.plan.errors import SchemaError
from heliograph_spark.run.decoding import Decoder
from heliograph_spark.run.encoding import Encoder
from heliograph_spark.run.schemas import TopicSchema, columns_of
from pyspark.sql import types as t

UUIDS = [UUID(int=number) for number in range(3)]


def _record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def _rows(client: pulsar.Client, topic: str, schema: TopicSchema, count: int) -> list[dict[str, Any]]:
    columns = t.StructType([each for each in columns_of(schema, topic) if not each.name.startswith("__")])
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    messages = [reader.read_next(60_000) for _ in range(count)]
    reader.close()
    return [row for batch in Decoder(client, columns, schema).batches(messages) for row in batch.to_pylist()]


def test_uuids_in_avro_are_text(client: pulsar.Client, topic: str) -> None:
    uuid = {"type": "string", "logicalType": "uuid"}
    definition = _record(("id", uuid), ("more", {"type": "array", "items": ["null", uuid]}))
    producer = client.create_producer(topic, schema=pulsar.schema.AvroSchema(None, schema_definition=definition))
    producer.send({"id": UUIDS[0], "more": [UUIDS[1], None, UUIDS[2]]})
    texts = list(map(str, UUIDS))
    rows = _rows(client, topic, TopicSchema("AVRO", json.dumps(definition)), 1)
    assert rows == [{"id": texts[0], "more": [texts[1], None, texts[2]]}]


def test_bytes_in_json_are_base64_as_java_writes_them(client: pulsar.Client, topic: str) -> None:
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
    producer.send(Encoder(columns, topic_given=True, schema=schema).content(full) or b"")
    expected = full | {"map": [("k", data)]}
    nothing = {"data": None, "inner": None, "list": [None], "map": None}
    assert _rows(client, topic, schema, 3) == [expected, nothing, expected]


def test_text_that_is_no_base64_names_its_message(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).send(b'{"data": "not base64"}')
    with pytest.raises(SchemaError, match=r"message .* of .* cannot be read: .* JSON .*'not base64' is not base64"):
        _rows(client, topic, TopicSchema("JSON", json.dumps(_record(("data", "bytes")))), 1)
