"""Peers that have connected by TLS and do not behave, do not read, or send large frames."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

from heliograph_api.protocol import wire_pb2 as wire

from tests.support.clients import publish
from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.tls_broker import HANDSHAKE, TlsBroker, frames_of
from tests.support.wire_client import Type, WireClient, encode


def test_a_malformed_frame_is_answered_and_ends_the_connection(tls_broker: TlsBroker) -> None:
    with tls_broker.encrypted() as connection:
        connection.sendall(HANDSHAKE + struct.pack(">II", 10, 2000) + bytes(6))
        answers = list(frames_of(connection))
    assert [frame.command.type for frame in answers] == [Type.CONNECTED, Type.ERROR]
    assert "malformed frame" in answers[1].body.message


def test_answers_that_nobody_reads_stop_the_reading_until_they_are_read(tmp_path: Path) -> None:
    """1,000 requests for a list of 30 KB: the broker reads on when the client does, and no answer is missing."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(TlsBroker(tmp_path, environment={"HELIOGRAPH_KEEP_ALIVE_INTERVAL_S": "600"}))
        with WireClient(broker.process.service_url) as client:
            for number in range(300):
                client.producer(f"{'one-topic-of-many-' * 4}{number:03}")
            with broker.encrypted() as connection:
                request = encode(Type.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=1)
                connection.sendall(HANDSHAKE + request * 1000)
                held = "heliograph_connection_memory_bytes"
                eventually(lambda: broker.metric(held) > 2_000_000, what="answers that wait")
                client.fence()
                assert broker.metric(held) < 5_000_000
                answers = frames_of(connection)
                assert next(answers).command.type == Type.CONNECTED
                for _ in range(1000):
                    assert len(next(answers).body.topics) == 300


def test_messages_that_are_not_read_wait_and_arrive(tls_broker: TlsBroker, topic: str) -> None:
    """40 MB for a client that reads nothing at first: dispatch pauses, and everything arrives in the end."""
    contents = [bytes(4_000_000)] * 10
    client = tls_broker.connect()
    publish(client, topic, contents)
    client.close()
    with tls_broker.encrypted() as connection:
        connection.sendall(
            HANDSHAKE
            + encode(
                Type.SUBSCRIBE,
                topic=f"persistent://public/default/{topic}",
                subscription="s",
                subType=wire.CommandSubscribe.Exclusive,
                consumer_id=1,
                request_id=1,
                initialPosition=wire.CommandSubscribe.Earliest,
            )
            + encode(Type.FLOW, consumer_id=1, messagePermits=100)
        )
        eventually(
            lambda: tls_broker.metric("heliograph_connection_memory_bytes") > 1_000_000, what="messages that wait"
        )
        assert tls_broker.metric("heliograph_connection_memory_bytes") < 3 * 5_000_000
        messages = 0
        for frame in frames_of(connection):
            messages += frame.command.type == Type.MESSAGE
            if messages == len(contents):
                break


def test_a_large_frame_arrives_in_pieces(tls_broker: TlsBroker, topic: str) -> None:
    entry = make_entry(os.urandom(5_000_000))
    with tls_broker.encrypted() as connection:
        connection.sendall(
            HANDSHAKE + encode(Type.PRODUCER, topic=f"persistent://public/default/{topic}", producer_id=1, request_id=1)
        )
        answers = frames_of(connection)
        assert [next(answers).command.type for _ in range(2)] == [Type.CONNECTED, Type.PRODUCER_SUCCESS]
        data = encode(Type.SEND, entry, producer_id=1, sequence_id=0)
        for at in range(0, len(data), 100_001):
            connection.sendall(data[at : at + 100_001])
        assert next(answers).command.type == Type.SEND_RECEIPT
