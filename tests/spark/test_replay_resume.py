"""``heliograph-spark replay --checkpoint``: a killed replay goes on where it stopped, and sends every message once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pulsar
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions
from heliograph_spark.jobs.archive import archive as archive_job
from heliograph_spark.jobs.plan.begun_replay import BegunReplay, Part, Snapshot
from heliograph_spark.jobs.replay import ReplayOptions, replay
from heliograph_spark.plan.errors import JobError, OptionError
from heliograph_spark.plan.positions import BEGINNING, Position
from heliograph_spark.run.session import Broker
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_partitions, ignore_receipt, rest
from tests.support.polling import eventually

from .test_replay import archive, documented, messages, options, program, published_messages, refused
from .test_replay_order import contents, deduplicated

MESSAGES = 3000
KEYS = 20
PARTITIONS = 3


def publish_moving_keys(client: pulsar.Client, topic: str, numbers: range) -> None:
    """Publish numbers; each key moves from a partition to the next one, and event times are in another order."""
    producers = [client.create_producer(f"{topic}-partition-{each}") for each in range(PARTITIONS)]
    for number in numbers:
        producers[number // 500 % PARTITIONS].send_async(
            b"%d" % number,
            ignore_receipt,
            partition_key=f"k{number % KEYS}" if number % 7 else None,
            ordering_key=f"o{number % 3}" if number % 5 else None,
            event_timestamp=1_700_000_000_000 + number * 7919 % 1000,
        )
        if number % 500 == 499:
            # The key's next messages are published later, also by the clock.
            for producer in producers:
                producer.flush()
            before = time.time_ns() // 1_000_000
            while time.time_ns() // 1_000_000 == before:
                pass
    for producer in producers:
        producer.flush()
        producer.close()


def archive_all(spark: SparkSession, broker: BrokerProcess, topic: str, path: Path) -> None:
    urls = Broker(broker.service_url, broker.http_url, {"includeColumns": "__orderingKey"})
    assert archive_job(spark, ArchiveOptions(urls, str(path), (topic,))).error is None


def kill_at(process: subprocess.Popen[str], broker: BrokerProcess, topic: str, stored: int) -> None:
    """Kill a replay with all its processes when the topic has so many messages; it must not be done yet."""

    def reached() -> bool:
        assert process.poll() is None, process.communicate()
        return published_messages(broker, topic) >= stored

    try:
        eventually(reached, within_s=300, what=f"{stored} messages")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.long
def test_however_often_a_replay_is_killed_every_message_is_there_once_and_in_order(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, PARTITIONS)
    publish_moving_keys(client, topic, range(MESSAGES))
    archive_all(spark, broker, topic, tmp_path / "archive")
    target = deduplicated(broker, 2)
    paths = {"path": str(tmp_path / "archive"), "checkpoint": str(tmp_path / "state")}
    given = documented("replay", topic=topic, to=target, **paths)
    assert given[given.index("--order") + 1] == "event"
    moments = random.Random(15)
    stored = 0
    for rate in ("500", "900"):
        at = moments.randrange(stored + 1, stored + MESSAGES // 3)
        kill_at(program(broker, "replay", *given, "--rate", rate), broker, target, at)
        stored = len(messages(client, target))
        assert at <= stored < MESSAGES
    # Messages that are archived after the beginning are no part of the replay.
    publish_moving_keys(client, topic, range(MESSAGES, MESSAGES + 10))
    archive_all(spark, broker, topic, tmp_path / "archive")
    out, err = (last := program(broker, "replay", *given)).communicate(timeout=300)
    assert last.returncode == 0, err
    done = json.loads(out.splitlines()[-1])
    assert done["before"] >= stored
    assert done["before"] + done["rows"] == MESSAGES
    found = messages(client, target)
    numbers = [int(message.data()) for message in found]
    assert Counter(numbers) == Counter(range(MESSAGES))
    assert sum(numbers) == MESSAGES * (MESSAGES - 1) // 2
    originals = {(each.properties()["replay.topic"], each.properties()["replay.messageId"]) for each in found}
    assert len(originals) == MESSAGES
    assert all(each.ordering_key() == (f"o{int(each.data()) % 3}" if int(each.data()) % 5 else "") for each in found)
    for key in range(KEYS):
        of_key = [number for number in numbers if number % KEYS == key and number % 7]
        assert of_key == sorted(of_key)


def begun(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path, to: str
) -> ReplayOptions:
    """A replay of ten messages of two partitions that has ended."""
    create_partitions(broker, topic, 2)
    for partition in range(2):
        producer = client.create_producer(f"{topic}-partition-{partition}")
        for number in range(5):
            producer.send(b"%d" % (5 * partition + number), partition_key=f"k{partition}")
        producer.close()
    archive(spark, broker, topic, tmp_path / "archive")
    checkpoint = str(tmp_path / "state")
    given = options(broker, tmp_path / "archive", topic, to, checkpoint=checkpoint, keys=("k1", "k0"))
    done = replay(spark, given)
    assert (done.rows, done.before) == (10, 0)
    return given


def test_a_replay_goes_on_with_the_options_it_was_begun_with_and_no_others(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    target = deduplicated(broker, 1)
    given = begun(spark, broker, client, topic, tmp_path, target)
    # The speed and the rate decide on no message, and neither does the order of the keys.
    done = replay(spark, replace(given, speed=100.0, rate=5.0, keys=("k0", "k1", "k0")))
    assert (done.rows, done.before) == (0, 10)
    other = deduplicated(broker, 1)
    for changed, was, now in (
        ({"keys": ("k0",)}, "begun with --key k0 --key k1", "run with --key k0;"),
        ({"keys": ()}, "begun with --key k0 --key k1", "run without --key;"),
        ({"properties": {"a": "b"}}, "begun without --property", "run with --property a=b;"),
        ({"from_ms": 0}, "begun without --from", "run with --from 1970-01-01T00:00:00.000Z;"),
        ({"until_ms": 1}, "begun without --until", "run with --until 1970-01-01T00:00:00.001Z;"),
        ({"event_from_ms": 0}, "begun without --event-from", "run with --event-from 1970-01-01T00:00:00.000Z;"),
        ({"event_until_ms": 1}, "begun without --event-until", "run with --event-until 1970-01-01T00:00:00.001Z;"),
        ({"order": "event"}, "begun with --order publish", "run with --order event;"),
        ({"to": other}, f"/{target}, and now", f"run with --to persistent://public/default/{other};"),
        ({"topic": "elsewhere"}, f"/{topic}, and now", "run with --topic persistent://public/default/elsewhere;"),
        ({"path": "elsewhere"}, f"begun with --path {given.path}", "run with --path elsewhere;"),
    ):
        found = refused(spark, replace(given, **changed))
        assert was in found
        assert now in found
    assert "--checkpoint and --producer-name exclude each other" in refused(spark, replace(given, producer_name="r"))
    without = replace(given, broker=replace(given.broker, admin_url=None))
    assert "--checkpoint needs --admin-url" in refused(spark, without)
    # Another checkpoint is another replay.
    assert replay(spark, replace(given, checkpoint=str(tmp_path / "again"))).rows == 10
    rest(broker, "POST", f"persistent/public/default/{target}/partitions", 2)
    assert f"{target} were 1 when the replay was begun, and are 2" in refused(spark, given)
    rest(broker, "POST", f"persistent/public/default/{target}/deduplicationEnabled", False)
    assert (
        "does not deduplicate, which --checkpoint rests on: switch deduplication on for the topic, or leave"
        in refused(spark, given)
    )
    assert len(messages(client, target)) == 20
    assert not messages(client, other)


def test_a_replay_whose_messages_left_the_archive_does_not_go_on(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    target = deduplicated(broker, 2)
    given = begun(spark, broker, client, topic, tmp_path, target)
    state = tmp_path / "state" / "replay.json"
    kept = state.read_text()
    state.write_text("{no state")
    assert f"{state}: this is no state of a replay" in refused(spark, given)
    state.write_text(kept)
    for file in Path(str(given.path)).rglob("*.parquet"):
        file.unlink()
    assert "begun with 5 messages" in (found := refused(spark, given))
    assert "the archive has no messages of them" in found


@pytest.mark.long
def test_a_replay_that_the_broker_has_forgotten_goes_on_by_what_the_target_has_stored(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path, trims_exactly: None
) -> None:
    target = deduplicated(broker, 3)
    client.create_producer(f"{target}-partition-0").send(b"before")
    given = begun(spark, broker, client, topic, tmp_path, target)
    name = f"persistent/public/default/{target}"
    # No message of the replay goes to this partition.
    client.create_producer(f"{target}-partition-1").send(b"deleted")
    rest(broker, "DELETE", f"{name}-partition-1/truncate")
    rest(broker, "POST", f"{name}/deduplicationEnabled", False)
    client.create_producer(f"{target}-partition-2").send(b"after")
    rest(broker, "POST", f"{name}/deduplicationEnabled", True)
    producer = BegunReplay.from_json((tmp_path / "state" / "replay.json").read_text(), "").producer
    for partition in (0, 2):
        forgotten = client.create_producer(f"{target}-partition-{partition}", producer_name=producer)
        assert forgotten.last_sequence_id() == -1
        forgotten.close()
    done = replay(spark, given)
    assert (done.rows, done.before) == (0, 10)
    assert sorted(contents(client, target)) == sorted([*map(str, range(10)), "before", "after"])
    # Without its messages nobody can know how far it came.
    rest(broker, "POST", f"{name}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    eventually(lambda: not messages(client, target), what="the messages being deleted")
    assert "how far the replay came cannot be known" in refused(spark, given)


def test_a_replay_of_which_the_target_has_lost_a_message_does_not_go_on(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.create_producer(topic).send(b"0")
    archive(spark, broker, topic, tmp_path / "archive")
    checkpoint = str(tmp_path / "state")
    given = options(broker, tmp_path / "archive", topic, deduplicated(broker, 1), checkpoint=checkpoint)
    with monkeypatch.context() as patched:
        patched.setattr("heliograph_spark.jobs.replay._sent", lambda *_: (0, "message 0 is lost"))
        assert refused(spark, given) == "message 0 is lost"
    assert "message 0 is lost; another --checkpoint sends everything again" in refused(spark, given)


def test_nothing_is_recorded_of_a_replay_without_a_message(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 1)
    client.create_producer(topic).send(b"0")
    archive(spark, broker, topic, tmp_path / "archive")
    state = tmp_path / "state"
    given = options(broker, tmp_path / "archive", topic, deduplicated(broker, 1), checkpoint=str(state), keys=("k",))
    assert replay(spark, given).rows == 0
    assert not state.exists()


PART = Part(Position(7, 3, 1), 12, -5)
BEGUN = BegunReplay("replay-1", {"--key": ("a", "b"), "--to": ("t",)}, {"s": PART}, {"t": BEGINNING.at_count(4)})


def test_the_state_of_a_replay_is_read_as_it_was_written() -> None:
    read = BegunReplay.from_json(BEGUN.to_json(), "w")
    assert read == BEGUN
    assert read.ends["t"].added == 4
    of_table = replace(BEGUN, snapshot=Snapshot("a-table", 1 << 62), options={"--upsert": ("",)})
    assert BegunReplay.from_json(of_table.to_json(), "w") == of_table
    with pytest.raises(OptionError, match=r"begun with --upsert, and now it is run without --upsert;"):
        of_table.check_options({"--upsert": ()}, "w")
    for text in ("", "[]", "{}", BEGUN.to_json().replace("7:3:1", "7")):
        with pytest.raises(JobError, match="w: this is no state of a replay: "):
            BegunReplay.from_json(text, "w")


def test_what_differs_from_the_beginning_is_named_with_both_values() -> None:
    BEGUN.check_options({"--key": ("a", "b"), "--to": ("t",), "--from": ()}, "w")
    with pytest.raises(OptionError, match=r"^--to: w: .* begun with --to t, and now it is run with --to u; "):
        BEGUN.check_options({"--key": ("a", "b"), "--to": ("u",)}, "w")
    BEGUN.check_parts({"s": PART}, "w")
    for other, text in (
        (replace(PART, messages=11), r"with 12 messages \(checksum -5\) of s, and the archive has 11 messages"),
        (replace(PART, checksum=6), r"has 12 messages \(checksum 6\) of them"),
        (replace(PART, last=Position(7, 4)), "which ones were sent cannot be known"),
    ):
        with pytest.raises(JobError, match=text):
            BEGUN.check_parts({"s": other}, "w")
    with pytest.raises(JobError, match="begun with no messages of x"):
        BEGUN.check_parts({"s": PART, "x": PART}, "w")
