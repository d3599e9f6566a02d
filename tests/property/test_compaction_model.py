"""Compaction against a brute-force model: random histories, trims, restarts and crashes in the middle of a run."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from heliograph_api.protocol.frames import parse_entry
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.compaction import compaction_run
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.messages.batches import open_batch
from heliograph_broker.messaging.topic.topic import Topic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.core import Client, Core
from tests.support.entries import make_message
from tests.support.subscription_types import EXCLUSIVE

KEYS = ["a", "b", "c", "d", "e"]
CODECS = ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"]


class Place(NamedTuple):
    """Offset of an entry, and which message of it."""

    offset: int
    nth: int


class Message(NamedTuple):
    key: str | None
    payload: bytes


class History:
    """The real core and, beside it, what every message ever published was and which are acknowledged."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.core = Core(directory, ledger_max_entries=self.rng.choice([3, 10, 1000]))
        if self.rng.random() < 0.6:
            self.core.keep_nothing()
        self.entries: list[list[Message]] = []
        self.horizon = -1
        self.kept: list[Place] = []
        #: The acknowledged messages of each durable subscription.
        self.acked: dict[str, set[Place]] = {}
        self.positions: list[tuple[int, int]] = []
        self.topic.compaction.start()
        self.core.commit()

    @property
    def topic(self) -> Topic:
        return self.core.topic()

    # -- what happens ------------------------------------------------------------------------------------------

    def publish(self) -> None:
        messages = [
            Message(
                self.rng.choice([*KEYS, None]),
                b"" if self.rng.random() < 0.2 else b"%d." % self.rng.randrange(1000) * self.rng.choice([1, 50]),
            )
            for _ in range(self.rng.choice([1, 1, 2, 5]))
        ]
        now = self.core.clock.now_ms()
        if len(messages) > 1:
            batch = [make_message(m.payload, key=m.key) for m in messages]
            self.core.publish_batch(self.topic, *batch, codec=self.rng.choice(CODECS), publish_time=now)
        else:
            self.core.publish_all(self.topic, messages[0].payload, key=messages[0].key, publish_time=now)
        self.entries.append(messages)
        self.positions.append(self.topic.log.position(len(self.entries) - 1))
        self.core.clock.advance_ms(1)

    def compact(self) -> None:
        self.topic.compaction.start()
        self.core.commit()
        assert self.topic.compaction.status() == ("SUCCESS", "")
        self._compacted(len(self.entries) - 1)

    def _compacted(self, horizon: int) -> None:
        assert self.topic.compaction.horizon == horizon
        self.horizon = horizon
        latest: dict[str, Place] = {}
        for offset, messages in enumerate(self.entries[: horizon + 1]):
            for index, message in enumerate(messages):
                if message.key is None:
                    continue
                if message.payload:
                    latest[message.key] = Place(offset, index)
                else:
                    latest.pop(message.key, None)
        self.kept = sorted(latest.values())

    def crash_while_compacting(self) -> None:
        """End the process after some of the groups that a compaction writes."""
        self.settle()
        self.topic.compaction.start()
        for _ in range(self.rng.randrange(6)):
            self.core.store.writer._seal()
        self.core.close()
        self.core._open()
        horizon = self.topic.compaction.horizon
        assert horizon in (self.horizon, len(self.entries) - 1)
        if horizon != self.horizon:
            self._compacted(horizon)

    def settle(self) -> None:
        self.core.broker.record_writer.flush()
        self.core.commit()

    def trim(self) -> None:
        self.core.advance(1000)
        self.core.advance(1000)

    def restart(self) -> None:
        self.core.restart()

    # -- what is seen ------------------------------------------------------------------------------------------

    def view(self, start: int) -> list[Place]:
        """Return what a reader from the offset ``start`` on is to see."""
        after = range(max(start, self.horizon + 1), len(self.entries))
        rest = [Place(offset, index) for offset in after for index in range(len(self.entries[offset]))]
        return [place for place in self.kept if place.offset >= start] + rest

    def receive(self, client: Client, consumer: Consumer) -> list[Place]:
        """Take everything, a few permits at a time; every message is what was published under its id."""
        found: list[Place] = []
        quiet = 0
        while quiet < 2:
            # A batch may have taken more than was left.
            consumer.subscription.flow(consumer, self.rng.choice([1, 3, 100]) - min(consumer.permits, 0))
            taken = client.take()
            quiet = quiet + 1 if not taken else 0
            for _, entry, _, remaining in taken:
                assert (entry.ledger_id, entry.entry_id) == self.positions[entry.offset]
                metadata, at = parse_entry(entry.frame)
                if metadata.HasField("num_messages_in_batch"):
                    opened = open_batch(metadata, entry.frame[at:])
                    content = [Message(s.partition_key if s.HasField("partition_key") else None, p) for s, p in opened]
                else:
                    key = metadata.partition_key if metadata.HasField("partition_key") else None
                    content = [Message(key, entry.frame[at:])]
                for index, message in enumerate(content):
                    if remaining is None or remaining >> index & 1:
                        assert message == self.entries[entry.offset][index]
                        found.append(Place(entry.offset, index))
        return found

    def read(self) -> None:
        """A reader from anywhere, by id or by publish time, whether that is trimmed or not."""
        topic = self.topic
        if not self.entries:
            return
        start = self.rng.randrange(len(self.entries))
        position = self.positions[start]
        first = topic.log.offset_at_or_after(*position)
        subscription = topic.create_subscription("reader", durable=False, start_offset=first)
        client = Client()
        consumer = Consumer(subscription, client, 1, "c")
        consumer.read_compacted = True
        subscription.add_consumer(consumer, EXCLUSIVE)
        assert subscription.view is not None
        subscription.view.owe(topic.compaction.trimmed_from(*position))
        assert self.receive(client, consumer) == self.view(start)
        last = topic.compaction.last_position()
        if len(self.entries) - 1 > self.horizon:
            assert last is None
        elif not self.kept:
            assert last in (None, (-1, -1, -1))
        else:
            place = self.kept[-1]
            batch = len(self.entries[place.offset]) > 1
            assert last == (*self.positions[place.offset], place.nth if batch else -1)
        subscription.remove_consumer(consumer)

    def consume(self, name: str) -> None:
        """A durable subscription gets what it has not acknowledged, and acknowledges some of it, or all."""
        topic = self.topic
        subscription = topic.subscriptions.get(name)
        created = subscription is None
        if subscription is None:
            subscription = topic.create_subscription(name, "earliest")
            self.acked[name] = set()
        client = Client()
        consumer = Consumer(subscription, client, 1, "c")
        consumer.read_compacted = True
        subscription.add_consumer(consumer, EXCLUSIVE)
        assert subscription.view is not None
        if created:
            subscription.view.owe(topic.compaction.trimmed_from(-1, -1))
        acked = self.acked[name]
        unacked = [place for place in self.view(0) if place not in acked]
        first = topic.log.first_offset
        # Trimmed messages come again from the first entry that was not acknowledged in full.
        owed_from = subscription.view.owed_from if subscription.view.owed_from >= 0 else first
        assert owed_from <= min((place.offset for place in unacked if place.offset < first), default=first)
        expected = [place for place in self.view(0) if place not in acked or owed_from <= place.offset < first]
        received = self.receive(client, consumer)
        assert received == expected
        self.acknowledge(subscription.name, consumer, received)
        subscription.remove_consumer(consumer)
        self.settle()

    def acknowledge(self, name: str, consumer: Consumer, received: list[Place]) -> None:
        subscription = consumer.subscription
        acked = self.acked[name]
        how = self.rng.choice(["all", "some", "cumulative"])
        if how == "cumulative" and received:
            up_to = self.rng.choice(received)
            size = len(self.entries[up_to.offset])
            remaining = (1 << size) - (1 << (up_to.nth + 1))
            subscription.acks.acknowledge_cumulative(
                consumer, AckId(*self.positions[up_to.offset], remaining or None), None
            )
            acked.update(place for place in received if place <= up_to)
            return
        chosen = received if how == "all" else [place for place in received if self.rng.random() < 0.5]
        for place in self.rng.sample(chosen, len(chosen)):
            size = len(self.entries[place.offset])
            others = ((1 << size) - 1) & ~(1 << place.nth)
            subscription.acks.acknowledge(consumer, [AckId(*self.positions[place.offset], others or None)], None)
            acked.add(place)
        if how == "all":
            assert isinstance(subscription, Subscription)
            assert (subscription.acks.backlog_messages, subscription.acks.backlog_bytes) == (0, 0)
            assert (consumer.unacked, subscription.acks.pending) == (0, {})


OPERATIONS = ["publish", "publish", "publish", "compact", "crash", "trim", "restart", "read", "consume", "other"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), operations=st.lists(st.sampled_from(OPERATIONS), min_size=5, max_size=40))
def test_the_view_is_that_of_the_model_whatever_happened(
    monkeypatch: pytest.MonkeyPatch, seed: int, operations: list[str]
) -> None:
    monkeypatch.setattr(compaction_run, "SLICE_ENTRIES", 3)
    with tempfile.TemporaryDirectory() as directory:
        history = History(Path(directory), seed)
        try:
            for operation in operations:
                match operation:
                    case "crash":
                        history.crash_while_compacting()
                    case "consume":
                        history.consume("s")
                    case "other":
                        history.consume("t")
                    case _:
                        getattr(history, operation)()
            history.read()
        finally:
            history.core.close()
