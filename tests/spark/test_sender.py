"""The sending of one task, mostly without Spark: rows go to a real broker, and wrong ones are refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.encode.framing import Messages
from heliograph_spark.jobs.replay_task import Resender
from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.plan.numbering import Numbering
from heliograph_spark.plan.options import WriteOptions, write_options
from heliograph_spark.run.producers import open_producer
from heliograph_spark.run.sink import BatchSink, Sender, StreamSink, write_rows
from heliograph_spark.wire.brokers import shared
from heliograph_spark.wire.failures import NotStored
from heliograph_spark.wire.producer import Producer
from heliograph_spark.wire.window import Window
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.integration.spark_wire_peer import Peer, error_of, receipt
from tests.support.broker_process import BrokerProcess
from tests.support.clients import fresh_name, publish, read_all, rest
from tests.support.fake_broker import FakeBroker
from tests.support.polling import eventually
from tests.support.wire_client import Frame, Type, encode

VALUES = StructType().add("value", "binary")


def deduplicating(broker: BrokerProcess) -> str:
    """Make a namespace that keeps everything and deduplicates; returns the name of a topic in it."""
    name = fresh_name()
    rest(broker, "PUT", f"namespaces/public/{name}")
    forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    rest(broker, "POST", f"namespaces/public/{name}/retention", forever)
    rest(broker, "POST", f"namespaces/public/{name}/deduplication", True)
    return f"persistent://public/{name}/target"


def writing(broker: BrokerProcess, topic: str | None, **more: str) -> WriteOptions:
    return write_options({"service.url": broker.service_url, **({"topic": topic} if topic else {}), **more})


def rows(columns: StructType, *found: tuple[Any, ...]) -> pa.RecordBatch:
    named = [dict(zip(columns.names, row, strict=True)) for row in found]
    return pa.RecordBatch.from_pylist(named, schema=to_arrow_schema(columns, timezone="UTC"))


def send(options: WriteOptions, numbering: Numbering | None, *values: bytes) -> None:
    """Send these as the rows of one task."""
    with Sender(VALUES, options, numbering=numbering) as sender:
        sender.send(rows(VALUES, *((value,) for value in values)))
        sender.finish()


def stored(client: pulsar.Client, topic: str) -> list[bytes]:
    return read_all(client.create_reader(topic, pulsar.MessageId.earliest))


def of(batch: int, query: str = "query") -> Numbering:
    return Numbering.of_batch("etl", query, 0, batch)


def test_a_repeated_batch_and_another_query_of_the_name_lose_nothing(
    broker: BrokerProcess, client: pulsar.Client, capfd: pytest.CaptureFixture[str]
) -> None:
    target = deduplicating(broker)
    options = writing(broker, target)
    send(options, of(7), b"1", b"2")
    send(options, of(7), b"1", b"2", b"3")
    assert f"{target} has 2 of 3 messages already" in capfd.readouterr().err
    send(options, of(0, "other"), b"4")
    assert stored(client, target) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("name", ["", "etl-write-0"])
def test_the_rows_of_an_attempt_that_failed_are_stored_once_with_a_name_and_twice_without(
    broker: BrokerProcess, client: pulsar.Client, name: str
) -> None:
    target = deduplicating(broker)
    options = writing(broker, target, **{"pulsar.producer.batchingMaxMessages": "2"})
    numbering = Numbering(name, 0) if name else None
    with Sender(VALUES, options, numbering=numbering) as attempt:
        attempt.send(rows(VALUES, (b"1",), (b"2",)))
        eventually(lambda: len(stored(client, target)) == 2, what="the rows of the first attempt")
    send(options, numbering, b"1", b"2", b"3")
    assert stored(client, target) == [*([] if name else [b"1", b"2"]), b"1", b"2", b"3"]


def test_a_batch_before_the_last_one_sent_is_refused_with_nothing_sent(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    target = deduplicating(broker)
    send(writing(broker, target), of(7), b"1")
    with pytest.raises(PulsarSourceError, match="has had micro-batch 7, and this is 6"):
        send(writing(broker, target), of(6), b"2")
    assert stored(client, target) == [b"1"]


def test_a_batch_that_an_earlier_release_began_to_send_is_refused_and_the_next_one_is_not(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    target = deduplicating(broker)
    before = client.create_producer(target, producer_name="etl-0")
    before.send(b"1", sequence_id=(7 << 32) + 1)
    before.close()
    with pytest.raises(PulsarSourceError, match="sent under the producer name etl-0 by an earlier release"):
        send(writing(broker, target), of(7), b"1", b"2")
    assert stored(client, target) == [b"1"]
    send(writing(broker, target), of(8), b"3")
    assert stored(client, target) == [b"1", b"3"]


def test_a_repetition_that_is_divided_otherwise_is_refused(broker: BrokerProcess, client: pulsar.Client) -> None:
    target = deduplicating(broker)
    send(writing(broker, target), of(7), b"1", b"2")
    with pytest.raises(PulsarSourceError, match="the broker has 2 rows of this micro-batch"):
        send(writing(broker, target), of(7), b"1")


def test_a_message_that_the_broker_has_lost_ends_the_query_and_not_only_its_task(broker: BrokerProcess) -> None:
    """The broker would say to a repeated task that it has the message."""

    def lost() -> Iterator[pa.RecordBatch]:
        raise NotStored("message 4 is lost")
        yield

    options = writing(broker, fresh_name())
    ends = [None, write_rows(iter(()), VALUES, options, 0, of(0)), write_rows(lost(), VALUES, options, 0, of(0))]
    for commit in (BatchSink(VALUES, options).commit, lambda messages: StreamSink(VALUES, options).commit(messages, 0)):
        commit(ends[:2])
        with pytest.raises(NotStored, match="message 4 is lost"):
            commit(ends)


class _Topic(Peer):
    """Has a topic of one partition and without a schema."""

    def __call__(self, frame: Frame) -> bytes | None:
        if frame.command.type == Type.PARTITIONED_METADATA:
            success = wire.CommandPartitionedTopicMetadataResponse.Success
            return encode(Type.PARTITIONED_METADATA_RESPONSE, request_id=frame.body.request_id, response=success)
        if frame.command.type == Type.GET_SCHEMA:
            code = wire.TopicNotFound
            return encode(Type.GET_SCHEMA_RESPONSE, request_id=frame.body.request_id, error_code=code)
        return super().__call__(frame)


class _Losing(_Topic):
    """Stores the first and the third message, says that the second is damaged, and then falls silent."""

    def __init__(self) -> None:
        super().__init__(self._first_time)

    def _first_time(self, producer: int, number: int, time: int) -> bytes:
        if time > 1:
            return b""
        damaged = number == 2
        return error_of(producer, number, wire.ChecksumError) if damaged else receipt(producer, number)


def test_a_task_that_fails_while_a_message_is_not_stored_ends_the_query_and_not_only_itself() -> None:
    """The broker has stored the message behind that, so it would say to a repeated task that it has both."""
    peer = _Losing()
    with FakeBroker(peer) as fake:
        peer.url = fake.url
        settings = {"producerName": "etl", "batchingEnabled": "false", "sendTimeoutMs": "2000"}
        given = {f"pulsar.producer.{name}": value for name, value in settings.items()}
        options = write_options({"service.url": fake.url, "topic": "t", **given})
        batch = rows(VALUES, (b"1",), (b"2",), (b"3",))
        end = write_rows(iter([batch]), VALUES, options, 0, Numbering("etl-0", 0))
        shared(options.connection).close()
    with pytest.raises(NotStored, match=r"sequence id 2 under etl-0, but perhaps later ones.*sendTimeoutMs"):
        BatchSink(VALUES, options).commit([end])


def test_the_tasks_of_a_worker_share_its_connection(spark: SparkSession) -> None:
    """Spark has a worker for each thread, and one task after the other goes to it."""
    tasks = 16
    peer = _Topic(lambda producer, number, _: receipt(producer, number))
    with FakeBroker(peer) as fake:
        peer.url = fake.url
        # Each sends one message, whose sequence id is 0.
        rows = spark.range(0, tasks, 1, numPartitions=tasks).selectExpr("CAST('0' AS BINARY) AS value")
        rows.write.format("pulsar").option("service.url", fake.url).option("topic", "t").mode("append").save()
        sent = [sum(frame.command.type == Type.SEND for frame in frames) for frames in fake.frames]
    connections = [messages for messages in sent if messages]
    assert sum(connections) == len(peer.opened) == tasks
    assert len(connections) <= tasks / 2


def test_a_topic_that_does_not_deduplicate_is_refused_where_the_broker_can_be_asked(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    options = writing(broker, topic, **{"admin.url": broker.http_url})
    publish(client, topic, [b"0"])
    with pytest.raises(PulsarSourceError, match=r"does not deduplicate, which pulsar\.producer\.producerName rests on"):
        send(options, of(0), b"1")
    assert stored(client, topic) == [b"0"]
    send(replace(options, topic=deduplicating(broker)), of(0), b"1")


def unopened(broker: BrokerProcess, topic: str, name: str) -> Producer:
    return Producer(shared(writing(broker, topic).connection), topic, Window(), name=name)


def test_a_producer_waits_for_its_name_and_says_so(
    broker: BrokerProcess, client: pulsar.Client, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = client.create_producer(topic, producer_name="etl")
    opened: list[Producer] = []
    waiting = threading.Thread(target=lambda: opened.append(open_producer(unopened(broker, topic, "etl"))))
    waiting.start()
    printed: list[str] = []

    def waits() -> bool:
        printed.append(capfd.readouterr().err)
        return f"waiting for the producer name etl on {topic}, which is in use" in "".join(printed)

    eventually(waits, what="a word about the wait")
    assert not opened
    before.close()
    waiting.join(60)
    assert [each.name for each in opened] == ["etl"]
    opened[0].close()


def test_a_task_waits_for_the_name_that_a_task_before_it_still_holds(
    broker: BrokerProcess, client: pulsar.Client, capfd: pytest.CaptureFixture[str]
) -> None:
    target = deduplicating(broker)
    before = client.create_producer(target, producer_name=of(7).name)
    sending = threading.Thread(target=send, args=(writing(broker, target), of(7), b"1", b"2"))
    sending.start()
    word = f"waiting for the producer name {of(7).name} on {target}, which is in use"
    eventually(lambda: word in capfd.readouterr().err, what="a word about the wait")
    assert stored(client, target) == []
    before.close()
    sending.join(60)
    assert stored(client, target) == [b"1", b"2"]


def test_a_replay_waits_for_the_names_of_the_one_before(
    broker: BrokerProcess, client: pulsar.Client, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    options = writing(broker, topic, **{"pulsar.producer.producerName": "again"})
    row = {"task": 0, "partition": 0, "source": "t", "ledger": 1, "key": None}
    columns = {"value": pa.array([b"1", b"2"], pa.binary()), "sequence": pa.array([1, 2], pa.int64())}
    messages = Messages(pa.RecordBatch.from_pydict(columns))
    before, after = (Resender(None, options, [topic], topic) for _ in range(2))
    before.send(row, messages, 0)
    sending = threading.Thread(target=after.send, args=(row, messages, 1))
    sending.start()
    eventually(lambda: "waiting for the producer name again-" in capfd.readouterr().err, what="a word about the wait")
    assert before.finish() == 1
    sending.join(60)
    assert after.finish() == 1
    assert stored(client, topic) == [b"1", b"2"]


def test_a_name_that_stays_in_use_is_refused_by_name(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    before = client.create_producer(topic, producer_name="etl")
    with pytest.raises(PulsarSourceError, match="the producer name etl has been in use for 1 s"):
        open_producer(unopened(broker, topic, "etl"), busy_for_s=1)
    before.close()
