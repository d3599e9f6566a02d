"""Chunked messages among any history of consumers: each comes whole to one of them, and nothing is stuck."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

from heliograph_api.protocol.frames import peek_metadata
from heliograph_broker.messaging.clients.chunks import ChunkedMessages
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.delivery.subscription import AckId
from heliograph_broker.storage.base.entry import Entry
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.support.core import Client, Core
from tests.support.subscription_types import KEY_SHARED, SHARED


class Assembling(Client):
    """A client that puts messages together as the official ones do: without the first chunk it drops the others."""

    def __init__(self) -> None:
        super().__init__()
        self.partial: dict[str, list[int]] = {}
        #: Complete messages, not acknowledged: name -> offsets
        self.complete: dict[str, list[int]] = {}
        self.dropped: list[int] = []

    def put_together(self, entry: Entry) -> None:
        metadata = peek_metadata(memoryview(entry.frame))
        name = f"{metadata.producer_name}-{metadata.sequence_id}"
        if metadata.chunk_id == 0:
            self.partial[name] = []
        if name not in self.partial or len(self.partial[name]) != metadata.chunk_id:
            self.dropped.append(entry.offset)
            return
        self.partial[name].append(entry.offset)
        if metadata.chunk_id + 1 >= metadata.num_chunks_from_msg:
            self.complete[name] = self.partial.pop(name)


class ChunkMachine(RuleBasedStateMachine):
    """Producers send messages of up to four chunks, interwoven; consumers come, go, take and give back."""

    sub_type = SHARED
    broker_settings: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.core = Core(Path(self._directory.name) / "d", tail_cache_bytes=3_000, **self.broker_settings)
        self.topic = self.core.topic()
        self.subscription = self.topic.create_subscription("s")
        self.clients: dict[Consumer, Assembling] = {}
        self.open: dict[str, tuple[int, int, int]] = {}
        #: Messages sent with all their chunks, or that have none; and those of them that are acknowledged.
        self.sent: set[str] = set()
        self.done: set[str] = set()
        self.serial = 0

    @initialize()
    def producers(self) -> None:
        self.producer = {name: self.core.producer(self.topic, name=name) for name in ("p", "q")}

    def _settle(self) -> None:
        self.core.commit()
        holders: dict[str, Consumer] = {}
        for consumer, client in self.clients.items():
            for _, entry, _, _ in client.take():
                client.put_together(entry)
            assert not client.dropped, f"chunks without those before them: {client.dropped}"
            for offset in consumer.held:
                cached = self.topic.log.tail.get(offset)
                if cached is not None and (name := peek_metadata(memoryview(cached.frame)).uuid):
                    assert holders.setdefault(name, consumer) is consumer, f"{name} is torn"

    @rule(producer=st.sampled_from("pq"), chunks=st.integers(1, 4), key=st.sampled_from((None, "a", "b")))
    def publish(self, producer: str, chunks: int, key: str | None) -> None:
        """One more chunk of the producer's message, or the first one of a new one."""
        sequence_id, chunk, total = self.open.get(producer, (0, 0, 0))
        if not total:
            self.serial += 1
            sequence_id, chunk, total = self.serial, 0, chunks
        options = {"chunk": (chunk, total)} if total > 1 else {"key": key}
        self.core.publish(self.producer[producer], b"x" * 200, sequence_id=sequence_id, **options)
        self.open.pop(producer, None)
        if chunk + 1 < total:
            self.open[producer] = sequence_id, chunk + 1, total
        else:
            self.sent.add(f"{producer}-{sequence_id}")
        self._settle()

    @precondition(lambda self: len(self.clients) < 4)
    @rule(permits=st.integers(0, 6))
    def join(self, permits: int) -> None:
        self.serial += 1
        client = Assembling()
        consumer = Consumer(self.subscription, client, self.serial, f"c{self.serial}")
        self.clients[consumer] = client
        self.subscription.add_consumer(consumer, self.sub_type)
        if permits:
            self.subscription.flow(consumer, permits)
        self._settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(list(self.clients)))
        del self.clients[consumer]
        self.subscription.remove_consumer(consumer)
        self._settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), permits=st.integers(1, 6))
    def flow(self, data: st.DataObject, permits: int) -> None:
        self.subscription.flow(data.draw(st.sampled_from(list(self.clients))), permits)
        self._settle()

    @precondition(lambda self: any(client.complete for client in self.clients.values()))
    @rule(data=st.data(), taken=st.booleans(), last_only=st.booleans())
    def finish(self, data: st.DataObject, taken: bool, last_only: bool) -> None:
        """Acknowledge a complete message, or give it back: by all of its ids or, as some clients do, by its last."""
        whole = [(consumer, name) for consumer, client in self.clients.items() for name in client.complete]
        consumer, name = data.draw(st.sampled_from(whole))
        offsets = self.clients[consumer].complete.pop(name)
        if taken:
            self._acknowledge(consumer, name, offsets)
        else:
            self._give_back(consumer, offsets[-1:] if last_only else offsets)
        self._settle()

    def _give_back(self, consumer: Consumer, offsets: list[int]) -> None:
        self.subscription.redeliver(consumer, [self.topic.log.position(offset) for offset in offsets], None)

    def _acknowledge(self, consumer: Consumer, name: str, offsets: list[int]) -> None:
        self.done.add(name)
        self.subscription.acks.acknowledge(
            consumer, [AckId(*self.topic.log.position(offset)) for offset in offsets], None
        )

    @precondition(lambda self: self.clients)
    @rule()
    def everything_comes_in_the_end(self) -> None:
        for _ in range(100):
            for consumer in list(self.clients):
                self.subscription.flow(consumer, 100)
            self._settle()
            for consumer, client in self.clients.items():
                for name in list(client.complete):
                    self._acknowledge(consumer, name, client.complete.pop(name))
            self._settle()
            if self.sent <= self.done:
                break
        assert self.sent <= self.done, "messages are stuck"
        unfinished = sum(chunk for _, chunk, _ in self.open.values())
        assert self.subscription.acks.backlog_messages == unfinished
        chunks = getattr(self.subscription.dispatcher, "_chunks")  # noqa: B009
        assert isinstance(chunks, ChunkedMessages)
        assert len(chunks) == unfinished

    def teardown(self) -> None:
        self.core.close()
        self._directory.cleanup()


