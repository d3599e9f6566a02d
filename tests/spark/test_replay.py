"""``heliograph-spark replay``: what was archived is in a topic again, as it was, and nothing is sent of bad input."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pulsar
import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.jobs.replay import ReplayOptions, replay
from heliograph_spark.plan.options import full_name
from heliograph_spark.run.archived import keep_columns, topic_directory
from heliograph_spark.run.session import Broker, reason
from heliograph_spark.wire.failures import NotStored
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.support.broker_process import BrokerProcess
from tests.support.clients import DEADLINE_MS, create_partitions, fresh_name, ignore_receipt, publish, rest, stats
from tests.support.fake_broker import CONNECTED, FakeBroker
from tests.support.polling import eventually
from tests.support.wire_client import Frame, Type, encode

from .conftest import Runs
from .test_batch_read import Reading, read
from .test_docs import guides


def archive(spark: SparkSession, broker: BrokerProcess, topic: str, path: Path) -> None:
    """The content of an archive of the topic, without the job that writes one."""
    name = full_name(topic)
    rows = read(spark, broker, topic=name)
    keep_columns(spark, str(path), name, rows.schema)
    dated = rows.withColumn("date", f.to_date("__publishTime"))
    dated.write.partitionBy("date").mode("append").parquet(topic_directory(str(path), name))


def options(broker: BrokerProcess, path: Path, topic: str, to: str, **more: Any) -> ReplayOptions:
    return ReplayOptions(Broker(broker.service_url, broker.http_url), str(path), topic, to, **more)


def messages(client: pulsar.Client, topic: str) -> list[pulsar.Message]:
    found = []
    # A reader of all partitions at once may say that it has none while a message is on its way between two queues.
    for partition in client.get_topic_partitions(topic):
        reader = client.create_reader(partition, pulsar.MessageId.earliest)
        while reader.has_message_available():
            found.append(reader.read_next(15_000))
        reader.close()
    return found


def published_messages(broker: BrokerProcess, topic: str) -> int:
    return int(rest(broker, "GET", f"persistent/public/default/{topic}/partitioned-stats")["msgInCounter"])


def test_keys_times_properties_and_each_keys_order_are_as_they_were(
    spark: SparkSession, runs: Runs, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 3)
    target = fresh_name("again")
    create_partitions(broker, target, 2)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=7)
    sent = defaultdict(list)
    for number in range(300):
        key = f"k{number % 11}"
        sent[key].append(b"%d" % number)
        producer.send_async(
            b"%d" % number, ignore_receipt, {"n": str(number)}, key, event_timestamp=1_700_000_000_000 + number
        )
    producer.flush()
    producer.send(None, partition_key="k3")
    archive(spark, broker, topic, tmp_path)
    done = runs(lambda session: replay(session, options(broker, tmp_path, topic, target)))
    assert (done.rows, done.schema, done.error) == (301, "BYTES", None)
    again = messages(client, target)
    found = defaultdict(list)
    (empty,) = [message for message in again if message._message.has_null_value()]
    assert empty.partition_key() == "k3"
    ids = {}
    for message in messages(client, topic):
        at = message.message_id()
        ids[message.data()] = f"{at.ledger_id()}:{at.entry_id()}:{at.batch_index()}", message.publish_timestamp()
    for message in again:
        if message is empty:
            continue
        found[message.partition_key()].append(message.data())
        number = int(message.data())
        assert message.event_timestamp() == 1_700_000_000_000 + number
        properties = message.properties()
        assert properties["n"] == str(number)
        at_first = properties["replay.messageId"], int(properties["replay.publishTime"])
        assert at_first == ids[message.data()]
        assert properties["replay.topic"].startswith(f"persistent://public/default/{topic}-partition-")
    assert found == sent
    assert {message.topic_name()[-12:] for message in again} == {"-partition-0", "-partition-1"}


@pytest.mark.parametrize("kind", [pulsar.schema.JsonSchema, pulsar.schema.AvroSchema])
def test_columns_are_written_with_the_schema_of_the_topic_they_come_from_or_go_to(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path, kind: Any
) -> None:
    producer = client.create_producer(topic, schema=kind(Reading))
    producer.send(Reading(place="Kyoto", degrees=21.5), partition_key="a")
    producer.send(Reading(place="Oslo"), partition_key="b")
    archive(spark, broker, topic, tmp_path)
    asis, avro = fresh_name("as-is"), fresh_name("avro")
    client.create_producer(avro, schema=pulsar.schema.AvroSchema(Reading)).close()
    rest(broker, "PUT", f"persistent/public/default/{asis}")
    output = {replay(spark, options(broker, tmp_path, topic, to)).schema for to in (asis, avro)}
    assert output == {"AVRO"} | ({"JSON"} if kind is pulsar.schema.JsonSchema else set())
    for to, schema in ((asis, kind(Reading)), (avro, pulsar.schema.AvroSchema(Reading))):
        consumer = client.subscribe(to, "s", initial_position=pulsar.InitialPosition.Earliest, schema=schema)
        found = [consumer.receive(DEADLINE_MS).value() for _ in range(2)]
        assert sorted((each.place, each.degrees) for each in found) == [("Kyoto", 21.5), ("Oslo", None)]
        consumer.close()


def archived_with_bad_records(spark: SparkSession, broker: BrokerProcess, topic: str, path: Path) -> None:
    """The content of an archive of the topic with ``badRecords=column``."""
    name = full_name(topic)
    rows = read(spark, broker, topic=name, badRecords="column")
    keep_columns(spark, str(path), name, rows.schema)
    dated = rows.withColumn("date", f.to_date("__publishTime"))
    dated.write.partitionBy("date").mode("append").parquet(topic_directory(str(path), name))


def test_messages_are_sent_as_they_were_if_the_archive_keeps_what_cannot_be_read(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"one", b"two"])
    archived_with_bad_records(spark, broker, topic, tmp_path)
    target = fresh_name("again")
    rest(broker, "PUT", f"persistent/public/default/{target}")
    assert replay(spark, options(broker, tmp_path, topic, target)).rows == 2
    assert [each.data() for each in messages(client, target)] == [b"one", b"two"]


def test_a_message_that_could_not_be_read_is_named_before_anything_is_sent(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    good = client.create_producer(topic, schema=pulsar.schema.JsonSchema(Reading))
    good.send(Reading(place="Kyoto"), partition_key="a")
    (wrong,) = publish(client, topic, [b"no json"])
    archived_with_bad_records(spark, broker, topic, tmp_path)
    target = fresh_name("again")
    client.create_producer(target, schema=pulsar.schema.JsonSchema(Reading)).close()
    error = refused(spark, options(broker, tmp_path, topic, target))
    assert error.startswith(f"message {wrong.ledger_id()}:{wrong.entry_id()} of {full_name(topic)} could not be read")
    assert "it is not JSON as the topic's schema says" in error
    assert messages(client, target) == []
    assert replay(spark, options(broker, tmp_path, topic, target, keys=("a",))).rows == 1


def test_a_range_of_publish_times_is_sent_and_an_empty_one_is_said_to_be(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publish(client, topic, [b"0"])
    publish(client, topic, [b"1", b"2"])
    archive(spark, broker, topic, tmp_path)
    times = [message.publish_timestamp() for message in messages(client, topic)]
    target = fresh_name("part")
    rest(broker, "PUT", f"persistent/public/default/{target}")
    assert replay(spark, options(broker, tmp_path, topic, target, until_ms=times[0])).rows == 0
    assert "no messages of persistent://public/default/" in capsys.readouterr().err
    assert replay(spark, options(broker, tmp_path, topic, target, from_ms=times[0], until_ms=times[0] + 1)).rows == 1
    assert replay(spark, options(broker, tmp_path, topic, target, from_ms=times[0] + 1)).rows == 2
    assert [message.data() for message in messages(client, target)] == [b"0", b"1", b"2"]


@pytest.mark.long
def test_only_messages_with_one_of_the_keys_all_of_the_properties_and_an_event_time_in_the_range_are_sent(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    producer = client.create_producer(topic)
    for number in range(24):
        properties = {"even": str(number % 2 == 0), "third": str(number % 3)}
        producer.send(
            b"%d" % number,
            properties if number else None,
            partition_key=f"k{number % 4}" if number else None,
            event_timestamp=24 - number if number != 12 else None,
        )
    producer.close()
    archive(spark, broker, topic, tmp_path)
    target = fresh_name("selected")
    rest(broker, "PUT", f"persistent/public/default/{target}")
    rest(broker, "POST", f"persistent/public/default/{target}/deduplicationEnabled", True)

    def selected(**more: Any) -> list[int]:
        before = len(messages(client, target))
        done = replay(spark, options(broker, tmp_path, topic, target, producer_name="r", **more))
        found = [int(message.data()) for message in messages(client, target)][before:]
        assert done.error is None
        return found

    two = ("k1", "k2")
    assert selected(keys=two) == [number for number in range(24) if number % 4 in (1, 2)]
    # The same selection, in any order, is sent already; another one is not taken for a part of it.
    assert selected(keys=two[::-1]) == []
    third = {"even": "True", "third": "0"}
    assert selected(keys=two, properties=third) == [6, 18]
    assert selected(properties=third) == [6, 12, 18]
    # Later positions have earlier event times, so neither range goes on where the other one or all times ended.
    assert selected(keys=two, properties=third, event_until_ms=18) == [18]
    assert selected(keys=two, properties=third, event_from_ms=6, event_until_ms=19) == [6, 18]
    capsys.readouterr()
    assert selected(keys=("k",), event_from_ms=0) == []
    assert "(those without an event time are in no range of event times)" in capsys.readouterr().err
    before = len(messages(client, target))
    named = "--path", str(tmp_path), "--topic", topic, "--to", target, "--producer-name", "r"
    chosen = "--key", "k1", "--key", "k2", "--property", "even=True", "--property", "third=0"
    during = "--event-from", "6", "--event-until", "1970-01-01T00:00:00.019Z"
    out, err = (command := program(broker, "replay", *named, *chosen, *during)).communicate(timeout=300)
    assert command.returncode == 0, err
    # They are those that were sent already.
    assert json.loads(out.splitlines()[-1])["rows"] == 2
    assert len(messages(client, target)) == before


def program(broker: BrokerProcess, job: str, *arguments: str) -> subprocess.Popen[str]:
    """The command, started."""
    urls = ["--service-url", broker.service_url, "--admin-url", broker.http_url, "--master", "local[2]"]
    return subprocess.Popen(
        [sys.executable, "-m", "heliograph_spark.cli", job, *arguments, *urls],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # In a group of its own, so that Spark's Java process is killed at the same moment.
        start_new_session=True,
    )


def documented(job: str, **changed: str) -> list[str]:
    """The arguments of the guide's command for a job that has these options, with other values of them."""
    lines = map(shlex.split, re.findall(rf"^heliograph-spark {job} (.*)$", guides(), re.MULTILINE))
    (words,) = (line for line in lines if all(f"--{name}" in line for name in changed))
    for name, value in changed.items():
        words[words.index(f"--{name}") + 1] = value
    return words


