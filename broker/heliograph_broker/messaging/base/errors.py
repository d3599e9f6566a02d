"""Errors of the broker's core. Every edge maps them to its own codes in a table."""

from __future__ import annotations

from collections.abc import Callable

from heliograph_broker.storage.base.completion import Completion


class BrokerError(Exception):
    """Base of every refusal, and never raised itself; ``str(error)`` is the reason for people."""


#: The completion of an operation that can be refused: called with None when it is durable, else with the error.
Done = Callable[[BrokerError | None], None]


class InvalidTopicName(BrokerError):
    """A client gives an invalid name of a topic."""


class ReservedName(BrokerError):
    """The name is that of a system topic, which nobody may create."""


class TenantNotFound(BrokerError):
    """There is no tenant of this name."""


class NamespaceNotFound(BrokerError):
    """There is no namespace of this name."""


class TopicNotFound(BrokerError):
    """There is no topic of this name, or none of the kind that is needed."""


class ListenerNotFound(BrokerError):
    """The broker has no advertised listener of this name."""


class SubscriptionNotFound(BrokerError):
    """The topic has no subscription of this name, and it may not be created."""


class ConsumerNotFound(BrokerError):
    """The consumer is not open on its client's connection."""


class Conflict(BrokerError):
    """The object to create already exists."""


class PreconditionFailed(BrokerError):
    """The request contradicts the state or itself (busy topic, shrinking partitions, unknown cluster)."""


class FewerPartitions(BrokerError):
    """Partitions can only grow."""


class NotAllowed(BrokerError):
    """A policy, a maximum or the kind of topic or subscription does not allow the request or the entry."""


class NotAuthorized(BrokerError):
    """The client's role may not do this. Says nothing about what there is."""


class ProducerBusy(BrokerError):
    """The producer's name is taken, an exclusive producer is connected, or the topic has its most producers."""


class ProducerFenced(BrokerError):
    """Another producer has exclusive access."""


class ConsumerBusy(BrokerError):
    """The subscription or the topic does not take one more consumer, or not one of this type."""


class ConsumerAssignError(BrokerError):
    """The ranges of hashes that a consumer asks for are not valid or belong to another one."""


class IncompatibleSchema(BrokerError):
    """The schema does not fit those the topic has, or is missing where one is required."""


class PersistenceError(BrokerError):
    """The store could not make something durable (disk full, I/O error)."""


class InvalidRequestMetadata(BrokerError):
    """The client's or a message's metadata is not what the topic requires (encryption)."""


class ChecksumFailed(BrokerError):
    """The bytes of an entry are not those its client sent."""


class MalformedEntry(BrokerError):
    """The metadata of an entry cannot be decoded."""


class BacklogQuotaExceeded(BrokerError):
    """The backlog quota's policy is producer_exception: pending messages of the client fail."""


class BacklogQuotaHeld(BrokerError):
    """The backlog quota's policy is producer_request_hold: the client keeps pending messages and tries again."""


class TopicTerminated(BrokerError):
    """Nothing can be published any more; stored messages can be read."""


def or_persistence_error(done: Done) -> Completion[None]:
    """Return a callback for the store that tells ``done`` that all is durable, or of a :class:`PersistenceError`."""

    def committed(error: Exception | None) -> None:
        done(None if error is None else PersistenceError(f"not stored: {error}"))

    return committed
