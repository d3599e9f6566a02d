"""A log that cannot be written, as on a full disk or when its reader has gone, under a closed broker.

Everything that ends connections also logs it: without a log, credentials still expire and unknown clients are refused.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.tokens import SHORT_S, Signer, ask
from tests.support.wire_client import Type, WireClient

ADMIN = "admin"
GRANTS = "/admin/v2/namespaces/public/default/permissions"


class PipedBroker(BrokerProcess):
    """Logs into a pipe with a name, whose reader may go and come back."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        super().__init__(directory / "data", environment=environment)
        self.pipe = directory / "pipe"
        os.mkfifo(self.pipe)

    @property
    def command(self) -> list[str]:
        return ["sh", "-c", 'pipe=$1; shift; exec "$@" 2>"$pipe"', "sh", str(self.pipe), *super().command]


class Reader:
    """Reads the log until :meth:`go`."""

    def __init__(self, pipe: Path) -> None:
        self._read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(self._read, True)
        self._gone, self._going = os.pipe()
        self.text = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            ready = select.select([self._read, self._gone], [], [])[0]
            if self._gone in ready:
                return
            self.text += os.read(self._read, 65536).decode()

    def go(self) -> None:
        os.write(self._going, b"x")
        self._thread.join()
        for each in (self._read, self._gone, self._going):
            os.close(each)


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer(tmp_path / "key")


@pytest.fixture
def broker(tmp_path: Path, signer: Signer) -> Iterator[PipedBroker]:
    settings = signer.settings(superusers=ADMIN, auth_refresh_check_s="1", handshake_timeout_s="5")
    # As where nobody has set it: Python keeps what stderr did not take, and writes it later.
    started = PipedBroker(tmp_path, settings | {"PYTHONUNBUFFERED": ""})
    reader = Reader(started.pipe)
    try:
        started.start()
        # A pipe keeps what nobody has read for its next reader.
        eventually(lambda: '"event": "ready"' in reader.text, what="the last line of the start")
        reader.go()
        yield started
    finally:
        if started.running:
            started.kill9()


def connect(broker: PipedBroker, token: bytes) -> WireClient:
    client = WireClient(broker.service_url, connect=False)
    client.send(Type.CONNECT, client_version="test", protocol_version=21, auth_method_name="token", auth_data=token)
    return client


def test_who_may_not_go_on_is_ended_though_nothing_can_be_logged(broker: PipedBroker, signer: Signer) -> None:
    with connect(broker, b"false") as client:
        assert client.expect(Type.ERROR).body.error == wire.AuthenticationError
        client.expect_end()
    with WireClient(broker.service_url, connect=False) as client:
        client.expect_end()
    with connect(broker, signer.token(ADMIN, expires_in_s=SHORT_S).encode()) as client:
        client.expect(Type.CONNECTED)
        assert client.expect(Type.ERROR).body.error == wire.AuthenticationError
        client.expect_end()


def test_a_change_is_answered_as_it_ended_and_the_log_tells_what_it_lacks(broker: PipedBroker, signer: Signer) -> None:
    admin = signer.token(ADMIN)
    assert ask(f"{broker.http_url}{GRANTS}/billing", admin, "POST", ["consume"]).status == 204
    assert ask(broker.http_url + GRANTS, admin).body == {"billing": ["consume"]}
    reader = Reader(broker.pipe)
    try:
        assert ask(f"{broker.http_url}{GRANTS}/billing", admin, "DELETE").status == 204
        eventually(lambda: '"method": "DELETE"' in reader.text)
        assert '"event": "lines of the log were lost"' in reader.text.splitlines()[0]
    finally:
        reader.go()
