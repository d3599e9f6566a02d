"""Entries that the official client wrote become the columns that the official client reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from heliograph_api.protocol.frames import parse_entry
from heliograph_spark.decode.chunks import ChunkAssembly, MissingChunks
from heliograph_spark.decode.columns import METADATA_COLUMNS, EntryColumns
from heliograph_spark.decode.entries import Entry

from tests.support.clients import RunningBroker, create_partitions
from tests.support.wire_client import WireClient

from .test_entry_columns import BOTH

SCHEMA = pa.schema([("value", pa.binary()), *METADATA_COLUMNS.items()])
CODECS = ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"]


def _entries(broker: RunningBroker, topic: str, messages: int) -> Iterator[Entry]:
    """Yield the entries of a topic from the first on, until they hold so many messages."""
    with WireClient(broker.service_url) as wire:
        consumer = wire.subscribe(topic, "decode", initialPosition=1)
        wire.flow(consumer, 1000)
        while messages > 0:
            (frame,) = wire.messages(1)
            metadata, at = parse_entry(frame.entry)
            of = frame.body.message_id
            redelivered = frame.body.redelivery_count
            yield Entry(of.ledgerId, of.entryId, metadata, frame.entry[at:], redelivered, of.ack_set)
            if metadata.num_chunks_from_msg <= metadata.chunk_id + 1:
                messages -= metadata.num_messages_in_batch


def _decoded(broker: RunningBroker, topic: str, partition: int, messages: int, compiled: bool) -> list[dict[str, Any]]:
    columns = EntryColumns(topic, SCHEMA, partition=partition, compiled=compiled)
    assembly = ChunkAssembly()
    for entry in _entries(broker, topic, messages):
        whole = assembly.add(entry)
        assert not isinstance(whole, MissingChunks)
        if whole is not None:
            columns.add(whole)
    found = []
    for batch in columns.take():
        batch.validate(full=True)
        # Times as the numbers that they are.
        plain = [each.cast("int64") if pa.types.is_timestamp(each.type) else each for each in batch.columns]
        found += pa.RecordBatch.from_arrays(plain, SCHEMA.names).to_pylist()
    return found


def of_client(message: pulsar.Message) -> dict[str, Any]:
    """Return the columns of a message as the official client gives it, times in microseconds."""
    message_id = message.message_id()
    return {
        "value": None if message._message.has_null_value() else message.data(),
        "__key": message.partition_key().encode() or None,
        "__orderingKey": message.ordering_key().encode() or None,
        "__messageId": message_id.serialize(),
        "__messageProperties": dict(message.properties()),
        "__eventTime": message.event_timestamp() * 1000 or None,
        "__batchIndex": message_id.batch_index(),
        "__topic": message.topic_name(),
        "__publishTime": message.publish_timestamp() * 1000,
        "__ledger": message_id.ledger_id(),
        "__entry": message_id.entry_id(),
        "__partition": message_id.partition(),
        "__producer": message.producer_name(),
        "__schemaVersion": message.schema_version().encode("latin-1") or None,
        "__redeliveryCount": message.redelivery_count(),
    }


@pytest.mark.parametrize("compiled", BOTH)
def test_each_column_is_what_the_official_client_gives(
    broker: RunningBroker, client: pulsar.Client, topic: str, compiled: bool
) -> None:
    create_partitions(broker, topic, 2)
    name = f"persistent://public/default/{topic}-partition-1"
    chunks = os.urandom(6 << 20)
    for at, codec in enumerate(CODECS):
        compression = getattr(pulsar.CompressionType, codec)
        batched = client.create_producer(
            name, batching_enabled=True, batching_max_messages=20, compression_type=compression
        )
        for number in range(50):
            batched.send_async(
                b"value " * number,
                lambda *_: None,
                properties={f"p{each}": "ä" * each for each in range(number % 5)},
                partition_key=f"schlüssel-{number}" if number % 3 else None,
                ordering_key=f"o{number}" if number % 7 == 0 else None,
                event_timestamp=1_700_000_000_000 + number if number % 2 else None,
            )
        batched.flush()
        single = client.create_producer(
            name, batching_enabled=False, chunking_enabled=True, compression_type=compression
        )
        single.send(b"single " * 100, {"a": "b"}, partition_key="k", event_timestamp=5)
        # The client does not read what it writes for no bytes with ZLIB.
        single.send(b"-" if codec == "ZLib" else b"")
        single.send(chunks[: (1 << 20) * (at + 2)], partition_key="large")
    single.send(chunks, {"of": "chunks"}, partition_key="large")
    count = len(CODECS) * 53 + 1

    reader = client.create_reader(name, pulsar.MessageId.earliest)
    expected = [of_client(reader.read_next(60_000)) for _ in range(count)]
    found = _decoded(broker, name, 1, count, compiled)
    for row in found:
        row["__messageProperties"] = dict(row["__messageProperties"])
    # The client tells nobody the sequence id of a message that it has read.
    sequence_ids = [row.pop("__sequenceId") for row in found]
    assert found == expected
    assert sequence_ids == [*([*range(50), 0, 1, 2] * len(CODECS)), 3]
    assert len({row["__entry"] for row in found}) < count
    assert any(b"\x3a" in row["__messageId"][-16:] for row in found)


@pytest.mark.parametrize("compiled", BOTH)
def test_schema_versions_and_null_values(
    broker: RunningBroker, client: pulsar.Client, topic: str, compiled: bool
) -> None:
    producer = client.create_producer(topic, schema=pulsar.schema.StringSchema())
    producer.send("text")
    producer.send(None)
    name = f"persistent://public/default/{topic}"
    reader = client.create_reader(name, pulsar.MessageId.earliest)
    expected = [of_client(reader.read_next(60_000)) for _ in range(2)]
    found = _decoded(broker, name, -1, 2, compiled)
    for row in found:
        row["__messageProperties"] = dict(row["__messageProperties"])
        del row["__sequenceId"]
    assert [row["value"] for row in found] == [b"text", None]
    assert all(row["__schemaVersion"] for row in found)
    assert found == expected
