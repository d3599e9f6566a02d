"""The pipeline's readers and subscriptions when brokers and connections go: nothing is lost or doubled."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import pytest
from heliograph_spark.plan.errors import JobError, PulsarSourceError
from heliograph_spark.plan.positions import Position
from heliograph_spark.wire.brokers import Brokers, shared
from heliograph_spark.wire.entry_reader import EARLIEST, Entry, EntryReader
from heliograph_spark.wire.stream import Address, Stream
from heliograph_spark.wire.subscription import HeldSubscription

from tests.support.broker_process import BrokerProcess
from tests.support.clients import backlog, connect, numbers, payloads, publish, publish_batch, receive_many, rest
from tests.support.entry_reading import (
    connection_to,
    contents,
    everything,
    position_of,
    read_count,
    read_to_end,
    read_until,
    whole,
)
from tests.support.polling import eventually

MakeBroker = Callable[..., BrokerProcess]


@pytest.fixture
def own_broker(broker_factory: MakeBroker) -> BrokerProcess:
    """A broker of the test's own, with small ledgers."""
    broker = broker_factory(environment={"HELIOGRAPH_LEDGER_MAX_ENTRIES": "50"})
    broker.start()
    rest(broker, "POST", "namespaces/public/default/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    return broker


@pytest.fixture
def brokers(own_broker: BrokerProcess) -> Iterator[Brokers]:
    made = Brokers(connection_to(own_broker.service_url))
    yield made
    made.close()


def test_a_reader_continues_after_its_broker_was_killed(
    own_broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    client = connect(own_broker.service_url)
    publish(client, topic, numbers(1, 5000), block_if_queue_full=True)
    with EntryReader(brokers, whole(topic), EARLIEST, {"receiver_queue_size": 700}) as reader:
        found = read_until(reader, lambda entries: len(entries) >= 100)
        for _ in range(2):
            own_broker.kill9()
            own_broker.start()
            found += read_until(reader, lambda entries: len(entries) >= 900)
        found += read_until(reader, lambda entries: len(found) + len(entries) >= 5000)
        publish(client, topic, [b"last"])
        found += read_to_end(reader)
    client.close()
    assert contents(found) == [*numbers(1, 5000), b"last"]


def test_a_broker_that_comes_back_while_a_reader_waits_is_found(
    own_broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    client = connect(own_broker.service_url)
    publish(client, topic, numbers(1, 10))
    with EntryReader(brokers, whole(topic), EARLIEST) as reader:
        found = read_count(reader, 10)
        own_broker.kill9()
        assert reader.read(0.3) == []
        starting = threading.Timer(1.0, own_broker.start)
        starting.start()
        # A question waits for the broker, too.
        assert reader.last_position() == position_of(found[-1])
        starting.join()
        publish(client, topic, [b"11"])
        assert contents(read_count(reader, 1)) == [b"11"]
    client.close()


def test_a_reader_whose_broker_stays_away_ends_in_time(own_broker: BrokerProcess, brokers: Brokers, topic: str) -> None:
    client = connect(own_broker.service_url)
    publish(client, topic, numbers(1, 10))
    client.close()
    with EntryReader(brokers, whole(topic), EARLIEST, lost_for_s=1.0) as reader:
        read_count(reader, 10)
        own_broker.kill9()
        expected = r"no connection could be made \(service\.url\).*so it was for 1 s \(pollTimeoutMs\)"
        with pytest.raises(PulsarSourceError, match=expected):
            read_until(reader, lambda entries: False)
        with pytest.raises(PulsarSourceError, match=expected):
            reader.last_position()


def _at_least(count: int, entries: list[Entry]) -> bool:
    return len(entries) >= count


def test_a_reader_continues_after_its_topic_was_unloaded(
    own_broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    client = connect(own_broker.service_url)
    publish(client, topic, numbers(1, 3000))
    with EntryReader(brokers, whole(topic), EARLIEST, {"receiver_queue_size": 300}) as reader:
        found = read_until(reader, lambda entries: len(entries) >= 200)
        while len(found) < 3000:
            rest(own_broker, "PUT", f"persistent/public/default/{topic}/unload")
            enough = partial(_at_least, min(3000 - len(found), 400))
            found += read_until(reader, enough)
    assert contents(found) == numbers(1, 3000)
    client.close()


def test_a_topic_that_was_deleted_is_named(own_broker: BrokerProcess, brokers: Brokers, topic: str) -> None:
    client = connect(own_broker.service_url)
    publish(client, topic, numbers(1, 3))
    client.close()
    with EntryReader(brokers, whole(topic), EARLIEST) as reader:
        read_count(reader, 3)
        rest(own_broker, "DELETE", f"persistent/public/default/{topic}?force=true")
        with pytest.raises(PulsarSourceError, match=rf"reading {whole(topic)}: .*TopicNotFound"):
            read_until(reader, lambda entries: False)


def test_a_broken_link_is_not_used_again(own_broker: BrokerProcess, topic: str) -> None:
    client = connect(own_broker.service_url)
    publish(client, topic, numbers(1, 10))
    connection = connection_to(own_broker.service_url)
    brokers = shared(connection)
    assert shared(connection_to(own_broker.service_url)) is brokers
    assert shared(connection_to(own_broker.service_url, listener_name="x")) is not brokers
    first = brokers.owner(whole(topic))
    assert brokers.owner(whole(topic)) is first
    own_broker.kill9()
    own_broker.start()
    assert len(everything(brokers, topic)) == 10
    assert first.lost
    assert brokers.owner(whole(topic)) is not first
    brokers.close()
    another = shared(connection)
    assert another is not brokers
    another.close()
    client.close()


def test_a_forked_process_has_links_of_its_own(own_broker: BrokerProcess, topic: str) -> None:
    client = connect(own_broker.service_url)
    publish(client, topic, numbers(1, 200))
    client.close()
    brokers = shared(connection_to(own_broker.service_url))
    with EntryReader(brokers, whole(topic), EARLIEST, {"receiver_queue_size": 10}) as reader:
        found = read_until(reader, lambda entries: len(entries) >= 20)
        read_here, write_there = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                theirs = found + read_to_end(reader)
                own = everything(shared(connection_to(own_broker.service_url)), topic)
                status = 0 if contents(theirs) == contents(own) == numbers(1, 200) else 2
            finally:
                os.write(write_there, bytes([status]))
                os._exit(0)
        os.close(write_there)
        answer = os.read(read_here, 1)
        os.close(read_here)
        os.waitpid(child, 0)
        assert answer == b"\0"
        found += read_until(reader, lambda entries: len(found) + len(entries) >= 200)
        assert contents(found) == numbers(1, 200)
    brokers.close()


def test_a_peer_that_takes_bytes_slowly_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # Four seconds pass whenever somebody looks.
    clock = itertools.count(step=4)
    monkeypatch.setattr("heliograph_spark.wire.stream.time", SimpleNamespace(monotonic=clock.__next__))
    taken = 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = Stream(Address("127.0.0.1", server.getsockname()[1]), {}, secured=False, within_s=30)
        peer, _ = server.accept()

        def take() -> None:
            nonlocal taken
            while data := peer.recv(1 << 20):
                taken += len(data)

        taking = threading.Thread(target=take)
        taking.start()
        try:
            stream.send(bytes(64 << 20), 10)
        finally:
            stream.end()
            taking.join(60)
            peer.close()
            stream.close()
    assert taken == 64 << 20


def test_of_several_hosts_the_one_that_answers_is_used(own_broker: BrokerProcess, topic: str) -> None:
    client = connect(own_broker.service_url)
    publish(client, topic, numbers(1, 10))
    client.close()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    brokers = Brokers(connection_to(f"pulsar://127.0.0.1:{port},{own_broker.service_url.removeprefix('pulsar://')}"))
    assert contents(everything(brokers, topic)) == numbers(1, 10)
    brokers.close()


# A subscription that is held


def test_a_held_subscription_keeps_what_is_not_acknowledged(
    own_broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    client = connect(own_broker.service_url)
    publish(client, topic, numbers(1, 120))
    publish_batch(client, topic, numbers(121, 130))
    entries = everything(brokers, topic)
    batch = entries[-1]
    with HeldSubscription(brokers, whole(topic), "held") as held:
        assert backlog(own_broker, topic, "held") == 130
        held.acknowledge(position_of(entries[59]))
        assert backlog(own_broker, topic, "held") == 70
        held.acknowledge(Position(batch.ledger, batch.entry, 3))
        assert backlog(own_broker, topic, "held") == 10
        held.acknowledge(Position(batch.ledger, batch.entry, 3), batch_messages=10)
        assert backlog(own_broker, topic, "held") == 6
    consumer = client.subscribe(topic, "held")
    assert payloads(receive_many(consumer, 6)) == numbers(125, 130)
    consumer.close()
    with HeldSubscription(brokers, whole(topic), "held") as held:
        held.acknowledge(Position(batch.ledger, batch.entry, 9), batch_messages=10)
        assert backlog(own_broker, topic, "held") == 0
    client.close()


def test_a_subscription_that_another_consumer_has_is_refused_by_name(
    own_broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    client = connect(own_broker.service_url)
    publish(client, topic, numbers(1, 3))
    consumer = client.subscribe(topic, "held")
    held = HeldSubscription(brokers, whole(topic), "held", busy_for_s=0.3)
    with pytest.raises(JobError, match=rf"{whole(topic)}: another consumer has the subscription held"):
        held.hold()
    waiting = HeldSubscription(brokers, whole(topic), "held")
    leaving = threading.Timer(0.5, consumer.close)
    leaving.start()
    waiting.hold()
    leaving.join()
    waiting.close()
    client.close()


def test_a_held_subscription_is_held_again_after_a_kill(
    own_broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    client = connect(own_broker.service_url)
    publish(client, topic, numbers(1, 60))
    entries = everything(brokers, topic)
    with HeldSubscription(brokers, whole(topic), "held") as held:
        held.acknowledge(position_of(entries[9]))
        own_broker.kill9()
        own_broker.start()
        assert backlog(own_broker, topic, "held") == 50
        held.acknowledge(position_of(entries[54]))
        assert backlog(own_broker, topic, "held") == 5
        rest(own_broker, "PUT", f"persistent/public/default/{topic}/unload")
        held.acknowledge(position_of(entries[56]))
        eventually(lambda: backlog(own_broker, topic, "held") == 3, what="the acknowledgment")
    client.close()
