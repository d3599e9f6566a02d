"""Without ``batch_index_ack`` a batch is acknowledged as a whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.core import Core
from tests.support.entries import make_message
from tests.support.virtual_connection import FarSide, VirtualServer
from tests.support.wire_client import Type


@pytest.fixture
def server(tmp_path: Path) -> Iterator[VirtualServer]:
    core = Core(tmp_path / "data", batch_index_ack=False)
    yield VirtualServer(core)
    core.close()


def test_a_part_whose_rest_has_expired_is_the_whole(server: VirtualServer) -> None:
    topic = server.core.topic()
    subscription = topic.create_subscription("s")
    server.core.publish_all(topic, "first")
    soon = make_message(b"soon", ttl="1000")
    server.core.publish_batch(topic, make_message(b"a"), soon, make_message(b"b"), soon)
    server.core.advance(2000)
    client = _consumer(server, wire.CommandSubscribe.Shared)
    _ack(client, wire.CommandAck.Individual, 0b1110)
    assert subscription.acks.backlog_messages == 3, "one of the two left is not acknowledged"
    _ack(client, wire.CommandAck.Individual, 0b1010)
    assert subscription.acks.backlog_messages == 1
    client.request(Type.CLOSE_CONSUMER, consumer_id=1)
    client = _consumer(server, wire.CommandSubscribe.Exclusive)
    _ack(client, wire.CommandAck.Cumulative, 0b1010)
    assert subscription.acks.backlog_messages == 0


def _consumer(server: VirtualServer, sub_type: int) -> FarSide:
    client = server.connect()
    client.request(Type.SUBSCRIBE, topic="t", subscription="s", subType=sub_type, consumer_id=1)
    client.send(Type.FLOW, consumer_id=1, messagePermits=100)
    return client


def _ack(client: FarSide, kind: int, remaining: int | None) -> None:
    """Acknowledge the second entry, a batch of four, all but the messages ``remaining``."""
    position = client.session.broker.directory.topics["persistent://public/default/t"].log.position(1)  # type: ignore[union-attr]
    message = wire.MessageIdData(ledgerId=position[0], entryId=position[1])
    if remaining is not None:
        message.ack_set.append(remaining)
    answer = client.request(Type.ACK, consumer_id=1, ack_type=kind, message_id=[message])
    assert not answer.HasField("error")


@pytest.mark.parametrize(
    ("kind", "sub_type", "remaining", "backlog", "again"),
    [
        (wire.CommandAck.Individual, wire.CommandSubscribe.Shared, 0b1110, 8, [0, 1]),
        (wire.CommandAck.Individual, wire.CommandSubscribe.Shared, None, 4, [0]),
        (wire.CommandAck.Cumulative, wire.CommandSubscribe.Exclusive, 0b1110, 4, [1]),
        (wire.CommandAck.Cumulative, wire.CommandSubscribe.Exclusive, None, 0, []),
    ],
)
def test_a_part_of_a_batch_stays_in_the_backlog_and_comes_again(
    server: VirtualServer, kind: int, sub_type: int, remaining: int | None, backlog: int, again: list[int]
) -> None:
    client = _consumer(server, sub_type)
    topic = server.core.topic()
    for _ in range(2):
        server.core.publish_batch(topic, b"a", b"b", b"c", b"d")
    client.take()
    _ack(client, kind, remaining)
    assert topic.subscription("s").acks.backlog_messages == backlog
    client.request(Type.CLOSE_CONSUMER, consumer_id=1)
    later = _consumer(server, sub_type)
    messages = [frame.body for frame in later.take() if frame.command.type == Type.MESSAGE]
    assert [topic.log.offset_of(one.message_id.ledgerId, one.message_id.entryId) for one in messages] == again
    assert [list(one.ack_set) for one in messages] == [[]] * len(again)
