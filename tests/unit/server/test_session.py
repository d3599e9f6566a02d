"""A session on virtual time.

What an unknown client costs, which connections are cut and when, and that an ended one leaves nothing behind.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frame_reader import HANDSHAKE_FRAME_BYTES
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.producer import Producer, ProducerRegistry
from heliograph_broker.messaging.delivery.subscription import Subscription

from tests.support.core import Core
from tests.support.entries import make_entry
from tests.support.virtual_connection import FarSide, VirtualServer
from tests.support.wire_client import Frame, Type, encode

FAILOVER = wire.CommandSubscribe.Failover
SHARED = wire.CommandSubscribe.Shared


@pytest.fixture
def server(tmp_path: Path) -> Iterator[VirtualServer]:
    core = Core(tmp_path / "data", keep_alive_interval_s=10, max_connection_write_bytes=64 * 1024)
    yield VirtualServer(core)
    core.close()


def subscribe(client: FarSide, consumer_id: int = 1, **fields: object) -> None:
    fields = {"topic": "t", "subscription": "s", "subType": SHARED, "consumer_id": consumer_id} | fields
    assert isinstance(client.request(Type.SUBSCRIBE, **fields), wire.CommandSuccess)


# Before CONNECT


def test_a_frame_larger_than_a_handshake_ends_a_connection_that_did_not_connect(server: VirtualServer) -> None:
    client = server.connect(handshake=False)
    client.send_raw(struct.pack(">II", 5 * 1024 * 1024, 20))
    (answer,) = client.take()
    assert f"before CONNECT, the largest allowed is {HANDSHAKE_FRAME_BYTES}" in answer.body.message
    assert client.lost
    assert not server.listener.connections


def test_four_bytes_are_enough_to_refuse_it(server: VirtualServer) -> None:
    client = server.connect(handshake=False)
    client.send_raw(struct.pack(">I", HANDSHAKE_FRAME_BYTES + 1))
    client.take()
    assert client.lost


def test_connect_and_a_large_entry_may_come_in_one_read(server: VirtualServer) -> None:
    client = server.connect(handshake=False)
    connect = encode(Type.CONNECT, client_version="test", protocol_version=21)
    producer = encode(Type.PRODUCER, topic="t", producer_id=1, request_id=1)
    client.send_raw(connect + producer + encode(Type.SEND, make_entry(bytes(100_000)), producer_id=1, sequence_id=0))
    server.core.commit()
    kinds = [frame.command.type for frame in client.take()]
    assert sorted(kinds) == [Type.CONNECTED, Type.SEND_RECEIPT, Type.PRODUCER_SUCCESS]


def test_a_connection_that_never_connects_is_cut(server: VirtualServer) -> None:
    silent, talking = server.connect(handshake=False), server.connect()
    trickling = server.connect(handshake=False)
    for byte in encode(Type.CONNECT, client_version="slow", protocol_version=21)[:9]:
        server.advance(1000)
        trickling.send_raw(bytes([byte]))
    assert not silent.lost
    server.advance(1000)
    assert (silent.lost, trickling.lost, talking.lost) == (True, True, False)


def test_a_silent_connection_holds_no_buffer(server: VirtualServer) -> None:
    before_connect = server.connect(handshake=False)
    before_connect.send_raw(b"\0\0")
    connected = server.connect()
    for client in (before_connect, connected):
        # Connections receive into one shared buffer; a connection keeps at most an unfinished frame.
        assert len(client.connection._received) <= 2


# Not read by the client


def test_a_client_that_does_not_read_is_not_read_from_until_it_does(server: VirtualServer) -> None:
    for number in range(200):
        server.core.topic(f"some-topic-of-many-{number}")
    server.core.commit()
    client = server.connect()
    client.reads = False
    request = encode(Type.GET_TOPICS_OF_NAMESPACE, request_id=1, namespace="public/default")
    client.send_raw(request * 1500)
    server.loop.run()
    most = 2 * server.core.config.max_connection_write_bytes
    one_answer = 16 * 1024
    assert not client.reading
    assert client.connection.output.unwritten_bytes < most + server.core.config.max_connection_write_bytes + one_answer
    answers = 0
    client.reads = True
    for _ in range(200):
        client.read()
        answers += len(client.take())
    assert answers == 1500
    assert client.reading


def test_answers_are_counted_before_they_are_handed_to_the_transport(server: VirtualServer) -> None:
    client = server.connect()
    client.reads = False
    output = client.connection.output
    for _ in range(20):
        output.write(bytes(10_000))
    assert output.unwritten_bytes == 200_000
    assert len(client.unread) > 64 * 1024
    assert not client.reading


def test_a_turn_ends_after_a_while_so_that_others_get_theirs(server: VirtualServer) -> None:
    handled: list[FarSide] = []
    slow, other = server.connect(), server.connect()

    def take_long(session: object, command: wire.BaseCommand) -> None:
        handled.append(slow if session is slow.session else other)
        server.core.clock.advance_ms(6)

    server.listener.handlers = server.listener.handlers | {Type.LOOKUP: take_long}
    lookup = encode(Type.LOOKUP, topic="t", request_id=1)
    slow.send_raw(lookup * 4)
    other.send_raw(lookup)
    server.loop.run()
    assert handled == [slow, slow, other, slow, slow]
    assert slow.reading


def test_a_flood_of_cheap_commands_has_its_turns_too(server: VirtualServer) -> None:
    handled: list[FarSide] = []
    flood, other = server.connect(), server.connect()

    def take_a_while(session: object, command: wire.BaseCommand) -> None:
        handled.append(flood if session is flood.session else other)
        server.core.clock.advance_ms(1)

    server.listener.handlers = server.listener.handlers | {Type.PING: take_a_while}
    flood.send_raw(encode(Type.PING) * 2000)
    assert not flood.connection.held
    other.send(Type.PING)
    server.loop.run()
    assert handled.index(other) == 16
    assert len(handled) == 2001
    assert flood.reading


# Silent, half-open, stuck


def test_a_silent_client_is_pinged_once_and_then_cut_though_it_takes_nothing(server: VirtualServer) -> None:
    client = server.connect()
    client.reads = False
    server.advance(12_500)
    assert client.unread == encode(Type.PING)
    server.advance(7_400)
    assert not client.lost
    server.advance(2_600)
    assert client.lost


def test_a_client_that_answers_pings_stays(server: VirtualServer) -> None:
    client = server.connect()
    for _ in range(20):
        server.advance(12_500)
        for frame in client.take():
            assert frame.command.type == Type.PING
            client.send(Type.PONG)
    assert not client.lost


def test_messages_of_a_client_that_stopped_go_to_the_next_one(server: VirtualServer) -> None:
    stopped, next_one = server.connect(), server.connect()
    subscribe(stopped)
    stopped.send(Type.FLOW, consumer_id=1, messagePermits=100)
    stopped.reads = False
    server.publish(40, bytes(8000))
    subscribe(next_one)
    next_one.send(Type.FLOW, consumer_id=1, messagePermits=100)
    got = 0
    for _ in range(30):
        server.advance(1000)
        got += sum(frame.command.type == Type.MESSAGE for frame in next_one.take())
        next_one.send(Type.PING)
    assert stopped.lost
    assert got == 40


def test_a_consumer_is_notified_whether_it_is_active_when_its_client_knows_it(server: VirtualServer) -> None:
    client, other = server.connect(), server.connect()
    failover = {"topic": "t", "subscription": "s", "subType": FAILOVER}

    def changes(frames: list[Frame]) -> list[tuple[int, bool]]:
        bodies = [frame.body for frame in frames if frame.command.type == Type.ACTIVE_CONSUMER_CHANGE]
        return [(body.consumer_id, body.is_active) for body in bodies]

    refused = client.answers(Type.SUBSCRIBE, **failover | {"topic": "no://t"}, consumer_id=1)
    assert [frame.command.type for frame in refused] == [Type.ERROR]
    # The Go client forgets what comes before it has handled the answer, so the first FLOW shows that it has.
    for consumer, number, active in ((client, 1, True), (client, 2, False), (other, 1, False)):
        answers = consumer.answers(Type.SUBSCRIBE, **failover, consumer_id=number)
        assert [frame.command.type for frame in answers] == [Type.SUCCESS]
        consumer.send(Type.FLOW, consumer_id=number, messagePermits=1)
        assert changes(consumer.take()) == [(number, active)]
        consumer.send(Type.FLOW, consumer_id=number, messagePermits=1)
        assert changes(consumer.take()) == []
    # A consumer without a queue asks for nothing before it is used.
    other.answers(Type.SUBSCRIBE, **failover, consumer_id=3)
    server.advance(1000)
    assert changes(other.take()) == [(3, False)]
    # A later change goes at once to the clients that know their consumer.
    assert changes(client.answers(Type.CLOSE_CONSUMER, consumer_id=1)) == [(2, True)]
    assert not client.session.consumers.unnotified
    assert not other.session.consumers.unnotified


def test_a_stopped_client_gives_up_its_producer_name_and_its_place_in_failover(server: VirtualServer) -> None:
    stopped, heir = server.connect(), server.connect()
    stopped.request(Type.PRODUCER, topic="t", producer_id=1, producer_name="mine")
    subscribe(stopped, subType=FAILOVER, consumer_name="a")
    subscribe(heir, subType=FAILOVER, consumer_name="b")
    stopped.reads = False
    changes = []
    for _ in range(25):
        server.advance(1000)
        changes += [f.body.is_active for f in heir.take() if f.command.type == Type.ACTIVE_CONSUMER_CHANGE]
        heir.send(Type.PING)
    assert changes == [False, True]
    answer = heir.request(Type.PRODUCER, topic="t", producer_id=1, producer_name="mine")
    assert isinstance(answer, wire.CommandProducerSuccess)


def test_a_client_that_reads_slowly_is_not_taken_for_dead(server: VirtualServer) -> None:
    client = server.connect()
    client.reads = False
    for _ in range(60):
        client.connection.output.write(bytes(10_000))
    server.loop.run()
    assert not client.reading
    for _ in range(50):
        server.advance(1000)
        client.read(1000)
    assert not client.lost
    server.advance(22_500)
    assert client.lost


def test_closing_gives_up_everything_at_once_and_ends_though_nobody_reads(server: VirtualServer) -> None:
    stuck, next_one = server.connect(), server.connect()
    subscribe(stuck)
    subscribe(next_one)
    stuck.reads = False
    stuck.send_raw(struct.pack(">II", 4, 0))
    server.loop.run()
    (subscription,) = server.core.topic().subscriptions.values()
    assert [consumer.sink for consumer in subscription.consumers] == [next_one.session.consumers]
    assert not stuck.lost
    server.advance(5000)
    assert stuck.lost
    assert list(server.listener.connections) == [next_one.connection]


def test_a_mistake_in_one_topic_does_not_keep_what_the_client_has_in_others(
    server: VirtualServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = server.connect()
    for number, topic in enumerate(("a", "b", "c")):
        subscribe(client, number, topic=topic)
        client.request(Type.PRODUCER, topic=topic, producer_id=number)
    topics = [server.core.topic(name) for name in ("a", "b", "c")]
    remove_consumer = Subscription.remove_consumer

    def remove(self: Subscription, consumer: Consumer, **options: bool) -> None:
        if self.topic is topics[1]:
            raise RuntimeError("a mistake")
        remove_consumer(self, consumer, **options)

    monkeypatch.setattr(Subscription, "remove_consumer", remove)
    remove_producer = ProducerRegistry.remove

    def forget(self: ProducerRegistry, producer: Producer) -> Producer | None:
        if producer.topic is topics[2]:
            raise RuntimeError("another one")
        return remove_producer(self, producer)

    monkeypatch.setattr(ProducerRegistry, "remove", forget)
    client.connection.close("test")
    server.loop.run()
    assert [len(topic.subscriptions["s"].consumers) for topic in topics] == [0, 1, 0]
    assert [len(topic.producers) for topic in topics] == [0, 0, 1]
    assert not server.listener.connections


def test_an_end_that_is_read_is_not_cut(server: VirtualServer) -> None:
    client = server.connect()
    client.send_raw(struct.pack(">II", 4, 0))
    (answer,) = client.take()
    assert "malformed" in answer.body.message
    assert client.lost


# Nothing is left


def test_readers_that_seek_and_close_leave_nothing(server: VirtualServer) -> None:
    client = server.connect()
    for number in range(3000):
        subscribe(client, number, subscription=f"reader-{number}", durable=False)
        client.send(Type.SEEK, consumer_id=number, request_id=2, message_publish_time=1)
        server.core.commit()
        if number % 2:
            subscribe(client, number, subscription=f"reader-{number}", durable=False)
        client.send(Type.CLOSE_CONSUMER, consumer_id=number, request_id=3)
        client.take()
    server.advance(10_000)
    assert not server.core.topic().subscriptions
    assert not client.session.consumers.sought_readers
    assert not client.session.consumers.open


def test_a_reader_that_is_to_come_back_counts_as_a_consumer(server: VirtualServer) -> None:
    client = server.connect()
    subscribe(client, 1, subscription="one", durable=False)
    client.send(Type.SEEK, consumer_id=1, request_id=2, message_publish_time=1)
    server.core.commit()
    assert not client.session.consumers.open
    assert client.session.consumer_count == 1
    subscribe(client, 1, subscription="one", durable=False)
    assert client.session.consumer_count == 1


@pytest.mark.parametrize("closes", [False, True])
def test_a_reader_that_comes_back_to_another_subscription_leaves_nothing(server: VirtualServer, closes: bool) -> None:
    client = server.connect()
    for number in range(3):
        subscribe(client, subscription=f"reader-{number}", durable=False)
        client.send(Type.SEEK, consumer_id=1, request_id=2, message_publish_time=1)
        server.core.commit()
        if closes:
            client.send(Type.CLOSE_CONSUMER, consumer_id=1, request_id=3)
    subscribe(client, subscription="last", durable=False)
    server.advance(10_000)
    assert list(server.core.topic().subscriptions) == ["last"]


def test_a_reader_that_comes_back_after_seeking_keeps_its_subscription(server: VirtualServer) -> None:
    client = server.connect()
    subscribe(client, subscription="reader", durable=False)
    client.send(Type.SEEK, consumer_id=1, request_id=2, message_publish_time=1)
    server.core.commit()
    subscribe(client, subscription="reader", durable=False)
    assert list(server.core.topic().subscriptions) == ["reader"]
    client.connection.close("test")
    assert not server.core.topic().subscriptions


def test_a_reader_may_be_closed_before_it_comes_back_from_its_seek(server: VirtualServer) -> None:
    client = server.connect()
    for _ in range(2):
        subscribe(client, subscription="reader", durable=False)
        (subscription,) = server.core.topic().subscriptions.values()
        client.send(Type.SEEK, consumer_id=1, request_id=2, message_publish_time=1)
        server.core.commit()
        client.send(Type.CLOSE_CONSUMER, consumer_id=1, request_id=3)
        server.advance(9000)
        subscribe(client, subscription="reader", durable=False)
        server.advance(9000)
        assert list(server.core.topic().subscriptions.values()) == [subscription]
        client.send(Type.CLOSE_CONSUMER, consumer_id=1, request_id=4)
        assert not server.core.topic().subscriptions


def test_readers_that_are_closed_after_their_seek_wait_with_one_timer(server: VirtualServer) -> None:
    client = server.connect()
    timers = server.loop.timers
    for number in range(20):
        subscribe(client, subscription=f"reader-{number}", durable=False)
        client.send(Type.SEEK, consumer_id=1, request_id=2, message_publish_time=1)
        server.core.commit()
        for _ in range(3):
            client.send(Type.CLOSE_CONSUMER, consumer_id=1, request_id=3)
    assert server.loop.timers == timers + 1


def test_closed_producers_are_remembered_for_as_long_as_messages_may_be_under_way(server: VirtualServer) -> None:
    client = server.connect()
    for number in range(3000):
        client.request(Type.PRODUCER, topic="t", producer_id=number)
        client.request(Type.CLOSE_PRODUCER, producer_id=number)
        server.core.clock.advance_ms(1000)
        client.send(Type.SEND, make_entry(b"late"), producer_id=number, sequence_id=0)
        assert not client.closing
    assert len(client.session.producers.closed) < 70


# What one connection may have


def test_one_producer_consumer_or_watcher_more_than_allowed_is_refused_by_name(tmp_path: Path) -> None:
    core = Core(tmp_path / "data", max_handles_per_connection=3)
    server = VirtualServer(core)
    client, other = server.connect(), server.connect()
    subscribe(client)
    client.request(Type.PRODUCER, topic="t", producer_id=1)
    watch = {"watcher_id": 1, "namespace": "public/default", "topics_pattern": ".*"}
    client.request(Type.WATCH_TOPIC_LIST, **watch)
    for kind, fields in (
        (Type.SUBSCRIBE, {"topic": "t2", "subscription": "s2", "subType": SHARED, "consumer_id": 2}),
        (Type.PRODUCER, {"topic": "t2", "producer_id": 2}),
        (Type.WATCH_TOPIC_LIST, watch | {"watcher_id": 2}),
    ):
        refused = client.request(kind, **fields)
        assert refused.error == wire.NotAllowedError
        assert "watchers on a connection: 3 (max_handles_per_connection)" in refused.message
    assert [str(name) for name in core.broker.directory.topics] == ["persistent://public/default/t"]
    # The same one again is no other one; another connection has its own; one that was closed leaves its place.
    assert isinstance(client.request(Type.WATCH_TOPIC_LIST, **watch), wire.CommandWatchTopicListSuccess)
    assert isinstance(other.request(Type.PRODUCER, topic="t", producer_id=1), wire.CommandProducerSuccess)
    client.request(Type.CLOSE_PRODUCER, producer_id=1)
    assert isinstance(client.request(Type.PRODUCER, topic="t", producer_id=2), wire.CommandProducerSuccess)
    core.close()


@pytest.mark.parametrize(
    ("kind", "field", "fields"),
    [
        (Type.PRODUCER, "metadata", {"producer_id": 1}),
        (Type.SUBSCRIBE, "metadata", {"subscription": "s", "subType": SHARED, "consumer_id": 1}),
        (Type.SUBSCRIBE, "subscription_properties", {"subscription": "s", "subType": SHARED, "consumer_id": 1}),
    ],
)
def test_properties_larger_than_anybody_needs_are_refused_and_leave_nothing(
    server: VirtualServer, kind: int, field: str, fields: dict[str, object]
) -> None:
    client = server.connect()
    pairs = [wire.KeyValue(key=f"key-{number}", value="v" * 1000) for number in range(70)]
    refused = client.request(kind, topic="t", **fields, **{field: pairs})
    assert refused.error == wire.NotAllowedError
    assert "at most 65536 are allowed" in refused.message
    topics = [topic for topic in server.core.broker.directory.topics.values() if topic.subscriptions or topic.producers]
    assert not topics


def test_ranges_of_hashes_are_kept_only_where_they_count(server: VirtualServer) -> None:
    client = server.connect()
    terms = wire.KeySharedMeta(keySharedMode=wire.STICKY)
    terms.hashRanges.extend(wire.IntRange(start=slot, end=slot) for slot in range(65_536))
    for number, sub_type in enumerate((SHARED, wire.CommandSubscribe.Key_Shared)):
        fields = {"subscription": f"s{number}", "subType": sub_type, "consumer_id": number}
        client.request(Type.SUBSCRIBE, topic="t", keySharedMeta=terms, **fields)
    assert [len(each.key_shared.ranges) for each in client.session.consumers.open.values()] == [0, 65_536]
    terms.hashRanges.add(start=0, end=0)
    fields = {"subscription": "s2", "subType": wire.CommandSubscribe.Exclusive, "consumer_id": 2}
    refused = client.request(Type.SUBSCRIBE, topic="t", keySharedMeta=terms, **fields)
    assert refused.error == wire.ConsumerAssignError


# Ack sets


def test_an_ack_set_that_no_batch_can_have_is_refused(server: VirtualServer) -> None:
    client = server.connect()
    subscribe(client)
    client.send(Type.FLOW, consumer_id=1, messagePermits=10)
    server.publish(1)
    (message,) = client.take()
    position = message.body.message_id
    position.ack_set.extend([1] * 20_000)
    answer = client.request(Type.ACK, consumer_id=1, ack_type=wire.CommandAck.Individual, message_id=[position])
    assert "an ack_set of 20000 words; at most 16384 are allowed" in answer.message
    (subscription,) = server.core.topic().subscriptions.values()
    assert subscription.acks.backlog_messages == 1
    answer = client.request(Type.SEEK, consumer_id=1, message_id=position)
    assert "an ack_set of 20000 words" in answer.message


# Ended


def test_an_ended_connection_is_freed_without_the_garbage_collector(server: VirtualServer) -> None:
    client = server.connect()
    client.request(Type.PRODUCER, topic="t", producer_id=1)
    subscribe(client)
    client.close()
    server.loop.run()
    ended = weakref.ref(client.connection)
    del client.connection, client.session
    server.advance(60_000)
    assert ended() is None
