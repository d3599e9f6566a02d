"""One topic of a real broker, to which everything happens that makes reading hard; the model gets to know it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from urllib.error import HTTPError

from tests.support.clients import BATCH_WAITS_MS, RunningBroker, connect, fresh_name, ignore_receipt, rest
from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.wire_client import Type, WireClient

from .model import Message, Partition, Place

#: Entries of a ledger.
LEDGER = 6
KEEPER = "keeper"
#: The position before everything, as the REST API has it.
EARLIEST = {"ledgerId": -1, "entryId": -1}


class Topic(ABC):
    """A topic in a namespace of its own. A subscription keeps everything until it is moved; ``partitions`` 0: one."""

    def __init__(self, broker: RunningBroker, partitions: int, *, compacted: bool) -> None:
        self.broker = broker
        self._namespace = fresh_name("n")
        rest(broker, "PUT", f"namespaces/public/{self._namespace}")
        self.name = f"persistent://public/{self._namespace}/t"
        self.compacted = compacted
        self.partitions: dict[str, Partition] = {}
        self._count = partitions
        self._number = 0
        self._client = connect(broker.service_url)
        self._make()

    def close(self) -> None:
        self._client.close()
        self._delete()

    def _path(self, name: str) -> str:
        return name.replace("://", "/", 1)

    def _make(self) -> None:
        rest(self.broker, "PUT", self._path(self.name) + ("/partitions" if self._count else ""), self._count or None)
        self._keep()

    def _delete(self) -> None:
        rest(self.broker, "DELETE", f"{self._path(self.name)}{'/partitions' if self._count else ''}?force=true")

    def _keep(self) -> None:
        names = [f"{self.name}-partition-{number}" for number in range(self._count)] or [self.name]
        for name in names:
            self.partitions.setdefault(name, Partition(name))
            self._subscribe(name, KEEPER)

    def _subscribe(self, name: str, subscription: str) -> None:
        """Create a subscription that keeps everything, unless it is there."""
        try:
            rest(self.broker, "PUT", f"{self._path(name)}/subscription/{subscription}", EARLIEST)
        except HTTPError as error:
            if error.code != 409:
                raise

    # Publishing

    def _text(self, partition: Partition) -> bytes:
        self._number += 1
        return b"%s/%d" % (partition.name.rpartition("/")[2].encode(), self._number)

    def publish(self, partition: Partition, keys: Sequence[str]) -> None:
        """Publish a message for each key, in entries of their own."""
        producer = self._client.create_producer(partition.name)
        for key in keys:
            text = self._text(partition)
            at = producer.send(text, partition_key=key)
            partition.add(Message(text, key, ((at.ledger_id(), at.entry_id()),)))
        producer.close()

    def publish_batch(self, partition: Partition, keys: Sequence[str]) -> None:
        """Publish a message for each key as one entry."""
        producer = self._client.create_producer(
            partition.name, batching_enabled=True, batching_max_publish_delay_ms=BATCH_WAITS_MS
        )
        texts = [self._text(partition) for _ in keys]
        for text, key in list(zip(texts, keys, strict=True))[:-1]:
            producer.send_async(text, ignore_receipt, partition_key=key)
        found: list[Any] = []
        producer.send_async(texts[-1], lambda _, at: found.append(at), partition_key=keys[-1])
        producer.flush()
        eventually(lambda: found, what="the receipt")
        place = found[0].ledger_id(), found[0].entry_id()
        producer.close()
        partition.add(
            *(Message(text, key, (place,), index) for index, (text, key) in enumerate(zip(texts, keys, strict=True)))
        )

    def publish_chunks(self, partition: Partition, chunks: int, between: int, *, whole: bool) -> None:
        """Publish a message in chunks of which the last is left out unless ``whole``; another one every ``between``."""
        text = self._text(partition).ljust(chunks, b".")
        size = -(-len(text) // chunks)
        parts = [text[number * size : (number + 1) * size] for number in range(chunks)]
        fields: dict[str, Any] = {
            "num_chunks_from_msg": chunks,
            "uuid": text.decode(),
            "total_chunk_msg_size": len(text),
        }
        places: list[Place] = []
        with WireClient(self.broker.service_url) as link:
            producer = link.producer(partition.name)
            for number, part in enumerate(parts[: chunks if whole else chunks - 1]):
                at = link.publish(producer, make_entry(part, chunk_id=number, **fields))
                places.append((at.ledgerId, at.entryId))
                partition.entries.append(places[-1])
                if number + 1 < chunks and number % between == between - 1:
                    other = self._text(partition)
                    at = link.publish(producer, make_entry(other))
                    partition.add(Message(other, "", ((at.ledgerId, at.entryId),)))
            link.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=producer)
        if whole:
            partition.messages.append(Message(text, "", tuple(places)))

    # What takes messages away

    def expire(self, partition: Partition, up_to: Place | None, subscriptions: Sequence[str]) -> None:
        """Move subscriptions behind an entry, or to the end, as a TTL or an eviction does."""
        if subscriptions:
            partition.moved = max(
                [partition.moved, *partition.entries[-1:]] if up_to is None else [partition.moved, up_to]
            )
        for subscription in self._subscriptions(partition) & {KEEPER, *subscriptions}:
            self._move(partition, subscription, up_to)

    def _move(self, partition: Partition, subscription: str, up_to: Place | None) -> None:
        """Move a subscription forwards, behind an entry or to the end."""
        path = f"{self._path(partition.name)}/subscription/{subscription}"
        if up_to is None:
            rest(self.broker, "POST", f"{path}/skip_all")
        else:
            index = int(partition.name.rpartition("-partition-")[2]) if self._count else -1
            at = {"ledgerId": up_to[0], "entryId": up_to[1], "partitionIndex": index}
            rest(self.broker, "POST", f"{path}/expireMessages", at)

    def _subscriptions(self, partition: Partition) -> set[str]:
        return set(rest(self.broker, "GET", f"{self._path(partition.name)}/subscriptions"))

    def _stats(self, partition: Partition) -> Any:
        return rest(self.broker, "GET", f"{self._path(partition.name)}/internalStats")

    @abstractmethod
    def trim(self, *, by_entry: bool) -> None:
        """Let the broker delete what no subscription keeps: entries, or whole ledgers only."""

    @abstractmethod
    def outlive(self) -> None:
        """Let a TTL take everything from all subscriptions."""

    @abstractmethod
    def truncate(self, partition: Partition) -> None:
        """Delete messages, acknowledged or not: as many as the broker can."""

    @abstractmethod
    def restart(self, *, killed: bool) -> None:
        """Have the topic loaded again; ``killed`` without the time to end in good order."""

    def compact(self) -> None:
        for partition in self.partitions.values():
            self._compact(partition)

    def _compact(self, partition: Partition) -> None:
        path = f"{self._path(partition.name)}/compaction"
        rest(self.broker, "PUT", path)
        eventually(lambda: rest(self.broker, "GET", path)["status"] == "SUCCESS", what="the compaction")
        partition.compact()

    def recreate(self) -> None:
        """Delete the topic with everything and make one of the same name."""
        self._delete()
        for partition in self.partitions.values():
            partition.forget()
        self._make()

    def add_partition(self) -> None:
        if self._count:
            self._count += 1
            rest(self.broker, "POST", f"{self._path(self.name)}/partitions", self._count)
            self._keep()
