"""Certificates of clients, and the authorities of both sides, are replaced while official clients send and receive.

All three clients share a broker and the files of one certificate, which expires while they are connected. Then the
authority that clients' certificates are of is replaced, and the one of the broker's certificate, too.
"""

from __future__ import annotations

import ssl
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.certificates import Authority, CertificateFiles, MountedCertificate
from tests.support.clients import fresh_name
from tests.support.polling import eventually
from tests.support.rotation_clients import PROGRAMS, RotationClient, finished_client, runnable
from tests.support.tls_broker import TlsBroker, frames_of
from tests.support.tokens import Signer
from tests.support.wire_client import Type, encode

from .test_rotation import ADMIN, ROLE, prepare
from .test_rotation_clients import connected_since

CONNECT = encode(Type.CONNECT, client_version="test", protocol_version=21, auth_method_name="tls")
#: How long the first certificate is valid: the clients have to be connected by then.
FIRST_S = 25
#: Certificates of open connections are checked four times in this time.
KEEP_ALIVE_S = 8


class Rotation:
    """A broker that knows clients by certificates, and the clients by their languages."""

    def __init__(self, directory: Path, signer: Signer) -> None:
        self._directory = directory
        self._signer = signer
        self.authority = Authority("authority of clients")
        self._trusted = self.authority.write(directory, "client-ca")
        settings = signer.settings(
            auth="tls,token",
            superusers=ADMIN,
            keep_alive_interval_s=str(KEEP_ALIVE_S),
            advertised_host="localhost",
        )
        arguments = ("--tls-only", "--tls-client-ca", str(self._trusted))
        self.broker = TlsBroker(directory / "broker", *arguments, environment=settings)
        self._topics: dict[str, str] = {}
        self._since: dict[str, list[str]] = {}
        self.clients: dict[str, RotationClient] = {}
        self.mounted: MountedCertificate

    def start(self, programs: dict[str, list[str]]) -> None:
        """Connect all clients by a certificate that soon expires."""
        prepare(self.broker, self._signer)
        ends = datetime.now(UTC) + timedelta(seconds=FIRST_S)
        self.mounted = MountedCertificate(self._directory / "client", self.authority.issue(ROLE, hosts=(), ends=ends))
        url = self.broker.process.service_tls_url.replace("127.0.0.1", "localhost")
        for language, command in programs.items():
            topic = self._topics[language] = f"persistent://public/default/{fresh_name(language)}"
            self.clients[language] = RotationClient(command, url, self.broker.trusted, topic, *self.mounted.files)
        for client in self.clients.values():
            client.does_more("received", 1)

    def note(self) -> None:
        """Note when each client has connected."""
        for language, topic in self._topics.items():
            self._since[language] = connected_since(self.broker, topic, self._signer)

    def stayed(self) -> bool:
        """Whether every client has been connected since it was noted."""
        return all(
            connected_since(self.broker, topic, self._signer) == self._since[language]
            for language, topic in self._topics.items()
        )

    def all_came_back(self) -> None:
        """Wait until every client has connected again and gone on since it was noted."""
        for language, topic in self._topics.items():

            def came_back(language: str = language, topic: str = topic) -> bool:
                now = connected_since(self.broker, topic, self._signer)
                return not set(now) & set(self._since[language])

            # While a client is away, it has no producer or no consumer.
            eventually(came_back, what=f"{language} connected again", not_yet=(ValueError, KeyError))
            for kind in ("sent", "received"):
                self.clients[language].does_more(kind, 10)

    def trust(self, file: Path, *authorities: Authority) -> None:
        """Replace a file of authorities."""
        written = file.with_suffix(".new")
        written.write_bytes(b"".join(each.pem for each in authorities))
        written.rename(file)

    def trust_clients_of(self, *authorities: Authority) -> None:
        """Let the broker take certificates of these authorities from clients."""
        self.trust(self._trusted, *authorities)

    def admits(self, files: CertificateFiles) -> bool:
        """Whether the broker lets a client with this certificate in."""
        try:
            with self.broker.encrypted(self.broker.context(files)) as connection:
                connection.sendall(CONNECT)
                return next(frames_of(connection)).command.type == Type.CONNECTED
        except (ssl.SSLError, ConnectionError, StopIteration):
            return False

    def shows_certificate_of(self, authority: Authority) -> bool:
        """Whether a client that trusts this authority only can connect."""
        try:
            with self.broker.encrypted(ssl.create_default_context(cadata=authority.pem.decode())):
                return True
        except (ssl.SSLError, ConnectionError):
            return False


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> dict[str, RotationClient]:
    """The clients, after everything was replaced and they have received all that they had sent."""
    directory = tmp_path_factory.mktemp("rotation")
    programs = runnable(directory)
    rotation = Rotation(directory, signer)
    with ExitStack() as stack:
        stack.enter_context(rotation.broker)
        try:
            rotation.start(programs)
            replace_everything(rotation, directory)
        finally:
            for client in rotation.clients.values():
                stack.callback(client.finish)
    return rotation.clients


def replace_everything(rotation: Rotation, directory: Path) -> None:
    broker = rotation.broker
    rotation.note()
    rotation.mounted.replace(rotation.authority.issue(ROLE, hosts=()))
    rotation.all_came_back()

    # The authority of clients: first both are trusted, then clients have a certificate of the next one.
    rotation.note()
    following = Authority("next authority of clients")
    rotation.trust_clients_of(rotation.authority, following)
    other = following.issue(ROLE, hosts=()).write(directory, "other")
    eventually(lambda: rotation.admits(other), what="the next authority of clients")
    rotation.mounted.replace(following.issue(ROLE, hosts=()))
    # The broker's: clients trust both, then its certificate is of the next one.
    next_of_broker = Authority("next authority of the broker")
    rotation.trust(broker.trusted, broker.authority, next_of_broker)
    broker.replace(next_of_broker.issue())
    eventually(lambda: rotation.shows_certificate_of(next_of_broker), what="the broker's certificate")
    assert rotation.stayed()
    # Nobody may be left that needs the authorities of before.
    rotation.trust(broker.trusted, next_of_broker)
    rotation.trust_clients_of(following)
    rotation.all_came_back()


@pytest.mark.timeout(1750)
@pytest.mark.parametrize("language", PROGRAMS)
def test_clients_lose_nothing_while_certificates_and_authorities_are_replaced(
    finished: dict[str, RotationClient], language: str, tmp_path: Path
) -> None:
    finished_client(finished, language, tmp_path).lost_nothing()
