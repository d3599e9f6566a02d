"""``replay``, ``compact`` and ``usage`` of an archive in Iceberg tables, on the real broker, as of one in files."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, Tables, archive
from heliograph_spark.jobs.compact import CompactOptions, compact, read_table
from heliograph_spark.jobs.maintain import MaintainOptions, maintain
from heliograph_spark.jobs.replay import ReplayOptions, replay
from heliograph_spark.jobs.usage import UsageOptions, usage
from heliograph_spark.plan.errors import OptionError
from heliograph_spark.run.session import Broker
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.support.broker_process import BrokerProcess
from tests.support.clients import (
    DEADLINE_MS,
    create_namespace,
    create_partitions,
    fresh_name,
    ignore_receipt,
    publish_record,
    rest,
)

from .conftest import Runs
from .lakes import lake
from .test_maintain import loaded
from .test_replay import documented, messages, program, refused
from .test_replay_order import deduplicated
from .test_replay_resume import KEYS, MESSAGES, PARTITIONS, kill_at, publish_moving_keys

DAY_S = 86_400


class Reading(pulsar.schema.Record):  # type: ignore[misc]
    place = pulsar.schema.String()
    count = pulsar.schema.Integer()
    tags = pulsar.schema.Array(pulsar.schema.String())


class WiderReading(pulsar.schema.Record):  # type: ignore[misc]
    place = pulsar.schema.String()
    count = pulsar.schema.Long()
    tags = pulsar.schema.Array(pulsar.schema.String())
    height = pulsar.schema.Integer()


def reached(broker: BrokerProcess) -> Broker:
    return Broker(broker.service_url, broker.http_url)


def archive_all(
    spark: SparkSession, broker: BrokerProcess, tables: Tables, topic: str, state: Path, file_bytes: int = 2000
) -> None:
    """Archive a topic into its table, of files of a size, and keep the ordering keys."""
    source = Broker(broker.service_url, broker.http_url, {"includeColumns": "__orderingKey"})
    done = archive(
        spark,
        ArchiveOptions(
            source,
            topics=(topic,),
            tables=tables,
            checkpoint=str(state),
            file_bytes=file_bytes,
            subscription=f"heliograph-{state.name}",
        ),
    )
    assert done.error is None


def options(broker: BrokerProcess, tables: Tables, topic: str, to: str, **more: Any) -> ReplayOptions:
    return ReplayOptions(reached(broker), None, topic, to, tables=tables, **more)


def properties(tables: Tables) -> list[str]:
    """The properties of the catalog as the command takes them."""
    return [each for name, value in tables.properties.items() for each in ("--catalog-property", f"{name}={value}")]


@pytest.mark.long
def test_messages_are_as_they_were_when_they_were_archived_and_merged(
    spark: SparkSession, runs: Runs, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 3)
    target = fresh_name("again")
    create_partitions(broker, target, 2)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=7)
    sent = defaultdict(list)
    for number in range(300):
        key = f"k{number % 11}"
        sent[key].append(number)
        producer.send_async(
            b"%d" % number,
            ignore_receipt,
            {"n": str(number)} if number % 5 else None,
            key,
            ordering_key=f"o{number}" if number % 3 else None,
            event_timestamp=1_700_000_000_000 + number if number % 4 else None,
        )
    producer.flush()
    producer.send(None, partition_key="k3")
    archive_all(spark, broker, lake(tmp_path), topic, tmp_path / "state")
    assert runs(lambda session: maintain(session, MaintainOptions(lake(tmp_path)))).merged > 1
    done = runs(lambda session: replay(session, options(broker, lake(tmp_path), topic, target)))
    snapshot = loaded(tmp_path).current_snapshot()
    assert snapshot is not None
    assert (done.rows, done.schema, done.snapshot, done.error) == (301, "BYTES", snapshot.snapshot_id, None)
    again = messages(client, target)
    (empty,) = [message for message in again if message._message.has_null_value()]
    assert empty.partition_key() == "k3"
    originals = {}
    for message in messages(client, topic):
        at = message.message_id()
        place = f"{at.ledger_id()}:{at.entry_id()}:{at.batch_index()}"
        originals[message.topic_name(), place] = message.data(), message.publish_timestamp()
    found = defaultdict(list)
    ids = set()
    for message in again:
        kept = message.properties()
        ids.add((kept["replay.topic"], kept["replay.messageId"]))
        if message is empty:
            continue
        number = int(message.data())
        found[message.partition_key()].append(number)
        assert kept.get("n") == (str(number) if number % 5 else None)
        assert message.ordering_key() == (f"o{number}" if number % 3 else "")
        assert message.event_timestamp() == (1_700_000_000_000 + number if number % 4 else 0)
        original = originals[kept["replay.topic"], kept["replay.messageId"]]
        assert original == (message.data(), int(kept["replay.publishTime"]))
    assert len(ids) == 301
    assert found == sent
    assert sum(map(sum, found.values())) == 299 * 300 // 2


@pytest.mark.long
def test_records_keep_their_schema_and_what_was_added_to_it(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_namespace(broker, topic, "ALWAYS_COMPATIBLE")
    name, target = f"persistent://public/{topic}/readings", f"persistent://public/{topic}/again"
    holder = client.subscribe(name, "holder")
    tables, state = lake(tmp_path), tmp_path / "state"
    publish_record(client, name, Reading(place="Kyoto", count=1, tags=["a"]))
    publish_record(client, name, Reading(place="Oslo"))
    archive_all(spark, broker, tables, name, state)
    publish_record(client, name, WiderReading(place="Lima", count=1 << 40, tags=[], height=154))
    archive_all(spark, broker, tables, name, state)
    client.create_producer(target, schema=pulsar.schema.JsonSchema(WiderReading)).close()
    consumer = client.subscribe(
        target,
        "s",
        initial_position=pulsar.InitialPosition.Earliest,
        schema=pulsar.schema.JsonSchema(WiderReading),
    )
    done = replay(spark, options(broker, tables, name, target))
    assert (done.rows, done.schema) == (3, "JSON")
    # A topic without a schema gets that of the original one.
    rest(broker, "PUT", f"persistent/public/{topic}/as-it-is")
    as_it_is = f"persistent://public/{topic}/as-it-is"
    assert replay(spark, options(broker, tables, name, as_it_is)).schema == "JSON"
    found = [consumer.receive(DEADLINE_MS).value() for _ in range(3)]
    assert sorted((each.place, each.count, each.tags, each.height) for each in found) == [
        ("Kyoto", 1, ["a"], None),
        ("Lima", 1 << 40, [], 154),
        ("Oslo", None, None, None),
    ]
    consumer.close()
    holder.close()


def test_a_number_that_a_table_has_as_a_wider_one_is_written_as_it_was(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    url = {"service.url": broker.service_url}
    numbers = spark.createDataFrame([(-32768,), (None,), (7,)], "value smallint")
    numbers.write.format("pulsar").options(**url, topic=topic).mode("append").save()
    archive_all(spark, broker, lake(tmp_path), topic, tmp_path / "state")
    target = fresh_name("again")
    rest(broker, "PUT", f"persistent/public/default/{target}")
    given = options(broker, lake(tmp_path), topic, target)
    assert [replay(spark, given).schema for _ in range(2)] == ["INT16", "INT16"]
    read = spark.read.format("pulsar").options(**url, topic=target).load()
    assert read.schema["value"].dataType.simpleString() == "smallint"
    assert sorted((row.value for row in read.collect()), key=str) == [-32768, -32768, 7, 7, None, None]


def test_only_messages_of_the_ranges_keys_and_properties_are_sent(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number in range(6):
        producer = client.create_producer(topic)
        producer.send(
            b"%d" % number,
            {"third": str(number % 3)},
            partition_key=f"k{number % 2}",
            event_timestamp=1000 - number if number else None,
        )
        producer.close()
    archive_all(spark, broker, lake(tmp_path), topic, tmp_path / "state")
    times = [message.publish_timestamp() for message in messages(client, topic)]

    def selected(**more: Any) -> list[int]:
        target = fresh_name("part")
        rest(broker, "PUT", f"persistent/public/default/{target}")
        assert replay(spark, options(broker, lake(tmp_path), topic, target, **more)).error is None
        return [int(message.data()) for message in messages(client, target)]

    within = [number for number in range(6) if times[2] <= times[number] < times[4]]
    assert selected(from_ms=times[2], until_ms=times[4]) == within
    assert selected(event_from_ms=997, event_until_ms=1000) == [1, 2, 3]
    # A key keeps its order.
    assert selected(event_until_ms=998, order="event") == [4, 3, 5]
    assert selected(keys=("k1",), properties={"third": "2"}) == [5]
    capsys.readouterr()
    assert selected(from_ms=times[5] + 1) == []
    assert f"lake.archive has no messages of persistent://public/default/{topic}" in capsys.readouterr().err


@pytest.mark.long
def test_a_killed_replay_goes_on_with_its_snapshot_whatever_is_merged_and_archived_meanwhile(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, PARTITIONS)
    publish_moving_keys(client, topic, range(MESSAGES))
    tables, state = lake(tmp_path), tmp_path / "archived"
    archive_all(spark, broker, tables, topic, state, 1 << 16)
    target = deduplicated(broker, 2)
    checkpoint = str(tmp_path / "state")
    given = [*documented("replay", topic=topic, to=target, catalog="lake", checkpoint=checkpoint), *properties(tables)]
    moments = random.Random(26)
    stored = 0
    for rate in ("500", "900"):
        at = moments.randrange(stored + 1, stored + MESSAGES // 3)
        kill_at(program(broker, "replay", *given, "--rate", rate), broker, target, at)
        stored = len(messages(client, target))
        assert at <= stored < MESSAGES
        # The table gets other files, and messages that are no part of the replay.
        assert maintain(spark, MaintainOptions(tables)).merged > 1
        publish_moving_keys(client, topic, range(MESSAGES, MESSAGES + 10))
        archive_all(spark, broker, tables, topic, state, 1 << 16)
    out, err = (last := program(broker, "replay", *given)).communicate(timeout=300)
    assert last.returncode == 0, err
    done = json.loads(out.splitlines()[-1])
    assert done["before"] >= stored
    assert done["before"] + done["rows"] == MESSAGES
    begun = json.loads((tmp_path / "state" / "replay.json").read_text())
    assert done["snapshot"] == begun["snapshot"]["id"]
    found = messages(client, target)
    numbers = [int(message.data()) for message in found]
    assert Counter(numbers) == Counter(range(MESSAGES))
    assert sum(numbers) == MESSAGES * (MESSAGES - 1) // 2
    originals = {(each.properties()["replay.topic"], each.properties()["replay.messageId"]) for each in found}
    assert len(originals) == MESSAGES
    for key in range(KEYS):
        of_key = [number for number in numbers if number % KEYS == key and number % 7]
        assert of_key == sorted(of_key)

    again = options(broker, tables, topic, target, checkpoint=checkpoint, order="event")
    assert replay(spark, again).before == MESSAGES
    for option, changed in (
        ("--table-namespace", replace(tables, namespace="other")),
        ("--upsert", replace(tables, last_values=True)),
        ("--catalog", replace(tables, catalog="pond")),
    ):
        with pytest.raises(OptionError, match=rf"^{option}: .*replay\.json: the replay was begun with"):
            replay(spark, replace(again, tables=changed))
    later = loaded(tmp_path).metadata.last_updated_ms / 1000 + 10 * DAY_S
    assert maintain(spark, MaintainOptions(tables), lambda: later).snapshots > 0
    error = refused(spark, again)
    assert f"begun with snapshot {done['snapshot']}, which has expired since" in error
    assert "another --checkpoint begins again" in error
    # A table of the same name in another warehouse is another one.
    elsewhere = lake(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    archive_all(spark, broker, elsewhere, topic, tmp_path / "archived-elsewhere", 1 << 16)
    assert "begun with the table" in refused(spark, replace(again, tables=elsewhere))


@pytest.mark.long
def test_a_replay_of_last_values_sends_the_last_message_of_each_key(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    tables = replace(lake(tmp_path), last_values=True)
    producer = client.create_producer(topic)
    for number in range(40):
        producer.send(b"%d" % number, partition_key=f"k{number % 8}")
    producer.send(b"none")
    producer.send(b"", partition_key="k0")
    archive_all(spark, broker, tables, topic, tmp_path / "last-state")
    target = deduplicated(broker, 1)

    given = options(broker, tables, topic, target, producer_name="r")
    assert replay(spark, given).rows == 7
    assert {m.partition_key(): int(m.data()) for m in messages(client, target)} == {
        f"k{number % 8}": number for number in range(33, 40)
    }
    assert replay(spark, given).error is None
    assert len(messages(client, target)) == 7
    assert "lake.archive.public_default_" in (error := refused(spark, replace(given, tables=lake(tmp_path))))
    assert "there is no such table; replay reads tables of last values with --upsert" in error
    # All messages have some before the last ones: they are not taken for what was sent under the name.
    archive_all(spark, broker, lake(tmp_path), topic, tmp_path / "state")
    assert replay(spark, replace(given, tables=lake(tmp_path))).rows == 42
    assert len(messages(client, target)) == 49


@pytest.mark.long
def test_last_values_and_reports_are_made_of_tables_as_of_files(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, tenant: str, tmp_path: Path
) -> None:
    tables, to = lake(tmp_path), tmp_path / "tables"
    topic = f"persistent://{tenant}/n/t"
    producer = client.create_producer(topic)
    for number in range(40):
        producer.send(b"%d" % number, partition_key=f"k{number % 8}")
    producer.send(None, partition_key="k0")
    archive_all(spark, broker, tables, topic, tmp_path / "state")
    made = CompactOptions(None, str(to), archive_tables=tables)
    first = compact(spark, made)
    assert (first.rows, first.topics, first.unchanged, first.error) == (7, 1, 0, None)
    last = read_table(spark, str(to), topic).select("__key", "value").collect()
    assert {bytes(row["__key"]): int(row["value"]) for row in last} == {
        b"k%d" % (number % 8): number for number in range(33, 40)
    }
    assert compact(spark, made).unchanged == 1
    producer.send(b"40", partition_key="k0")
    archive_all(spark, broker, tables, topic, tmp_path / "state")
    assert compact(spark, made).rows == 8

    report = tmp_path / "report"
    usage(spark, UsageOptions(reached(broker), str(report), (tenant,), tables=tables))
    topics = {row.topic: row for row in spark.read.parquet(str(report / "parquet" / "topics")).collect()}
    files = [task.file for task in loaded(tmp_path).scan().plan_files()]
    assert topics[topic].archived_messages == 42
    assert topics[topic].archived_bytes == sum(file.file_size_in_bytes for file in files)

    with pytest.raises(OptionError, match="archive --upsert keeps the last values itself; valid: the tables of all"):
        compact(spark, replace(made, archive_tables=replace(tables, last_values=True)))
    for path, of in ((None, None), (str(tmp_path), tables)):
        wrong = (
            r"^--path and --catalog: (both|neither) given; valid: --path for an archive in files, or --catalog for one"
        )
        with pytest.raises(OptionError, match=wrong):
            compact(spark, CompactOptions(path, str(to), archive_tables=of))
        with pytest.raises(OptionError, match=wrong):
            replay(spark, ReplayOptions(reached(broker), path, topic, "t", tables=of))
    with pytest.raises(
        OptionError, match=r"^--archive and --catalog: both given; valid: --archive for an archive in files"
    ):
        usage(spark, UsageOptions(reached(broker), str(report), (tenant,), archive=str(tmp_path), tables=tables))


def test_options_of_tables_without_a_catalog_are_refused_by_name() -> None:
    from heliograph_spark.cli import app

    for job, needed in (("replay", "--topic t --to u"), ("compact", "--to d"), ("usage", "--to d")):
        given = ["--catalog-property", "type=sql"], ["--table-namespace", "n"]
        for option in (*given, ["--upsert"]) if job == "replay" else given:
            done = CliRunner().invoke(app, [job, *needed.split(), *option], env={"COLUMNS": "200", "NO_COLOR": "1"})
            assert done.exit_code == 2
            assert f"Invalid value for '{option[0]}': is for archives in tables, which need --catalog" in done.output
