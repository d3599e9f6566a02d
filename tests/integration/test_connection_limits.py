"""The cost of connections in a real broker, their limit, and that they never take what the store needs."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.clients import rest
from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.rest import metrics
from tests.support.wire_client import Type, WireClient, encode

MIB = 1024 * 1024
#: Sockets that say nothing stay for as long as a test takes.
PATIENT = {"HELIOGRAPH_HANDSHAKE_TIMEOUT_S": "600"}
ANNOUNCED = struct.pack(">II", 5 * MIB, 20)


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous resident memory of a process."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@contextlib.contextmanager
def sockets(url: str, count: int, data: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connect so many sockets that say ``data`` and nothing more."""
    address = urlsplit(url)
    made: list[socket.socket] = []
    try:
        for _ in range(count):
            made.append(socket.create_connection((address.hostname or "", address.port or 0), 60))
            # A broker that refuses may have ended it.
            with contextlib.suppress(OSError):
                made[-1].sendall(data)
        yield made
    finally:
        for each in made:
            each.close()


def metric(broker: BrokerProcess, name: str, **labels: str) -> float:
    """Return one sample of the broker's metrics."""
    text = metrics(broker.http_url)
    wanted = name + ("{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}" if labels else "")
    values = [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.rpartition(" ")[0] == wanted]
    assert len(values) == 1, f"{wanted}: {values}"
    return values[0]


