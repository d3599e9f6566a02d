"""Tokens, keys and the certificate are replaced while the Java and the Go client send and receive: nothing is lost.

Each is a process of its own, which prints a line for every token that it asks for, every receipt and every message.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clients import fresh_name
from tests.support.java_client import missing, rotating
from tests.support.polling import eventually
from tests.support.tls_broker import TlsBroker
from tests.support.tokens import Signer, TokenFile, ask

from .test_rotation import ADMIN, ROLE, Keys, serial_shown, trusts

GO_MODULE = Path(__file__).parent / "go"


def java(directory: Path) -> list[str]:
    if reason := missing():
        pytest.skip(f"the Java client is not tested: {reason}")
    return rotating(directory)


def go(directory: Path) -> list[str]:
    if shutil.which("go") is None:
        pytest.skip("the go command is not installed: the Go client is not tested")
    program = directory / "rotation"
    subprocess.run(
        ["go", "build", "-o", str(program), "./rotation"],
        cwd=GO_MODULE, env=os.environ | {"CGO_ENABLED": "0"}, check=True, timeout=1500,
    )  # fmt: skip
    return [str(program)]


class Client:
    """The process of a client, and the lines that it has printed: what it did, and the number of the message."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.numbers: dict[str, list[int]] = {"asked": [], "sent": [], "received": []}
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read, self._read_errors)]
        self._errors = ""
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, number = line.split()
            self.numbers[kind].append(int(number))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors = self._process.stderr.read()

    def does_more(self, kind: str, times: int) -> None:
        """Wait until it has done something so often again."""
        before = len(self.numbers[kind])
        eventually(lambda: len(self.numbers[kind]) >= before + times, what=f"{kind} {times} times")

    def finish(self) -> None:
        """Let it send no more, and receive the rest."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(120)
        finally:
            self._process.kill()
            self._process.wait()
            for thread in self._threads:
                thread.join()
            for stream in (self._process.stdout, self._process.stderr):
                assert stream is not None
                stream.close()
        assert self._process.returncode == 0, self._errors


def connected_since(broker: TlsBroker, topic: str, signer: Signer) -> list[str]:
    """Return when the producer and the consumer have connected."""
    url = f"{broker.process.https_url}/admin/v2/{topic.replace('://', '/')}/stats"
    stats = ask(url, signer.token(ADMIN), context=broker.context()).body
    [producer] = stats["publishers"]
    [consumer] = stats["subscriptions"]["s"]["consumers"]
    return [producer["connectedSince"], consumer["connectedSince"]]


@pytest.mark.timeout(1750)
@pytest.mark.parametrize("program", [java, go])
def test_clients_lose_nothing_while_all_that_secures_a_broker_is_replaced(
    program: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    command = program(tmp_path)
    topic = f"persistent://public/default/{fresh_name('rotation')}"
    keys = Keys(tmp_path)
    old = keys.signer
    environment = keys.environment | {"HELIOGRAPH_ADVERTISED_HOST": "localhost"}
    tokens = TokenFile(tmp_path / "token", old, ROLE)
    with TlsBroker(tmp_path / "broker", "--tls-only", environment=environment) as broker, tokens.renewed():
        admin = f"{broker.process.https_url}/admin/v2/namespaces/public/default"
        # A producer sends again what the restart left without a receipt.
        for path, body in (("deduplication", True), (f"permissions/{ROLE}", ["produce", "consume"])):
            answer = ask(f"{admin}/{path}", old.token(ADMIN), "POST", body, context=broker.context())
            assert answer.status == 204, answer
        url = broker.process.service_tls_url.replace("127.0.0.1", "localhost")
        client = Client([*command, url, str(broker.trusted), str(tokens.path), topic])
        try:
            client.does_more("received", 1)
            since = connected_since(broker, topic, old)
            client.does_more("asked", 2)

            renewed = broker.authority.issue()
            broker.replace(renewed)
            new = keys.add(b"the secret that tokens are signed with after the rotation of keys")
            eventually(lambda: trusts(broker, new), what="the new key")
            tokens.signer = new
            client.does_more("asked", 2)
            keys.remove()
            eventually(lambda: not trusts(broker, old), what="the end of the old key")
            client.does_more("asked", 2)
            eventually(lambda: serial_shown(broker) == renewed.parsed.serial_number, what="the new certificate")
            # Neither has been disconnected by any of this.
            assert connected_since(broker, topic, new) == since

            broker.process.restart()
            client.does_more("asked", 2)
            client.does_more("sent", 10)
        finally:
            client.finish()
    sent, received = client.numbers["sent"], client.numbers["received"]
    assert sent == list(range(len(sent)))
    # In order; a message comes again only if the restart came before its acknowledgment.
    assert list(dict.fromkeys(received)) == sent
    assert sum(times > 1 for times in Counter(received).values()) <= len(sent) // 2
