"""Helpers of the tests of single policies: policies set on the core, messages published and read back by name."""

from __future__ import annotations

from heliograph_api.policies.policies import Policies
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.base.entry import Entry

from .core import Client, Core
from .entries import open_entry
from .subscription_types import EXCLUSIVE, SHARED

NAMESPACE = "public/default"
SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


def set_policies(core: Core, policies: Policies) -> None:
    """Set the policies of the namespace that topics without a full name are in."""
    core.broker.namespaces.set_policies(NAMESPACE, policies)
    core.commit()


def texts_of(entry: Entry, remaining: int | None = None) -> list[str]:
    """Return the texts of an entry's messages, of those in ``remaining`` if it is given."""
    return [
        payload.rstrip(b".").decode()
        for index, (_, payload) in enumerate(open_entry(entry.frame))
        if remaining is None or remaining >> index & 1
    ]


def taken(client: Client) -> list[str]:
    """Return the texts of what was delivered since the last call."""
    return [text for _, entry, _, remaining in client.take() for text in texts_of(entry, remaining)]


def properties_of(entry: Entry) -> dict[str, str]:
    """Return the properties of a single message."""
    [(properties, _)] = open_entry(entry.frame)
    return properties


def stored(core: Core, topic: Topic) -> list[str]:
    """Return what a reader from the earliest message on gets, as the store has it."""
    client = Client()
    reader = topic.create_subscription("reads-all", "earliest", durable=False)
    consumer = core.consumer(reader, EXCLUSIVE, client, permits=10_000)
    reader.remove_consumer(consumer)
    return taken(client)


def backlog(core: Core, subscription: Subscription) -> list[str]:
    """Return what a new consumer of ``subscription`` is sent; it gives everything back."""
    client = Client()
    consumer = core.consumer(subscription, SHARED, client, permits=10_000)
    subscription.remove_consumer(consumer)
    return taken(client)


def acknowledge_all(core: Core, subscription: Subscription) -> None:
    subscription.acks.acknowledge_up_to(subscription.topic.log.end_offset - 1, None)
    core.commit()
