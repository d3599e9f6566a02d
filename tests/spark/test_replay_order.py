"""``heliograph-spark replay``: one order of all messages, also of those that lay in several partitions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pulsar
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions
from heliograph_spark.jobs.archive import archive as archive_job
from heliograph_spark.jobs.compact import CompactOptions, compact, read_table
from heliograph_spark.jobs.replay import replay
from heliograph_spark.plan.errors import OptionError
from heliograph_spark.plan.options import full_name
from heliograph_spark.run.session import Broker
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_partitions, fresh_name, rest

from .test_replay import archive, kill_amid, messages, options, replay_program

#: Text orders partition 10 before partition 2.
PARTITIONS = 11


def sender(client: pulsar.Client, topic: str) -> Callable[..., None]:
    """Return what sends a message into a partition, each a millisecond later than the one before at the least."""
    producers: dict[int, pulsar.Producer] = {}

    def send(partition: int, key: str | None, content: str, event: int | None = None) -> None:
        if partition not in producers:
            name = f"{topic}-partition-{partition}"
            producers[partition] = client.create_producer(name, batching_enabled=False)
        before = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == before:
            pass
        producers[partition].send(content.encode(), partition_key=key, event_timestamp=event)

    return send


def deduplicated(broker: BrokerProcess, partitions: int) -> str:
    """Return a new topic of so many partitions that drops what it has."""
    target = fresh_name("again")
    create_partitions(broker, target, partitions)
    rest(broker, "POST", f"persistent/public/default/{target}/deduplicationEnabled", True)
    return target


def contents(client: pulsar.Client, topic: str) -> list[str]:
    return [message.data().decode() for message in messages(client, topic)]


@pytest.mark.parametrize("name", [None, "r"])
def test_messages_of_several_partitions_go_out_as_they_were_published(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path, name: str | None
) -> None:
    create_partitions(broker, topic, PARTITIONS)
    send = sender(client, topic)
    # The key has moved twice, and each partition has messages of others at the same time.
    for number in range(30):
        send((2, 10, 9)[number // 10], "moved", f"moved {number}")
        send(number % PARTITIONS, f"k{number % PARTITIONS}", f"other {number}")
        send(7, None, f"none {number}")
    archive(spark, broker, topic, tmp_path)
    target = deduplicated(broker, 3)
    given = options(broker, tmp_path, topic, target, producer_name=name)
    assert replay(spark, given).rows == 90
    found = messages(client, target)
    assert len(found) == 90
    for kind in ("moved", "none"):
        of_kind = [message.data().decode() for message in found if message.data().decode().startswith(kind)]
        assert of_kind == [f"{kind} {number}" for number in range(30)]
    for partition in range(3):
        times = [
            int(each.properties()["replay.publishTime"]) for each in messages(client, f"{target}-partition-{partition}")
        ]
        assert times
        assert times == sorted(times)


def test_by_event_time_each_key_keeps_the_order_in_which_it_was_published(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 2)
    send = sender(client, topic)
    for partition, key, event in [(0, "a", 10), (0, "a", 30), (0, "c", 40), (1, "b", 5), (1, "b", 20), (1, "c", 7)]:
        send(partition, key, f"{key}{event}", event)
    archive(spark, broker, topic, tmp_path)
    by_event, by_publish, selected = fresh_name("event"), fresh_name("publish"), fresh_name("selected")
    for target in (by_event, by_publish, selected):
        rest(broker, "PUT", f"persistent/public/default/{target}")
    assert replay(spark, options(broker, tmp_path, topic, by_event, order="event")).rows == 6
    assert contents(client, by_event) == ["b5", "a10", "b20", "a30", "c40", "c7"]
    assert replay(spark, options(broker, tmp_path, topic, by_publish)).rows == 6
    assert contents(client, by_publish) == ["a10", "a30", "c40", "b5", "b20", "c7"]
    # A message that is left out holds up no later one of its key.
    assert replay(spark, options(broker, tmp_path, topic, selected, order="event", event_until_ms=40)).rows == 5
    assert contents(client, selected) == ["b5", "c7", "a10", "b20", "a30"]
    with pytest.raises(OptionError, match="--order event and --producer-name"):
        replay(spark, options(broker, tmp_path, topic, by_event, order="event", producer_name="r"))
    named = Broker(broker.service_url, broker.http_url, {"pulsar.producer.producerName": "r"})
    with pytest.raises(OptionError, match="--order event and --producer-name"):
        replay(spark, replace(options(broker, tmp_path, topic, by_event, order="event"), broker=named))


def test_the_gaps_between_event_times_are_kept_with_a_speed(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 2)
    send = sender(client, topic)
    minutes = {"b": 0, "d": 20, "a": 45, "c": 75}
    for number, (content, minute) in enumerate(minutes.items()):
        send(number % 2, content, content, 1_700_000_000_000 + minute * 60_000)
    archive(spark, broker, topic, tmp_path)
    target = fresh_name("again")
    create_partitions(broker, target, 2)
    began_ms = time.time() * 1000
    given = options(broker, tmp_path, topic, target, order="event", speed=900.0, rate=1000.0)
    assert replay(spark, given).rows == 4
    went = {message.data().decode(): message.publish_timestamp() for message in messages(client, target)}
    assert went.keys() == minutes.keys()
    # None goes before its time, however slow the machine: 75 minutes are 5 seconds.
    for content, minute in minutes.items():
        assert went[content] - began_ms >= minute * 60_000 / 900
    with pytest.raises(OptionError, match="--speed: 0"):
        replay(spark, options(broker, tmp_path, topic, target, speed=0.0))


def test_a_table_and_a_replay_agree_on_what_is_last(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, PARTITIONS)
    send = sender(client, topic)
    for partition in (2, 10, 2, 9, 10, 3):
        send(partition, "moved", str(partition))
    urls = Broker(broker.service_url, broker.http_url)
    assert archive_job(spark, ArchiveOptions(urls, str(tmp_path / "a"), (topic,))).error is None
    target = fresh_name("again")
    rest(broker, "PUT", f"persistent/public/default/{target}")
    assert replay(spark, options(broker, tmp_path / "a", topic, target)).rows == 6
    assert contents(client, target) == ["2", "10", "2", "9", "10", "3"]
    assert compact(spark, CompactOptions(str(tmp_path / "a"), str(tmp_path / "t"))).error is None
    (row,) = read_table(spark, str(tmp_path / "t"), full_name(topic)).collect()
    assert bytes(row["value"]) == b"3"


@pytest.mark.long
def test_a_killed_replay_of_several_partitions_goes_on_where_each_of_them_was(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, PARTITIONS)
    send = sender(client, topic)
    for number in range(600):
        # Keys move from a partition to the next one again and again.
        send((number // 50 + number) % PARTITIONS, f"k{number % 20}", str(number))
    archive(spark, broker, topic, tmp_path)
    target = deduplicated(broker, 2)
    kill_amid(replay_program(broker, tmp_path, topic, target, "200", "--producer-name", "r"), broker, target)
    assert 0 < len(messages(client, target)) < 600
    again = replay_program(broker, tmp_path, topic, target, "5000", "--producer-name", "r")
    out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["rows"] == 600
    found = [int(each) for each in contents(client, target)]
    assert sorted(found) == list(range(600))
    for key in range(20):
        of_key = [number for number in found if number % 20 == key]
        assert of_key == sorted(of_key)
