"""A topic's durable state is one unit: whatever happens between acks, trims, rolls, failing groups and crashes.

Operations come in any order, groups fail by lack of space, and the process ends without warning. After each start all
invariants hold without healing, nothing that was confirmed is missing, and nothing confirmed as acknowledged is back.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from heliograph_api.policies.policies import Policies, Retention
from heliograph_broker.messaging.base.records import TenantRecord
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.topic.housekeeping import CHECK_INTERVAL_MS
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.commit.group import Group
from heliograph_broker.storage.commit.group_commit import GroupCommit
from heliograph_broker.storage.disk.metadata import Metadata
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.core import Client, Core

TOPICS = ("plain", "deduplicated")
SUBSCRIPTIONS = ("a", "b")
#: Messages of each entry, by its number: some are batches.
BATCHES = (1, 1, 3, 1, 2)

topics = st.sampled_from(TOPICS)
subscriptions = st.sampled_from(SUBSCRIPTIONS)


class _Kept:
    """The requests under one name, in order, and how much of that is confirmed."""

    def __init__(self, first: object) -> None:
        self.wanted: list[tuple[int, object]] = [(0, first)]

    def ask(self, serial: int, value: object) -> None:
        self.wanted.append((serial, value))

    def allowed(self, confirmed: int) -> list[object]:
        """Return the last confirmed value, and those that may have been stored since."""
        settled = [index for index, (serial, _) in enumerate(self.wanted) if serial <= confirmed]
        return [value for _, value in self.wanted[settled[-1] :]]

    def settle(self, value: object) -> None:
        """After a start the value found is the only one."""
        self.wanted = [(0, value)]


class DurableUnitMachine(RuleBasedStateMachine):
    """Every request has a serial number; one that is answered with success confirms all that were made before it."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.core = Core(Path(self.directory.name) / "d", ledger_max_entries=4)
        self.failing = 0
        self.fail_entries = 0
        self.serial = 0
        self.confirmed = 0
        self.sequence = 0
        #: The number of the request that deleted it last.
        self.unsubscribed: dict[tuple[str, str], int] = {}
        self.subscribed = {(topic, name): _Kept(False) for topic in TOPICS for name in SUBSCRIPTIONS}
        self.ttl = {topic: _Kept(None) for topic in TOPICS}
        self.tenants: dict[str, _Kept] = {}
        #: By topic: message ids with a receipt, and the sequence id of each.
        self.received: dict[str, dict[tuple[int, int], int]] = {topic: {} for topic in TOPICS}
        #: By topic and subscription: what it must deliver until it is acknowledged, and what must not come back.
        self.unacked: dict[tuple[str, str], set[tuple[int, int]]] = {key: set() for key in self.subscribed}
        self.acked: dict[tuple[str, str], set[tuple[int, int]]] = {key: set() for key in self.subscribed}
        for topic in TOPICS:
            policies = Policies(retention=Retention(0, 0), deduplication=topic == "deduplicated")
            self.core.broker.policies.set_topic(self.core.topic(topic).name, policies)
            self.core.topic(topic).create_subscription("a")
            self.subscribed[topic, "a"].settle(True)
        self.core.commit()
        self.watch()

    # -- the world -------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Let writes fail as long as they shall, and begin with new clients."""
        store = self.core.store
        write_metadata, write_entries = Metadata.write, GroupCommit._write_entries

        def metadata(records: Mapping[bytes, bytes | None]) -> None:
            if self.failing:
                self.failing -= 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write_metadata(store.metadata, records)

        def entries(group: Group, segment: object) -> int:
            if self.fail_entries:
                self.fail_entries -= 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write_entries(store.writer, group, segment)  # type: ignore[arg-type]

        store.metadata.write = metadata  # type: ignore[method-assign]
        store.writer._write_entries = entries  # type: ignore[method-assign]
        self.clients = {topic: Client() for topic in TOPICS}
        self.producers = {
            topic: self.core.producer(self.core.topic(topic), client) for topic, client in self.clients.items()
        }
        self.asked: dict[int, int] = {}

    def ask(self) -> int:
        """Number a request, and confirm it and those before it if it is answered with success."""
        self.serial += 1
        serial = self.serial

        def done(error: Exception | None) -> None:
            if error is None:
                self.confirmed = max(self.confirmed, serial)

        self.core.store.writer.after_commit(done)
        return serial

    def collect(self) -> None:
        """Take the receipts."""
        for topic, client in self.clients.items():
            for sequence_id, ledger_id, entry_id in client.receipts:
                if ledger_id < 0:
                    assert sequence_id in self.received[topic].values()
                    continue
                position = (ledger_id, entry_id)
                assert all(position not in received for received in self.received.values()), "an id was given twice"
                assert all(ledger_id != other for each in TOPICS if each != topic for other, _ in self.received[each])
                self.received[topic][position] = sequence_id
                serial = self.asked[sequence_id]
                self.confirmed = max(self.confirmed, serial)
                for name in SUBSCRIPTIONS:
                    # One that was deleted since, and perhaps recreated, begins after it.
                    if (
                        serial > self.unsubscribed.get((topic, name), 0)
                        and self.subscribed[topic, name].allowed(serial)[0]
                    ):
                        self.unacked[topic, name].add(position)
            client.receipts.clear()

    def check(self) -> None:
        """After a start: compare all of it with what was confirmed."""
        core = self.core
        assert core.broker.metrics.healed_invariants == {}
        for name in TOPICS:
            topic = core.topic(name)
            assert topic.policies is not None
            assert topic.policies.message_ttl_ms in self.ttl[name].allowed(self.confirmed)
            self.ttl[name].settle(topic.policies.message_ttl_ms)
            for subscription in SUBSCRIPTIONS:
                kept = self.subscribed[name, subscription]
                there = subscription in topic.subscriptions
                assert there in kept.allowed(self.confirmed), f"{subscription} of {name}: {there}"
                kept.settle(there)
                if not there:
                    self.unacked[name, subscription].clear()
                    self.acked[name, subscription].clear()
        for tenant, kept in self.tenants.items():
            assert (tenant in core.broker.directory.tenants) in kept.allowed(self.confirmed)
            kept.settle(tenant in core.broker.directory.tenants)
        self.check_messages()
        topic = core.topic("deduplicated")
        last = max(self.received["deduplicated"].values(), default=-1)
        assert topic.deduplication is not None
        assert topic.deduplication.last_sequence_id("p") >= last

    def check_messages(self) -> None:
        for name in TOPICS:
            topic = self.core.topic(name)
            for subscription_name, subscription in topic.subscriptions.items():
                key = (name, subscription_name)
                for position in self.unacked[key]:
                    offset = topic.log.offset_of(*position)
                    assert offset is not None, f"{position} of {key} is gone"
                    assert not subscription.acks.cursor.is_acked(offset), f"{position} of {key} is acknowledged"
                    assert topic.log.header(offset) is not None
                for position in self.acked[key]:
                    offset = topic.log.offset_of(*position)
                    assert offset is None or subscription.acks.cursor.is_acked(offset), f"{position} of {key} is back"
                self.check_counts(topic, subscription)

    def check_counts(self, topic: Topic, subscription: Subscription) -> None:
        messages = size = 0
        for offset in range(topic.log.first_offset, topic.log.end_offset):
            header = topic.log.header(offset)
            assert header is not None
            bits = subscription.acks.unacked_bits(offset, header.messages)
            messages += bits.bit_count()
            size += header.size if bits else 0
        assert (subscription.acks.backlog_messages, subscription.acks.backlog_bytes) == (messages, size)

    # -- what clients and operators do -----------------------------------------------------------------------

    @rule(topic=topics, entries=st.integers(1, 6), commit=st.booleans())
    def publish(self, topic: str, entries: int, commit: bool) -> None:
        for _ in range(entries):
            self.sequence += 1
            self.serial += 1
            self.asked[self.sequence] = self.serial
            messages = BATCHES[self.sequence % len(BATCHES)]
            self.core.publish(self.producers[topic], b"x" * self.sequence, sequence_id=self.sequence, messages=messages)
        if commit:
            self.core.commit()

    @precondition(lambda self: self.received["deduplicated"])
    @rule(choice=st.integers(0, 1000))
    def publish_again(self, choice: int) -> None:
        known = sorted(self.received["deduplicated"].values())
        self.core.publish(self.producers["deduplicated"], b"again", sequence_id=known[choice % len(known)])

    @rule(topic=topics, name=subscriptions)
    def subscribe(self, topic: str, name: str) -> None:
        # A client that finds its subscription gets a success, too.
        if name not in self.core.topic(topic).subscriptions:
            self.core.topic(topic).create_subscription(name)
        self.subscribed[topic, name].ask(self.ask(), True)

    @rule(topic=topics, name=subscriptions)
    def unsubscribe(self, topic: str, name: str) -> None:
        if name in self.core.topic(topic).subscriptions:
            self.collect()
            self.core.topic(topic).delete_subscription(name)
            self.subscribed[topic, name].ask(self.ask(), False)
            self.unsubscribed[topic, name] = self.serial
            self.unacked[topic, name].clear()
            self.acked[topic, name].clear()

    @rule(
        topic=topics,
        name=subscriptions,
        choice=st.sampled_from([0, 0, 0, 1, 3]),
        count=st.sampled_from([1, 3, 100]),
        receipt=st.booleans(),
    )
    def acknowledge(self, topic: str, name: str, choice: int, count: int, receipt: bool) -> None:
        self.collect()
        subscription = self.core.topic(topic).subscriptions.get(name)
        waiting = sorted(self.unacked[topic, name])
        if subscription is None or not waiting:
            return
        chosen = waiting[choice % len(waiting) :][:count]
        self.unacked[topic, name] -= set(chosen)
        acked = self.acked[topic, name]

        def done(error: Exception | None) -> None:
            if error is None:
                acked.update(chosen)

        subscription.acks.acknowledge(None, [AckId(*position) for position in chosen], done if receipt else None)

    @rule(topic=topics, name=subscriptions, choice=st.integers(0, 1000))
    def acknowledge_part_of_a_batch(self, topic: str, name: str, choice: int) -> None:
        self.collect()
        waiting = sorted(self.unacked[topic, name])
        subscription = self.core.topic(topic).subscriptions.get(name)
        if subscription is not None and waiting:
            position = waiting[choice % len(waiting)]
            if BATCHES[self.received[topic][position] % len(BATCHES)] > 1:
                subscription.acks.acknowledge(None, [AckId(*position, 0b1)], None)

    @rule(topic=topics, ttl_ms=st.integers(10**9, 10**9 + 50))
    def change_policies(self, topic: str, ttl_ms: int) -> None:
        found = self.core.topic(topic)
        self.core.broker.policies.set_topic(
            found.name,
            Policies(retention=Retention(0, 0), deduplication=topic == "deduplicated", message_ttl_ms=ttl_ms),
        )
        self.ttl[topic].ask(self.ask(), ttl_ms)

    @rule()
    def create_tenant(self) -> None:
        name = f"tenant-{len(self.tenants)}"
        self.core.broker.tenants.create(name, TenantRecord())
        self.tenants[name] = _Kept(False)
        self.tenants[name].ask(self.ask(), True)

    # -- what the machine does -------------------------------------------------------------------------------

    @rule(metadata=st.integers(0, 3), entries=st.integers(0, 2))
    def fail_the_next_groups(self, metadata: int, entries: int) -> None:
        self.failing, self.fail_entries = metadata, entries

    @rule()
    def commit(self) -> None:
        self.core.commit()

    @rule(flushed=st.booleans(), commit=st.booleans())
    def check_topics(self, flushed: bool, commit: bool) -> None:
        """Housekeeping trims; it finds records that wait for their flush, or are just flushed."""
        self.core.clock.advance_ms(CHECK_INTERVAL_MS)
        if flushed:
            self.core.broker.record_writer.flush()
        self.core.broker.housekeeping.run(self.core.clock.now_ms())
        if commit:
            self.core.commit()

    @rule(ms=st.sampled_from([1, 50, 300, 2000]))
    def time_passes(self, ms: int) -> None:
        self.core.advance(ms)

    @rule(commit=st.booleans())
    def crash(self, commit: bool) -> None:
        if commit:
            self.core.commit()
        self.collect()
        self.core.crash()
        self.watch()
        self.check()

    @rule()
    def stop_and_start(self) -> None:
        self.failing = self.fail_entries = 0
        self.core.store.maintain()
        self.core.commit()
        self.collect()
        self.core.restart()
        self.watch()
        self.check()

    @invariant()
    def nothing_is_missing(self) -> None:
        self.collect()
        self.check_messages()

    def teardown(self) -> None:
        self.core.close()
        self.directory.cleanup()


TestDurableUnit = DurableUnitMachine.TestCase
TestDurableUnit.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
