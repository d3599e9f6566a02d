"""Messages of each schema, and the rows that they are in the form of :func:`.pulsar_spark_program.as_text`."""

from __future__ import annotations

import base64
from typing import Any

import pulsar
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.clients import ignore_receipt


class City(pulsar.schema.Record):  # type: ignore[misc]
    name = pulsar.schema.String()


class Order(pulsar.schema.Record):  # type: ignore[misc]
    id = pulsar.schema.Long()
    amount = pulsar.schema.Double()
    paid = pulsar.schema.Boolean()
    tags = pulsar.schema.Array(pulsar.schema.String())
    to = City()


SCHEMAS = {
    "string": pulsar.schema.StringSchema(),
    "json": pulsar.schema.JsonSchema(Order),
    "avro": pulsar.schema.AvroSchema(Order),
    "bytes": pulsar.schema.BytesSchema(),
}


def in_base64(content: str) -> str:
    """Return a text as Spark writes its bytes into JSON."""
    return base64.b64encode(content.encode()).decode()


def send_rows(client: pulsar.Client, topic: str, kind: str) -> list[dict[str, Any]]:
    """Send messages, half of them in batches, and return the rows that they are, without their places and times."""
    rows = []
    for number in range(12):
        compression = pulsar.CompressionType.LZ4 if number % 4 > 1 else pulsar.CompressionType.NONE
        options = {"batching_enabled": number % 2 > 0, "compression_type": compression}
        producer = client.create_producer(topic, schema=SCHEMAS[kind], **options)
        for again in range(3):
            text, at = f"{number}-{again}", 123 + number
            fields = {
                "id": number * 2**33,
                "amount": number / 4,
                "paid": again > 0,
                "tags": [text, "ü"] if again else None,
            }
            content, columns = {
                "string": (text, {"value": text}),
                "bytes": (text.encode(), {"value": in_base64(text)}),
            }.get(kind, (Order(**fields, to=City(name="Köln")), fields | {"to": {"name": "Köln"}}))
            key = f"k{number}" if number % 3 else None
            properties = {"n": text} if number % 5 else {}
            event = {"event_timestamp": 1_700_000_000_000 + at} if number % 4 else {}
            producer.send_async(content, ignore_receipt, partition_key=key, properties=properties, **event)
            rows.append(
                columns
                | {"__key": in_base64(key) if key else None, "__messageProperties": properties}
                | {"__eventTime": f"2023-11-14 22:13:20.{at}000" if event else None}
            )
        producer.flush()
        producer.close()
    return rows


def placed_rows(rows: list[dict[str, Any]]) -> dict[tuple[int, int, int, int], dict[str, Any]]:
    """Return rows by their places: the ids of this data source have the size of the batch as well."""
    placed = {}
    for row in rows:
        id_ = wire.MessageIdData.FromString(base64.b64decode(row["__messageId"]))
        placed[id_.partition, id_.ledgerId, id_.entryId, id_.batch_index] = row | {"__messageId": None}
    assert len(placed) == len(rows), "a message was read twice"
    return placed
