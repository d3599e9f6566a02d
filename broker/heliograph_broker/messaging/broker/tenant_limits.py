"""Limits of each tenant: its namespaces, topics and subscriptions, those of all its namespaces together.

Each partition is a topic, and a subscription counts on each. Topics that are not persistent and subscriptions of
readers count, too: they take the same memory. A limit that is lowered deletes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heliograph_api.values.names import DOMAINS

from heliograph_broker.messaging.base.errors import NotAllowed, PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heliograph_broker.messaging.topic.directory import AnyTopic

    from .parts import BrokerParts

NAMESPACES: Final = "max_namespaces_per_tenant"
TOPICS: Final = "max_topics_per_tenant"
SUBSCRIPTIONS: Final = "max_subscriptions_per_tenant"


def namespaces_over(broker: BrokerParts, tenant: str, more: int = 1) -> str:
    """Return why a tenant may not have ``more`` namespaces; empty if it may."""
    limit = broker.config.max_namespaces_per_tenant
    if not limit:
        return ""
    existing = sum(name.startswith(f"{tenant}/") for name in broker.directory.namespaces)
    return _over(broker, tenant, existing, more, limit, NAMESPACES)


def topics_over(broker: BrokerParts, tenant: str, more: int) -> str:
    """Return why a tenant may not have ``more`` topics; empty if it may."""
    limit = broker.config.max_topics_per_tenant
    if not limit:
        return ""
    directory = broker.directory
    to_come = sum(directory.to_come(f"{domain}://{tenant}/") for domain in DOMAINS)
    return _over(broker, tenant, to_come + sum(1 for _ in _topics(broker, tenant)), more, limit, TOPICS)


def subscriptions_over(broker: BrokerParts, tenant: str, more: int) -> str:
    """Return why a tenant may not have ``more`` subscriptions; empty if it may."""
    limit = broker.config.max_subscriptions_per_tenant
    if not limit:
        return ""
    existing = sum(len(topic.subscriptions) for topic in _topics(broker, tenant))
    return _over(broker, tenant, existing, more, limit, SUBSCRIPTIONS)


def check_namespaces(broker: BrokerParts, tenant: str) -> None:
    """Check that a tenant may have one more namespace. Raises :class:`PreconditionFailed`."""
    if reason := namespaces_over(broker, tenant):
        raise PreconditionFailed(reason)


def check_topics(broker: BrokerParts, tenant: str, more: int = 1) -> None:
    """Check that a tenant may have ``more`` topics. Raises :class:`NotAllowed`."""
    if reason := topics_over(broker, tenant, more):
        raise NotAllowed(reason)


def check_subscriptions(broker: BrokerParts, tenant: str, more: int = 1) -> None:
    """Check that a tenant may have ``more`` subscriptions. Raises :class:`NotAllowed`."""
    if reason := subscriptions_over(broker, tenant, more):
        raise NotAllowed(reason)


def _topics(broker: BrokerParts, tenant: str) -> Iterator[AnyTopic]:
    for namespace, topics in broker.directory.topics_by_namespace.items():
        if namespace.startswith(f"{tenant}/"):
            yield from topics.values()


def _over(broker: BrokerParts, tenant: str, existing: int, more: int, limit: int, name: str) -> str:
    if more <= 0 or existing + more <= limit:
        return ""
    broker.metrics.limits_reached[name] += 1
    what = name.removeprefix("max_").removesuffix("_per_tenant")
    asked = f"{tenant} has {existing} of {limit}, {more} more are asked for ({name})"
    return f"Exceed maximum number of {what} in tenant. {asked}"
