"""Topics that come into being because a client names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.base.errors import TopicNotFound
from heliograph_broker.messaging.broker.admission import auto_topic_creation

if TYPE_CHECKING:
    from collections.abc import Callable

    from heliograph_api.values.names import TopicName

    from heliograph_broker.messaging.broker.broker import Broker


def partitions_for_client(broker: Broker, name: TopicName, create: Callable[[TopicName, int], None]) -> int:
    """Return how many partitions a topic has that a client looks up, 0 if it is not partitioned.

    A missing topic that is to be partitioned by the rules of automatic creation is given to ``create`` first; one that
    is not is created when a client uses it. Raises :class:`NamespaceNotFound`, or :class:`TopicNotFound` for a missing
    topic that the rules do not allow.
    """
    broker.directory.namespace(name.namespace_name)
    if broker.directory.exists(name):
        return broker.directory.partitions_of(name)
    if not broker.topics.may_auto_create(name):
        raise TopicNotFound(f"Topic {name} not found")
    partitions = auto_topic_creation(broker.config, broker.policies, name).partitions
    if partitions <= 0 or name.partition >= 0:
        return 0
    create(name, partitions)
    return partitions
