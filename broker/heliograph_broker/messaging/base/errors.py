"""Errors of the broker's core: each names itself to binary clients (ServerError) and to HTTP clients (status)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from heliograph_api.protocol import wire_pb2 as wire


class BrokerError(Exception):
    """Base of every refusal; ``str(error)`` is the reason for people."""

    server_error: ClassVar[int] = wire.UnknownError
    http_status: ClassVar[int] = 500


#: Called with None when something is done and durable, else with what went wrong.
Done = Callable[[BrokerError | None], None]


class InvalidTopicName(BrokerError):
    server_error = wire.InvalidTopicName
    http_status = 412


class TenantNotFound(BrokerError):
    server_error = wire.TopicNotFound
    http_status = 404


class NamespaceNotFound(BrokerError):
    server_error = wire.TopicNotFound
    http_status = 404


class TopicNotFound(BrokerError):
    server_error = wire.TopicNotFound
    http_status = 404


class SubscriptionNotFound(BrokerError):
    server_error = wire.SubscriptionNotFound
    http_status = 404


class ConsumerNotFound(BrokerError):
    server_error = wire.ConsumerNotFound
    http_status = 404


class Conflict(BrokerError):
    """What was to be created exists."""

    server_error = wire.NotAllowedError
    http_status = 409


class PreconditionFailed(BrokerError):
    """The request contradicts the state or itself (busy topic, shrinking partitions, unknown cluster)."""

    server_error = wire.NotAllowedError
    http_status = 412


class FewerPartitions(BrokerError):
    """Partitions can only grow."""

    server_error = wire.NotAllowedError
    http_status = 422


class NotAllowed(BrokerError):
    server_error = wire.NotAllowedError
    http_status = 409


class ProducerBusy(BrokerError):
    server_error = wire.ProducerBusy
    http_status = 409


class ProducerFenced(BrokerError):
    server_error = wire.ProducerFenced
    http_status = 409


class ConsumerBusy(BrokerError):
    server_error = wire.ConsumerBusy
    http_status = 409


class ConsumerAssignError(BrokerError):
    server_error = wire.ConsumerAssignError
    http_status = 409


class IncompatibleSchema(BrokerError):
    server_error = wire.IncompatibleSchema
    http_status = 409


class PersistenceError(BrokerError):
    """The store could not make something durable (disk full, I/O error)."""

    server_error = wire.PersistenceError
    http_status = 503


class InvalidRequestMetadata(BrokerError):
    """The client's or a message's metadata is not what the topic requires (encryption)."""

    server_error = wire.MetadataError
    http_status = 412


class BacklogQuotaExceeded(BrokerError):
    """The backlog quota's policy is producer_exception: what is pending at the client fails."""

    server_error = wire.ProducerBlockedQuotaExceededException
    http_status = 412


class BacklogQuotaHeld(BrokerError):
    """The backlog quota's policy is producer_request_hold: the client keeps what is pending and tries again."""

    server_error = wire.ProducerBlockedQuotaExceededError
    http_status = 412


class TopicTerminated(BrokerError):
    """Nothing can be published any more; what is stored can be read."""

    server_error = wire.TopicTerminatedError
    http_status = 405


def or_persistence_error(done: Callable[[BrokerError | None], None]) -> Callable[[Exception | None], None]:
    """Return a callback for the store that tells ``done`` that all is durable, or of a :class:`PersistenceError`."""

    def committed(error: Exception | None) -> None:
        done(None if error is None else PersistenceError(f"not stored: {error}"))

    return committed