def received_until_end(connection: socket.socket) -> bytes:
    """Return what the broker says before it ends the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            data += chunk
    return data


def test_silent_sockets_cost_less_than_16_kib_each(broker_factory: Callable[..., BrokerProcess]) -> None:
    broker = broker_factory(environment=PATIENT)
    broker.start()
    with sockets(broker.service_url, 50):
        eventually(lambda: metric(broker, "heliograph_connections", port="binary") == 50, what="the first sockets")
        before = anonymous_bytes(broker.pid)
        with sockets(broker.service_url, 1000):
            eventually(lambda: metric(broker, "heliograph_connections", port="binary") == 1050, what="the sockets")
            cost = anonymous_bytes(broker.pid) - before
    print(f"1000 silent sockets: {cost / 1000:.0f} bytes each")
    assert cost < 16 * MIB


@pytest.mark.parametrize("connects", [False, True])
def test_announcing_large_frames_costs_nothing(broker_factory: Callable[..., BrokerProcess], connects: bool) -> None:
    """Before CONNECT it ends the connection; after it, it costs what has arrived."""
    broker = broker_factory()
    broker.start()
    output = (encode(Type.CONNECT, client_version="flood", protocol_version=21) if connects else b"") + ANNOUNCED
    before = anonymous_bytes(broker.pid)
    with sockets(broker.service_url, 400, output) as flood:
        if connects:
            for each in flood:
                assert each.recv(65536)
            assert metric(broker, "heliograph_connections", port="binary") == 400
        else:
            for each in flood:
                assert b"before CONNECT, the largest allowed is 8192" in received_until_end(each)
            assert metric(broker, "heliograph_connections_cut_total", port="binary", reason="malformed") == 400
        cost = anonymous_bytes(broker.pid) - before
    print(f"400 sockets that announce 5 MB: {cost / 400:.0f} bytes each")
    assert cost < 400 * 16 * 1024


def test_connections_without_connect_are_cut_on_both_ports(broker_factory: Callable[..., BrokerProcess]) -> None:
    broker = broker_factory(environment={"HELIOGRAPH_HANDSHAKE_TIMEOUT_S": "3"})
    broker.start()
    with (
        WireClient(broker.service_url) as client,
        sockets(broker.service_url, 5) as binary,
        sockets(broker.http_url, 5) as http,
    ):
        assert [received_until_end(each) for each in (*binary, *http)] == [b""] * 10
        client.fence()
    assert metric(broker, "heliograph_connections_cut_total", port="binary", reason="handshake") == 5
    assert metric(broker, "heliograph_connections_cut_total", port="http", reason="handshake") == 5


@pytest.mark.parametrize(
    ("setting", "limit", "words"),
    [
        ("HELIOGRAPH_MAX_CONNECTIONS", "total", "maximum number of connections: 20 (max_connections)"),
        (
            "HELIOGRAPH_MAX_CONNECTIONS_PER_ADDRESS",
            "address",
            "maximum number of connections on address 127.0.0.1: 20 (max_connections_per_address)",
        ),
    ],
)
def test_one_connection_more_is_refused_by_name(
    broker_factory: Callable[..., BrokerProcess], setting: str, limit: str, words: str
) -> None:
    broker = broker_factory(environment={setting: "20", **PATIENT})
    broker.start()
    with sockets(broker.service_url, 19) as others, WireClient(broker.service_url) as client:
        eventually(lambda: metric(broker, "heliograph_connections", port="binary") == 20, what="the connections")
        with WireClient(broker.service_url, connect=False) as refused:
            error = refused.expect(Type.ERROR).body
            refused.expect_end()
        assert (error.error, error.request_id) == (wire.NotAllowedError, 0xFFFFFFFFFFFFFFFF)
        assert words in error.message
        assert metric(broker, "heliograph_connections_refused_total", port="binary", limit=limit) == 1
        client.fence()
        others.pop().close()

        def admitted() -> bool:
            with WireClient(broker.service_url, connect=False) as again:
                again.send(Type.CONNECT, client_version="again", protocol_version=21)
                return again.read_frame().command.type == Type.CONNECTED

        eventually(admitted, what="room for a connection")


def test_refused_http_connections_say_why(broker_factory: Callable[..., BrokerProcess]) -> None:
    broker = broker_factory(environment={"HELIOGRAPH_MAX_CONNECTIONS": "5", **PATIENT})
    broker.start()
    with sockets(broker.http_url, 6) as made:
        answer = received_until_end(made[5])
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert answer.endswith(b"Reached the maximum number of connections: 5 (max_connections)\n")


def test_an_address_that_a_header_states_has_no_room_of_its_own(
    broker_factory: Callable[..., BrokerProcess],
) -> None:
    broker = broker_factory(environment={"HELIOGRAPH_MAX_CONNECTIONS_PER_ADDRESS": "5", **PATIENT})
    broker.start()
    request = b"GET /health/live HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 203.0.113.%d\r\n\r\n"
    with sockets(broker.http_url, 6) as made:
        for number, connection in enumerate(made[:5]):
            connection.sendall(request % number)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert b"(max_connections_per_address)" in received_until_end(made[5])


def test_the_limit_of_descriptors_is_raised(broker_factory: Callable[..., BrokerProcess]) -> None:
    broker = broker_factory(descriptors=(100, 900))
    broker.start()
    limits = Path(f"/proc/{broker.pid}/limits").read_text()
    assert re.search(r"Max open files\s+900\s+900\s", limits), limits


def test_connections_leave_descriptors_for_the_store_and_for_who_looks_after_it(
    broker_factory: Callable[..., BrokerProcess],
) -> None:
    """With 120 descriptors, idle sockets on both ports: publishing goes on into segment after segment."""
    broker = broker_factory(
        descriptors=(120, 120),
        environment={"HELIOGRAPH_SEGMENT_BYTES": str(MIB), "HELIOGRAPH_KEEP_ALIVE_INTERVAL_S": "60"},
    )
    broker.start()
    with WireClient(broker.service_url) as client:
        client.subscribe("t", "keeps-all")
        producer = client.producer("t")
        connect = encode(Type.CONNECT, client_version="idle", protocol_version=21)
        with sockets(broker.service_url, 200, connect):
            eventually(
                lambda: (
                    metric(broker, "heliograph_connections_refused_total", port="binary", limit="descriptors") > 100
                ),
                what="refusals",
            )
            with sockets(broker.http_url, 200, b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"):
                files = set()
                for number in range(100):
                    client.publish(producer, make_entry(bytes(100_000), sequence_id=number), sequence_id=number)
                    files |= {path.name for path in broker.data_dir.glob("segments/*")}
            assert len([name for name in files if name.endswith(".lmdb")]) >= 8, files

            def ready() -> bool:
                try:
                    with urllib.request.urlopen(f"{broker.http_url}/health/ready", timeout=60) as answer:
                        return bool(answer.status == 200)
                except urllib.error.HTTPError as error:
                    # The sockets there were are not all gone yet.
                    if b"Reached the maximum number of connections" not in error.read():
                        raise
                    return False
                except (urllib.error.URLError, ConnectionError):
                    # It was refused before its request was sent.
                    return False

            eventually(ready, what="an answer beside clients that use up their descriptors")
    assert "Too many open files" not in broker.log_path.read_text()


def test_answers_that_nobody_reads_do_not_grow_memory(broker_factory: Callable[..., BrokerProcess]) -> None:
    """1,500 requests for the list of 1,500 topics, which is 100 KB each; and again from five more connections."""
    # They answer no PING, either.
    broker = broker_factory(environment={"HELIOGRAPH_KEEP_ALIVE_INTERVAL_S": "600"})
    broker.start()
    with WireClient(broker.service_url) as client:
        for number in range(1500):
            client.producer(f"one-topic-of-very-many-that-there-are-{number:04}")
    request = encode(Type.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=1)
    connect = encode(Type.CONNECT, client_version="flood", protocol_version=21)
    before = most = anonymous_bytes(broker.pid)
    with sockets(broker.service_url, 6, connect + request * 1500) as flood, WireClient(broker.service_url) as other:
        for _ in range(20):
            other.fence()
            most = max(most, anonymous_bytes(broker.pid))
        print(f"6 connections that read nothing: {(most - before) / MIB:.1f} MiB")
        assert most - before < 6 * 5 * MIB
        # A client that reads in the end gets every answer, CONNECTED included.
        with flood[0].makefile("rb") as answers:
            for _ in range(1 + 1500):
                (size,) = struct.unpack(">I", answers.read(4))
                assert len(answers.read(size)) == size


def test_connections_together_hold_no_more_than_their_limit(broker_factory: Callable[..., BrokerProcess]) -> None:
    """150 clients each send 4 of 5 MB of a frame, 600 MB in all; a client with small messages is not disturbed."""
    limit = 64 * MIB
    broker = broker_factory(environment={"HELIOGRAPH_CONNECTION_MEMORY_BYTES": str(limit)})
    broker.start()
    connect = encode(Type.CONNECT, client_version="flood", protocol_version=21)
    unfinished = encode(Type.SEND, make_entry(bytes(5_000_000)), producer_id=1, sequence_id=0)[:4_000_000]
    before = anonymous_bytes(broker.pid)
    with WireClient(broker.service_url) as client:
        producer = client.producer("t")
        with sockets(broker.service_url, 150, connect + unfinished):
            eventually(
                lambda: metric(broker, "heliograph_connections_cut_total", port="binary", reason="memory") >= 130,
                what="aborted connections",
            )
            eventually(lambda: 0 < metric(broker, "heliograph_connection_memory_bytes") <= limit, what="less memory")
            client.publish(producer, make_entry(b"small"))
            held = anonymous_bytes(broker.pid) - before
    print(f"150 unfinished frames: {held / MIB:.0f} MiB are left")
    # An allocator does not give all that was freed back to the system.
    assert held < 6 * limit


def test_producers_that_wait_count_for_the_memory_of_their_connection(
    broker_factory: Callable[..., BrokerProcess],
) -> None:
    """A client has thousands of producers with 60 KB of properties each, 240 MB in all, wait for a full topic."""
    limit = 64 * MIB
    broker = broker_factory(environment={"HELIOGRAPH_CONNECTION_MEMORY_BYTES": str(limit)})
    broker.start()
    entry = make_entry(b"all there is room for")
    quota = {"limitSize": len(entry), "policy": "producer_request_hold"}
    rest(broker, "POST", "namespaces/public/default/backlogQuota?backlogQuotaType=destination_storage", quota)
    connect = encode(Type.CONNECT, client_version="flood", protocol_version=21)
    properties = [wire.KeyValue(key="k", value="x" * 60_000)]

    def comes_back(number: int) -> bytes:
        return encode(Type.PRODUCER, topic="full", producer_id=number, request_id=number, epoch=1, metadata=properties)

    with WireClient(broker.service_url) as client:
        client.subscribe("full")
        client.publish(client.producer("full"), entry)
        with sockets(broker.service_url, 1, connect + b"".join(comes_back(number) for number in range(500))):
            eventually(
                lambda: metric(broker, "heliograph_connection_memory_bytes") > 500 * 60_000, what="producers that wait"
            )
        eventually(lambda: metric(broker, "heliograph_connection_memory_bytes") < 60_000, what="none that waits")
        with sockets(broker.service_url, 1, connect + b"".join(comes_back(number) for number in range(4000))):
            eventually(
                lambda: metric(broker, "heliograph_connections_cut_total", port="binary", reason="memory") == 1,
                what="an aborted connection",
            )
            eventually(lambda: metric(broker, "heliograph_connection_memory_bytes") < 60_000, what="less memory")
        client.fence()
