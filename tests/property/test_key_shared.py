"""Key_Shared over any history of joins, leaves, acks and negative acks: one holder a key, order kept, nothing lost.

So it is with each way to divide the keys. A consumer that allows delivery out of order may get a key that others hold.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

from heliograph_broker.messaging.clients.consumer import Consumer, KeySharedPolicy
from heliograph_broker.messaging.delivery.subscription import AckId
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.support.core import Client, Core
from tests.support.subscription_types import KEY_SHARED


class KeySharedMachine(RuleBasedStateMachine):
    """The model knows who holds which unacknowledged offset of which key. Key 0 stands for messages without one."""

    broker_settings: ClassVar[dict[str, Any]] = {}
    #: Whether consumers may allow delivery out of order.
    relaxed = False

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.core = Core(Path(self._directory.name) / "d", tail_cache_bytes=3_000, **self.broker_settings)
        self.topic = self.core.topic()
        self.subscription = self.topic.create_subscription("s")
        self.producer = self.core.producer(self.topic)
        self.clients: dict[Consumer, Client] = {}
        self.keys: list[int] = []
        self.held: dict[int, Consumer] = {}
        self.acked: set[int] = set()
        self.nacked: set[int] = set()
        self.last_seen: dict[int, int] = {}
        self.serial = 0

    def _settle(self) -> None:
        self.core.commit()
        for consumer, client in self.clients.items():
            for _, entry, _, _ in client.take():
                key = self.keys[entry.offset]
                holders = {self.held[o] for o in self.held if self.keys[o] == key}
                if not consumer.key_shared.allow_out_of_order:
                    assert holders <= {consumer}, f"key {key} is held by two consumers"
                assert entry.offset not in self.held
                assert entry.offset not in self.acked
                earlier = [
                    offset
                    for offset in range(entry.offset)
                    if self.keys[offset] == key and offset not in self.acked and offset not in self.held
                ]
                # Only what was negatively acknowledged may be passed: its redelivery is out of order by nature.
                assert set(earlier) <= self.nacked, f"offset {entry.offset} came before {earlier}"
                self.held[entry.offset] = consumer

    @rule(keys=st.lists(st.integers(0, 9), min_size=1, max_size=8))
    def publish(self, keys: list[int]) -> None:
        for key in keys:
            self.keys.append(key)
            self.core.publish(self.producer, key=str(key) if key else None, payload=b"x" * 200)
        self._settle()

    @precondition(lambda self: len(self.clients) < 4)
    @rule(permits=st.integers(0, 30), relaxed=st.booleans())
    def join(self, permits: int, relaxed: bool) -> None:
        self.serial += 1
        client = Client()
        policy = KeySharedPolicy(allow_out_of_order=relaxed and self.relaxed)
        consumer = Consumer(self.subscription, client, self.serial, f"c{self.serial}", key_shared=policy)
        self.clients[consumer] = client
        self.subscription.add_consumer(consumer, KEY_SHARED)
        if permits:
            self.subscription.flow(consumer, permits)
        self._settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(list(self.clients)))
        self.held = {offset: holder for offset, holder in self.held.items() if holder is not consumer}
        del self.clients[consumer]
        if not self.clients:
            self.nacked.clear()
        self.subscription.remove_consumer(consumer)
        self._settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), permits=st.integers(1, 30))
    def flow(self, data: st.DataObject, permits: int) -> None:
        self.subscription.flow(data.draw(st.sampled_from(list(self.clients))), permits)
        self._settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        consumer = self.held.pop(offset)
        self.acked.add(offset)
        self.subscription.acks.acknowledge(consumer, [AckId(*self.topic.log.position(offset))], None)
        self._settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        consumer = self.held.pop(offset)
        self.nacked.add(offset)
        self.subscription.redeliver(consumer, [self.topic.log.position(offset)], None)
        self._settle()

    @precondition(lambda self: self.clients)
    @rule()
    def everything_comes_in_the_end(self) -> None:
        while len(self.acked) < len(self.keys):
            before = len(self.acked)
            for consumer in list(self.clients):
                self.subscription.flow(consumer, 100)
            self._settle()
            for offset, consumer in list(self.held.items()):
                self.acked.add(offset)
                del self.held[offset]
                self.subscription.acks.acknowledge(consumer, [AckId(*self.topic.log.position(offset))], None)
                self._settle()
            assert len(self.acked) > before, "messages are stuck"
        assert self.subscription.acks.backlog_messages == 0

    def teardown(self) -> None:
        self.core.close()
        self._directory.cleanup()


class HashRangesMachine(KeySharedMachine):
    broker_settings: ClassVar = {"subscription_key_shared_use_consistent_hashing": False}


class ReadPositionMachine(KeySharedMachine):
    broker_settings: ClassVar = {"subscription_key_shared_join_at_read_position": True}


class OutOfOrderMachine(KeySharedMachine):
    relaxed = True


_SETTINGS = settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
TestConsistentHashing = KeySharedMachine.TestCase
TestConsistentHashing.settings = _SETTINGS
TestHashRanges = HashRangesMachine.TestCase
TestHashRanges.settings = _SETTINGS
TestReadPosition = ReadPositionMachine.TestCase
TestReadPosition.settings = _SETTINGS
TestOutOfOrder = OutOfOrderMachine.TestCase
TestOutOfOrder.settings = _SETTINGS