class KeySharedChunkMachine(ChunkMachine):
    sub_type = KEY_SHARED


class SpreadChunkMachine(KeySharedChunkMachine):
    broker_settings: ClassVar = {
        "subscription_key_shared_use_consistent_hashing": False,
        "subscription_key_shared_spread_keyless": True,
    }


_SETTINGS = settings(max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
TestShared = ChunkMachine.TestCase
TestShared.settings = _SETTINGS
TestKeyShared = KeySharedChunkMachine.TestCase
TestKeyShared.settings = _SETTINGS
TestSpread = SpreadChunkMachine.TestCase
TestSpread.settings = _SETTINGS


def test_what_comes_only_after_another_acknowledgment_comes_too() -> None:
    """A key has moved on: what its old consumer gives back goes to the new one when the old one holds none of it."""
    machine = KeySharedChunkMachine()
    try:
        machine.producers()
        machine.join(permits=100)
        machine.publish(producer="p", chunks=1, key="a")
        machine.publish(producer="p", chunks=1, key="a")
        ((old, client),) = machine.clients.items()
        name, offsets = next(iter(client.complete.items()))
        for _ in range(3):
            machine.join(permits=100)
        del client.complete[name]
        machine._give_back(old, offsets)
        machine._settle()
        assert not any(name in other.complete for other in machine.clients.values()), "the key has not moved on"
        machine.everything_comes_in_the_end()
    finally:
        machine.teardown()
