"""The issuer's key, tokens, the certificate and its authority are replaced while administrators call: no call fails.

The token is one of an identity provider, in a file that is replaced all the time.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jwt
import pytest

from tests.support.certificates import Authority
from tests.support.clients import fresh_name
from tests.support.closed_broker import ADMIN, ClosedBroker
from tests.support.command_line import CommandLine
from tests.support.interrupts import take_interrupts
from tests.support.oidc_issuer import AUDIENCE
from tests.support.polling import eventually
from tests.support.pulsar_admin import PulsarAdmin, missing, trusting
from tests.support.tokens import TokenFile

from .test_pulsar_admin_closed import options
from .test_rotation import Worker, serial_shown, trusts
from .test_rotation_of_issuers import Issued

#: Calls between two replacements.
CALLS = 5


class Administration:
    """A closed broker, its identity provider, and an administrator's token of that in a file."""

    def __init__(self, closed: ClosedBroker, directory: Path) -> None:
        self.closed = closed
        self.tokens = TokenFile(directory / "token", Issued(closed.issuer), ADMIN)
        self.topic = f"persistent://public/default/{fresh_name()}"
        closed.grant(self.topic, "consume")
        self._done = 0

    def replace_everything_during(self, call: Callable[[], None]) -> None:
        """Call again and again meanwhile. Raises the exception of a call that fails."""

        def count() -> None:
            call()
            self._done += 1

        worker = Worker(count)
        worker.start()
        try:
            self._replace_everything(worker)
        finally:
            worker.finish()

    def _replace_everything(self, worker: Worker) -> None:
        def goes_on() -> None:
            before = self._done
            eventually(lambda: self._done >= before + CALLS or worker.failure, what="calls")

        issuer, broker = self.closed.issuer, self.closed.broker
        goes_on()
        old, following = Issued(issuer), issuer.announce()
        eventually(lambda: trusts(broker, Issued(issuer, following)), what="the new key")
        issuer.sign_by(following)
        self.tokens.signer = Issued(issuer)
        eventually(lambda: self._token_is_by(following), what="a token by the new key")
        goes_on()
        issuer.withdraw_older_keys()
        unknown = Issued(issuer, claimed="unknown")
        eventually(lambda: not trusts(broker, unknown) and not trusts(broker, old), what="the end of the old key")
        goes_on()

        renewed = broker.authority.issue(hosts=["localhost"])
        broker.replace(renewed)
        eventually(lambda: serial_shown(broker) == renewed.parsed.serial_number, what="the new certificate")
        goes_on()

        authority = Authority("next authority of the broker")
        self._trust(broker.authority, authority)
        goes_on()
        renewed = authority.issue(hosts=["localhost"])
        broker.replace(renewed)
        eventually(lambda: serial_shown(broker) == renewed.parsed.serial_number, what="the next authority")
        self._trust(authority)
        goes_on()

    def _token_is_by(self, key_id: str) -> bool:
        return bool(jwt.get_unverified_header(self.tokens.path.read_text())["kid"] == key_id)

    def _trust(self, *authorities: Authority) -> None:
        written = self.closed.broker.trusted.with_suffix(".new")
        written.write_bytes(b"".join(each.pem for each in authorities))
        written.rename(self.closed.broker.trusted)


@pytest.fixture
def administration(tmp_path: Path) -> Iterator[Administration]:
    with ClosedBroker(tmp_path / "closed") as closed:
        found = Administration(closed, tmp_path)
        with found.tokens.renewed():
            yield found


@contextmanager
def consuming(topic: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``heliograph consume`` with the current context until the end of the block."""
    command = [sys.executable, "-m", "heliograph_broker", "consume", topic, "-s", "s", "-n", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=take_interrupts
    ) as consumer:
        try:
            yield consumer
        finally:
            # Does nothing to one that has ended.
            consumer.kill()


@pytest.mark.timeout(240)
def test_no_command_fails_while_everything_is_replaced(administration: Administration, run: CommandLine) -> None:
    closed, topic = administration.closed, administration.topic
    files = ("--token-file", administration.tokens.path, "--tls-ca", closed.broker.trusted)
    run("context", "set", "main", "--http-url", closed.http_url, "--service-url", closed.service_url, *files)
    run("context", "use", "main")
    stats = f"{topic.replace('://', '/')}/stats"

    def connected_since() -> str:
        [consumer] = closed.ask(stats).body["subscriptions"]["s"]["consumers"]
        return str(consumer["connectedSince"])

    numbers = itertools.count()
    sent: list[str] = []

    def call() -> None:
        number = str(next(numbers))
        for command in (
            ["topics", "list", "public/default"],
            ["topics", "stats", topic],
            ["produce", topic, "-m", number],
        ):
            ran = run(*command)
            assert ran.code == 0, f"{command}: {ran.err}"
        sent.append(number)

    with consuming(topic) as consumer:
        since = eventually(connected_since, what="the consumer", not_yet=(KeyError, ValueError))
        administration.replace_everything_during(call)
        assert connected_since() == since
        assert consumer.stdout is not None
        assert [consumer.stdout.readline().strip() for _ in sent] == sent
        consumer.send_signal(signal.SIGINT)
        _, errors = consumer.communicate(timeout=120)
        assert (consumer.returncode, errors) == (0, "")


@pytest.mark.timeout(400)
@pytest.mark.skipif(missing() is not None, reason=f"pulsar-admin is not tested: {missing()}")
def test_no_call_of_pulsar_admin_fails_while_everything_is_replaced(
    administration: Administration, tmp_path: Path
) -> None:
    closed, topic = administration.closed, administration.topic
    client = {"issuerUrl": closed.issuer.url, "privateKey": closed.credentials.as_uri(), "audience": AUDIENCE}
    commands = (
        f"{options(closed, 'AuthenticationToken', administration.tokens.path.as_uri())} topics list public/default",
        f"{options(closed, 'oauth2.AuthenticationOAuth2', json.dumps(client))} topics subscriptions {topic}",
    )
    properties = trusting(closed.issuer_trusted, tmp_path)
    with PulsarAdmin(tmp_path, closed.http_url, closed.service_url, *properties) as tool:

        def call() -> None:
            for command in commands:
                tool(command)

        administration.replace_everything_during(call)
