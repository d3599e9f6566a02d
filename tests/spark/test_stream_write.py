"""``writeStream.format("pulsar")`` with a producer name: every row of every query arrives once."""

from __future__ import annotations

from pathlib import Path

import pulsar
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import publish_batch, read_all

from .test_sender import deduplicating
from .test_stream import WITHIN_S, stream


def send_all(spark: SparkSession, broker: BrokerProcess, topic: str, target: str, checkpoint: Path) -> None:
    """Send what is in a topic to the other one, under a name."""
    sink = stream(spark, broker, topic).select("value").writeStream.format("pulsar").option("topic", target)
    sink = sink.option("service.url", broker.service_url).option("pulsar.producer.producerName", "etl")
    query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(WITHIN_S), "the query did not end"


def test_a_query_with_a_new_checkpoint_sends_its_rows_under_the_producer_name_of_another_one(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    target = deduplicating(broker)
    publish_batch(client, topic, [b"1", b"2"])
    publish_batch(client, f"{topic}-other", [b"3", b"4"])
    send_all(spark, broker, topic, target, tmp_path / "one")
    send_all(spark, broker, f"{topic}-other", target, tmp_path / "other")
    assert sorted(read_all(client.create_reader(target, pulsar.MessageId.earliest))) == [b"1", b"2", b"3", b"4"]
