"""The memory of all connections together is limited: on virtual time, with transports that nobody reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.core import Core
from tests.support.entries import make_entry
from tests.support.virtual_connection import FarSide, VirtualServer
from tests.support.wire_client import Type, encode

KIB = 1024
LIMIT = 1024 * KIB


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[[int], VirtualServer]]:
    cores: list[Core] = []

    def make(limit: int) -> VirtualServer:
        cores.append(
            Core(
                tmp_path / str(len(cores)),
                connection_memory_bytes=limit,
                max_connection_write_bytes=256 * KIB,
                receive_buffer_bytes=16 * KIB,
                keep_alive_interval_s=10,
            )
        )
        return VirtualServer(cores[-1])

    yield make
    for core in cores:
        core.close()


def check(server: VirtualServer) -> None:
    """Let the next check of the memory happen."""
    server.advance(1000)
    server.listener.memory.check()
    server.loop.run()


def held(server: VirtualServer) -> int:
    return sum(connection.held_bytes for connection in server.listener.connections)


def unfinished(server: VirtualServer, size: int) -> FarSide:
    """Return a client that has sent ``size`` bytes of a frame and not the rest."""
    client = server.connect()
    client.request(Type.PRODUCER, topic="t", producer_id=1)
    client.send_raw(encode(Type.SEND, make_entry(bytes(size + 50 * KIB)), producer_id=1, sequence_id=0)[:size])
    return client


def slow_consumer(server: VirtualServer, number: int) -> FarSide:
    """Return a client that asks for every message and reads none."""
    client = server.connect()
    fields = {"topic": "t", "subscription": f"s{number}", "subType": wire.CommandSubscribe.Shared, "consumer_id": 1}
    client.request(Type.SUBSCRIBE, initialPosition=wire.CommandSubscribe.Earliest, **fields)
    client.reads = False
    client.send(Type.FLOW, consumer_id=1, messagePermits=1000)
    return client


def messages_in(client: FarSide) -> int:
    return sum(frame.command.type == Type.MESSAGE for frame in client.take())


def test_the_largest_unfinished_frames_end_their_connections(make_server: Callable[[int], VirtualServer]) -> None:
    server = make_server(LIMIT)
    small = [unfinished(server, 50 * KIB) for _ in range(4)]
    large = [unfinished(server, 250 * KIB) for _ in range(3)]
    assert held(server) > LIMIT
    check(server)
    assert [client.lost for client in small] == [False] * 4
    assert sum(client.lost for client in large) == 1
    assert held(server) <= LIMIT
    assert server.core.broker.metrics.binary_connections.cut["memory"] == 1


def test_those_who_are_left_finish_their_frames(make_server: Callable[[int], VirtualServer]) -> None:
    server = make_server(LIMIT)
    clients = [unfinished(server, 280 * KIB) for _ in range(4)]
    check(server)
    left = [client for client in clients if not client.lost]
    assert len(left) == 3
    frame = encode(Type.SEND, make_entry(bytes(330 * KIB)), producer_id=1, sequence_id=0)
    for client in left:
        client.send_raw(frame[280 * KIB :])
    server.core.commit()
    assert [[frame.command.type for frame in client.take()] for client in left] == [[Type.SEND_RECEIPT]] * 3
    assert held(server) == 0


def test_slow_consumers_get_no_more_while_half_is_used_and_the_rest_once_they_read(
    make_server: Callable[[int], VirtualServer],
) -> None:
    server = make_server(LIMIT)
    clients = [slow_consumer(server, number) for number in range(6)]
    server.publish(10, bytes(10 * KIB))
    assert LIMIT // 2 < held(server) < LIMIT
    check(server)
    before = held(server)
    server.publish(10, bytes(10 * KIB))
    check(server)
    assert held(server) == before
    for client in clients:
        client.reads = True
        client.read()
    check(server)
    assert [messages_in(client) for client in clients] == [20] * 6
    assert not any(client.lost for client in clients)
    assert held(server) == 0


def test_who_reads_gets_messages_beside_those_who_do_not(make_server: Callable[[int], VirtualServer]) -> None:
    server = make_server(LIMIT)
    for number in range(6):
        slow_consumer(server, number)
    reader = slow_consumer(server, 6)
    reader.reads = True
    server.publish(10, bytes(10 * KIB))
    check(server)
    server.publish(10, bytes(10 * KIB))
    assert messages_in(reader) == 20


def test_a_slow_consumer_goes_on_when_others_have_made_room(make_server: Callable[[int], VirtualServer]) -> None:
    """Not all was read, but little enough: nothing but the check resumes the client then."""
    server = make_server(LIMIT)
    clients = [slow_consumer(server, number) for number in range(6)]
    server.publish(10, bytes(10 * KIB))
    check(server)
    for client in clients:
        client.read(90 * KIB)
    check(server)
    server.publish(1, bytes(10 * KIB))
    for client in clients:
        client.reads = True
        client.read()
    assert [messages_in(client) for client in clients] == [11] * 6


def test_who_never_reads_is_aborted_by_the_keep_alive(make_server: Callable[[int], VirtualServer]) -> None:
    server = make_server(LIMIT)
    clients = [slow_consumer(server, number) for number in range(6)]
    server.publish(10, bytes(10 * KIB))
    check(server)
    server.advance(30_000)
    assert all(client.lost for client in clients)
    assert server.core.broker.metrics.binary_connections.cut["silent"] == 6
    assert held(server) == 0


def test_unfinished_frames_are_not_left_until_the_next_check(make_server: Callable[[int], VirtualServer]) -> None:
    server = make_server(LIMIT)
    check(server)
    clients = [unfinished(server, 280 * KIB) for _ in range(9)]
    server.loop.run()
    assert sum(not client.lost for client in clients) == 3


def test_without_a_limit_nothing_is_aborted(make_server: Callable[[int], VirtualServer]) -> None:
    server = make_server(0)
    clients = [unfinished(server, 250 * KIB) for _ in range(5)]
    check(server)
    assert not any(client.lost for client in clients)
    assert server.core.broker.metrics.connection_bytes() == held(server) > LIMIT
