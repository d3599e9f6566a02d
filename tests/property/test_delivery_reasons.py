"""The one reason why nothing is delivered, over any history: true by an independent oracle, and ended by what it says.

The oracle counts permits, deliveries, acknowledgments and times itself; of the broker it asks only for the reason.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from heliograph_api.policies.policies import Policies, Rate
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.delivery.delivery_reasons import CAUGHT_UP, DeliveryReason, Explanation
from heliograph_broker.messaging.delivery.explanation import consumer_hold, explain, explain_consumer
from heliograph_broker.messaging.delivery.subscription import AckId
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.support.core import Client, Core
from tests.support.subscription_types import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED

CONSUMER_LIMIT = 4
SUBSCRIPTION_LIMIT = 7
RATE = 5
PERIOD_S = 10
TTL_MS = 9_000


class ReasonMachine(RuleBasedStateMachine):
    """Producers publish, at once or delayed; consumers come, go, take, acknowledge, give back and stop to read."""

    sub_type = SHARED
    durable = True

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.core = Core(
            Path(self._directory.name) / "d",
            tail_cache_bytes=3_000,
            max_unacked_per_consumer=CONSUMER_LIMIT,
            max_unacked_per_subscription=SUBSCRIPTION_LIMIT,
        )
        self.topic = self.core.topic()
        self.subscription = self.topic.create_subscription("s", durable=self.durable)
        self.topic.create_subscription("keeps")
        self.producer = self.core.producer(self.topic)
        self.clients: dict[Consumer, Client] = {}
        self.permits: dict[Consumer, int] = {}
        #: offset -> key, delivery time (ms), and receive time
        self.published: list[tuple[str, int, int]] = []
        self.held: dict[int, Consumer] = {}
        self.acked: set[int] = set()
        self.delivered = 0
        self.limited = False
        self.ttl = False
        self.serial = 0

    # -- the oracle ------------------------------------------------------------------------------------------------

    @property
    def parallel(self) -> bool:
        return self.sub_type in (SHARED, KEY_SHARED)

    def holds(self, consumer: Consumer) -> int:
        return sum(holder is consumer for holder in self.held.values())

    def room(self, consumer: Consumer) -> bool:
        """Whether a consumer could be sent a message, were it not for the rate."""
        room = self.permits[consumer] > 0 and self.clients[consumer].writable
        return room and not (self.parallel and self.holds(consumer) >= CONSUMER_LIMIT)

    def undelivered(self) -> set[int]:
        return set(range(len(self.published))) - self.acked - self.held.keys()

    def delayed(self, offset: int) -> bool:
        return self.parallel and self.published[offset][1] > self.core.clock.now_ms()

    def expired(self, offset: int) -> bool:
        _, due_ms, received_ms = self.published[offset]
        return self.ttl and self.durable and max(due_ms, received_ms) + TTL_MS <= self.core.clock.now_ms()

    def settle(self) -> None:
        """Take what was delivered, and compare the reason with what is known."""
        self.core.commit()
        for consumer, client in self.clients.items():
            for _, entry, _, _ in client.take():
                if self.sub_type is FAILOVER or self.sub_type is EXCLUSIVE:
                    self.held.pop(entry.offset, None)
                self.held[entry.offset] = consumer
                self.permits[consumer] -= 1
                self.delivered += 1
        # What has expired is acknowledged by the broker itself.
        cursor = self.subscription.acks.cursor
        self.acked |= {offset for offset in self.undelivered() if cursor.is_acked(offset) and self.expired(offset)}
        for offset in [offset for offset in self.held if cursor.is_acked(offset) and self.expired(offset)]:
            del self.held[offset]
            self.acked.add(offset)
        of_all = explain(self.subscription)
        self.check(of_all)
        for consumer in self.clients:
            hold = consumer_hold(consumer)
            assert (hold is None) == consumer.ready
            assert explain_consumer(self.subscription, consumer, of_all).reason is not DeliveryReason.NONE
            if not self.limited:
                assert self.room(consumer) == (hold is None)

    def check(self, found: Explanation) -> None:
        left = self.undelivered()
        reason = found.reason
        assert reason is not DeliveryReason.NONE, f"{left} could be delivered"
        assert found.since_ms <= self.core.clock.now_ms()
        assert found.text
        assert found.ends
        if not left:
            assert reason in CAUGHT_UP
            assert (reason is DeliveryReason.ALL_ACKNOWLEDGED) == (len(self.acked) == len(self.published))
            return
        assert reason not in CAUGHT_UP, f"{left} are left"
        if not self.clients:
            assert reason is DeliveryReason.NO_CONSUMER
            return
        assert reason is not DeliveryReason.NO_CONSUMER
        now = {offset for offset in left if not self.delayed(offset)}
        if reason is DeliveryReason.DELAYED:
            assert all(self.expired(offset) for offset in now)
            assert found.until_ms == min(self.published[offset][1] for offset in left - now)
        elif reason is DeliveryReason.EXPIRED:
            assert now
            assert all(self.expired(offset) for offset in now)
        elif reason is DeliveryReason.KEY_HELD:
            assert self.sub_type is KEY_SHARED
            offset = self.topic.log.offset_of(*found.position or (0, 0))
            assert offset is not None
            assert self.held[offset] is found.consumer
            key = self.published[offset][0]
            assert any(self.published[other][0] == key for other in now)
            assert all(self.held[other] is found.consumer for other in self.held if self.published[other][0] == key)
        elif reason is DeliveryReason.UNACKED_LIMIT_OF_SUBSCRIPTION:
            assert self.parallel
            assert len(self.held) >= SUBSCRIPTION_LIMIT
        elif reason is DeliveryReason.DISPATCH_RATE:
            assert self.limited
        else:
            consumer = found.consumer
            assert consumer is not None
            assert not self.room(consumer)
            if reason is DeliveryReason.NO_PERMITS:
                assert self.permits[consumer] <= 0
            elif reason is DeliveryReason.CONNECTION_FULL:
                assert not self.clients[consumer].writable
            else:
                assert reason is DeliveryReason.UNACKED_LIMIT_OF_CONSUMER
                assert self.parallel
                assert self.holds(consumer) == CONSUMER_LIMIT

    # -- what happens ----------------------------------------------------------------------------------------------

    @rule(keys=st.lists(st.integers(0, 3), min_size=1, max_size=4), delay_s=st.sampled_from([0, 0, 0, 20, 90]))
    def publish(self, keys: list[int], delay_s: int) -> None:
        for key in keys:
            now_ms = self.core.clock.now_ms()
            due_ms = now_ms + delay_s * 1000 if delay_s else 0
            self.published.append((str(key), due_ms, now_ms))
            self.core.publish(self.producer, key=str(key), payload=b"x" * 200, deliver_at=due_ms or None)
        self.settle()

    @precondition(lambda self: len(self.clients) < (1 if self.sub_type is EXCLUSIVE else 3))
    @rule(permits=st.integers(0, 6), priority=st.integers(0, 1))
    def join(self, permits: int, priority: int = 0) -> None:
        self.serial += 1
        client = Client()
        consumer = Consumer(self.subscription, client, self.serial, f"c{self.serial}", priority=priority)
        self.clients[consumer] = client
        self.permits[consumer] = permits
        self.rewinds(lambda: self.subscription.add_consumer(consumer, self.sub_type))
        if permits:
            self.subscription.flow(consumer, permits)
        self.settle()

    def rewinds(self, action: object) -> None:
        """Do what may change the active consumer: what the old one held counts as not delivered."""
        dispatcher = self.subscription.dispatcher
        before = getattr(dispatcher, "active", None)
        action()  # type: ignore[operator]
        if not self.parallel and getattr(self.subscription.dispatcher, "active", None) is not before:
            self.held.clear()

    @precondition(lambda self: self.clients and (self.durable or len(self.clients) > 1))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.remove(data.draw(st.sampled_from(list(self.clients))))
        self.settle()

    def remove(self, consumer: Consumer) -> None:
        self.held = {offset: holder for offset, holder in self.held.items() if holder is not consumer}
        del self.clients[consumer]
        self.rewinds(lambda: self.subscription.remove_consumer(consumer))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), permits=st.integers(1, 5))
    def flow(self, data: st.DataObject, permits: int) -> None:
        self.give_permits(data.draw(st.sampled_from(list(self.clients))), permits)

    def give_permits(self, consumer: Consumer, permits: int) -> None:
        self.permits[consumer] += permits
        self.subscription.flow(consumer, permits)
        self.settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def stop_to_read(self, data: st.DataObject) -> None:
        client = self.clients[data.draw(st.sampled_from(list(self.clients)))]
        client.writable = False
        client.unwritable_since_ms = self.core.clock.now_ms()
        self.settle()

    def read_again(self, consumer: Consumer) -> None:
        self.clients[consumer].writable = True
        self.subscription.notify()
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        self.acknowledge_offsets([data.draw(st.sampled_from(sorted(self.held)))])

    def acknowledge_offsets(self, offsets: list[int]) -> None:
        for offset in offsets:
            consumer = self.held.pop(offset)
            self.acked.add(offset)
            self.subscription.acks.acknowledge(consumer, [AckId(*self.topic.log.position(offset))], None)
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        consumer = self.held[offset]
        self.held = {
            other: holder
            for other, holder in self.held.items()
            if (holder is not consumer if not self.parallel else other != offset)
        }
        self.subscription.redeliver(consumer, [self.topic.log.position(offset)], None)
        self.settle()

    @rule(limited=st.booleans(), ttl=st.booleans())
    def set_policies(self, limited: bool, ttl: bool) -> None:
        self.limited, self.ttl = limited, ttl
        rate = Rate(messages=RATE, period_s=PERIOD_S) if limited else None
        policies = Policies(subscription_dispatch_rate=rate, message_ttl_ms=TTL_MS if ttl else None)
        self.core.broker.policies.set_topic(TopicName.parse("t"), policies)
        self.settle()

    @rule(ms=st.sampled_from([1, 999, 10_000, 30_000]), ticks=st.booleans())
    def wait(self, ms: int, ticks: bool) -> None:
        """Let time pass, with the broker's ticks or between two of them."""
        if ticks:
            self.core.advance(ms)
        else:
            self.core.clock.advance_ms(ms)
            self.subscription.notify()
        self.settle()

    @rule()
    def do_what_ends_it(self) -> None:
        """Doing what the reason names makes delivery go on, or gives another reason."""
        found = explain(self.subscription)
        before = self.delivered, found.reason, found.consumer, found.position
        self.remedy(found)
        after = explain(self.subscription)
        assert (self.delivered, after.reason, after.consumer, after.position) != before

    def remedy(self, found: Explanation) -> None:
        consumer = found.consumer
        if found.reason in CAUGHT_UP:
            before = self.delivered
            self.publish(["0"], 0)
            assert self.delivered > before or explain(self.subscription).reason not in CAUGHT_UP
            self.delivered += 1
        elif found.reason is DeliveryReason.NO_CONSUMER:
            self.join(1)
        elif found.reason in (DeliveryReason.DISPATCH_RATE, DeliveryReason.DELAYED):
            self.core.advance(max(0, found.until_ms - self.core.clock.now_ms()) + 1)
            self.settle()
        elif found.reason is DeliveryReason.EXPIRED:
            self.core.advance(1000)
            self.settle()
        elif found.reason is DeliveryReason.UNACKED_LIMIT_OF_SUBSCRIPTION:
            self.acknowledge_offsets(list(self.held))
        elif consumer is not None:
            if found.reason is DeliveryReason.NO_PERMITS:
                self.give_permits(consumer, 1 - self.permits[consumer])
            elif found.reason is DeliveryReason.CONNECTION_FULL:
                self.read_again(consumer)
            else:
                self.acknowledge_offsets([offset for offset, holder in self.held.items() if holder is consumer])

    def teardown(self) -> None:
        self.core.close()
        self._directory.cleanup()


class ExclusiveReasonMachine(ReasonMachine):
    sub_type = EXCLUSIVE


class FailoverReasonMachine(ReasonMachine):
    sub_type = FAILOVER


class KeySharedReasonMachine(ReasonMachine):
    sub_type: SubscriptionType = KEY_SHARED


class ReaderReasonMachine(ReasonMachine):
    """A reader's subscription is not durable, and ends with its last consumer."""

    sub_type = FAILOVER
    durable = False


_SETTINGS = settings(max_examples=50, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
TestShared = ReasonMachine.TestCase
TestShared.settings = _SETTINGS
TestExclusive = ExclusiveReasonMachine.TestCase
TestExclusive.settings = _SETTINGS
TestFailover = FailoverReasonMachine.TestCase
TestFailover.settings = _SETTINGS
TestKeyShared = KeySharedReasonMachine.TestCase
TestKeyShared.settings = _SETTINGS
TestReader = ReaderReasonMachine.TestCase
TestReader.settings = _SETTINGS
