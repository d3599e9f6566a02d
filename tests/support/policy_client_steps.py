"""Steps of clients in a history: publish, subscribe, take, acknowledge, give back, come back."""

from __future__ import annotations

from heliograph_broker.messaging.base.errors import BacklogQuotaExceeded, BacklogQuotaHeld, NotAllowed
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.delivery.subscription import Subscription

from .entries import TTL_PROPERTY
from .policy_entries import encode
from .policy_modelled_broker import ModelledBroker
from .policy_oracle_state import (
    EVICT,
    HOLD,
    IN_ORDER,
    REFUSE,
    Message,
    OracleSubscription,
    OracleTopic,
    StoredEntry,
    require,
    valid_ttl,
)
from .subscription_types import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED

_KINDS = {"Exclusive": EXCLUSIVE, "Failover": FAILOVER, "Shared": SHARED, "Key_Shared": KEY_SHARED}


class ClientSteps(ModelledBroker):
    """A method ``_do_<step>`` for each step of a client."""

    # -- publishing --------------------------------------------------------------------------------------------

    def _do_publish(
        self,
        topic: str,
        sizes: tuple[int, ...],
        batch: int = 0,
        key: str | None = None,
        ttls: tuple[str, ...] = ("",),
        delay: int = 0,
    ) -> None:
        oracle = self.oracle.topics[topic]
        producer = self._producer(topic)
        if producer is None:
            return
        for size in sizes:
            messages = []
            for index in range(batch or 1):
                self._serial += 1
                ttl = ttls[index % len(ttls)]
                messages.append(Message(f"m{self._serial:04}", ttl or None))
            deliver_at = max(0, self.oracle.now + delay) if delay else 0
            metadata, frame = encode(messages, bool(batch), size, key, deliver_at, self.oracle.now, self._serial)
            own_ttls = not batch or self.oracle.policy(topic, "ttl_in_batches")
            errors = len(self.client.errors)
            self.core.publish_entry(producer, metadata, frame)
            wrong = [m.ttl for m in messages if m.ttl is not None and not valid_ttl(m.ttl)] if own_ttls else []
            refused = self.oracle.refusal(oracle, len(frame))
            if wrong:
                self.result.refused += 1
                require(len(self.client.errors) == errors + 1, f"{topic}: {messages} was not refused")
                at, refusal = self.client.errors[-1]
                text = str(refusal)
                require(at == self._serial and isinstance(refusal, NotAllowed), text)
                require(TTL_PROPERTY in text and f"'{wrong[0]}'" in text, text)
                continue
            require(len(self.client.errors) == errors, f"{topic}: {messages} was refused: {self.client.errors[-1:]}")
            closed = not producer.topic.producer_registry.may_publish(producer)
            if refused:
                # Clients learn of it when they open the producer again, so both actions close it.
                self.result.refused += 1
                require(closed, f"{topic}: {messages} is over the {refused[0]} quota, and the producer goes on")
                if refused[0] == "size":
                    oracle.refused_size += 1
                else:
                    oracle.refused_age += 1
                oracle.wanted = len(frame)
                self._comes_back(topic, refused[1])
                break
            require(not closed, f"{topic}: the producer was closed for {messages}, which fit")
            oracle.add(
                StoredEntry(
                    len(oracle.entries), len(frame), self.oracle.now, deliver_at, messages, bool(batch), key, own_ttls
                )
            )
            for subscription in oracle.subscriptions.values():
                subscription.unacked[len(oracle.entries) - 1] = set(range(len(messages)))
            self.result.published += len(messages)

    def _producer(self, topic: str) -> Producer | None:
        """The topic's producer; None if it is held or refused, as a client that opens one would find out."""
        oracle = self.oracle.topics[topic]
        if topic in self.producers or oracle.held:
            return self.producers.get(topic)
        self._serial += 1
        name = f"p{self._serial}"
        full = self.oracle.full(oracle)
        try:
            may = self._topic(topic).quota.check_creation(name, returning=False)
        except (BacklogQuotaExceeded, BacklogQuotaHeld) as error:
            require(full, f"{topic}: no producer is let in: {error}")
            self._never_fits(oracle)
            return None
        require(may and not full, f"{topic}: a producer is let in, and there is no room")
        self.producers[topic] = self.core.producer(self._topic(topic), self.client, name)
        oracle.producers = 1
        oracle.used = self.oracle.now
        return self.producers[topic]

    def _comes_back(self, topic: str, action: str) -> None:
        """A closed producer opens itself again, as clients do: it is refused by name, or held until there is room."""
        oracle = self.oracle.topics[topic]
        producer = self.producers.pop(topic)
        oracle.producers = 0
        oracle.used = self.oracle.now
        self.core.commit()
        too_large = self._never_fits(oracle, peek=True)
        try:
            may = self._topic(topic).quota.check_creation(producer.name, returning=True)
        except BacklogQuotaExceeded as error:
            require(action == REFUSE or too_large, f"{topic}: refused, not held: {error}")
            self._never_fits(oracle)
            return
        require(action == HOLD and not too_large and not may, f"{topic}: the producer is let in again at once")
        oracle.held = True
        self.result.held += 1
        self._resumed.discard(topic)

        def resume() -> None:
            self._resumed.add(topic)
            self.producers[topic] = self.core.producer(self._topic(topic), self.client, producer.name)

        self._topic(topic).quota.hold(resume)

    def _never_fits(self, topic: OracleTopic, *, peek: bool = False) -> bool:
        """Whether the last refused entry is larger than its quota: its producer gets one error, then none."""
        quota = self.oracle.policy(topic.name, "backlog_quota_size")
        too_large = quota is not None and quota[1] != EVICT and topic.wanted > quota[0]
        if too_large and not peek:
            topic.wanted = 0
        return too_large

    def _do_leave(self, topic: str) -> None:
        """The producer goes away in good order."""
        producer = self.producers.pop(topic, None)
        if producer is not None:
            self._topic(topic).producer_registry.remove(producer)
            self.oracle.topics[topic].producers = 0
            self.oracle.topics[topic].used = self.oracle.now

    # -- subscriptions and consumers -----------------------------------------------------------------------------

    def _create(self, topic: str, name: str, at: str, *, durable: bool = True) -> None:
        oracle = self.oracle.topics[topic]
        if name in oracle.subscriptions:
            return
        self._topic(topic).create_subscription(name, at, durable=durable)
        unacked = {}
        if at == "earliest":
            unacked = {entry.number: set(range(len(entry.messages))) for entry in oracle.kept()}
        oracle.subscriptions[name] = OracleSubscription(name, durable, unacked)

    def _do_create(self, topic: str, name: str, at: str) -> None:
        self._create(topic, name, at)

    def _do_read(self, topic: str, at: str, permits: int) -> None:
        self._serial += 1
        name = f"reader-{self._serial}"
        self._create(topic, name, at, durable=False)
        self._attach(topic, name, "Exclusive", permits)

    def _do_connect(self, topic: str, subscription: int, kind: str, permits: int) -> None:
        found = self._find(topic, subscription)
        if found is None or not found[0].durable:
            return
        oracle = found[0]
        if oracle.permits and (oracle.kind != kind or kind == "Exclusive" or len(oracle.permits) > 2):
            return
        self._attach(topic, oracle.name, kind, permits)

    def _attach(self, topic: str, name: str, kind: str, permits: int) -> None:
        oracle = self.oracle.topics[topic].subscriptions[name]
        if not oracle.permits:
            oracle.held.clear()
        self._serial += 1
        subscription = self._topic(topic).subscription(name)
        consumer = self.core.consumer(
            subscription, _KINDS[kind], self.client, consumer_id=self._serial, name=f"c{self._serial}"
        )
        self.consumers[self._serial] = consumer
        oracle.kind = kind
        oracle.permits[self._serial] = permits
        self.oracle.topics[topic].used = self.oracle.now
        if permits:
            subscription.flow(consumer, permits)

    def _consumer(self, topic: str, subscription: int, consumer: int) -> tuple[OracleSubscription, Consumer] | None:
        found = self._find(topic, subscription)
        if found is None or not found[0].permits:
            return None
        ids = list(found[0].permits)
        return found[0], self.consumers[ids[consumer % len(ids)]]

    def _do_flow(self, topic: str, subscription: int, consumer: int, permits: int) -> None:
        found = self._consumer(topic, subscription, consumer)
        if found is not None:
            found[0].permits[found[1].consumer_id] += permits
            found[1].subscription.flow(found[1], permits)

    def _do_nack(self, topic: str, subscription: int, consumer: int) -> None:
        found = self._consumer(topic, subscription, consumer)
        if found is not None:
            # Exclusive and Failover begin again at the first unacknowledged entry and count nothing, as in Pulsar.
            self.oracle.give_back(found[0], found[1].consumer_id, count=found[0].kind not in IN_ORDER)
            found[1].subscription.redeliver(found[1], None, None)

    def _do_disconnect(self, topic: str, subscription: int, consumer: int) -> None:
        found = self._consumer(topic, subscription, consumer)
        if found is None:
            return
        oracle, gone = found
        self._gone(topic, oracle, gone.consumer_id)
        gone.subscription.remove_consumer(gone)

    def _gone(self, topic: str, oracle: OracleSubscription, consumer: int) -> None:
        self.oracle.give_back(oracle, consumer, count=False)
        del oracle.permits[consumer]
        self.oracle.topics[topic].used = self.oracle.now
        if not oracle.permits:
            oracle.kind = None
            if not oracle.durable:
                del self.oracle.topics[topic].subscriptions[oracle.name]

    def _do_unsubscribe(self, topic: str, subscription: int) -> None:
        found = self._find(topic, subscription)
        if found is None or found[0].name == "watch":
            return
        self._topic(topic).delete_subscription(found[0].name, force=True)
        self._ignore(found[1])
        if found[0].permits:
            self.oracle.topics[topic].used = self.oracle.now
        del self.oracle.topics[topic].subscriptions[found[0].name]

    def _ignore(self, subscription: Subscription) -> None:
        """Its consumers were sent away one by one; what the first ones held went to the others until their turn."""
        self.client.messages = [sent for sent in self.client.messages if sent[0].subscription is not subscription]

    # -- acknowledgment ------------------------------------------------------------------------------------------

    def _do_ack(self, topic: str, subscription: int, entries: tuple[int, ...]) -> None:
        found = self._find(topic, subscription)
        if found is None or not found[0].durable:
            return
        numbers = [number for entry in entries if (number := self._number(topic, entry)) is not None]
        found[1].acks.acknowledge(None, [self._id(topic, number) for number in numbers], None)
        for number in numbers:
            found[0].forget(number)

    def _do_ack_of_batch(self, topic: str, subscription: int, entry: int, remaining: int) -> None:
        found = self._find(topic, subscription)
        number = self._number(topic, entry)
        if found is None or number is None or not found[0].durable:
            return
        found[1].acks.acknowledge(None, [self._id(topic, number, remaining)], None)
        self._keep_of_batch(topic, found[0], number, remaining)

    def _keep_of_batch(self, topic: str, oracle: OracleSubscription, number: int, remaining: int) -> None:
        if number not in oracle.unacked:
            return
        oracle.unacked[number] = {index for index in oracle.unacked[number] if remaining >> index & 1}
        if not oracle.unacked[number]:
            oracle.forget(number)

    def _do_ack_up_to(self, topic: str, subscription: int, entry: int, of_batch: int = 0) -> None:
        found = self._find(topic, subscription)
        number = self._number(topic, entry)
        if found is None or number is None or not found[0].permits or found[0].kind not in IN_ORDER:
            return
        oracle, subscribed = found
        consumer = self.consumers[next(iter(oracle.permits))]
        whole = len(self.oracle.topics[topic].entries[number].messages) == 1
        remaining = None if whole or not of_batch or not oracle.durable else of_batch
        subscribed.acks.acknowledge_cumulative(consumer, self._id(topic, number, remaining), None)
        for below in [at for at in oracle.unacked if at < number]:
            oracle.forget(below)
        if remaining is None:
            oracle.forget(number)
        else:
            self._keep_of_batch(topic, oracle, number, remaining)
