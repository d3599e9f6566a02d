"""The ServerError that binary clients are sent for each error of the core."""

from __future__ import annotations

from typing import Final

from heliograph_api.protocol import wire_pb2 as wire

from heliograph_broker.messaging.base import errors
from heliograph_broker.messaging.broker.topic_list import PatternTooLarge
from heliograph_broker.messaging.messages.message_ttl import InvalidMessageTtl
from heliograph_broker.messaging.policies.expiry import LettersRefused

#: One row for each class: a subclass does not inherit the code of its base.
ERROR_CODES: Final[dict[type[errors.BrokerError], wire.ServerError.ValueType]] = {
    errors.InvalidTopicName: wire.InvalidTopicName,
    PatternTooLarge: wire.InvalidTopicName,
    errors.ReservedName: wire.NotAllowedError,
    errors.TenantNotFound: wire.TopicNotFound,
    errors.NamespaceNotFound: wire.TopicNotFound,
    errors.TopicNotFound: wire.TopicNotFound,
    errors.ListenerNotFound: wire.ServiceNotReady,
    errors.SubscriptionNotFound: wire.SubscriptionNotFound,
    errors.ConsumerNotFound: wire.ConsumerNotFound,
    errors.Conflict: wire.NotAllowedError,
    errors.PreconditionFailed: wire.NotAllowedError,
    errors.FewerPartitions: wire.NotAllowedError,
    errors.NotAllowed: wire.NotAllowedError,
    errors.NotAuthorized: wire.AuthorizationError,
    InvalidMessageTtl: wire.NotAllowedError,
    LettersRefused: wire.NotAllowedError,
    errors.ProducerBusy: wire.ProducerBusy,
    errors.ProducerFenced: wire.ProducerFenced,
    errors.ConsumerBusy: wire.ConsumerBusy,
    errors.ConsumerAssignError: wire.ConsumerAssignError,
    errors.IncompatibleSchema: wire.IncompatibleSchema,
    errors.PersistenceError: wire.PersistenceError,
    errors.InvalidRequestMetadata: wire.MetadataError,
    errors.ChecksumFailed: wire.ChecksumError,
    errors.MalformedEntry: wire.UnknownError,
    errors.BacklogQuotaExceeded: wire.ProducerBlockedQuotaExceededException,
    errors.BacklogQuotaHeld: wire.ProducerBlockedQuotaExceededError,
    errors.TopicTerminated: wire.TopicTerminatedError,
}


def error_code(error: errors.BrokerError) -> wire.ServerError.ValueType:
    """Return the code that names ``error`` to binary clients."""
    return ERROR_CODES[type(error)]
