"""``heliograph-spark replay --producer-name --until``: what one run leaves out, a later one can send."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pulsar
import pytest
from heliograph_spark.jobs.replay import replay
from heliograph_spark.jobs.replay_rows import partition_of
from heliograph_spark.plan.errors import JobError
from heliograph_spark.plan.options import full_name
from heliograph_spark.run.archived import keep_columns, topic_directory
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_partitions, publish

from .test_batch_read import read
from .test_replay import options
from .test_replay_order import contents, deduplicated

#: A midnight: the archive has a directory for each day of publish times.
UNTIL_MS = 1_700_092_800_000


def archive_with_times(
    spark: SparkSession, broker: BrokerProcess, topic: str, path: Path, after_ms: dict[str, int]
) -> None:
    """Archive a topic as if its messages, by their values, were published so long after ``UNTIL_MS``."""
    name = full_name(topic)
    rows = read(spark, broker, topic=name)
    pairs = [f.lit(part) for pair in after_ms.items() for part in pair]
    after = f.element_at(f.create_map(*pairs), f.col("value").cast("string"))
    timed = rows.withColumn("__publishTime", f.timestamp_millis(f.lit(UNTIL_MS) + after))
    keep_columns(spark, str(path), name, rows.schema)
    dated = timed.withColumn("date", f.to_date("__publishTime"))
    dated.write.partitionBy("date").mode("append").parquet(topic_directory(str(path), name))


@pytest.mark.parametrize("unknown", [False, True])
def test_a_message_that_no_later_run_could_send_is_named_before_anything_is_sent(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path, unknown: bool
) -> None:
    publish(client, topic, [b"a", b"b", b"c", b"d", *([b"-"] if unknown else [])])
    # A message that could not be read may have no time, and is in no range.
    times = {"a": -2000, "c": -1, "d": 1} if unknown else {"a": -2000, "b": 0, "c": -1, "d": 1}
    archive_with_times(spark, broker, topic, tmp_path, times)
    target = deduplicated(broker, 1)
    with pytest.raises(
        JobError, match=r"^message \d+:1 of .* was not published before --until 2023.*later one, \d+:2,"
    ):
        replay(spark, options(broker, tmp_path, topic, target, producer_name="r", until_ms=UNTIL_MS))
    assert contents(client, target) == []
    # Nobody goes on after a run without a name.
    assert replay(spark, options(broker, tmp_path, topic, target, until_ms=UNTIL_MS)).rows == 2
    assert contents(client, target) == ["a", "c"]


def test_a_run_with_a_later_end_sends_the_rest(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 2)
    publish(client, f"{topic}-partition-0", [b"a", b"b", b"c"])
    publish(client, f"{topic}-partition-1", [b"x", b"y"])
    # Times go back before the end, and after it, and the partitions differ.
    hours = {"a": -1, "b": -2, "c": 1, "x": 3, "y": 2}
    archive_with_times(spark, broker, topic, tmp_path, {value: 3_600_000 * hour for value, hour in hours.items()})
    target = deduplicated(broker, 1)
    assert replay(spark, options(broker, tmp_path, topic, target, producer_name="r", until_ms=UNTIL_MS)).rows == 2
    assert sorted(contents(client, target)) == ["a", "b"]
    replay(spark, options(broker, tmp_path, topic, target, producer_name="r"))
    assert sorted(contents(client, target)) == ["a", "b", "c", "x", "y"]


def test_a_message_may_be_left_out_before_one_that_goes_to_another_partition(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    first, second = (
        {f"k{number}" for number in range(20) if partition_of(b"k%d" % number, 0, 2) == at} for at in (0, 1)
    )
    producer = client.create_producer(topic)
    one, other, again = min(first), min(second), max(first)
    for value, key in (("a", one), ("b", other), ("c", one), ("d", again), ("e", one)):
        producer.send(value.encode(), partition_key=key)
    producer.close()
    archive_with_times(spark, broker, topic, tmp_path, {"a": -3, "b": 1, "c": -2, "d": 4, "e": 3})
    target = deduplicated(broker, 2)
    given = options(broker, tmp_path, topic, target, producer_name="r", until_ms=UNTIL_MS)
    assert replay(spark, given).rows == 2
    assert sorted(contents(client, target)) == ["a", "c"]
    # A key may not be left out before another one that goes to the same partition.
    with pytest.raises(
        JobError, match=r"^message \d+:3 of .*, but a later one, \d+:4, was, .* both go to one partition"
    ):
        replay(spark, replace(given, until_ms=UNTIL_MS + 4))
    replay(spark, replace(given, until_ms=None))
    assert sorted(contents(client, target)) == ["a", "b", "c", "d", "e"]
