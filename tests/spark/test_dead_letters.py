"""``badRecords=deadLetter``: what cannot be read is published to another topic with the reason, and is no row."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.decode.columns import EntryColumns
from heliograph_spark.decode.entries import Entry
from heliograph_spark.decode.kept_values import UnfitValue
from heliograph_spark.jobs.archive import ArchiveOptions, archive
from heliograph_spark.jobs.archiving.parquet import ParquetTopic
from heliograph_spark.plan.dead_letters import DeadLetterRule
from heliograph_spark.plan.errors import JobError, OptionError, PulsarSourceError
from heliograph_spark.plan.options import read_options
from heliograph_spark.plan.positions import Position
from heliograph_spark.plan.ranges import Range
from heliograph_spark.run.dead_letters import DeadLetters, columns_with_bad, without_bad
from heliograph_spark.run.schemas import METADATA
from heliograph_spark.run.session import Broker
from heliograph_spark.run.source import PulsarDataSource
from heliograph_spark.wire.brokers import shared
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from tests.support.broker_process import BrokerProcess
from tests.support.clients import (
    BATCH_WAITS_MS,
    create_partitions,
    fresh_name,
    ignore_receipt,
    publish,
    publish_batch,
    read_messages,
    rest,
)
from tests.support.entry_reading import everything

from .test_batch_read import Reading, read

WHOLE = "persistent://public/default/"
#: Places that begin and end nothing in particular.
SOME = Range(f"{WHOLE}t-partition-2", Position(5, -1), Position(9, 9))


def deduplicated(broker: BrokerProcess, topic: str) -> str:
    """Make a topic that deduplicates; returns its whole name."""
    rest(broker, "PUT", f"persistent/public/default/{topic}")
    rest(broker, "POST", f"persistent/public/default/{topic}/deduplicationEnabled", True)
    return WHOLE + topic


def spoiled(client: pulsar.Client, topic: str) -> pulsar.MessageId:
    """Publish two readings and a message that is none between them, with all that a message can have."""
    good = client.create_producer(topic, schema=pulsar.schema.JsonSchema(Reading))
    good.send(Reading(place="Kyoto"))
    other = client.create_producer(topic)
    wrong = other.send(
        b"no json", {"from": "sensor"}, partition_key="k", ordering_key="o", event_timestamp=1_700_000_000_123
    )
    good.send(Reading(place="Oslo"))
    return wrong


def place_of(message_id: pulsar.MessageId) -> str:
    return f"{message_id.ledger_id()}:{message_id.entry_id()}"


def test_a_message_that_cannot_be_read_goes_to_the_topic_as_it_was(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    wrong = spoiled(client, topic)
    dead = f"{topic}-dead"
    frame = read(spark, broker, topic=topic, badRecords="deadLetter", deadLetterTopic=dead)
    assert frame.columns == read(spark, broker, topic=topic).columns
    assert sorted(row.place for row in frame.select("place").collect()) == ["Kyoto", "Oslo"]
    (letter,) = read_messages(client, dead)
    assert (letter.data(), letter.partition_key(), letter.ordering_key()) == (b"no json", "k", "o")
    assert letter.event_timestamp() == 1_700_000_000_123
    properties = letter.properties()
    assert properties.pop("BAD_RECORD_REASON").startswith("it is not JSON as the topic's schema says")
    expected = {"from": "sensor", "REAL_TOPIC": WHOLE + topic, "ORIGIN_MESSAGE_ID": f"{place_of(wrong)}:-1"}
    assert properties == expected


def test_of_a_batch_only_the_messages_that_cannot_be_read_are_letters(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic, schema=pulsar.schema.JsonSchema(Reading)).send(Reading(place="Kyoto"))
    publish_batch(client, topic, [b'{"place": "Oslo"}', b"x", b'{"place": "Lima"}', b"y"])
    own = spark.read.format("pulsar").option("service.url", broker.service_url).option("topic", topic)
    own = own.option("badRecords", "deadLetter").option("predefinedSubscription", "s")
    frame = own.option("includeHeaders", "true").load()
    assert "__badRecord" not in frame.columns
    assert sorted(row.place for row in frame.select("place", "headers").collect()) == ["Kyoto", "Lima", "Oslo"]
    letters = read_messages(client, f"{topic}-s-DLQ")
    assert [letter.data() for letter in letters] == [b"x", b"y"]
    assert [letter.properties()["ORIGIN_MESSAGE_ID"].split(":")[2:] for letter in letters] == [["-1", "1"], ["-1", "3"]]
    assert {letter.properties()["REAL_SUBSCRIPTION"] for letter in letters} == {"s"}
    # A query's own schema needs no column for them.
    assert sorted(row.place for row in own.schema("place STRING").load().collect()) == ["Kyoto", "Lima", "Oslo"]


def test_a_stream_goes_on_and_each_message_is_a_row_or_a_letter(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    create_partitions(broker, topic, 2)
    deduplicated(broker, f"{topic}-s-DLQ")
    good = client.create_producer(topic, schema=pulsar.schema.AvroSchema(Reading))

    def more(first: int) -> None:
        for number in range(first, first + 20):
            good.send(Reading(place=f"p{number}", degrees=0.5))
        publish(client, topic, [b"\xff%d" % number for number in range(first, first + 4)])

    def run() -> None:
        stream = spark.readStream.format("pulsar").option("service.url", broker.service_url).option("topic", topic)
        stream = stream.option("startingOffsets", "earliest").option("predefinedSubscription", "s")
        frame = stream.option("badRecords", "deadletter").option("maxEntriesPerSplit", "5").load()
        writing = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writing = writing.option("path", str(tmp_path / "rows")).trigger(availableNow=True)
        assert writing.start().awaitTermination(120)

    more(0)
    run()
    more(100)
    run()
    rows = spark.read.parquet(str(tmp_path / "rows")).select("place").collect()
    numbers = [*range(20), *range(100, 120)]
    assert sorted(row.place for row in rows) == sorted(f"p{number}" for number in numbers)
    letters = read_messages(client, f"{topic}-s-DLQ")
    bad = [b"\xff%d" % number for number in (*range(4), *range(100, 104))]
    assert sorted(letter.data() for letter in letters) == sorted(bad)
    for letter in letters:
        properties = letter.properties()
        assert (properties["REAL_TOPIC"], properties["REAL_SUBSCRIPTION"]) == (WHOLE + topic, "s")
        assert properties["at"]
    partitions = {letter.properties()["ORIGIN_MESSAGE_ID"].split(":")[2] for letter in letters}
    assert partitions == {"0", "1"}


def task_of(broker: BrokerProcess, topic: str, dead: str) -> Iterator[pa.RecordBatch]:
    """Return a task of a batch query that reads all of the topic; ``repeated`` makes it twice."""
    (task,) = repeated(broker, topic, dead, 1)
    return task


def repeated(broker: BrokerProcess, topic: str, dead: str, times: int) -> list[Iterator[pa.RecordBatch]]:
    """Return the attempts of one task of a batch query."""
    options = {"service.url": broker.service_url, "topic": topic, "badRecords": "deadLetter", "deadLetterTopic": dead}
    source = PulsarDataSource(options)
    reader = source.reader(source.schema())
    (split,) = reader.partitions()
    # As Spark hands it to each attempt.
    return [iter(pickle.loads(pickle.dumps(reader)).read(split)) for _ in range(times)]


def test_a_repeated_task_publishes_its_letters_once_where_the_topic_deduplicates(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic, schema=pulsar.schema.JsonSchema(Reading)).send(Reading(place="Kyoto"))
    publish(client, topic, [b"a", b"b"])
    publish_batch(client, topic, [b"c", b"d"])
    once, plain = deduplicated(broker, f"{topic}-once"), f"{topic}-plain"
    for dead, expected in ((once, [b"a", b"b", b"c", b"d"]), (plain, [b"a", b"b", b"c", b"d"] * 2)):
        for attempt in repeated(broker, topic, dead, 2):
            assert sum(batch.num_rows for batch in attempt) == 1
        assert [letter.data() for letter in read_messages(client, dead)] == expected
    # Another query has names of its own.
    list(task_of(broker, topic, once))
    assert len(read_messages(client, once)) == 8


def test_no_letter_is_taken_for_one_of_another_ledger_or_split(broker: BrokerProcess, client: pulsar.Client) -> None:
    def published(dead: str, *places: tuple[int, int, int]) -> None:
        schema = to_arrow_schema(columns_with_bad(StructType()), timezone="UTC")
        rows = [
            {"__ledger": ledger, "__entry": entry, "__batchIndex": index, "__partition": 2, "__messageProperties": []}
            | {"__badRecord": {"value": b"%d:%d:%d" % (ledger, entry, index), "reason": "r"}}
            for ledger, entry, index in places
        ]
        options = dead_letter_options(broker, dead)
        with DeadLetters(options, Range(SOME.topic, Position(*places[0]), SOME.end), "q") as letters:
            letters.send(pa.RecordBatch.from_pylist(rows, schema=schema))
            letters.finish()

    dead = deduplicated(broker, fresh_name("dead"))
    published(dead, (6, 0, -1), (6, 1, 0), (6, 1, (1 << 20) - 1), (6, 2, -1), (7, 0, -1), (7, 0, 0))
    published(dead, (5, 3, -1), (6, 0, 1), (7, 0, 1))
    assert len(read_messages(client, dead)) == 9


def dead_letter_options(broker: BrokerProcess, dead: str) -> Any:
    given = {"service.url": broker.service_url, "topic": "t", "badRecords": "deadLetter", "deadLetterTopic": dead}
    return read_options(given, streaming=True)


def test_a_letter_has_the_keys_of_the_message_also_if_they_are_not_text(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    asked = StructType([StructField("value", BinaryType()), METADATA["__topic"]])
    columns = EntryColumns(
        SOME.topic, to_arrow_schema(columns_with_bad(asked), timezone="UTC"), partition=2, values=No()
    )
    key = b"\xff\x00key"
    plain = wire.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    plain.partition_key, plain.partition_key_b64_encoded = base64.b64encode(key).decode(), True
    plain.ordering_key = b"\xfe"
    plain.properties.add(key="REAL_TOPIC", value="persistent://a/b/first")
    encrypted = wire.MessageMetadata(producer_name="p", sequence_id=2, publish_time=1, num_messages_in_batch=3)
    encrypted.encryption_keys.add(key="k", value=b"v")
    columns.add(Entry(6, 1, plain, b"plain"))
    columns.add(Entry(6, 2, encrypted, b"\x01\x02secret"))
    options = dead_letter_options(broker, f"{topic}-dead")
    with DeadLetters(options, SOME, "q") as letters:
        assert list(without_bad(columns.take(), asked.names, letters)) == []
    first, second = read_messages(client, f"{topic}-dead")
    assert (first.data(), second.data()) == (b"plain", b"\x01\x02secret")
    metadata = everything(shared(options.connection), f"{topic}-dead")[0].metadata
    assert (base64.b64decode(metadata.partition_key), metadata.partition_key_b64_encoded) == (key, True)
    assert metadata.ordering_key == b"\xfe"
    properties = first.properties()
    assert properties["REAL_TOPIC"] == "persistent://a/b/first", "of a message that was sent on before"
    assert properties["ORIGIN_MESSAGE_ID"] == "6:1:2"
    assert second.properties()["BAD_RECORD_REASON"].endswith("the payload is encrypted")


class No:
    """Decodes no value."""

    def columns(self, values: pa.Array, versions: pa.Array) -> list[pa.Array]:
        for row, value in enumerate(values):
            if value.is_valid:
                raise UnfitValue(row, "no")
        return [pa.nulls(len(values), pa.binary())]


def test_a_letter_of_more_than_one_message_may_have_is_sent_in_chunks(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic, schema=pulsar.schema.JsonSchema(Reading)).send(Reading(place="Kyoto"))
    content = b"x" * (6 << 20)
    publish(client, topic, [content], chunking_enabled=True, batching_enabled=False)
    dead = deduplicated(broker, f"{topic}-dead")
    for attempt in repeated(broker, topic, dead, 2):
        assert sum(batch.num_rows for batch in attempt) == 1
    (letter,) = read_messages(client, dead)
    assert letter.data() == content


def test_a_task_whose_letters_are_not_taken_fails_before_its_last_rows(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    spoiled(client, topic)
    returned: list[pa.RecordBatch] = []
    with pytest.raises(PulsarSourceError, match="publishing what cannot be read to persistent://public/missing/dead"):
        returned.extend(task_of(broker, topic, "persistent://public/missing/dead"))
    assert not returned


def test_many_letters_are_all_there_when_the_last_rows_are(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic, schema=pulsar.schema.JsonSchema(Reading)).send(Reading(place="Kyoto"))
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=BATCH_WAITS_MS, block_if_queue_full=True
    )
    for number in range(3000):
        producer.send_async(b"%d" % number if number % 2 else b'{"place": "Oslo"}', ignore_receipt)
    producer.flush()
    rows = 0
    for batch in task_of(broker, topic, f"{topic}-dead"):
        rows += batch.num_rows
        last = len(read_messages(client, f"{topic}-dead")) if rows == 1501 else None
    assert (rows, last) == (1501, 1500)


def test_dead_letters_are_not_read_by_the_query_whose_they_are(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    spoiled(client, topic)
    found = {"admin_url": broker.http_url, "badRecords": "deadLetter"}
    for suffix, more in (("dead", {"deadLetterTopic": f"{topic}-dead"}), ("s-DLQ", {"predefinedSubscription": "s"})):
        for _ in range(2):
            rows = read(spark, broker, topicsPattern=f"{topic}(-{suffix})?", **found, **more).select("place").collect()
            assert sorted(row.place for row in rows) == ["Kyoto", "Oslo"]
    with pytest.raises(Exception, match=f"deadLetterTopic: {WHOLE}{topic} is one of the topics that are read"):
        read(spark, broker, topic=topic, badRecords="deadLetter", deadLetterTopic=topic)
    listed = f"{topic},{topic}-s-DLQ"
    with pytest.raises(Exception, match=f"deadLetterTopic: {WHOLE}{topic}-s-DLQ is one of the topics that are read"):
        read(spark, broker, topics=listed, badRecords="deadLetter", predefinedSubscription="s")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"badRecords": "deadLetter"}, "deadLetterTopic: is needed for badRecords=deadLetter without predefinedSubscr"),
        ({"deadLetterTopic": "d"}, "deadLetterTopic: needs badRecords=deadLetter"),
        ({"badRecords": "column", "deadLetterTopic": "d"}, "deadLetterTopic: needs badRecords=deadLetter"),
        ({"badRecords": "deadLetter", "deadLetterTopic": "a/b"}, "'a/b' is not the name of a topic"),
        ({"badRecords": "drop"}, "badRecords: 'drop' is neither fail nor column nor deadLetter"),
    ],
)
def test_what_is_wrong_with_the_options_is_named(given: dict[str, str], text: str) -> None:
    for streaming in (False, True):
        with pytest.raises(OptionError, match=text):
            read_options({"service.url": "pulsar://localhost", "topic": "t", **given}, streaming=streaming)


def test_the_topic_follows_from_the_subscription_unless_it_is_given() -> None:
    given = {"service.url": "pulsar://localhost", "topic": "t", "BADRECORDS": "DEADLETTER"}
    options = read_options({**given, "predefinedSubscription": "s"}, streaming=True)
    assert options.dead_letters == DeadLetterRule(None, "s")
    assert options.dead_letters.topic_for(WHOLE + "t") == f"{WHOLE}t-s-DLQ"
    both = read_options({**given, "predefinedSubscription": "s", "deadLetterTopic": "x/y/d"}, streaming=True)
    assert both.dead_letters is not None
    assert both.dead_letters.topic_for(WHOLE + "t") == "persistent://x/y/d"
    assert read_options({"service.url": "pulsar://localhost", "topic": "t"}, streaming=True).dead_letters is None


@pytest.mark.usefixtures("planner")
def test_an_archive_that_is_killed_publishes_its_letters_once_where_the_topic_deduplicates(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    letters = deduplicated(broker, fresh_name("letters"))
    client.create_producer(topic, schema=pulsar.schema.JsonSchema(Reading)).close()
    publish(client, topic, [b"bad %d" % number for number in range(30)], batching_enabled=False)
    given = {"badRecords": "deadLetter", "deadLetterTopic": letters}
    reached = Broker(broker.service_url, broker.http_url, given)
    options = ArchiveOptions(reached, str(tmp_path), (topic,), file_bytes=1000)
    whole: Callable[[ParquetTopic, DataFrame], Any] = ParquetTopic._stage_files
    with monkeypatch.context() as killed:

        def staged(target: ParquetTopic, files: DataFrame) -> None:
            whole(target, files)
            raise JobError("the run ends here")

        killed.setattr(ParquetTopic, "_stage_files", staged)
        assert archive(spark, options).error is not None
    some = len(read_messages(client, letters))
    assert some > 0
    # An entry is larger by far, on average, from now on.
    publish(client, topic, [b"bad " + bytes(20_000) for _ in range(10)], batching_enabled=False)
    assert archive(spark, options).error is None
    assert len(read_messages(client, letters)) == 40
