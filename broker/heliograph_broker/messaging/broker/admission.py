"""Admission: maxima of producers, consumers, subscriptions and topics. For entries see :mod:`.entry_rules`.

Every refusal names Pulsar's error and begins with its words. A maximum that is lowered sends nobody away: it counts
when the next one comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_api.policies.policies import AutoTopicCreation
from heliograph_api.values.names import PERSISTENT, TopicName

from heliograph_broker.messaging.base.errors import (
    ConsumerBusy,
    IncompatibleSchema,
    InvalidRequestMetadata,
    NotAllowed,
    PreconditionFailed,
    ProducerBusy,
    ReservedName,
)
from heliograph_broker.messaging.base.names import COMPACTION, check_producer_name
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType

if TYPE_CHECKING:
    from heliograph_api.broker_config import BrokerConfig

    from heliograph_broker.messaging.topic.directory import AnyTopic, Directory

    from .policy_levels import PolicyLevels


def check_producer(topic: AnyTopic, name: str, *, encrypted: bool) -> None:
    """Whether a producer may be created. One that replaces its own older connection does not count again.

    Raises :class:`ProducerBusy`, :class:`InvalidRequestMetadata` or :class:`PreconditionFailed` (its name).
    """
    check_producer_name(name)
    policies = topic.effective
    limit = policies.max_producers
    if limit is not None and len(topic.producers) >= limit and name not in topic.producers:
        raise ProducerBusy(
            f"Topic '{topic.name}' reached max producers limit: {len(topic.producers)} are connected, {limit} allowed"
        )
    if policies.encryption_required and not encrypted:
        raise InvalidRequestMetadata(f"Encryption is required in {topic.name}")


def check_schemaless_producer(topic: AnyTopic, *, has_schema: bool) -> None:
    """Whether a producer that brings no schema may publish. Raises :class:`IncompatibleSchema`."""
    if has_schema and topic.effective.schema_validation_enforced:
        raise IncompatibleSchema(
            "Producers cannot connect or send message without a schema to topics with a schema "
            "when SchemaValidationEnforced is enabled"
        )


def check_consumer(topic: AnyTopic, subscription: str, sub_type: SubscriptionType) -> None:
    """Whether a consumer may join. Raises :class:`ConsumerBusy` or :class:`NotAllowed`."""
    policies = topic.effective
    limit = policies.max_consumers
    if limit is not None:
        connected = sum(len(other.consumers) for other in topic.subscriptions.values())
        if connected >= limit:
            raise ConsumerBusy(f"Topic reached max consumers limit: {connected} are connected, {limit} allowed")
    allowed = policies.subscription_types
    if allowed and sub_type.label not in allowed:
        raise NotAllowed(
            f"Topic[{{{topic.name}}}] doesn't support {sub_type.label} sub type! Allowed: {', '.join(allowed)}"
        )
    limit = policies.max_consumers_per_subscription
    existing = topic.subscriptions.get(subscription)
    if limit is not None and existing is not None and len(existing.consumers) >= limit:
        raise ConsumerBusy(
            f"Subscription reached max consumers limit: {len(existing.consumers)} are connected, {limit} allowed"
        )


def check_subscription_name(name: str) -> None:
    """Check the name of a subscription that a client asks for. Raises :class:`NotAllowed` for the broker's own one.

    Where the topic is not compacted it would keep all messages, and no backlog quota counts them.
    """
    if name == COMPACTION:
        raise NotAllowed(f"{COMPACTION} is the broker's own subscription")


def check_new_subscription(topic: AnyTopic) -> None:
    """Whether the topic may have one more subscription, durable or not. Raises :class:`NotAllowed`."""
    limit = topic.effective.max_subscriptions
    if limit is None:
        return
    existing = sum(name != COMPACTION for name in topic.subscriptions)
    if existing >= limit:
        raise NotAllowed(
            f"Exceed the maximum number of subscriptions of the topic: {topic.name}, which has {existing} of {limit}"
        )


def may_auto_subscribe(config: BrokerConfig, topic: AnyTopic) -> bool:
    """Whether subscribing with an unknown name creates the subscription."""
    allowed = topic.effective.auto_subscription_creation
    return config.allow_auto_subscription_creation if allowed is None else allowed


def check_domain(config: BrokerConfig, name: TopicName) -> None:
    """Check that topics of this domain may be used. Raises :class:`PreconditionFailed`."""
    if not name.is_persistent and not config.enable_non_persistent_topics:
        raise PreconditionFailed(
            f"Broker is unable to load non-persistent topic {name}: enable_non_persistent_topics is false"
        )


def check_new_topic_name(config: BrokerConfig, name: TopicName) -> None:
    """Check that a topic of this name may be created. Raises :class:`PreconditionFailed` or :class:`ReservedName`."""
    check_domain(config, name)
    if name.is_system:
        raise ReservedName(f"Cannot create topic in system topic format! {name} is the name of a system topic")


def auto_topic_creation(config: BrokerConfig, policies: PolicyLevels, name: TopicName) -> AutoTopicCreation:
    """Return the policy for topics that clients name and that do not exist; by default the broker's settings."""
    policy = policies.effective(name).auto_topic_creation
    if policy is not None:
        return policy
    return AutoTopicCreation(config.allow_auto_topic_creation, config.default_partitions)


def count_topics(directory: Directory, namespace: str) -> int:
    """Return how many persistent topics a namespace has, or is about to have; each partition is one."""
    there = sum(topic.persistent for topic in directory.topics_by_namespace.get(namespace, {}).values())
    return there + directory.to_come(f"{PERSISTENT}://{namespace}/")


def check_new_topics(
    directory: Directory, policies: PolicyLevels, name: TopicName, count: int, *, partitioned: bool
) -> None:
    """Whether the namespace may have ``count`` more persistent topics; each partition is one.

    Raises :class:`NotAllowed` (409) for one topic, :class:`PreconditionFailed` (412) for partitions, as Pulsar does.
    """
    if not name.is_persistent:
        return
    limit = policies.effective(name).max_topics
    if limit is None:
        return
    existing = count_topics(directory, name.namespace_name)
    if existing + count > limit:
        reason = (
            f"Exceed maximum number of topics in namespace. It has {existing} of {limit}, {count} more are asked for"
        )
        raise PreconditionFailed(reason) if partitioned else NotAllowed(reason)
