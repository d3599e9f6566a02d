"""A client process that is stopped (SIGSTOP) keeps nothing: its connection is alive for TCP, and it takes no byte.

More is under way to it than the sockets' buffers hold, so that an orderly end of the connection would wait for it.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.wire_client import Type, WireClient, WireError, payload_of

from .stopped_client import PRODUCER_NAME

TOPIC = "stops"
MESSAGES = 60
MESSAGE_BYTES = 1024 * 1024
#: Everything is given to others after two intervals and a bit; clients that run answer within one, however busy the
#: machine.
KEEP_ALIVE_S = 3
WITHIN_S = 120.0


class StoppableClient:
    """The program in :mod:`.stopped_client`."""

    def __init__(self, service_url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.stopped_client", service_url, TOPIC],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def expect(self, wanted: str) -> None:
        """Wait for a line. Raises :class:`queue.Empty` if it does not come in time."""
        deadline = time.monotonic() + WITHIN_S
        while self._lines.get(timeout=max(0.0, deadline - time.monotonic())) != wanted:
            pass

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(
        tmp_path / "data", environment={"HELIOGRAPH_KEEP_ALIVE_INTERVAL_S": str(KEEP_ALIVE_S)}
    ) as running:
        yield running


@pytest.fixture
def stopped(broker: BrokerProcess) -> Iterator[StoppableClient]:
    client = StoppableClient(broker.service_url)
    try:
        client.expect("ready")
        client.stop()
        yield client
    finally:
        client.close()


def publish(broker: BrokerProcess, payloads: list[bytes]) -> None:
    with WireClient(broker.service_url) as client:
        producer = client.producer(TOPIC)
        for number, payload in enumerate(payloads):
            client.publish(producer, make_entry(payload, sequence_id=number), sequence_id=number)


def payload(number: int) -> bytes:
    return (b"%d" % number).ljust(20) + bytes(MESSAGE_BYTES)


@pytest.mark.parametrize(
    ("subscription", "kind"),
    [("shared", wire.CommandSubscribe.Shared), ("failover", wire.CommandSubscribe.Failover)],
)
def test_messages_of_a_stopped_client_go_to_another_one(
    broker: BrokerProcess, stopped: StoppableClient, subscription: str, kind: int
) -> None:
    publish(broker, [payload(number) for number in range(MESSAGES)])
    with WireClient(broker.service_url) as heir:
        consumer = heir.subscribe(TOPIC, subscription, subType=kind, consumer_name="b")
        heir.flow(consumer, 10_000)
        got: set[int] = set()
        deadline = time.monotonic() + WITHIN_S
        while len(got) < MESSAGES:
            frame = heir.expect(Type.MESSAGE, max(0.0, deadline - time.monotonic()))
            got.add(int(payload_of(frame)[:20]))
            heir.ack(consumer, frame.body.message_id)
    # Woken up, it finds its connection gone, connects again and gets what comes next.
    stopped.go_on()
    publish(broker, [b"next"])
    stopped.expect(f"{subscription} next")


def test_the_producer_name_of_a_stopped_client_is_free(broker: BrokerProcess, stopped: StoppableClient) -> None:
    publish(broker, [payload(number) for number in range(MESSAGES)])
    with WireClient(broker.service_url) as heir:

        def free() -> bool:
            try:
                heir.producer(TOPIC, producer_name=PRODUCER_NAME)
            except WireError as error:
                if error.code != wire.ProducerBusy:
                    raise
                return False
            return True

        eventually(free, what="the name to be free", within_s=WITHIN_S)


def test_a_broker_that_ends_does_not_wait_for_a_stopped_client(broker: BrokerProcess, stopped: StoppableClient) -> None:
    publish(broker, [payload(number) for number in range(MESSAGES)])
    assert broker.terminate() == 0
    assert "Traceback" not in broker.log_path.read_text()
