"""Handshakes of TLS: versions and ciphers, floods, and those that do not go on."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import warnings
from collections import deque
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.clients import DEADLINE_MS
from tests.support.polling import eventually
from tests.support.tls_broker import HANDSHAKE, TlsBroker, exchanges, frames_of, until_end
from tests.support.wire_client import Type

REFUSED_HANDSHAKE = 'heliograph_connections_cut_total{port="binary",reason="tls"}'
CONNECTIONS = 'heliograph_connections{port="binary"}'


@pytest.mark.parametrize("kind", ["TLS 1.1", "CBC", "no forward secrecy"])
def test_old_versions_and_weak_ciphers_are_refused(tls_broker: TlsBroker, kind: str) -> None:
    context = tls_broker.context()
    ciphers = {"TLS 1.1": "ALL", "CBC": "ECDHE-ECDSA-AES128-SHA256", "no forward secrecy": "AES128-GCM-SHA256"}
    context.set_ciphers(f"{ciphers[kind]}:@SECLEVEL=0")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    if kind == "TLS 1.1":
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    before = tls_broker.metric(REFUSED_HANDSHAKE)
    with pytest.raises((ssl.SSLError, ConnectionError)), tls_broker.encrypted(context):
        pass
    eventually(lambda: tls_broker.metric(REFUSED_HANDSHAKE) == before + 1, what="a refusal that is counted")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_current_versions_work(tls_broker: TlsBroker, version: ssl.TLSVersion) -> None:
    context = tls_broker.context()
    context.minimum_version = context.maximum_version = version
    with tls_broker.encrypted(context) as connection:
        assert connection.version() == version.name.replace("v1_", "v1.")
        assert connection.compression() is None
        connection.sendall(HANDSHAKE)
        assert next(frames_of(connection)).command.type == Type.CONNECTED


@pytest.mark.parametrize("port", ["service_tls_url", "https_url"])
def test_bytes_that_are_no_tls_end_the_connection(tls_broker: TlsBroker, port: str) -> None:
    with tls_broker.raw(getattr(tls_broker.process, port)) as connection:
        connection.sendall(HANDSHAKE + b"GET / HTTP/1.1\r\n\r\n")
        # At most an alert of TLS.
        assert len(until_end(connection)) < 10


def greeting() -> bytes:
    """Return the first bytes of a client, which ask the broker for a signature."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


def test_clients_go_on_and_new_ones_come_in_during_a_flood_of_handshakes(tls_broker: TlsBroker, topic: str) -> None:
    address = urlsplit(tls_broker.process.service_tls_url)
    begun, ended = [0], threading.Event()
    hello = greeting()

    def flood(source: str) -> None:
        """Begin handshakes as fast as it goes, and end none."""
        held: deque[socket.socket] = deque()
        while not ended.is_set():
            with contextlib.suppress(OSError):
                held.append(socket.create_connection((address.hostname, address.port), 10, (source, 0)))
                held[-1].sendall(hello)
                begun[0] += 1
            if len(held) > 200:
                held.popleft().close()
        for each in held:
            each.close()

    client = tls_broker.connect()
    consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
    attackers = [threading.Thread(target=flood, args=(source,)) for source in ("127.0.0.2", "127.0.0.3")]
    for attacker in attackers:
        attacker.start()
    try:
        eventually(lambda: handshakes(tls_broker) > 20)
        for number in range(20):
            producer.send(b"%d" % number)
            assert consumer.receive(DEADLINE_MS).data() == b"%d" % number
            with tls_broker.encrypted() as connection:
                connection.sendall(HANDSHAKE)
                assert next(frames_of(connection)).command.type == Type.CONNECTED
    finally:
        ended.set()
        for attacker in attackers:
            attacker.join()
    assert begun[0] > 20
    client.close()
    eventually(lambda: handshakes(tls_broker) == 0)


def handshakes(broker: TlsBroker) -> float:
    """Return how many handshakes are under way or wait for their turn."""
    return sum(broker.metric(f'heliograph_tls_handshakes{{state="{state}"}}') for state in ("running", "waiting"))


def begin_handshakes(broker: TlsBroker, stack: contextlib.ExitStack, count: int) -> list[socket.socket]:
    """Return connections that send the beginning of a ClientHello and nothing more."""
    silent = [stack.enter_context(broker.raw()) for _ in range(count)]
    for each in silent:
        # The broker may have cut it.
        with contextlib.suppress(OSError):
            each.sendall(b"\x16\x03\x01\x02\x00\x01")
    return silent


def test_a_handshake_that_does_not_go_on_is_cut(tmp_path: Path, topic: str) -> None:
    with TlsBroker(tmp_path, environment={"HELIOGRAPH_HANDSHAKE_TIMEOUT_S": "2"}) as broker:
        with contextlib.ExitStack() as stack:
            assert [until_end(each) for each in begin_handshakes(broker, stack, 20)] == [b""] * 20
        cut = 'heliograph_connections_cut_total{port="binary",reason="handshake"}'
        eventually(lambda: broker.metric(cut) == 20, what="the connections that are cut")
        eventually(lambda: broker.metric(CONNECTIONS) == 0, what="the end of the connections")
        exchanges(broker.connect(), topic)


def test_the_limit_of_connections_counts_handshakes(tmp_path: Path, topic: str) -> None:
    # None of them is cut meanwhile, however long it takes to begin them.
    environment = {"HELIOGRAPH_HANDSHAKE_TIMEOUT_S": "600", "HELIOGRAPH_MAX_CONNECTIONS": "20"}
    with TlsBroker(tmp_path, environment=environment) as broker:
        with contextlib.ExitStack() as stack:
            begin_handshakes(broker, stack, 20)
            eventually(lambda: broker.metric(CONNECTIONS) == 20, what="the connections")
            with broker.raw() as refused:
                assert until_end(refused) == b""
            assert broker.metric('heliograph_connections_refused_total{port="binary",limit="total"}') == 1
        eventually(lambda: broker.metric(CONNECTIONS) == 0, what="the end of the connections")
        exchanges(broker.connect(), topic)


def test_a_client_that_connects_by_tls_and_says_nothing_is_cut(tmp_path: Path) -> None:
    # Long enough for the handshake of a client in a process that stands still for a while.
    with TlsBroker(tmp_path, environment={"HELIOGRAPH_HANDSHAKE_TIMEOUT_S": "5"}) as broker:
        urls = (broker.process.service_tls_url, broker.process.https_url)
        with broker.encrypted(url=urls[0]) as binary, broker.encrypted(url=urls[1]) as http:
            assert [until_end(each) for each in (binary, http)] == [b"", b""]
