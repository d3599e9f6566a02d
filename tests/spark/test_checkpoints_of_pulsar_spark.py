"""A stream goes on from a checkpoint of pulsar-spark: its offsets are message ids, as bytes of Java."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pulsar
import pytest
from heliograph_api.protocol import wire_pb2 as wire
from pyspark.sql import DataFrame, SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import BATCH_WAITS_MS, create_partitions

from .test_stream import stream

#: As Java's client writes the place before the first message of a topic.
EARLIEST = wire.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)


def _whole_entry(sent: pulsar.MessageId, partition: int) -> wire.MessageIdData:
    """The id of the entry with a message: the broker's last one, which pulsar-spark asks for, has no batch index."""
    return wire.MessageIdData(ledgerId=sent.ledger_id(), entryId=sent.entry_id(), partition=partition)


def _line(offsets: Mapping[str, wire.MessageIdData]) -> str:
    signed = {
        name: [each - 256 if each > 127 else each for each in id_.SerializeToString()] for name, id_ in offsets.items()
    }
    return json.dumps(signed, separators=(",", ":"))


def make_checkpoint(directory: Path, batches: Sequence[Mapping[str, wire.MessageIdData]], committed: int) -> None:
    """Write Spark 3.5's files of a query on pulsar-spark that planned ``batches``, of which ``committed`` are done."""
    offsets_conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.stateStore.compression.codec": "lz4"}
    head = {"batchWatermarkMs": 0, "batchTimestampMs": 1_795_485_191_393, "conf": offsets_conf}
    files = {
        "metadata": '{"id":"00a77120-06c7-4c51-9339-d1c7918692b4"}',
        "sources/0/0": f"v1\n{_line(dict.fromkeys(batches[0], EARLIEST))}",
    }
    for number, offsets in enumerate(batches):
        files[f"offsets/{number}"] = f"v1\n{json.dumps(head)}\n{_line(offsets)}"
    for number in range(committed):
        files[f"commits/{number}"] = 'v1\n{"nextBatchWatermarkMs":0}'
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


def _send(client: pulsar.Client, topic: str, values: list[bytes], *, batched: bool = False) -> list[Any]:
    producer = client.create_producer(topic, batching_enabled=batched, batching_max_publish_delay_ms=BATCH_WAITS_MS)
    ids: list[Any] = []
    for each in values:
        producer.send_async(each, lambda _result, message_id: ids.append(message_id))
    producer.flush()
    return ids


@pytest.fixture
def places(broker: BrokerProcess, client: pulsar.Client, topic: str) -> list[dict[str, wire.MessageIdData]]:
    """A topic with a partition of messages alone, one of batches and an empty one; the ends of two micro-batches."""
    create_partitions(broker, topic, 3)
    names = [f"persistent://public/default/{topic}-partition-{number}" for number in range(3)]
    alone = _send(client, names[0], [b"a%d" % number for number in range(6)])
    first = _send(client, names[1], [b"b0", b"b1", b"b2"], batched=True)
    _send(client, names[1], [b"b3", b"b4"], batched=True)
    assert first[0].entry_id() == first[2].entry_id(), "the messages were not sent in one batch"
    one = {names[0]: _whole_entry(alone[1], 0), names[1]: _whole_entry(first[0], 1), names[2]: EARLIEST}
    return [one, one | {names[0]: _whole_entry(alone[3], 0)}]


def _read(frame: DataFrame, directory: Path) -> list[list[bytes]]:
    """Read what is available now, and return each micro-batch. A new sink of files would not begin with a later one."""
    read: list[list[bytes]] = []
    writer = frame.writeStream.foreachBatch(
        lambda batch, _: read.append(sorted(bytes(row.value) for row in batch.collect()))
    )
    query = writer.option("checkpointLocation", str(directory)).trigger(availableNow=True).start()
    assert query.awaitTermination(300), "the query did not end"
    return read


def test_a_query_goes_on_after_the_last_micro_batch_that_pulsar_spark_committed(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    places: list[dict[str, wire.MessageIdData]],
) -> None:
    make_checkpoint(tmp_path, places, committed=2)
    assert _read(stream(spark, broker, topic, admin_url=broker.http_url), tmp_path) == [[b"a4", b"a5", b"b3", b"b4"]]
    # From now on its offsets are this source's.
    _send(client, f"{topic}-partition-2", [b"c"])
    assert _read(stream(spark, broker, topic), tmp_path) == [[b"c"]]


def test_a_micro_batch_that_pulsar_spark_planned_and_did_not_finish_is_read_as_planned(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    places: list[dict[str, wire.MessageIdData]],
) -> None:
    make_checkpoint(tmp_path, places, committed=1)
    assert _read(stream(spark, broker, topic), tmp_path) == [[b"a2", b"a3"], [b"a4", b"a5", b"b3", b"b4"]]


def test_a_first_micro_batch_that_was_not_finished_is_refused_with_the_way_over(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    places: list[dict[str, wire.MessageIdData]],
) -> None:
    make_checkpoint(tmp_path, places[:1], committed=0)
    with pytest.raises(
        Exception, match="let pulsar-spark finish it, or start with a new checkpoint and startingOffsets"
    ):
        _read(stream(spark, broker, topic), tmp_path)
