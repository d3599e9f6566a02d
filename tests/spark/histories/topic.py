"""One topic of a real broker, to which everything happens that makes reading hard; the model hears of all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.error import HTTPError

from tests.support.broker_process import BrokerProcess
from tests.support.clients import BATCH_WAITS_MS, connect, fresh_name, ignore_receipt, rest
from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.wire_client import Type, WireClient

from .model import Message, Partition, Place

#: Entries of a ledger.
LEDGER = 6
KEEPER = "keeper"
_FOREVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
_NOTHING = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}


class Topic:
    """A topic in a namespace of its own. A subscription keeps everything until it is moved; ``partitions`` 0: one."""

    def __init__(self, broker: BrokerProcess, partitions: int, *, compacted: bool) -> None:
        self._namespace = fresh_name("n")
        rest(broker, "PUT", f"namespaces/public/{self._namespace}")
        rest(broker, "POST", f"namespaces/public/{self._namespace}/retention", _FOREVER)
        self.broker = broker
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
            try:
                rest(self.broker, "PUT", f"{self._path(name)}/subscription/{KEEPER}", {"ledgerId": -1, "entryId": -1})
            except HTTPError as error:
                # It was kept before.
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

    def _stats(self, partition: Partition) -> Any:
        return rest(self.broker, "GET", f"{self._path(partition.name)}/internalStats")

    def _first_stored(self, partition: Partition) -> Place:
        """Return where the stored entries begin; past all of them if there are none."""
        for ledger in self._stats(partition)["ledgers"]:
            if ledger["entries"]:
                return ledger["ledgerId"], ledger.get("firstEntry", 0)
        return 1 << 62, 0

    def _kept_from(self, partition: Partition, *, by_entry: bool) -> Place:
        """Return the first entry that has to be kept: that of the slowest subscription, or the first of its ledger."""
        # A reader keeps nothing, and "NoLedger" is what the broker says of its cursor.
        cursors = [each for each in self._stats(partition)["cursors"].values() if each["state"] != "NoLedger"]
        marks = [each["markDeletePosition"].split(":") for each in cursors]
        last_done = min(((int(mark[0]), int(mark[1])) for mark in marks), default=(1 << 62, 0))
        kept = [place for place in partition.stored() if place > last_done]
        if by_entry:
            return kept[0] if kept else (1 << 62, 0)
        if kept:
            return min(place for place in partition.stored() if place[0] == kept[0][0])
        stored = partition.stored()
        last = [place for place in stored if place[0] == stored[-1][0]]
        # The ledger that is written to goes when it is full.
        return (1 << 62, 0) if last[-1][1] + 1 >= LEDGER else last[0]

    def trim(self, *, by_entry: bool) -> None:
        """Let the broker delete what no subscription keeps: entries, or whole ledgers only."""
        path = f"namespaces/public/{self._namespace}/retention"
        if by_entry:
            rest(self.broker, "POST", path, _NOTHING)
        else:
            rest(self.broker, "DELETE", path)
        for partition in self.partitions.values():
            if partition.stored():
                until = self._kept_from(partition, by_entry=by_entry)
                eventually(
                    lambda p=partition, at=until: self._first_stored(p) >= at,  # type: ignore[misc]
                    what=f"{partition.name} being trimmed up to {until}",
                )
        rest(self.broker, "POST", path, _FOREVER)
        for partition in self.partitions.values():
            self._note_trimmed(partition)

    def _note_trimmed(self, partition: Partition) -> None:
        first = self._first_stored(partition)
        partition.gone.update(place for place in partition.entries if place < first)

    def expire(self, partition: Partition, up_to: Place | None, subscriptions: Sequence[str]) -> None:
        """Move subscriptions behind an entry, or to the end, as a TTL or an eviction does."""
        if subscriptions:
            partition.moved = max(
                [partition.moved, *partition.entries[-1:]] if up_to is None else [partition.moved, up_to]
            )
        for subscription in self._subscriptions(partition) & {KEEPER, *subscriptions}:
            path = f"{self._path(partition.name)}/subscription/{subscription}"
            if up_to is None:
                rest(self.broker, "POST", f"{path}/skip_all")
            else:
                rest(self.broker, "POST", f"{path}/expireMessages", {"ledgerId": up_to[0], "entryId": up_to[1]})

    def _subscriptions(self, partition: Partition) -> set[str]:
        return set(rest(self.broker, "GET", f"{self._path(partition.name)}/subscriptions"))

    def outlive(self) -> None:
        """Let a TTL take everything from all subscriptions."""
        path = f"namespaces/public/{self._namespace}/messageTTL"
        rest(self.broker, "POST", path, 1)
        for partition in self.partitions.values():
            partition.moved = max([partition.moved, *partition.entries[-1:]])
            stats = f"{self._path(partition.name)}/stats"

            def expired(stats: str = stats) -> bool:
                found = rest(self.broker, "GET", stats)["subscriptions"]
                # A TTL leaves alone what compaction has not read.
                durable = [each for name, each in found.items() if each["isDurable"] and name != "__compaction"]
                return all(each["msgBacklog"] == 0 for each in durable)

            eventually(expired, what=f"{partition.name} being expired", every_s=0.1)
        rest(self.broker, "DELETE", path)

    def truncate(self, partition: Partition) -> None:
        """Delete all messages, acknowledged or not."""
        rest(self.broker, "DELETE", f"{self._path(partition.name)}/truncate")
        partition.compacted.clear()
        self._note_trimmed(partition)

    def compact(self) -> None:
        for partition in self.partitions.values():
            path = f"{self._path(partition.name)}/compaction"
            rest(self.broker, "PUT", path)
            eventually(
                lambda p=path: rest(self.broker, "GET", p)["status"] == "SUCCESS",  # type: ignore[misc]
                what="the compaction",
            )
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

    def restart(self, *, killed: bool) -> None:
        """Have the broker end, in good order or not, and begin again."""
        if killed:
            self.broker.kill9()
        self.broker.restart()
