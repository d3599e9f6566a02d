"""Asks a broker whether it lets this client in: the official client keeps its refusal to itself.

That client takes wrong credentials and a certificate it does not trust for something that may pass, tries again until
its time is over, and then says "timeout", which names nothing. So the first commands of Pulsar's protocol are exchanged
here once before it: CONNECT with the credentials, to which the broker answers CONNECTED or ERROR.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.encoder import encode_command

from .credentials import REFUSED, presented, tls_context, tls_failure, with_named_files
from .errors import PulsarSourceError
from .options import Connection, auth_kind

#: The client's own default.
_WITHIN_MS = 10_000
#: An answer is some hundred bytes; what is longer is no Pulsar.
_MAX_LENGTH = 1 << 20


def check_welcome(connection: Connection) -> None:
    """Raise :class:`PulsarSourceError` if the broker refuses the credentials, or TLS cannot be agreed on with it.

    The first of several addresses that answers is used. Whatever else is wrong is left to the client to find.
    """
    scheme, _, hosts = connection.service_url.partition("://")
    kind = auth_kind(connection.client)
    if scheme not in ("pulsar", "pulsar+ssl") or kind == "AuthenticationOAuth2":
        # An address of HTTP, and an issuer of tokens, answer the client by themselves.
        return
    secured = scheme == "pulsar+ssl" or bool(connection.client.get("use_tls"))
    hello = _hello(connection.client)
    for host in hosts.rstrip("/").split(","):
        if _answered(connection, host, hello, secured=secured):
            return


def _answered(connection: Connection, host: str, hello: bytes, *, secured: bool) -> bool:
    """Whether this address gave an answer, and it was not a refusal."""
    context = tls_context(with_named_files(connection.client), "client") if secured else None
    try:
        address = urlsplit(f"//{host}")
        name, port = address.hostname or "", address.port or (6651 if secured else 6650)
        within_s = connection.client.get("connection_timeout_ms", _WITHIN_MS) / 1000
        with socket.create_connection((name, port), timeout=within_s) as plain:
            if context is None:
                answer = _ask(plain, hello)
            else:
                with context.wrap_socket(plain, server_hostname=name) as wrapped:
                    answer = _ask(wrapped, hello)
    except ssl.SSLError as error:
        raise PulsarSourceError(
            f"connecting to {connection.service_url}: TLS with {host} failed"
            f" (pulsar.client.tlsTrustCertsFilePath, tlsHostnameVerificationEnable): {tls_failure(error)}"
        ) from error
    except (OSError, ValueError):
        return False
    if answer.type == wire.BaseCommand.ERROR and answer.error.error == wire.AuthenticationError:
        raise PulsarSourceError(f"connecting to {connection.service_url}: {REFUSED}: {answer.error.message}")
    return True


def _hello(settings: Mapping[str, Any]) -> bytes:
    method, data = presented(settings)
    command = wire.BaseCommand(type=wire.BaseCommand.CONNECT)
    command.connect.client_version = "heliograph-spark"
    command.connect.protocol_version = wire.v19
    command.connect.auth_method_name = method
    command.connect.auth_data = data
    return encode_command(command)


def _ask(stream: socket.socket, hello: bytes) -> wire.BaseCommand:
    """Return the broker's first command; raises :class:`ConnectionError` if none comes."""
    stream.sendall(hello)
    _, size = struct.unpack(">II", _exactly(stream, 8))
    if size > _MAX_LENGTH:
        raise ConnectionError("this is no answer of a Pulsar")
    try:
        return wire.BaseCommand.FromString(_exactly(stream, size))
    except DecodeError as error:
        raise ConnectionError("this is no answer of a Pulsar") from error


def _exactly(stream: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = stream.recv(size - len(found))
        if not more:
            raise ConnectionError("the connection was closed without an answer")
        found += more
    return found