def replay_program(
    broker: BrokerProcess, path: Path, topic: str, to: str, rate: str, *more: str
) -> subprocess.Popen[str]:
    return program(broker, "replay", *documented("replay", path=str(path), topic=topic, to=to, rate=rate), *more)


def kill_amid(process: subprocess.Popen[str], broker: BrokerProcess, topic: str) -> None:
    """Kill a replay that has sent something; it must not be done yet."""
    deadline = time.monotonic() + 300
    try:
        while published_messages(broker, topic) == 0:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "nothing was sent"
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.long
@pytest.mark.parametrize("named", [True, False])
def test_a_killed_replay_begins_anew_and_with_a_producer_name_every_message_is_there_once(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path, named: bool
) -> None:
    create_partitions(broker, topic, 2)
    producer = client.create_producer(topic, block_if_queue_full=True, batching_enabled=True)
    for number in range(2000):
        producer.send_async(b"%d" % number, ignore_receipt, partition_key=f"k{number % 50}" if number % 3 else None)
    producer.flush()
    archive(spark, broker, topic, tmp_path)
    target = fresh_name("again")
    create_partitions(broker, target, 2)
    rest(broker, "POST", f"persistent/public/default/{target}/deduplicationEnabled", True)
    name = ["--producer-name", "r"] if named else []
    kill_amid(replay_program(broker, tmp_path, topic, target, "400", *name), broker, target)
    before = len(messages(client, target))
    assert 0 < before < 2000
    # The archive has grown when it is run again, by messages of the same keys.
    producer.send(b"2000", partition_key="k1")
    path = tmp_path / "grown"
    archive(spark, broker, topic, path)
    again = replay_program(broker, path, topic, target, "5000", *name)
    out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["rows"] == 2001
    found = [int(message.data()) for message in messages(client, target)]
    assert set(found) == set(range(2001))
    if not named:
        # Messages under way when the process died may have come after the count.
        assert len(found) >= 2001 + before
    else:
        assert len(found) == 2001
        of_key = [number for number in found if number % 50 == 1 and number % 3]
        assert of_key == sorted(of_key)


