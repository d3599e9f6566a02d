"""Schemas: JSON and Avro records, versions that the broker stores, and what it refuses."""

from __future__ import annotations

import urllib.error
from typing import Any

import pulsar
import pytest
from pulsar.schema import (
    AvroSchema,
    Boolean,
    BytesSchema,
    Double,
    Integer,
    JsonSchema,
    Record,
    String,
    StringSchema,
)

from tests.support.clients import DEADLINE_MS, RunningBroker, connect, ignore_receipt, rest


class Flight(Record):  # type: ignore[misc]
    carrier = String()
    number = Integer()
    distance = Double()
    cancelled = Boolean(default=False)


class Evolved:
    """A record's name is part of its Avro schema, so other versions of ``Flight`` are of that name too."""

    class Flight(Record):  # type: ignore[misc]
        """One more optional field: compatible both ways."""

        carrier = String()
        number = Integer()
        distance = Double()
        cancelled = Boolean(default=False)
        gate = String(required_default=True)


class Unrelated:
    """Nothing that a reader of ``Flight`` could make sense of."""

    class Flight(Record):  # type: ignore[misc]
        carrier = Double(required=True)
        temperature = Double(required=True)


def version_of(message: pulsar.Message) -> int:
    """Return the schema version; the client gives its 8 big-endian bytes as text."""
    return int.from_bytes(message.schema_version().encode("latin-1"), "big")


@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema], ids=["json", "avro"])
@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
def test_records_arrive_as_they_were_sent(client: pulsar.Client, topic: str, schema: Any, batching: bool) -> None:
    consumer = client.subscribe(topic, "s", schema=schema(Flight))
    producer = client.create_producer(topic, schema=schema(Flight), batching_enabled=batching)
    sent = [Flight(carrier="UA", number=i, distance=i * 0.5, cancelled=i % 2 == 0) for i in range(5)]
    for record in sent:
        producer.send_async(record, ignore_receipt)
    producer.flush()
    for record in sent:
        value = consumer.receive(DEADLINE_MS).value()
        assert (value.carrier, value.number, value.distance, value.cancelled) == (
            record.carrier,
            record.number,
            record.distance,
            record.cancelled,
        )


@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema], ids=["json", "avro"])
def test_a_second_consumer_reads_with_the_stored_schema(
    client: pulsar.Client, broker: RunningBroker, topic: str, schema: Any
) -> None:
    client.subscribe(topic, "s").close()
    client.create_producer(topic, schema=schema(Flight)).send(Flight(carrier="AA", number=1, distance=2.0))
    other = connect(broker.service_url)
    try:
        message = other.subscribe(topic, "s", schema=schema(Flight)).receive(DEADLINE_MS)
        assert message.value().carrier == "AA"
        assert version_of(message) == 0
    finally:
        other.close()


def test_the_same_schema_keeps_its_version_and_a_compatible_one_gets_the_next(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    evolved = Evolved.Flight
    versions = []
    for record, klass in ((Flight, Flight), (Flight, Flight), (evolved, evolved), (Flight, Flight)):
        producer = client.create_producer(topic, schema=AvroSchema(klass))
        producer.send(record(carrier="UA", number=1, distance=1.0))
        versions.append(version_of(consumer.receive(DEADLINE_MS)))
        producer.close()
    assert versions == [0, 0, 1, 0]


@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema], ids=["json", "avro"])
def test_an_incompatible_schema_is_refused(client: pulsar.Client, topic: str, schema: Any) -> None:
    client.create_producer(topic, schema=schema(Flight))
    incompatible = Unrelated.Flight
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=schema(incompatible))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=schema(incompatible))


def test_a_schema_of_another_type_is_refused(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=JsonSchema(Flight))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())


def test_plain_bytes_consumer_reads_a_topic_with_a_schema(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=BytesSchema())
    client.create_producer(topic, schema=JsonSchema(Flight)).send(Flight(carrier="B6", number=7, distance=1.0))
    assert b'"B6"' in consumer.receive(DEADLINE_MS).data()


def test_string_schema(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=StringSchema())
    client.create_producer(topic, schema=StringSchema()).send("schön")
    assert consumer.receive(DEADLINE_MS).value() == "schön"


def test_schemas_of_partitions_are_one(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    rest(broker, "PUT", f"persistent/public/default/{topic}/partitions", 2)
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Flight))
    producer = client.create_producer(topic, schema=AvroSchema(Flight))
    for i in range(4):
        producer.send(Flight(carrier="UA", number=i, distance=0.0))
    received = [consumer.receive(DEADLINE_MS) for _ in range(4)]
    assert sorted(m.value().number for m in received) == [0, 1, 2, 3]
    assert {version_of(m) for m in received} == {0}


def test_a_topic_without_schema_answers_so(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    client.create_producer(topic)
    with pytest.raises(urllib.error.HTTPError) as missing:
        rest(broker, "GET", f"schemas/public/default/{topic}/schema")
    missing.value.close()
    assert missing.value.code == 404
