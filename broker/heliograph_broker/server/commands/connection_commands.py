"""CONNECT, keep-alive, and commands of features that the broker does not have."""

from __future__ import annotations

from heliograph_api import __version__
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import FrameError

from heliograph_broker.server.session import Session
from heliograph_broker.usecases.publishing import NO_TRANSACTIONS

#: The newest protocol version this broker speaks.
PROTOCOL_VERSION = wire.v21


def connect(session: Session, command: wire.BaseCommand) -> None:
    """Accept any client; a second CONNECT is a protocol error."""
    if session.connection.connected:
        raise FrameError("CONNECT was sent twice")
    accept(session, command.connect)


def accept(session: Session, request: wire.CommandConnect) -> None:
    """Answer CONNECT with what this broker can."""
    session.connection.handshake_done(request.client_version)
    answer = wire.BaseCommand(type=wire.BaseCommand.CONNECTED)
    answer.connected.server_version = f"Heliograph-{__version__}"
    answer.connected.protocol_version = min(request.protocol_version, PROTOCOL_VERSION)
    answer.connected.max_message_size = session.broker.config.max_message_size
    flags = answer.connected.feature_flags
    flags.supports_topic_watchers = True
    flags.supports_topic_watcher_reconcile = True
    flags.supports_get_partitioned_metadata_without_auto_creation = True
    session.output.send(answer)


def ping(session: Session, command: wire.BaseCommand) -> None:
    session.output.write(session.encoder.pong())


def pong(session: Session, command: wire.BaseCommand) -> None:
    """Do nothing: the session noted already that it heard from the client."""


def refuse_transaction(session: Session, command: wire.BaseCommand) -> None:
    """Refuse a client's request about a transaction, as Pulsar does that has no coordinator."""
    session.output.send_error(_transaction_request_id(command), wire.NotAllowedError, NO_TRANSACTIONS)


def _transaction_request_id(command: wire.BaseCommand) -> int:
    kind = command.type
    if kind == wire.BaseCommand.TC_CLIENT_CONNECT_REQUEST:
        return command.tcClientConnectRequest.request_id
    if kind == wire.BaseCommand.NEW_TXN:
        return command.newTxn.request_id
    if kind == wire.BaseCommand.ADD_PARTITION_TO_TXN:
        return command.addPartitionToTxn.request_id
    if kind == wire.BaseCommand.ADD_SUBSCRIPTION_TO_TXN:
        return command.addSubscriptionToTxn.request_id
    return command.endTxn.request_id
