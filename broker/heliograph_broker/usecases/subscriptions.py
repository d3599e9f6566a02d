"""Subscriptions of a topic and all its partitions: created and deleted on each of them or on none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_api.values.names import check_subscription

from heliograph_broker.messaging.base.errors import Conflict, PreconditionFailed
from heliograph_broker.messaging.broker.admission import check_new_subscription, check_subscription_name
from heliograph_broker.messaging.broker.tenant_limits import check_subscriptions

from .topics import partitions_for_client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heliograph_api.values.names import TopicName

    from heliograph_broker.messaging.broker.broker import Broker
    from heliograph_broker.messaging.topic.directory import AnyTopic


def create_subscription(
    broker: Broker,
    topic_name: TopicName,
    name: str,
    *,
    position: str = "latest",
    start_id: tuple[int, int] | None = None,
    published_ms: int | None = None,
    properties: dict[str, str] | None = None,
) -> None:
    """Create a durable subscription of a topic, on every partition that has none of this name, or on none.

    It begins at ``position`` (``latest`` or ``earliest``), at the first entry from ``start_id`` (ledger id, entry id)
    on, or at the first one published at ``published_ms`` or later. A missing topic is created first where the rules of
    automatic creation allow it. Raises :class:`TopicNotFound`, :class:`Conflict`, :class:`NotAllowed` (too many
    subscriptions) and what :meth:`~heliograph_broker.messaging.topic.topic.Topic.create_subscription` raises.
    """
    check_subscription(name)
    check_subscription_name(name)
    if not partitions_for_client(broker, topic_name, broker.partitioned.create):
        broker.topics.get_or_create(topic_name)
    topics = [broker.directory.get_topic(part) for part in broker.topics.growth.completed(topic_name)]
    taken = [topic.subscriptions[name] for topic in topics if name in topic.subscriptions]
    # A reader's is no durable subscription, and keeps its name.
    if len(taken) == len(topics) or any(each.persistent and not each.durable for each in taken):
        raise Conflict("Subscription already exists for topic")
    topics = [topic for topic in topics if name not in topic.subscriptions]
    for topic in topics:
        check_new_subscription(topic)
    check_subscriptions(broker, topic_name.tenant, len(topics))
    created: list[AnyTopic] = []
    try:
        for topic in topics:
            if topic.persistent:
                offset = None if start_id is None else topic.log.offset_at_or_after(*start_id)
                if published_ms is not None:
                    offset = topic.log.first_published_at_or_after(published_ms)
                topic.create_subscription(name, position, start_offset=offset, properties=properties)
            else:
                topic.create_subscription(name)
            created.append(topic)
    except BaseException:
        # The place could not be read in one partition: no other keeps a backlog for nobody.
        for topic in created:
            topic.delete_subscription(name)
        raise


def delete_subscription(topics: Sequence[AnyTopic], name: str, *, force: bool = False) -> None:
    """Delete the subscription that all of ``topics`` have, on each or none; ``force`` disconnects its consumers.

    Raises :class:`PreconditionFailed` if one has consumers.
    """
    if not force and any(topic.subscriptions[name].consumers for topic in topics):
        raise PreconditionFailed("Subscription has active connected consumers")
    for topic in topics:
        topic.delete_subscription(name, force)
