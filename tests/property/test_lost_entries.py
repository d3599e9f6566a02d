"""The backlog while entries are lost at random: what is readable and owed at least, and at most the truth."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from heliograph_api.policies.policies import Policies, Retention
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.log.recount import recount
from heliograph_broker.messaging.log.skipping import skip_range
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.core import Client, Core
from tests.support.lost_entries import LostEntries
from tests.support.subscription_types import SHARED


class LostEntriesMachine(RuleBasedStateMachine):
    """One subscription. The model knows what each entry held, also of those that nobody can read any more."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._patch = pytest.MonkeyPatch()
        # All in one ledger and nothing in memory but what is delivered, so that losses are met.
        self.core = Core(Path(self._directory.name) / "data", tail_cache_bytes=0)
        self.core.broker.namespaces.set_policies("public/default", Policies(retention=Retention(-1, -1)))
        self.core.topic().create_subscription("s")
        self.core.commit()
        self.lost = LostEntries(self.core, self._patch)
        self.sizes: list[int] = []
        self.unacked: list[int] = []
        self.client = Client()

    @property
    def subscription(self) -> Subscription:
        return self.core.topic().subscription("s")

    @initialize(
        sizes=st.lists(st.integers(1, 9), min_size=8, max_size=20),
        acked=st.sets(st.integers(0, 19), min_size=1, max_size=8),
        lost=st.sets(st.integers(0, 19), min_size=2, max_size=10),
    )
    def publish(self, sizes: list[int], acked: set[int], lost: set[int]) -> None:
        producer = self.core.producer(self.core.topic())
        for number, messages in enumerate(sizes):
            self.core.publish(producer, b"x" * (number + 1), messages=messages, sequence_id=number)
        self.core.commit()
        self.sizes = list(sizes)
        self.unacked = [(1 << messages) - 1 for messages in sizes]
        for offset in acked & set(range(len(sizes))):
            self.subscription.acks.acknowledge(None, [self._id(offset)], None)
            self.core.commit()
            self.unacked[offset] = 0
        self.lost.lose(*(lost & set(range(len(sizes)))))

    def _id(self, offset: int, remaining: int | None = None) -> AckId:
        return AckId(*self.core.topic().log.position(offset), remaining)

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, len(self.sizes) - 1))
        self.lost.lose(*range(first, min(len(self.sizes) - 1, first + data.draw(st.integers(1, 5)))))

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.sizes) - 1))
        self.subscription.acks.acknowledge(None, [self._id(offset)], None)
        self.core.commit()
        self.unacked[offset] = 0

    @rule(data=st.data())
    def acknowledge_batch_indexes(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.sizes) - 1))
        remaining = data.draw(st.integers(0, (1 << self.sizes[offset]) - 1))
        lost = offset in self.lost.entries and offset not in self.subscription.acks.pending
        self.subscription.acks.acknowledge(None, [self._id(offset, remaining)], None)
        self.core.commit()
        # The size of a lost batch is unknown, so all of it is acknowledged.
        self.unacked[offset] &= 0 if lost else remaining

    @rule(data=st.data())
    def acknowledge_cumulatively(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.sizes) - 1))
        self.subscription.acks.acknowledge_up_to(offset, None)
        self.core.commit()
        self.unacked[: offset + 1] = [0] * (offset + 1)

    @precondition(lambda self: self.lost.entries)
    @rule(data=st.data())
    def skip_damaged(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from(sorted(self.lost.entries)))
        last = first
        while last + 1 in self.lost.entries and data.draw(st.booleans()):
            last += 1
        skip_range(self.subscription, first, last, "damaged")
        self.core.commit()
        self.unacked[first : last + 1] = [0] * (last + 1 - first)

    @rule(count=st.integers(1, 20))
    def skip_by_hand(self, count: int) -> None:
        outcome: list[object] = []
        before = [self.subscription.acks.unacked_bits(at, messages) for at, messages in enumerate(self.sizes)]
        self.subscription.acks.skip(count, outcome.append)
        self.core.commit()
        assert outcome == [None]
        after = [self.subscription.acks.unacked_bits(at, messages) for at, messages in enumerate(self.sizes)]
        assert before != after or not any(before)
        self.unacked = after

    @rule(permits=st.integers(1, 60))
    def deliver(self, permits: int) -> None:
        if not self.subscription.consumers:
            self.core.consumer(self.subscription, SHARED, self.client)
        self.subscription.flow(self.subscription.consumers[0], permits)
        self.core.commit()
        self._note_skipped()

    @precondition(lambda self: self.subscription.consumers)
    @rule()
    def take_back(self) -> None:
        self.subscription.remove_consumer(self.subscription.consumers[0])

    def _note_skipped(self) -> None:
        """A dispatcher, an eviction or a restart decides by itself what to pass over: only of what is lost."""
        for offset, messages in enumerate(self.sizes):
            if offset in self.lost.entries and not self.subscription.acks.unacked_bits(offset, messages):
                self.unacked[offset] = 0

    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        topic = self.core.topic()
        offset = data.draw(st.integers(topic.log.first_offset, len(self.sizes)))
        outcome: list[object] = []
        self.subscription.seek(offset, None, outcome.append)
        self.core.commit()
        assert outcome == [None]
        self.unacked = [0 if at < offset else (1 << messages) - 1 for at, messages in enumerate(self.sizes)]

    @rule()
    def trim(self) -> None:
        topic = self.core.topic()
        topic.trim(self.subscription.acks.cursor.first_unacked())
        self.core.commit()

    @rule()
    def restart(self) -> None:
        self.core.restart()
        self.client = Client()

    @invariant()
    def the_backlog_is_within_the_truth(self) -> None:
        topic, subscription = self.core.topic(), self.subscription
        for offset, bits in enumerate(self.unacked):
            assert subscription.acks.unacked_bits(offset, self.sizes[offset]) == bits
        truth = sum(bits.bit_count() for bits in self.unacked)
        certain = sum(bits.bit_count() for at, bits in enumerate(self.unacked) if at not in self.lost.entries)
        assert certain <= subscription.acks.backlog_messages <= truth
        assert subscription.acks.backlog_bytes >= 0
        if not self.lost.entries.intersection(range(len(self.sizes))):
            assert subscription.acks.backlog_messages == truth
        cursor = subscription.acks.cursor
        counted = recount(topic.log, cursor, subscription.acks.pending)
        assert counted is not None
        assert 0 <= topic.log.total_messages - counted[0] <= truth

    @invariant()
    def consumers_hold_what_they_were_given(self) -> None:
        subscription = self.subscription
        held = sum(
            subscription.acks._unacked_in(offset, each.messages) for offset, each in subscription.acks.pending.items()
        )
        assert (
            sum(consumer.unacked for consumer in subscription.consumers) == subscription.acks.unacked_messages == held
        )

    def teardown(self) -> None:
        self._patch.undo()
        self.core.close()
        self._directory.cleanup()


TestLostEntries = LostEntriesMachine.TestCase
TestLostEntries.settings = settings(
    max_examples=50, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