def test_all_tasks_together_send_no_faster_than_the_rate(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    producer = client.create_producer(topic, batching_enabled=True)
    for number in range(600):
        producer.send_async(b"%d" % number, ignore_receipt, partition_key=str(number))
    producer.flush()
    archive(spark, broker, topic, tmp_path)
    target = fresh_name("slow")
    rest(broker, "PUT", f"persistent/public/default/{target}")
    replay(spark, options(broker, tmp_path, topic, target, rate=200.0))
    times = [message.publish_timestamp() for message in messages(client, target)]
    # Not how long it took, but how many went in any second of the broker's: the rate, and what is in flight of a grain.
    for at in times:
        assert sum(at <= other < at + 1000 for other in times) <= 200 * 1.25


def refused(spark: SparkSession, given: ReplayOptions) -> str:
    with pytest.raises(Exception, match=r".") as error:
        replay(spark, given)
    return reason(error.value)


class Losing:
    """As a Pulsar that got one message damaged: it stores the later ones, and drops that one when it is sent again."""

    def __init__(self) -> None:
        self.url = ""
        self._sent: set[int] = set()

    def __call__(self, frame: Frame) -> bytes:
        kind, body = frame.command.type, frame.body
        if kind == Type.CONNECT:
            return CONNECTED
        if kind == Type.PARTITIONED_METADATA:
            found = wire.CommandPartitionedTopicMetadataResponse.Success
            return encode(Type.PARTITIONED_METADATA_RESPONSE, request_id=body.request_id, response=found)
        if kind == Type.GET_SCHEMA:
            missing = wire.TopicNotFound
            return encode(Type.GET_SCHEMA_RESPONSE, request_id=body.request_id, error_code=missing, error_message="")
        if kind == Type.LOOKUP:
            here = wire.CommandLookupTopicResponse.Connect
            return encode(Type.LOOKUP_RESPONSE, request_id=body.request_id, response=here, brokerServiceUrl=self.url)
        if kind == Type.PRODUCER:
            return encode(
                Type.PRODUCER_SUCCESS,
                request_id=body.request_id,
                producer_name="r",
                last_sequence_id=-1,
                schema_version=b"",
            )
        if kind == Type.CLOSE_PRODUCER:
            return encode(Type.SUCCESS, request_id=body.request_id)
        assert kind == Type.SEND
        first, again = not self._sent, body.sequence_id in self._sent
        self._sent.add(body.sequence_id)
        answered = {"producer_id": body.producer_id, "sequence_id": body.sequence_id}
        if first:
            return encode(Type.SEND_ERROR, error=wire.ChecksumError, message="damaged", **answered)
        place = wire.MessageIdData(ledgerId=(1 << 64) - 1 if again else 1, entryId=(1 << 64) - 1 if again else 1)
        return encode(Type.SEND_RECEIPT, message_id=place, **answered)


def test_a_message_that_the_target_has_lost_ends_the_replay_and_no_task_is_repeated(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"0", b"1", b"2"])
    archive(spark, broker, topic, tmp_path)
    with FakeBroker(losing := Losing()) as fake:
        losing.url = fake.url
        to = Broker(fake.url, None, {"pulsar.producer.batchingEnabled": "false"})
        # It is raised here, by what the task says; a task that fails would be sent again, and the message counted.
        with pytest.raises(NotStored, match="has not stored the message of sequence id"):
            replay(spark, ReplayOptions(to, str(tmp_path), topic, "target", producer_name="r"))


