"""CONNECT, keep-alive, and commands of features that the broker does not have."""

from __future__ import annotations

from heliograph_api import __version__
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import FrameError

from heliograph_broker.server.session import Session

#: The newest protocol version this broker speaks.
PROTOCOL_VERSION = wire.v20


def connect(session: Session, command: wire.BaseCommand) -> None:
    """Answer CONNECT with what this broker can; a second CONNECT is a protocol error."""
    if session.connection.connected:
        raise FrameError("CONNECT was sent twice")
    request = command.connect
    session.connection.handshake_done(request.client_version)
    answer = wire.BaseCommand(type=wire.BaseCommand.CONNECTED)
    answer.connected.server_version = f"Heliograph-{__version__}"
    answer.connected.protocol_version = min(request.protocol_version, PROTOCOL_VERSION)
    answer.connected.max_message_size = session.broker.config.max_message_size
    flags = answer.connected.feature_flags
    flags.supports_topic_watchers = True
    flags.supports_broker_entry_metadata = False
    flags.supports_partial_producer = False
    flags.supports_auth_refresh = False
    session.output.send(answer)


def ping(session: Session, command: wire.BaseCommand) -> None:
    session.output.write(session.encoder.pong())


def pong(session: Session, command: wire.BaseCommand) -> None:
    """Do nothing: the session noted already that it heard from the client."""


def refuse_transaction(session: Session, command: wire.BaseCommand) -> None:
    """Refuse a transaction, by the command's own response where it has one."""
    reason = "transactions are not supported by this broker"
    kind = command.type
    if kind == wire.BaseCommand.TC_CLIENT_CONNECT_REQUEST:
        answer = wire.BaseCommand(type=wire.BaseCommand.TC_CLIENT_CONNECT_RESPONSE)
        response = answer.tcClientConnectResponse
        response.request_id = command.tcClientConnectRequest.request_id
        response.error = wire.NotAllowedError
        response.message = reason
    elif kind == wire.BaseCommand.NEW_TXN:
        answer = wire.BaseCommand(type=wire.BaseCommand.NEW_TXN_RESPONSE)
        answer.newTxnResponse.request_id = command.newTxn.request_id
        answer.newTxnResponse.error = wire.NotAllowedError
        answer.newTxnResponse.message = reason
    else:
        request_id = {
            wire.BaseCommand.ADD_PARTITION_TO_TXN: command.addPartitionToTxn.request_id,
            wire.BaseCommand.ADD_SUBSCRIPTION_TO_TXN: command.addSubscriptionToTxn.request_id,
            wire.BaseCommand.END_TXN: command.endTxn.request_id,
        }.get(kind, 0)
        session.output.send_error(request_id, wire.NotAllowedError, reason)
        return
    session.output.send(answer)
