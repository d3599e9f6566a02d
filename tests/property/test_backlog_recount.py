"""Backlog in messages and bytes equals a recount from scratch, whatever happened before."""

from __future__ import annotations

import tempfile
from pathlib import Path

from heliograph_api.policies.policies import Policies, Retention
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.core import Client, Core
from tests.support.subscription_types import EXCLUSIVE


class _Entry:
    """The recount's view of a published entry."""

    def __init__(self, messages: int, size: int, receive_ms: int) -> None:
        self.messages = messages
        self.size = size
        self.receive_ms = receive_ms


class BacklogMachine(RuleBasedStateMachine):
    """Two subscriptions on one topic; the model keeps for each the unacknowledged bits of every entry."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.core = Core(Path(self._directory.name) / "data", ledger_max_entries=7, tail_cache_bytes=2000)
        self.entries: list[_Entry] = []
        self.unacked: dict[str, list[int]] = {"a": [], "b": []}

    @initialize(retention=st.sampled_from([None, Retention(0, 0), Retention(-1, -1)]))
    def begin(self, retention: Retention | None) -> None:
        self.core.broker.namespaces.set_policies("public/default", Policies(retention=retention))
        topic = self.core.topic()
        for name in self.unacked:
            topic.create_subscription(name)
        self.core.commit()
        self._connect()

    def _connect(self) -> None:
        self.topic = self.core.topic()
        self.producer = self.core.producer(self.topic)
        self.client = Client()
        # "a" has a consumer that takes everything; "b" is acknowledged without ever being delivered.
        self.core.consumer(self.subscription("a"), EXCLUSIVE, self.client, permits=10_000)
        self.core.commit()

    def subscription(self, name: str) -> Subscription:
        return self.topic.subscription(name)

    @rule(messages=st.integers(1, 130), payload=st.integers(0, 300), count=st.integers(1, 5))
    def publish(self, messages: int, payload: int, count: int) -> None:
        for _ in range(count):
            before = self.producer.topic.host.store.writer.pending_bytes
            self.core.publish(self.producer, b"x" * payload, messages=messages)
            size = self.core.store.writer.pending_bytes - before
            self.entries.append(_Entry(messages, size, self.core.clock.now_ms()))
            for bits in self.unacked.values():
                bits.append((1 << messages) - 1)
        self.core.commit()

    def _id(self, index: int, remaining: int | None = None) -> AckId:
        return AckId(*self.topic.log.position(index), remaining)

    @precondition(lambda self: self.entries)
    @rule(name=st.sampled_from("ab"), data=st.data())
    def ack_entries(self, name: str, data: st.DataObject) -> None:
        indexes = data.draw(st.lists(st.integers(0, len(self.entries) - 1), min_size=1, max_size=6))
        self.subscription(name).acks.acknowledge(None, [self._id(index) for index in indexes], None)
        self.core.commit()
        for index in indexes:
            self.unacked[name][index] = 0

    @precondition(lambda self: self.entries)
    @rule(name=st.sampled_from("ab"), data=st.data())
    def ack_batch_indexes(self, name: str, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.entries) - 1))
        remaining = data.draw(st.integers(0, (1 << self.entries[index].messages) - 1))
        self.subscription(name).acks.acknowledge(None, [self._id(index, remaining)], None)
        self.core.commit()
        self.unacked[name][index] &= remaining

    @precondition(lambda self: self.entries)
    @rule(name=st.sampled_from("ab"), data=st.data())
    def ack_cumulatively(self, name: str, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.entries) - 1))
        self.subscription(name).acks.acknowledge_up_to(index, None)
        self.core.commit()
        self.unacked[name][: index + 1] = [0] * (index + 1)

    @precondition(lambda self: self.entries)
    @rule(name=st.sampled_from("ab"), data=st.data())
    def seek(self, name: str, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.entries)))
        first = self.topic.log.first_offset
        outcome: list[object] = []
        self.subscription(name).seek(index, None, outcome.append)
        self.core.commit()
        assert outcome == [None]
        start = max(index, first)
        self.unacked[name] = [0 if at < start else (1 << entry.messages) - 1 for at, entry in enumerate(self.entries)]
        if name == "a":
            self.core.consumer(self.subscription("a"), EXCLUSIVE, self.client, permits=10_000)

    @rule(name=st.sampled_from("ab"), age=st.integers(0, 5_000))
    def expire(self, name: str, age: int) -> None:
        now = self.core.clock.now_ms()
        outcome: list[object] = []
        self.subscription(name).expiry.expire_older_than(age, outcome.append)
        self.core.commit()
        assert outcome == [None]
        for at, entry in enumerate(self.entries):
            if entry.receive_ms < now - age:
                self.unacked[name][at] = 0

    @rule(ms=st.integers(1, 3_000))
    def pass_time(self, ms: int) -> None:
        self.core.advance(ms)

    @rule()
    def restart(self) -> None:
        self.core.restart()
        self._connect()

    @invariant()
    def backlog_is_the_recount(self) -> None:
        for name, bits in self.unacked.items():
            if not hasattr(self, "topic"):
                return
            subscription = self.subscription(name)
            assert subscription.acks.backlog_messages == sum(each.bit_count() for each in bits)
            assert subscription.acks.backlog_bytes == sum(
                entry.size for entry, each in zip(self.entries, bits, strict=True) if each
            )

    @invariant()
    def nothing_unacknowledged_is_trimmed(self) -> None:
        if hasattr(self, "topic"):
            for bits in self.unacked.values():
                assert not any(bits[: self.topic.log.first_offset])

    def teardown(self) -> None:
        self.core.close()
        self._directory.cleanup()


TestBacklogRecount = BacklogMachine.TestCase
TestBacklogRecount.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
