"""Topics that come into being because a client names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_api.values.listeners import ServiceUrls, parse_advertised_listeners

from heliograph_broker.messaging.base.errors import ListenerNotFound, TopicNotFound
from heliograph_broker.messaging.broker.admission import auto_topic_creation, check_domain, check_new_topic_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from heliograph_api.broker_config import BrokerConfig
    from heliograph_api.values.names import TopicName

    from heliograph_broker.messaging.broker.broker import Broker

#: Pulsar's topic with as many partitions as it has transaction coordinators.
_TRANSACTION_COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign"


def advertised_urls(config: BrokerConfig, listener: str) -> ServiceUrls | None:
    """Return the URLs of an advertised listener, by default those of the internal one; None if none is configured.

    Raises :class:`ListenerNotFound` for another name.
    """
    urls = parse_advertised_listeners(config.advertised_listeners)
    if not listener and not urls:
        return None
    name = listener or config.internal_listener_name or next(iter(urls))
    if name not in urls:
        there = f"; it has {', '.join(urls)}" if urls else ", only its advertised address"
        raise ListenerNotFound(f"the broker has no listener of the name {name}{there}")
    return urls[name]


def partitions_for_client(broker: Broker, name: TopicName, create: Callable[[TopicName, int], None] | None) -> int:
    """Return how many partitions a topic has that a client looks up, 0 if it is not partitioned.

    A missing topic that is to be partitioned by the rules of automatic creation is given to ``create`` first; one that
    is not is created when a client uses it. Raises :class:`NamespaceNotFound`, or :class:`TopicNotFound` for a missing
    topic that the rules do not allow and for any without ``create``, :class:`PreconditionFailed` for a domain that is
    switched off, or :class:`ReservedName`.
    """
    if create is not None and str(name) == _TRANSACTION_COORDINATORS:
        # The Go client takes this for what it is, a broker without transactions; the others ask by a command.
        return 0
    broker.directory.namespace(name.namespace_name)
    check_domain(broker.config, name)
    if broker.directory.exists(name):
        return broker.directory.partitions_of(name)
    if create is None or not broker.topics.may_auto_create(name):
        raise TopicNotFound(f"Topic {name} not found")
    if name.partition < 0:
        check_new_topic_name(broker.config, name)
    partitions = auto_topic_creation(broker.config, broker.policies, name).partitions
    if partitions <= 0 or name.partition >= 0:
        return 0
    create(name, partitions)
    return partitions
