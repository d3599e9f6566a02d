"""The questions of a stream's driver to a broker in a trigger, counted by a relay between the two."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.plan.side_by_side import MOST_AT_ONCE
from heliograph_spark.run import source
from heliograph_spark.run.schemas import RAW, columns_of
from heliograph_spark.run.source import PulsarDataSource, StreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.broker_process import BrokerProcess
from tests.support.clients import backlog, connect, create_partitions
from tests.support.relay import Relay, relayed
from tests.support.wire_client import Type, take_frames

PARTITIONS = 50
TOPIC = "persistent://public/default/many"
#: Commands that are for the connection or have no answer, and those of a producer, which are not the driver's.
_SILENT = (Type.CONNECT, Type.PING, Type.PONG, Type.FLOW, Type.PRODUCER, Type.SEND, Type.CLOSE_PRODUCER)


class Question(NamedTuple):
    """A command or path, and the topic that it is about."""

    what: str
    topic: str


class Questions:
    """The questions that passed two relays, one to the binary port and one to the REST API."""

    def __init__(self, binary: Relay, rest: Relay) -> None:
        self._binary, self._rest = binary, rest
        #: By the number of a connection: how many bytes of it were read, and the topic of each of its consumers.
        self._read: Counter[tuple[str, int]] = Counter()
        self._topics: dict[tuple[int, int], str] = {}

    @property
    def connections(self) -> int:
        """The number of connections to the binary port that were ever made."""
        return len(self._binary.streams)

    def take(self) -> Counter[Question]:
        """Return how often each question came since the last call."""
        found: Counter[Question] = Counter()
        for at, stream in enumerate(self._binary.streams):
            found.update(self._commands(at, self._new("binary", at, stream)))
        for at, stream in enumerate(self._rest.streams):
            for path in re.findall(rb"GET /admin/v2/(\S+) HTTP", self._new("rest", at, stream)):
                kind, tenant, namespace, name, what = path.decode().split("/", 4)
                found[Question(what, f"{kind}://{tenant}/{namespace}/{name}")] += 1
        return found

    def _new(self, port: str, at: int, stream: bytearray) -> bytes:
        new = bytes(stream[self._read[port, at] :])
        self._read[port, at] += len(new)
        return new

    def _commands(self, at: int, stream: bytes) -> Iterator[Question]:
        # A question is passed on whole before its answer comes, and nobody waits for half of one.
        for frame in take_frames(buffer := bytearray(stream)):
            kind = frame.command.type
            if kind in _SILENT:
                continue
            if kind == Type.SUBSCRIBE:
                self._topics[at, frame.command.subscribe.consumer_id] = frame.command.subscribe.topic
            body = frame.body
            topic = getattr(body, "topic", "") or self._topics[at, body.consumer_id]
            yield Question(wire.BaseCommand.Type.Name(kind), topic)
        assert not buffer


@pytest.fixture
def relays(tmp_path: Path) -> Iterator[tuple[BrokerProcess, Relay, Relay]]:
    """A broker with a topic of many partitions, and relays to its two ports."""
    rest = Relay()
    with relayed(tmp_path / "data") as (broker, binary):
        rest.serve(urlsplit(broker.http_url).port or 0)
        create_partitions(broker, TOPIC.rpartition("/")[2], PARTITIONS)
        yield broker, binary, rest
    rest.stop()


@contextmanager
def streaming(binary: Relay, rest: Relay, **options: str) -> Iterator[StreamReader]:
    urls = {"service.url": f"pulsar://127.0.0.1:{binary.port}", "admin.url": f"http://127.0.0.1:{rest.port}"}
    made = PulsarDataSource({**urls, "topic": TOPIC, "startingOffsets": "earliest", **options})
    reader = made.streamReader(columns_of(RAW, TOPIC))
    assert isinstance(reader, StreamReader)
    try:
        yield reader
    finally:
        reader.stop()


def send_to_each(service_url: str, count: int = 1) -> None:
    client = connect(service_url)
    for number in range(PARTITIONS):
        producer = client.create_producer(f"{TOPIC}-partition-{number}")
        for _ in range(count):
            producer.send(b"new")
    client.close()


def of_each(*asked: str) -> Counter[Question]:
    return Counter(Question(what, f"{TOPIC}-partition-{at}") for at in range(PARTITIONS) for what in asked)


def test_a_trigger_asks_each_question_of_a_partition_once_over_connections_that_are_kept(
    relays: tuple[BrokerProcess, Relay, Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether partitions were added is asked every few seconds, by the time and not by the trigger.
    monkeypatch.setattr(source, "LOOKUP_INTERVAL_S", 3600.0)
    broker, binary, rest = relays
    asked = Questions(binary, rest)
    with streaming(binary, rest, predefinedSubscription="held") as reader:
        offset = reader.initialOffset()
        offset = reader.latestOffset(offset, ReadAllAvailable())
        send_to_each(broker.service_url)
        # The first trigger that finds something opens what later ones keep.
        end = reader.latestOffset(offset, ReadAllAvailable())
        reader.partitions(offset, end)
        reader.commit(end)
        asked.take()
        connections = asked.connections

        assert reader.latestOffset(end, ReadAllAvailable()) == end
        reader.commit(end)
        assert asked.take() == of_each("GET_LAST_MESSAGE_ID")
        assert asked.connections == connections

        send_to_each(broker.service_url)
        asked.take()
        connections = asked.connections
        new = reader.latestOffset(end, ReadAllAvailable())
        assert len(reader.partitions(end, new)) == PARTITIONS
        assert asked.take() == of_each("GET_LAST_MESSAGE_ID", "internalStats")
        reader.commit(new)
        assert asked.take() == of_each("SUBSCRIBE", "ACK", "CLOSE_CONSUMER")
        assert asked.connections == connections
        # A trigger with fewer questions at a time than a later one has opened fewer to the REST API.
        assert len(rest.streams) <= MOST_AT_ONCE
        assert backlog(broker, f"{TOPIC.rpartition('/')[2]}-partition-7", "held") == 0


def test_the_start_of_a_stream_asks_each_question_of_a_partition_once(
    relays: tuple[BrokerProcess, Relay, Relay],
) -> None:
    broker, binary, rest = relays
    send_to_each(broker.service_url)
    asked = Questions(binary, rest)
    asked.take()
    with streaming(binary, rest) as reader:
        asked.take()
        begun = reader.initialOffset()
        found = asked.take()
    assert len(begun) == PARTITIONS
    of_partitions = Counter({each: count for each, count in found.items() if each.topic != TOPIC})
    assert of_partitions == of_each("LOOKUP", "SUBSCRIBE", "GET_LAST_MESSAGE_ID", "CLOSE_CONSUMER", "internalStats")
    assert max(found.values()) == 1
