"""A broker with TLS whose certificate is replaced as Kubernetes does, and peers that speak TLS byte by byte."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pulsar

from .broker_process import BrokerProcess
from .certificates import Authority, Certificate, CertificateFiles, MountedCertificate
from .clients import DEADLINE_MS, connect, publish
from .polling import DEADLINE_S
from .rest import metrics
from .wire_client import Frame, Type, encode, take_frames

HANDSHAKE = encode(Type.CONNECT, client_version="tls-test", protocol_version=21)


class TlsBroker:
    """A broker with a certificate of :attr:`authority`, in files behind a link as in a Secret that is mounted."""

    def __init__(self, directory: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        """``arguments`` and ``environment`` are further ones of ``heliograph standalone``."""
        self.authority = Authority()
        self.trusted = self.authority.write(directory)
        self._mounted = MountedCertificate(directory / "tls", self.authority.issue())
        self.files = self._mounted.files
        self.process = BrokerProcess(
            directory / "data",
            arguments=("--tls-cert", str(self.files.certificate), "--tls-key", str(self.files.key), *arguments),
            environment=environment,
        )

    def __enter__(self) -> TlsBroker:
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.close()

    def replace(self, certificate: Certificate) -> None:
        """Put another certificate and key in the place of those that are there, both at once."""
        self._mounted.replace(certificate)

    def connect(self, url: str = "", **options: Any) -> pulsar.Client:
        """Return an official client that verifies the broker and its name."""
        options = {"tls_trust_certs_file_path": str(self.trusted), "tls_validate_hostname": True} | options
        return connect(url or self.process.service_tls_url, **options)

    def metric(self, sample: str) -> float:
        """Return a sample of the broker's metrics by its name and labels."""
        [value] = [
            float(line.rpartition(" ")[2])
            for line in metrics(self.process.http_url).splitlines()
            if line.rpartition(" ")[0] == sample
        ]
        return value

    def context(self, identity: CertificateFiles | None = None) -> ssl.SSLContext:
        """Return a client's context, with a certificate of its own if one is given."""
        context = ssl.create_default_context(cafile=str(self.trusted))
        if identity is not None:
            context.load_cert_chain(*identity)
        return context

    @contextlib.contextmanager
    def encrypted(self, context: ssl.SSLContext | None = None, *, url: str = "") -> Iterator[ssl.SSLSocket]:
        """Connect and complete the handshake, by default at the port of the binary protocol."""
        with (
            self.raw(url) as raw,
            (context or self.context()).wrap_socket(raw, server_hostname="localhost") as connection,
        ):
            yield connection

    def raw(self, url: str = "") -> socket.socket:
        """Connect and send nothing."""
        address = urlsplit(url or self.process.service_tls_url)
        assert address.hostname
        return socket.create_connection((address.hostname, address.port or 0), DEADLINE_S)


def exchanges(client: pulsar.Client, topic: str) -> None:
    """Publish and receive small messages and a large one; then close the client."""
    contents = [*(b"%d" % number for number in range(200)), bytes(4_000_000)]
    consumer = client.subscribe(topic, "s")
    publish(client, topic, contents)
    for expected in contents:
        message = consumer.receive(DEADLINE_MS)
        assert message.data() == expected
        consumer.acknowledge(message)
    client.close()


def until_end(connection: socket.socket) -> bytes:
    """Return what comes before the broker ends the connection."""
    data = bytearray()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while chunk := connection.recv(65536):
            data += chunk
    return bytes(data)


def frames_of(connection: socket.socket) -> Iterator[Frame]:
    """Yield what the broker sends, until it ends the connection."""
    buffer = bytearray()
    while chunk := connection.recv(65536):
        buffer += chunk
        yield from take_frames(buffer)
