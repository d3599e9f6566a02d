"""The Python client that sends and receives numbers while a test replaces everything that secures its broker.

``python -m tests.support.rotation_program SERVICE-URL TRUSTED TOPIC TOKEN-FILE``, or ``… TOPIC CERTIFICATE KEY``, or
``… TOPIC ISSUER ISSUER-TRUSTED CREDENTIALS``, until its input ends. It prints a line for each token of a file, receipt
and message, as those in Java and Go do.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import pulsar

from tests.support.oidc_issuer import AUDIENCE

_PAUSE_S = 0.001
_printing = threading.Lock()


def _say(kind: str, number: int) -> None:
    with _printing:
        print(kind, number, flush=True)


def _authentication(files: list[str]) -> pulsar.Authentication:
    if len(files) == 2:
        return pulsar.AuthenticationTLS(*files)
    if len(files) == 3:
        issuer, _, credentials = files
        settings = {"issuer_url": issuer, "private_key": credentials, "audience": AUDIENCE}
        return pulsar.AuthenticationOauth2(json.dumps(settings))

    def supply() -> str:
        token = Path(files[0]).read_text().strip()
        _say("asked", 0)
        return token

    return pulsar.AuthenticationToken(supply)


class _Receiver(threading.Thread):
    """Receives and acknowledges until the process ends; ``expected`` is the number that it has all before of."""

    def __init__(self, consumer: pulsar.Consumer) -> None:
        super().__init__(daemon=True)
        self._consumer = consumer
        self.expected = 0

    def run(self) -> None:
        while True:
            message = self._consumer.receive()
            self._consumer.acknowledge(message)
            number = int(message.data())
            _say("received", number)
            if number == self.expected:
                self.expected += 1


def _run(url: str, trusted: str, topic: str, *files: str) -> None:
    client = pulsar.Client(
        url,
        authentication=_authentication(list(files)),
        tls_trust_certs_file_path=trusted,
        tls_validate_hostname=True,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
    )
    receiver = _Receiver(client.subscribe(topic, "s"))
    producer = client.create_producer(topic, producer_name="p", send_timeout_millis=0)
    receiver.start()
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    sent = 0
    while not ended.is_set():
        producer.send(b"%d" % sent)
        _say("sent", sent)
        sent += 1
        time.sleep(_PAUSE_S)
    while receiver.is_alive() and receiver.expected < sent:
        time.sleep(_PAUSE_S)
    sys.stdout.flush()
    os._exit(0 if receiver.is_alive() else 1)


if __name__ == "__main__":
    _run(*sys.argv[1:])
