"""Asks a broker's binary port whether it accepts a connection with the credentials, and why not.

The official client tries again in silence if a broker refuses its credentials, and its errors have no reasons.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple
from urllib.parse import urlsplit

from .access import unusable_files
from .broker_failures import refused_credentials, unreachable

if TYPE_CHECKING:
    from heliograph_api.protocol.wire_pb2 import BaseCommand

    from .access import Credentials

_PROTOCOL_VERSION: Final = 21
#: Frames that a broker sends to a client that has just connected are far smaller (bytes).
_LARGEST_FRAME: Final = 1 << 20


class ServiceRefused(Exception):
    """The broker does not accept the client; the message is one line for people."""


class Use(NamedTuple):
    """The purpose of a client: to publish to a topic, or to take messages of a subscription, if one is named."""

    topic: str
    subscription: str = ""

    def command(self) -> BaseCommand:
        """Return the command that begins it."""
        from heliograph_api.protocol.wire_pb2 import BaseCommand, CommandProducer, CommandSubscribe

        if not self.subscription:
            producer = CommandProducer(topic=self.topic, producer_id=1, request_id=1)
            return BaseCommand(type=BaseCommand.PRODUCER, producer=producer)
        subscribe = CommandSubscribe(
            topic=self.topic,
            subscription=self.subscription,
            subType=CommandSubscribe.Shared,
            consumer_id=1,
            request_id=1,
        )
        return BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=subscribe)


def check_service(
    connection: socket.socket, service_url: str, credentials: Credentials, use: Use | None = None
) -> None:
    """Return if the broker at the other end of ``connection`` accepts the credentials, and ``use`` if it is given.

    Raises :class:`ServiceRefused` if not, or if TLS is not as ``service_url`` has it. The connection is closed.
    """
    from heliograph_api.admin.client_tls import tls_mistake, tls_reason

    encrypted = service_url.startswith("pulsar+ssl:")
    with connection:
        try:
            if encrypted:
                connection = _encrypted(connection, service_url, credentials)
            with connection, connection.makefile("rb") as stream:
                answer = _exchange(connection, stream, _connect(credentials))
                if answer is not None and answer.HasField("error"):
                    raise ServiceRefused(refused_credentials(service_url, answer.error.message, credentials))
                if use is None:
                    return
                answer = _exchange(connection, stream, use.command())
                if answer is not None and answer.HasField("error"):
                    raise ServiceRefused(answer.error.message)
        except (OSError, EOFError) as error:
            mistake = tls_mistake(error, encrypted=encrypted)
            if reason := tls_reason(error):
                text = f"cannot connect to {service_url}: {reason}"
            else:
                reason = getattr(error, "strerror", "") or str(error) or "it ended the connection"
                text = f"no broker answers at {service_url}: {reason}"
            raise ServiceRefused(unreachable(text, mistake, service_url, "--service-url", credentials)) from error


def _encrypted(connection: socket.socket, service_url: str, credentials: Credentials) -> ssl.SSLSocket:
    from heliograph_api.admin.client_tls import ClientCertificate, client_tls

    certificate = credentials.certificate and ClientCertificate(*credentials.certificate)
    try:
        context = client_tls(credentials.trusted(), certificate)
    except ValueError as error:
        raise unusable_files(error, credentials) from error
    return context.wrap_socket(connection, server_hostname=urlsplit(service_url).hostname)


def _connect(credentials: Credentials) -> BaseCommand:
    from heliograph_api.protocol.wire_pb2 import BaseCommand, CommandConnect

    connect = CommandConnect(client_version="heliograph", protocol_version=_PROTOCOL_VERSION)
    if credentials.token is not None:
        connect.auth_method_name, connect.auth_data = "token", credentials.token.read().encode()
    elif credentials.certificate is not None:
        connect.auth_method_name = "tls"
    return BaseCommand(type=BaseCommand.CONNECT, connect=connect)


def _exchange(connection: socket.socket, stream: BinaryIO, command: BaseCommand) -> BaseCommand | None:
    """Send a command and return the broker's next one, None if it is not one of Pulsar's.

    Raises :class:`EOFError` if none comes.
    """
    from google.protobuf.message import DecodeError
    from heliograph_api.protocol.encoder import encode_command
    from heliograph_api.protocol.wire_pb2 import BaseCommand

    connection.sendall(encode_command(command))
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    total, size = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
    if size > min(total, _LARGEST_FRAME):
        # An alert of TLS, or another protocol.
        raise EOFError
    try:
        return BaseCommand.FromString(stream.read(size))
    except DecodeError:
        return None
