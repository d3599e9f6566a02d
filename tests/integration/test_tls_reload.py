"""Certificates of both ports that are replaced while the broker runs, and files that cannot be used."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509

from tests.support.certificates import Authority, Certificate
from tests.support.clients import DEADLINE_MS, ignore_receipt
from tests.support.polling import eventually
from tests.support.tls_broker import HANDSHAKE, TlsBroker, exchanges, frames_of
from tests.support.wire_client import Type, encode

REFUSED = "heliograph_tls_files_refused"


def serial_at(broker: TlsBroker, url: str = "") -> int:
    """Return the serial number of the certificate that a new connection is shown."""
    with broker.encrypted(url=url) as connection:
        der = connection.getpeercert(binary_form=True)
    assert der
    return x509.load_der_x509_certificate(der).serial_number


def shows(broker: TlsBroker, serial: int) -> bool:
    return serial_at(broker) == serial


def has_failed(broker: TlsBroker, times: int) -> bool:
    return broker.metric("heliograph_tls_reload_failures_total") == times


def test_a_certificate_is_replaced_under_load_and_no_message_is_lost(tmp_path: Path, topic: str) -> None:
    # The connection from before answers no PING.
    with TlsBroker(tmp_path, environment={"HELIOGRAPH_KEEP_ALIVE_INTERVAL_S": "600"}) as broker:
        client = broker.connect()
        consumer = client.subscribe(topic, "s", receiver_queue_size=1000)
        producer = client.create_producer(topic, block_if_queue_full=True)
        ending = threading.Event()
        sent = 0

        def send() -> None:
            nonlocal sent
            while not ending.is_set():
                producer.send_async(b"%d" % sent, ignore_receipt)
                sent += 1
            producer.flush()

        sender = threading.Thread(target=send)
        sender.start()
        received: list[bytes] = []
        try:
            with broker.encrypted() as before:
                before.sendall(HANDSHAKE)
                for _ in range(2):
                    renewed = broker.authority.issue()
                    broker.replace(renewed)
                    serial = renewed.parsed.serial_number
                    eventually(partial(shows, broker, serial), what="the new certificate")
                    assert serial_at(broker, broker.process.https_url) == serial
                    exchanges(broker.connect(), f"{topic}-{serial}")
                # A connection made before stays.
                before.sendall(encode(Type.PING))
                assert any(frame.command.type == Type.PONG for frame in frames_of(before))
        finally:
            ending.set()
            sender.join()
        assert sent > 1000
        while len(received) < sent:
            received.append(consumer.receive(DEADLINE_MS).data())
        assert received == [b"%d" % number for number in range(sent)]
        assert broker.metric("heliograph_tls_reloads_total") == 2
        expiry = 'heliograph_tls_certificate_expiry_timestamp_seconds{certificate="server"}'
        assert broker.metric(expiry) == renewed.expires_at_s
        client.close()


def test_files_that_cannot_be_used_leave_the_certificate_in_effect(tmp_path: Path, topic: str) -> None:
    with TlsBroker(tmp_path) as broker:
        before = serial_at(broker)
        good = broker.authority.issue()
        for failures, broken in enumerate(
            (
                good._replace(key=broker.authority.issue().key),
                Certificate(b"garbage", b"garbage"),
                broker.authority.issue(ends=datetime.now(UTC) - timedelta(hours=1)),
            ),
            start=1,
        ):
            broker.replace(broken)
            eventually(
                partial(has_failed, broker, failures),
                what="a failure that is counted",
            )
            assert broker.metric(REFUSED) == 1
            assert serial_at(broker) == before
        log = broker.process.log_tail()
        for words in ("is not the one of the certificate in", "holds no certificates in PEM", "expired at"):
            assert words in log
        assert "PRIVATE KEY" not in log
        broker.replace(good)
        eventually(lambda: broker.metric(REFUSED) == 0, what="files that can be used")
        assert serial_at(broker) == good.parsed.serial_number
        exchanges(broker.connect(), topic)


def test_a_start_with_files_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    broker = TlsBroker(tmp_path)
    broker.replace(broker.authority.issue()._replace(key=Authority("foreign authority").issue().key))
    with pytest.raises(AssertionError, match="is not the one of the certificate in"):
        broker.process.start()
