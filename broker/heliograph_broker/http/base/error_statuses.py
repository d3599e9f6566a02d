"""The HTTP status that answers each error of the core, as in Pulsar's admin API."""

from __future__ import annotations

from typing import Final

from heliograph_broker.messaging.base import errors
from heliograph_broker.messaging.broker.topic_list import PatternTooLarge
from heliograph_broker.messaging.messages.message_ttl import InvalidMessageTtl
from heliograph_broker.messaging.policies.expiry import LettersRefused

#: One row for each class: a subclass does not inherit the status of its base.
ERROR_STATUSES: Final[dict[type[errors.BrokerError], int]] = {
    errors.InvalidTopicName: 412,
    PatternTooLarge: 412,
    errors.ReservedName: 400,
    errors.TenantNotFound: 404,
    errors.NamespaceNotFound: 404,
    errors.TopicNotFound: 404,
    errors.ListenerNotFound: 404,
    errors.SubscriptionNotFound: 404,
    errors.ConsumerNotFound: 404,
    errors.Conflict: 409,
    errors.PreconditionFailed: 412,
    errors.FewerPartitions: 422,
    errors.NotAllowed: 409,
    errors.NotAuthorized: 403,
    InvalidMessageTtl: 409,
    LettersRefused: 409,
    errors.ProducerBusy: 409,
    errors.ProducerFenced: 409,
    errors.ConsumerBusy: 409,
    errors.ConsumerAssignError: 409,
    errors.IncompatibleSchema: 409,
    errors.PersistenceError: 503,
    errors.InvalidRequestMetadata: 412,
    errors.ChecksumFailed: 400,
    errors.MalformedEntry: 400,
    errors.BacklogQuotaExceeded: 412,
    errors.BacklogQuotaHeld: 412,
    errors.TopicTerminated: 405,
}
