"""Publishing to a topic, compacting it, and what consumers of the compacted view see: on the real core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from heliograph_api.policies.policies import Policies, Retention
from heliograph_api.protocol.frames import parse_entry
from heliograph_broker.messaging.clients.consumer import Consumer, KeyRange, KeySharedPolicy
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.messages.batches import open_batch
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.base.entry import Entry

from tests.support.core import Client, Core
from tests.support.entries import make_message
from tests.support.subscription_types import EXCLUSIVE

KeyRanges = tuple[KeyRange, ...]
#: Everything stays, acknowledged or not.
FOREVER = Policies(retention=Retention(-1, -1))


class Seen(NamedTuple):
    """A message as a consumer sees it."""

    key: str | None
    payload: bytes
    position: tuple[int, int, int]


def publish(core: Core, topic: Topic, *messages: tuple[str | None, bytes], **fields: object) -> None:
    """Publish single messages; empty payloads delete their key."""
    for key, payload in messages:
        core.publish(core.producer_of(topic), payload, key=key, publish_time=core.clock.now_ms(), **fields)
    core.commit()


def publish_batch(core: Core, topic: Topic, *messages: tuple[str | None, bytes], codec: str = "NONE") -> None:
    batch = [make_message(payload, key=key) for key, payload in messages]
    core.publish_batch(topic, *batch, publish_time=core.clock.now_ms(), codec=codec)


def compact(core: Core, topic: Topic) -> None:
    topic.compaction.start()
    core.commit()
    assert topic.compaction.status() == ("SUCCESS", "")


def reader(
    core: Core, topic: Topic, name: str = "r", *, permits: int = 1000, start: int = 0, compacted: bool = True
) -> tuple[Subscription, Consumer, Client]:
    """Return a reader that is not durable, from the offset ``start`` on (0: what the view has, trimmed or not)."""
    subscription = topic.create_subscription(name, durable=False, start_offset=start)
    return attach(subscription, permits=permits, compacted=compacted, owed=0 if compacted and start == 0 else -1)


def attach(
    subscription: Subscription, *, permits: int = 1000, compacted: bool = True, owed: int = -1, ranges: KeyRanges = ()
) -> tuple[Subscription, Consumer, Client]:
    client = Client()
    consumer = Consumer(subscription, client, 1, "c", key_shared=KeySharedPolicy(ranges=ranges))
    consumer.read_compacted = compacted
    subscription.add_consumer(consumer, EXCLUSIVE)
    if owed >= 0 and subscription.view is not None:
        subscription.view.owe(owed)
    subscription.flow(consumer, permits)
    return subscription, consumer, client


def opened(entry: Entry, remaining: int | None) -> Iterator[Seen]:
    metadata, at = parse_entry(entry.frame)
    if not metadata.HasField("num_messages_in_batch"):
        key = metadata.partition_key if metadata.HasField("partition_key") else None
        yield Seen(key, entry.frame[at:], (entry.ledger_id, entry.entry_id, -1))
        return
    for index, (single, payload) in enumerate(open_batch(metadata, entry.frame[at:])):
        if remaining is None or remaining >> index & 1:
            assert not single.compacted_out
            key = single.partition_key if single.HasField("partition_key") else None
            yield Seen(key, payload, (entry.ledger_id, entry.entry_id, index))


def seen(client: Client) -> list[Seen]:
    return [message for _, entry, _, remaining in client.take() for message in opened(entry, remaining)]


def contents(client: Client) -> list[tuple[str | None, bytes]]:
    return [(message.key, message.payload) for message in seen(client)]


def view(core: Core, topic: Topic) -> list[tuple[str | None, bytes]]:
    subscription, consumer, client = reader(core, topic, "view")
    found = contents(client)
    subscription.remove_consumer(consumer)
    return found


def set_policies(core: Core, topic: Topic, policies: Policies) -> None:
    core.broker.policies.set_topic(topic.name, policies)
    core.commit()


def acknowledge(subscription: Subscription, message: Seen, remaining: int | None = None) -> None:
    ledger, entry, _ = message.position
    subscription.acks.acknowledge(None, [AckId(ledger, entry, remaining)], None)
