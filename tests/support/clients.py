"""Helpers of the client tests: connecting, receiving with a deadline, polling, fresh topic names."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import Any, Protocol

import pulsar

from .polling import DEADLINE_S, eventually
from .rest import call

DEADLINE_MS = int(DEADLINE_S * 1000)
#: For a producer that flushes itself: what it has in one batch stays one, however slow the machine.
BATCH_WAITS_MS = 600_000

_serial = itertools.count()


class RunningBroker(Protocol):
    """The part of the ``broker`` fixture that these tests need."""

    @property
    def service_url(self) -> str: ...

    @property
    def http_url(self) -> str: ...


def fresh_name(prefix: str = "t") -> str:
    """Return a local topic name that no other test uses."""
    return f"{prefix}-{next(_serial)}-{time.monotonic_ns():x}"


def connect(url: str, **options: Any) -> pulsar.Client:
    """Return an official client that logs errors only; ``url`` is ``pulsar://…`` or ``http://…``."""
    options.setdefault("operation_timeout_seconds", 60)
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **options)


def publish(
    client: pulsar.Client, topic: str, contents: Iterable[bytes], *, keys: int = 0, **settings: Any
) -> list[pulsar.MessageId]:
    """Publish each content as a message of its own; returns their ids.

    Every message has its number as the property ``at``, and one of ``keys`` keys in turn. ``settings`` are those of
    the producer, which is closed afterwards.
    """
    producer = client.create_producer(topic, **settings)
    ids = [
        producer.send(each, {"at": str(at)}, partition_key=f"k{at % keys}" if keys else None)
        for at, each in enumerate(contents)
    ]
    producer.close()
    return ids


def publish_batch(client: pulsar.Client, topic: str, contents: Iterable[bytes]) -> None:
    """Publish the contents as one entry."""
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=BATCH_WAITS_MS)
    for each in contents:
        producer.send_async(each, ignore_receipt)
    producer.flush()
    producer.close()


def publish_record(client: pulsar.Client, topic: str, record: Any) -> None:
    """Publish a record with the JSON schema of its class."""
    producer = client.create_producer(topic, schema=pulsar.schema.JsonSchema(type(record)))
    producer.send(record)
    producer.close()


def numbers(first: int, last: int) -> list[bytes]:
    """Return the texts of numbers, the last one included."""
    return [b"%d" % number for number in range(first, last + 1)]


def receive_many(
    consumer: pulsar.Consumer, count: int, *, acknowledge: bool = True, deadline_ms: int = DEADLINE_MS
) -> list[pulsar.Message]:
    """Receive exactly ``count`` messages; raises ``pulsar.Timeout`` if one does not come by the deadline."""
    messages = []
    for _ in range(count):
        message = consumer.receive(deadline_ms)
        if acknowledge:
            consumer.acknowledge(message)
        messages.append(message)
    return messages


def ignore_receipt(_result: Any, _message_id: Any) -> None:
    """Callback of ``send_async`` for tests that see by what arrives whether it was sent."""


def payloads(messages: list[pulsar.Message]) -> list[bytes]:
    """Return the messages' payloads in order."""
    return [bytes(message.data()) for message in messages]


def receive_available(consumer: pulsar.Consumer, *, quiet_ms: int = 250) -> list[pulsar.Message]:
    """Receive until nothing has come for ``quiet_ms``; for comparing what different consumers got."""
    messages = []
    while (message := receive_or_none(consumer, quiet_ms)) is not None:
        messages.append(message)
    return messages


def receive_shares(count: int, *consumers: pulsar.Consumer) -> list[list[pulsar.Message]]:
    """Return the ``count`` messages that ``consumers`` get, of each its own in order; none is acknowledged."""
    shares: list[list[pulsar.Message]] = [[] for _ in consumers]

    def all_of_them() -> bool:
        for consumer, share in zip(consumers, shares, strict=True):
            share += receive_available(consumer, quiet_ms=50)
        return sum(map(len, shares)) >= count

    eventually(all_of_them, what=f"{count} messages")
    assert sum(map(len, shares)) == count
    return shares


def receive_or_none(consumer: pulsar.Consumer, timeout_ms: int) -> pulsar.Message | None:
    """Receive one message, or return None when none came within ``timeout_ms``."""
    try:
        return consumer.receive(timeout_ms)
    except pulsar.Timeout:
        return None


def read_messages(client: pulsar.Client, topic: str) -> list[pulsar.Message]:
    """Return all messages of a topic."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(DEADLINE_MS))
    reader.close()
    return found


def read_all(reader: pulsar.Reader) -> list[bytes]:
    """Read until the broker says that nothing is left."""
    found = []
    while reader.has_message_available():
        found.append(bytes(reader.read_next(DEADLINE_MS).data()))
    return found


def rest(broker: RunningBroker, method: str, path: str, body: object = None) -> Any:
    """Call the admin REST API under ``/admin/v2/``; returns the decoded JSON, or None for an empty answer.

    Raises :class:`urllib.error.HTTPError` for a refusal.
    """
    return call(f"{broker.http_url}/admin/v2/{path}", method, body)


def stats(broker: RunningBroker, local_name: str) -> dict[str, Any]:
    """Return the stats of ``persistent://public/default/<local_name>``."""
    answer: dict[str, Any] = rest(broker, "GET", f"persistent/public/default/{local_name}/stats")
    return answer


def backlog(broker: RunningBroker, local_name: str, subscription: str) -> int:
    """Return the backlog of a subscription in messages."""
    return int(stats(broker, local_name)["subscriptions"][subscription]["msgBacklog"])


def create_namespace(broker: RunningBroker, name: str, compatibility: str) -> None:
    """Create a namespace in public whose topics take schemas that are compatible in this way."""
    rest(broker, "PUT", f"namespaces/public/{name}")
    rest(broker, "PUT", f"namespaces/public/{name}/schemaCompatibilityStrategy", compatibility)


def create_partitions(broker: RunningBroker, local_name: str, partitions: int) -> None:
    """Create a partitioned topic in public/default."""
    rest(broker, "PUT", f"persistent/public/default/{local_name}/partitions", partitions)
