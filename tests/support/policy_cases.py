"""What the tests of single policies share: policies set on the core, messages published and read back by name."""

from __future__ import annotations

from heliograph_api.policies.policies import Policies
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import parse_entry
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.messages.batches import build_batch, build_frame, is_batch, open_batch
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.base.entry import Entry

from tests.support.subscription_types import EXCLUSIVE, SHARED

from .core import Client, Core
from .entries import make_frame

NAMESPACE = "public/default"
SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


def set_policies(core: Core, policies: Policies) -> None:
    """Set the policies of the namespace that topics without a full name are in."""
    core.broker.set_namespace_policies(NAMESPACE, policies)
    core.commit()


def frame(text: str, *, ttl: str | None = None, size: int = 0, delay_until: int = 0, key: str = "") -> bytes:
    """Return a single message as a client sends it, padded to ``size`` bytes in all."""
    return make_frame(text.encode(), ttl=ttl, size=size, deliver_at=delay_until or None, key=key or None)[1]


def batch_frame(texts: list[str], ttls: list[str | None] | None = None) -> bytes:
    """Return messages in a batch, each with a TTL of its own if it is given one."""
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    singles = []
    for text, ttl in zip(texts, ttls or [None] * len(texts), strict=True):
        single = wire.SingleMessageMetadata(payload_size=len(text))
        if ttl is not None:
            single.properties.add(key="x-message-ttl", value=ttl)
        singles.append((single, text.encode()))
    return build_frame(*build_batch(metadata, singles))


def send(core: Core, producer: Producer, *frames: bytes) -> None:
    """Publish entries and make them durable."""
    for one in frames:
        metadata = parse_entry(one).metadata
        producer.topic.publish(producer, 0, 0, metadata, one)
    core.commit()


def publish(core: Core, topic: Topic, *texts: str, ttl: str | None = None, size: int = 0) -> Producer:
    """Publish one message for each text, from a producer of their own."""
    producer = core.producer(topic, Client(), f"p{len(topic.producers)}-{topic.end_offset}")
    send(core, producer, *(frame(text, ttl=ttl, size=size) for text in texts))
    return producer


def texts_of(entry: Entry, remaining: int | None = None) -> list[str]:
    """Return the texts of an entry's messages, of those in ``remaining`` if it is given."""
    metadata, at = parse_entry(entry.frame)
    payloads = [entry.frame[at:]]
    if is_batch(metadata):
        payloads = [payload for _, payload in open_batch(metadata, entry.frame[at:])]
    return [
        payload.rstrip(b".").decode()
        for index, payload in enumerate(payloads)
        if remaining is None or remaining >> index & 1
    ]


def taken(client: Client) -> list[str]:
    """Return the texts of what was delivered since the last call."""
    return [text for _, entry, _, remaining in client.take() for text in texts_of(entry, remaining)]


def properties_of(entry: Entry) -> dict[str, str]:
    """Return the properties of a single message."""
    return {pair.key: pair.value for pair in parse_entry(entry.frame).metadata.properties}


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
    subscription.acknowledge_up_to(subscription.topic.end_offset - 1, None)
    core.commit()
