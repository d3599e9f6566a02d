"""Official clients read the messages of the sink as the rows were: in batches, alone, in chunks, under a name."""

from __future__ import annotations

import base64
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from heliograph_spark.encode.entries import java_hash, text_of
from heliograph_spark.plan.errors import PulsarSourceError, SchemaError
from heliograph_spark.plan.numbering import Numbering
from heliograph_spark.run.sink import Sender
from heliograph_spark.wire.brokers import shared
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import MapType, StringType, StructType

from tests.support import java_client, java_tools
from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_partitions, fresh_name, read_messages, rest
from tests.support.entry_reading import everything, whole

from .test_sender import VALUES, deduplicating, rows, stored, writing

ALL = (
    StructType()
    .add("value", "binary")
    .add("__key", "binary")
    .add("__orderingKey", "binary")
    .add("__eventTime", "timestamp")
    .add("__messageProperties", MapType(StringType(), StringType()))
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SOURCE = Path(__file__).parent / "java" / "client" / "ReadsMessages.java"


def drawn(random: Random, count: int) -> list[tuple[Any, ...]]:
    """Return rows of :data:`ALL`, each column of which is sometimes null."""

    def row() -> tuple[Any, ...]:
        key = random.choice([None, b"", b"k%d" % random.randrange(9), "é€𝄞".encode(), b"\xff\x00"])
        value = random.choice([None, b"", random.randbytes(random.randrange(300))])
        at = random.choice([None, EPOCH + timedelta(milliseconds=random.randrange(1, 1 << 42))])
        properties = random.choice([None, {}, {"a": "1"}, {"a": "", "ü": "ö" * random.randrange(20)}])
        return value, key, random.choice([None, b"o", b"\xfe"]), at, properties

    return [row() for _ in range(count)]


def send(broker: BrokerProcess, topic: str, *batches: list[tuple[Any, ...]], **options: str) -> None:
    given = {f"pulsar.producer.{name}": value for name, value in options.items()}
    with Sender(ALL, writing(broker, topic, **given)) as sender:
        for batch in batches:
            sender.send(rows(ALL, *batch))
        sender.finish()


def as_python_reads(row: tuple[Any, ...]) -> tuple[Any, ...]:
    value, key, _, at, properties = row
    return (
        value or b"",
        value is None,
        "" if key is None else text_of(key)[0],
        0 if at is None else (at - EPOCH) // timedelta(milliseconds=1),
        properties or {},
    )


def of_python(message: pulsar.Message) -> tuple[Any, ...]:
    properties = dict(message.properties())
    null = message._message.has_null_value()
    return message.data(), null, message.partition_key(), message.event_timestamp(), properties


SHAPES: list[dict[str, str]] = [
    {},
    {"batchingMaxMessages": "7"},
    {"batchingMaxBytes": "500", "compressionType": "LZ4"},
    {"batchingEnabled": "false"},
    {"batchingEnabled": "false", "compressionType": "ZSTD"},
    {"compressionType": "SNAPPY"},
    {"compressionType": "ZLIB", "maxPendingMessages": "10"},
    {"maxPendingMessagesAcrossPartitions": "1"},
]


@pytest.mark.parametrize("options", SHAPES, ids=lambda options: ",".join(options) or "defaults")
def test_rows_are_read_by_the_python_client_in_order(
    broker: BrokerProcess, client: pulsar.Client, topic: str, options: dict[str, str]
) -> None:
    found = drawn(Random(str(options)), 300)
    send(broker, topic, found[:120], found[120:121], found[121:], **options)
    assert [of_python(each) for each in read_messages(client, topic)] == [as_python_reads(row) for row in found]


@pytest.mark.skipif(java_client.missing() is not None, reason=f"{java_client.missing()}")
def test_rows_are_read_by_the_java_client_with_keys_that_are_bytes(broker: BrokerProcess, topic: str) -> None:
    found = drawn(Random(1), 60)
    big = (Random(2).randbytes(6 << 20), b"\xff", None, None, None)
    send(broker, topic, found, compressionType="ZLIB")
    send(broker, topic, [*found[:20], big, *found[20:]], chunkingEnabled="true")
    send(broker, topic, found, batchingEnabled="false")
    sent = [*found, *found[:20], big, *found[20:], *found]
    command = [*java_tools.QUICK, java_client.JARS, str(SOURCE), broker.service_url, topic, str(len(sent))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    numbers = [*range(60), *range(61), *range(60)]
    assert done.stdout.splitlines() == [as_java_reads(row, at) for row, at in zip(sent, numbers, strict=True)]


def as_java_reads(row: tuple[Any, ...], number: int) -> str:
    def encoded(data: bytes | None) -> str:
        return "null" if data is None else "=" + base64.b64encode(data).decode()

    value, key, ordering_key, at, properties = row
    in_base64 = key is not None and text_of(key)[1]
    event_time = 0 if at is None else (at - EPOCH) // timedelta(milliseconds=1)
    listed = "{" + ", ".join(f"{name}={text}" for name, text in sorted((properties or {}).items())) + "}"
    return " ".join(
        [
            *(encoded(value), encoded(key), str(in_base64).lower(), encoded(ordering_key)),
            *(str(event_time), str(number), encoded(listed.encode())),
        ]
    )


def test_entries_are_batches_as_full_as_they_may_be(broker: BrokerProcess, topic: str) -> None:
    with Sender(VALUES, writing(broker, topic)) as sender:
        for _ in range(5):
            # A batch goes on over Spark's record batches.
            sender.send(rows(VALUES, *[(b"x" * 20,)] * 500))
        sender.send(rows(VALUES, (b"y" * (200 << 10),), (b"z" * (64 << 10),), (b"z" * (65 << 10),)))
        sender.finish()
    entries = everything(shared(writing(broker, topic).connection), topic)
    # Larger than a batch may be: alone, and in its turn.
    assert [entry.messages for entry in entries] == [1000, 1000, 500, 1, 1, 1]
    assert [entry.metadata.HasField("num_messages_in_batch") for entry in entries] == [*[True] * 3, False, True, True]
    assert [entry.metadata.sequence_id for entry in entries] == [0, 1000, 2000, 2500, 2501, 2502]


def test_a_message_of_more_than_the_broker_takes_is_refused_and_nothing_after_it_is_sent(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    value = b"x" * ((5 << 20) + 1)
    expected = rf"writing to {whole(topic)}: a message of {len(value)} bytes: .*chunkingEnabled=true sends it in chunks"
    with pytest.raises(PulsarSourceError, match=expected):
        send(broker, topic, [(b"before", None, None, None, None)], [(value, None, None, None, None)])
    assert stored(client, topic) in ([], [b"before"])
    # It is no more than that once it is compressed.
    send(broker, topic, [(value, None, None, None, None)], compressionType="LZ4")
    assert stored(client, topic)[-1] == value


def test_keys_go_to_their_partition_and_the_rest_to_all_in_turn(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    create_partitions(broker, topic, 3)
    found = drawn(Random(3), 400)
    for options in ({"batchingMaxMessages": "10"}, {"batchingEnabled": "false"}):
        send(broker, topic, found[:150], found[150:], **options)
    for partition in range(3):
        # Each time the rows of one partition come in order; those without a key at any of its places.
        keyed = [row for row in found if row[1] is not None and java_hash(text_of(row[1])[0]) % 3 == partition]
        read = [of_python(each) for each in read_messages(client, f"{topic}-partition-{partition}")]
        assert [each for each in read if each[2]] == [as_python_reads(row) for row in [*keyed, *keyed] if row[1]]
        without = len(read) - 2 * len(keyed)
        assert without > len(found) // 20, "some of those without a key"
    read = [of_python(each) for at in range(3) for each in read_messages(client, f"{topic}-partition-{at}")]
    assert sorted(map(repr, read)) == sorted(repr(as_python_reads(row)) for row in [*found, *found])


def test_rows_name_hundreds_of_topics(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    numbering = Numbering(fresh_name("etl"), 0)
    random = Random(4)
    found = [(f"{topic}-{random.randrange(300)}", b"%d" % number) for number in range(3000)]
    columns = StructType().add("__topic", "string").add("value", "binary")
    for which in (None, numbering):
        with Sender(columns, writing(broker, None), numbering=which) as sender:
            for start in range(0, 3000, 1000):
                sender.send(rows(columns, *found[start : start + 1000]))
            sender.finish()
    brokers = shared(writing(broker, None).connection)
    for name in sorted({name for name, _ in found})[::30]:
        own = [(number + 1, value) for number, (each, value) in enumerate(found) if each == name]
        assert stored(client, name) == [value for _, value in own] * 2
        numbered = [
            entry.metadata for entry in everything(brokers, name) if entry.metadata.producer_name == numbering.name
        ]
        # By their places among all rows of the task.
        assert (numbered[0].sequence_id, numbered[-1].highest_sequence_id) == (own[0][0], own[-1][0])


def test_a_row_that_does_not_fit_ends_the_task_and_what_was_sent_is_sent_once(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    """As Spark repeats it, after the row was corrected."""
    target = deduplicating(broker)
    path = target.removeprefix("persistent://")
    definition = '{"type":"record","name":"R","fields":[{"name":"n","type":"long"}]}'
    rest(broker, "POST", f"schemas/{path}/schema", {"type": "AVRO", "schema": definition, "properties": {}})
    columns = StructType().add("n", "long")
    numbering = Numbering(fresh_name("etl"), 0)
    options = writing(broker, target, **{"pulsar.producer.batchingMaxMessages": "3"})

    def attempt(last: int | None) -> None:
        with Sender(columns, options, numbering=numbering) as sender:
            sender.send(rows(columns, *((number,) for number in range(10))))
            sender.send(rows(columns, (10,), (last,)))
            sender.finish()

    with pytest.raises(SchemaError, match=rf"writing to {target}: a row does not fit the schema: .*R.n. is None"):
        attempt(None)
    # Nine rows in batches were sent, and the name is free at once.
    attempt(11)
    assert stored(client, target) == [bytes([2 * number]) for number in range(12)]


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_task_that_ended_anywhere_and_is_repeated_with_other_batches_stores_each_row_once(
    broker: BrokerProcess, client: pulsar.Client, data: st.DataObject
) -> None:
    """Each attempt but the last one gives up after some rows, with what is in flight wherever it is."""
    target = TARGETS.setdefault(id(broker), deduplicating(broker)) + fresh_name()
    partitions = data.draw(st.integers(0, 3), label="partitions")
    if partitions:
        path = target.removeprefix("persistent://")
        rest(broker, "PUT", f"persistent/{path}/partitions", partitions)
    columns = StructType().add("value", "binary").add("__key", "binary")
    keys = st.sampled_from([None, b"a", b"b", b"c"])
    found = [(b"%d" % number, key) for number, key in enumerate(data.draw(st.lists(keys, min_size=1, max_size=40)))]
    before = data.draw(st.integers(0, 3), label="micro-batch")
    numbering = Numbering.of_batch("etl", "query", 1, before)
    attempts = data.draw(st.integers(1, 4), label="attempts")
    for attempt in range(attempts):
        last = attempt == attempts - 1
        shape = data.draw(
            st.sampled_from(
                [{}, {"batchingEnabled": "false"}, *({"batchingMaxMessages": str(each)} for each in (1, 2, 3, 7))]
            )
        )
        options = writing(broker, target, **{f"pulsar.producer.{name}": value for name, value in shape.items()})
        with Sender(columns, options, task=1, numbering=numbering) as sender:
            upto = len(found) if last else data.draw(st.integers(0, len(found)))
            for start in range(0, upto, 5):
                sender.send(rows(columns, *found[start : min(start + 5, upto)]))
            if last or data.draw(st.booleans(), label="flushed"):
                sender._flush()
            if last:
                sender.finish()
            elif data.draw(st.booleans(), label="stored"):
                sender._window.flush()
    read: list[tuple[bytes, bytes | None]] = []
    for name in [f"{target}-partition-{at}" for at in range(partitions)] or [target]:
        part = [(each.data(), each.partition_key().encode() or None) for each in read_messages(client, name)]
        assert [int(value) for value, _ in part] == sorted(int(value) for value, _ in part)
        read += part
    assert sorted(read) == sorted(found)


#: The topics of a namespace that deduplicates, by broker.
TARGETS: dict[int, str] = {}


def test_a_topic_that_is_made_with_partitions_has_them_from_the_first_row_on(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    name = fresh_name()
    rest(broker, "PUT", f"namespaces/public/{name}")
    forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    rest(broker, "POST", f"namespaces/public/{name}/retention", forever)
    policy = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}
    rest(broker, "POST", f"namespaces/public/{name}/autoTopicCreation", policy)
    target = f"persistent://public/{name}/target"
    send(broker, target, drawn(Random(5), 50))
    assert rest(broker, "GET", f"persistent/public/{name}/target/partitions")["partitions"] == 2
    assert sum(len(read_messages(client, f"{target}-partition-{at}")) for at in range(2)) == 50


def test_a_batch_of_sparks_without_rows_is_nothing(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    with Sender(VALUES, writing(broker, topic), numbering=Numbering("etl", 0)) as sender:
        sender.send(rows(VALUES))
        sender.finish()
    assert isinstance(rows(VALUES), pa.RecordBatch)