def test_what_is_wrong_with_an_archive_or_a_topic_is_named_and_nothing_is_sent(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    target = fresh_name("target")
    rest(broker, "PUT", f"persistent/public/default/{target}")
    assert "there is no such directory" in refused(spark, options(broker, tmp_path / "none", topic, target))
    for rate in (0.0, float("nan")):
        assert "--rate: " in refused(spark, options(broker, tmp_path / "none", topic, target, rate=rate))
    (tmp_path / "empty").mkdir()
    assert "this is no archive" in refused(spark, options(broker, tmp_path / "empty", topic, target))
    publish(client, topic, [b"%d" % number for number in range(20)])
    path = tmp_path / "archive"
    archive(spark, broker, topic, path)
    assert "other is not archived there; there are persistent://public/default/" in refused(
        spark, options(broker, path, "other", target)
    )
    assert "there is no topic persistent://public/default/not-there to send to" in refused(
        spark, options(broker, path, topic, "not-there")
    )
    assert "does not deduplicate" in refused(spark, options(broker, path, topic, target, producer_name="r"))
    texts = fresh_name("texts")
    client.create_producer(texts, schema=pulsar.schema.StringSchema()).close()
    assert f"{texts}: the archive of" in refused(spark, options(broker, path, topic, texts))
    # A second file of the day is damaged in its middle: what is before it must not be sent either.
    archive(spark, broker, topic, path)
    damaged = sorted(path.rglob("*.parquet"))[-1]
    content = bytearray(damaged.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    damaged.write_bytes(content)
    for crc in path.rglob("*.crc"):
        crc.unlink()
    assert damaged.name in refused(spark, options(broker, path, topic, target))
    damaged.write_bytes(b"this is no Parquet")
    assert damaged.name in refused(spark, options(broker, path, topic, target))
    (columns,) = path.rglob("_columns-*.json")
    columns.write_text("{no schema")
    assert columns.name in refused(spark, options(broker, path, topic, target))
    assert stats(broker, target)["msgInCounter"] == 0
    eventually(lambda: not stats(broker, target)["publishers"], what="the producers being closed")
