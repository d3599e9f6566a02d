"""Drives the real core and the policy oracle through one history and compares them after every step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heliograph_broker.messaging import batches
from heliograph_broker.messaging.consumer import Consumer
from heliograph_broker.messaging.errors import BrokerError
from heliograph_broker.messaging.producer import Producer
from heliograph_broker.messaging.records import NamespaceRecord, TenantRecord
from heliograph_broker.messaging.subscription import EXCLUSIVE, KEY_SHARED, SHARED, AckId, Subscription
from heliograph_broker.messaging.topic import Topic
from heliograph_broker.protocol import wire_pb2 as wire
from heliograph_broker.protocol.frames import parse_entry
from heliograph_broker.resources.names import TopicName
from heliograph_broker.resources.policies import BacklogQuota, Policies, Retention
from heliograph_broker.storage.entry import Entry

from .core import Client, Core
from .policy_history import Step
from .policy_oracle import (
    Disagreement,
    Letter,
    Message,
    Oracle,
    OracleSubscription,
    OracleTopic,
    StoredEntry,
    require,
    valid_ttl,
)

TOPICS = {"t": "persistent://acme/live/t", "d": "persistent://acme/dead/d"}
NAMESPACES = {"t": "live", "d": "dead"}
_KINDS = {"Exclusive": EXCLUSIVE, "Shared": SHARED, "Key_Shared": KEY_SHARED}
_TTL = "x-message-ttl"


@dataclass
class HistoryResult:
    """What a history was made of, so that a run can say that it tested something."""

    steps: int = 0
    published: int = 0
    refused: int = 0
    delivered: int = 0
    expired: int = 0
    evicted: int = 0
    dead_lettered: int = 0
    loops: int = 0
    trimmed: int = 0

    def add(self, other: HistoryResult) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Failed(AssertionError):
    """A history in which both sides do not agree; ``at`` is the number of the step."""

    def __init__(self, at: int, said: str) -> None:
        super().__init__(f"after step {at + 1}: {said}")
        self.at = at


class PolicyDriver:
    """One history. :meth:`run` raises :class:`Failed`."""

    def __init__(self, directory: Path) -> None:
        self.core = Core(directory, ledger_max_entries=5, tail_cache_bytes=1500)
        broker = self.core.broker
        broker.create_tenant("acme", TenantRecord(allowed_clusters=[self.core.config.cluster_name]))
        for namespace in ("acme/live", "acme/dead"):
            broker.create_namespace(namespace, NamespaceRecord())
        for name in TOPICS.values():
            broker.create_topic(TopicName.parse(name))
        self.oracle = Oracle(NAMESPACES)
        self.oracle.now = self.oracle.ticked = self.core.clock.now_ms()
        self.client = Client()
        self.producers: dict[str, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.result = HistoryResult()
        self._serial = 0
        self._evicted: dict[tuple[str, str], set[int]] = {}
        self._create("d", "watch", "earliest")

    def run(self, steps: Sequence[Step]) -> HistoryResult:
        try:
            for at, step in enumerate(steps):
                try:
                    self._step(step)
                except Disagreement as error:
                    raise Failed(at, str(error)) from error
                except Exception as error:
                    raise Failed(at, f"{type(error).__name__}: {error}") from error
                self.result.steps += 1
            for name, count in self.oracle.totals.items():
                setattr(self.result, name, count)
            return self.result
        finally:
            self.core.close()

    def _step(self, step: Step) -> None:
        ends = {name: len(topic.entries) for name, topic in self.oracle.topics.items()}
        self._evicted.clear()
        letters: list[Letter] | None = getattr(self, "_do_" + step.name.replace(" ", "_"))(**step.arguments)
        self.core.commit()
        self._receive_letters(letters or [])
        self._note_sent()
        ticked = step.name == "wait"
        if ticked:
            self._evict()
        self._deliveries(ends)
        self.oracle.just_sent.clear()
        for name in TOPICS:
            oracle = self.oracle.topics[name]
            self.oracle.note_quotas(oracle)
            first = self._topic(name).first_offset
            self.result.trimmed += max(0, first - oracle.first)
            self.oracle.trimmed(oracle, first, ticked)
        self._compare()

    # -- the core ----------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> Topic:
        topic = self.core.broker.get_topic(TopicName.parse(TOPICS[name]))
        assert isinstance(topic, Topic)
        return topic

    def _find(self, topic: str, subscription: int) -> tuple[OracleSubscription, Subscription] | None:
        """The n-th subscription of a topic on both sides; None if there are none."""
        subscriptions = list(self.oracle.topics[topic].subscriptions.values())
        if not subscriptions:
            return None
        found = subscriptions[subscription % len(subscriptions)]
        return found, self._topic(topic).subscription(found.name)

    def _number(self, topic: str, entry: int) -> int | None:
        """The n-th kept entry's number."""
        kept = self.oracle.topics[topic].kept()
        return kept[entry % len(kept)].number if kept else None

    def _id(self, topic: str, number: int, remaining: int | None = None) -> AckId:
        return AckId(*self._topic(topic).position(number), remaining)

    def _done(self) -> tuple[list[BrokerError | None], Any]:
        outcome: list[BrokerError | None] = []
        return outcome, outcome.append

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
        for size in sizes:
            messages = []
            for index in range(batch or 1):
                self._serial += 1
                ttl = ttls[index % len(ttls)]
                messages.append(Message(f"m{self._serial}", ttl or None))
            deliver_at = max(0, self.oracle.now + delay) if delay else 0
            metadata, frame = _encode(messages, bool(batch), size, key, deliver_at, self.oracle.now)
            own_ttls = not batch or bool(self.oracle.policy(topic, "ttl_in_batches"))
            sequence_id = self._serial
            errors = len(self.client.errors)
            self._topic(topic).publish(producer, sequence_id, 0, len(messages), metadata, frame)
            wrong = [m.ttl for m in messages if m.ttl is not None and not valid_ttl(m.ttl)] if own_ttls else []
            refused = self.oracle.refusal(oracle, len(frame))
            if wrong:
                self.result.refused += 1
                require(len(self.client.errors) == errors + 1, f"{topic}: {messages} was not refused")
                at, code, text = self.client.errors[-1]
                require(at == sequence_id and code == wire.NotAllowedError, text)
                require(_TTL in text and f"'{wrong[0]}'" in text, text)
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
                del self.producers[topic]
                break
            require(not closed, f"{topic}: the producer was closed for {messages}, which fit")
            oracle.entries.append(
                StoredEntry(
                    len(oracle.entries), len(frame), self.oracle.now, deliver_at, messages, bool(batch), key, own_ttls
                )
            )
            for subscription in oracle.subscriptions.values():
                subscription.unacked[len(oracle.entries) - 1] = set(range(len(messages)))
            self.result.published += len(messages)

    def _producer(self, topic: str) -> Producer:
        if topic not in self.producers:
            self._serial += 1
            self.producers[topic] = self.core.producer(self._topic(topic), self.client, f"p{self._serial}")
        return self.producers[topic]

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
            # Exclusive begins again at the first unacknowledged entry and counts nothing, as in Pulsar.
            self.oracle.give_back(found[0], found[1].consumer_id, count=found[0].kind != "Exclusive")
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
        found[1].acknowledge(None, [self._id(topic, number) for number in numbers], None)
        for number in numbers:
            found[0].forget(number)

    def _do_ack_of_batch(self, topic: str, subscription: int, entry: int, remaining: int) -> None:
        found = self._find(topic, subscription)
        number = self._number(topic, entry)
        if found is None or number is None or not found[0].durable:
            return
        found[1].acknowledge(None, [self._id(topic, number, remaining)], None)
        self._keep_of_batch(topic, found[0], number, remaining)

    def _keep_of_batch(self, topic: str, oracle: OracleSubscription, number: int, remaining: int) -> None:
        if number not in oracle.unacked:
            return
        if len(self.oracle.topics[topic].entries[number].messages) == 1:
            remaining = 0
        oracle.unacked[number] = {index for index in oracle.unacked[number] if remaining >> index & 1}
        if not oracle.unacked[number]:
            oracle.forget(number)

    def _do_ack_up_to(self, topic: str, subscription: int, entry: int, of_batch: int = 0) -> None:
        found = self._find(topic, subscription)
        number = self._number(topic, entry)
        if found is None or number is None or not found[0].permits or found[0].kind != "Exclusive":
            return
        oracle, subscribed = found
        consumer = self.consumers[next(iter(oracle.permits))]
        whole = len(self.oracle.topics[topic].entries[number].messages) == 1
        remaining = None if whole or not of_batch or not oracle.durable else of_batch
        subscribed.acknowledge_cumulative(consumer, self._id(topic, number, remaining), None)
        for below in [at for at in oracle.unacked if at < number]:
            oracle.forget(below)
        if remaining is None:
            oracle.forget(number)
        else:
            self._keep_of_batch(topic, oracle, number, remaining)

    # -- by hand ---------------------------------------------------------------------------------------------------

    def _do_seek(self, topic: str, subscription: int, entry: int) -> None:
        found = self._find(topic, subscription)
        if found is None or not found[0].durable:
            return
        oracle, subscribed = found
        kept = self.oracle.topics[topic].kept()
        number = kept[entry].number if entry < len(kept) else len(self.oracle.topics[topic].entries)
        outcome, done = self._done()
        subscribed.seek(number, None, done)
        self.core.commit()
        require(outcome == [None], f"seek: {outcome}")
        self._ignore(subscribed)
        for consumer in list(oracle.permits):
            self._gone(topic, oracle, consumer)
        oracle.returned.clear()
        oracle.unacked = {at.number: set(range(len(at.messages))) for at in kept if at.number >= number}

    def _do_clear(self, topic: str, subscription: int) -> None:
        found = self._find(topic, subscription)
        if found is None or not found[0].durable:
            return
        outcome, done = self._done()
        found[1].clear_backlog(done)
        self.core.commit()
        require(outcome == [None], f"clear: {outcome}")
        for number in list(found[0].unacked):
            found[0].forget(number)

    def _do_skip(self, topic: str, subscription: int, messages: int) -> None:
        found = self._find(topic, subscription)
        if found is None or not found[0].durable:
            return
        outcome, done = self._done()
        found[1].skip(messages, done)
        self.core.commit()
        require(outcome == [None], f"skip: {outcome}")
        for _ in range(messages):
            if found[0].unacked:
                oldest = min(found[0].unacked)
                found[0].unacked[oldest].remove(min(found[0].unacked[oldest]))
                if not found[0].unacked[oldest]:
                    found[0].forget(oldest)

    def _do_expire_by_age(self, topic: str, subscription: int, ms: int) -> list[Letter]:
        found = self._find(topic, subscription)
        if found is None or not found[0].durable:
            return []
        outcome, done = self._done()
        found[1].expire_older_than(ms, done)
        self.core.commit()
        require(outcome == [None], f"expire by age: {outcome}")
        oracle = self.oracle.topics[topic]
        young = [entry.number for entry in oracle.kept() if entry.received >= self.oracle.now - ms]
        return self.oracle.expire_by_hand(oracle, found[0], min(young, default=len(oracle.entries)))

    def _do_expire_up_to(self, topic: str, subscription: int, entry: int) -> list[Letter]:
        found = self._find(topic, subscription)
        number = self._number(topic, entry)
        if found is None or number is None or not found[0].durable:
            return []
        outcome, done = self._done()
        found[1].expire_up_to(*self._topic(topic).position(number), done)
        self.core.commit()
        require(outcome == [None], f"expire up to: {outcome}")
        return self.oracle.expire_by_hand(self.oracle.topics[topic], found[0], number + 1)

    def _do_truncate(self, topic: str) -> None:
        outcome, done = self._done()
        self._topic(topic).truncate(done)
        self.core.commit()
        require(outcome == [None], f"truncate: {outcome}")
        self.oracle.topics[topic].first = len(self.oracle.topics[topic].entries)
        for subscription in self.oracle.topics[topic].subscriptions.values():
            for number in list(subscription.unacked):
                subscription.forget(number)

    # -- policies and time -------------------------------------------------------------------------------------------

    def _do_policy(self, level: str, name: str, value: Any) -> None:
        levels = self.oracle.levels
        levels.setdefault(level, {}).pop(name, None)
        if value is not None:
            levels[level][name] = value
        policies = _policies(levels[level])
        broker = self.core.broker
        kind, _, which = level.partition(":")
        if kind == "topic":
            broker.set_topic_policies(TopicName.parse(TOPICS[which]), policies)
        elif kind == "namespace":
            broker.set_namespace_policies(f"acme/{which}", policies)
        elif level == "tenant limits":
            record = TenantRecord(allowed_clusters=[self.core.config.cluster_name], limits=policies)
            broker.update_tenant("acme", record)
        else:
            self._set_broker_policies()

    def _set_broker_policies(self) -> None:
        defaults = _policies({"retention": (0, 0)} | self.oracle.levels.get("broker", {}))
        limits = _policies(self.oracle.levels.get("broker limits", {}))
        self.core.broker.set_broker_policies(defaults, limits)

    def _do_blink(self, ms: int) -> None:
        """Time passes, and no tick has seen it yet."""
        self.core.clock.advance_ms(ms)
        self.oracle.now += ms

    def _do_wait(self, ms: int) -> list[Letter]:
        self.oracle.tick(ms)
        self.core.advance(ms)
        self._note_sent()
        letters: list[Letter] = []
        for topic in self.oracle.topics.values():
            letters += self.oracle.expire(topic)
        return letters

    def _note_sent(self) -> None:
        names = {full: name for name, full in TOPICS.items()}
        self.oracle.just_sent = {
            (names[str(consumer.subscription.topic.name)], consumer.subscription.name, entry.offset)
            for consumer, entry, _, _ in self.client.messages
        }

    def _evict(self) -> None:
        for topic in self.oracle.topics.values():
            before = {subscription.name: set(subscription.unacked) for subscription in topic.durable()}
            missing: dict[str, set[int]] = {}
            for name, numbers in before.items():
                cursor = self._topic(topic.name).subscription(name).cursor
                missing[name] = {number for number in numbers if cursor.is_acked(number)}
            self.oracle.evict(topic, missing)
            for subscription in topic.durable():
                gone = before[subscription.name] - set(subscription.unacked)
                self._evicted[topic.name, subscription.name] = gone

    def _do_restart(self) -> None:
        self.core.restart()
        self.producers.clear()
        self.consumers.clear()
        self.client = Client()
        for topic in self.oracle.topics.values():
            topic.refused_size = topic.refused_age = topic.evicted_size = topic.evicted_age = 0
            for subscription in list(topic.subscriptions.values()):
                if not subscription.durable:
                    del topic.subscriptions[subscription.name]
                subscription.held.clear()
                subscription.permits.clear()
                subscription.returned.clear()
                subscription.kind = None
                subscription.expired = subscription.dead_lettered = subscription.loops = 0

    # -- what came of it ---------------------------------------------------------------------------------------------

    def _read(self, topic: str, first: int) -> list[Entry]:
        """Read from the store, not from memory, everything from an entry on."""
        core = self._topic(topic)
        entries: list[Entry] = []
        while first < core.end_offset:
            before = len(entries)

            def add(result: list[Entry] | Exception) -> None:
                if isinstance(result, Exception):
                    raise result
                entries.extend(result)

            core.read(first, 1000, 1 << 20, add)
            require(len(entries) > before, f"{topic}: entry {first} cannot be read")
            first = entries[-1].offset + 1
        return entries

    def _receive_letters(self, letters: list[Letter]) -> None:
        """Every dead letter arrived, once, as it should be, and in order for each subscription; nothing else did."""
        waiting = list(letters)
        for name, oracle in self.oracle.topics.items():
            for entry in self._read(name, max(len(oracle.entries), self._topic(name).first_offset)):
                metadata, messages = _decode(entry.frame)
                require(len(messages) == 1, f"{name}: a dead letter that is a batch")
                properties, text = messages[0]
                letter = next(
                    (
                        letter
                        for letter in waiting
                        if letter.target == name
                        and letter.subscription == properties.get("x-death-subscription")
                        and TOPICS[letter.source] == properties.get("x-death-topic")
                    ),
                    None,
                )
                require(letter is not None, f"{name}: {text} {properties} was not expected there")
                assert letter is not None
                waiting.remove(letter)
                expected = self._letter_properties(letter)
                require(text == letter.message.text, f"{name}: {text} instead of {letter.message.text}")
                require(properties == expected, f"{name}: {text} has {properties}, not {expected}")
                require((metadata.partition_key or None) == letter.key, f"{name}: {text} has another key")
                message = Message(text, None, (*letter.message.died_in, letter.source), properties)
                number = len(oracle.entries)
                oracle.entries.append(
                    StoredEntry(number, entry.size, entry.receive_ms, 0, [message], False, letter.key, True)
                )
                for subscription in oracle.subscriptions.values():
                    subscription.unacked[number] = {0}
                self.result.dead_lettered += 1
        require(not waiting, f"dead letters that did not come: {waiting}")

    def _letter_properties(self, letter: Letter) -> dict[str, str]:
        ledger, entry = self._topic(letter.source).position(letter.entry)
        expected = dict(letter.message.properties)
        expected |= {
            "x-death-reason": "expired",
            "x-death-topic": TOPICS[letter.source],
            "x-death-subscription": letter.subscription,
            "x-death-time": str(letter.time),
            "x-death-count": str(len(letter.message.died_in) + 1),
            "x-death-message-id": f"{ledger}:{entry}" + ("" if letter.index is None else f":{letter.index}"),
        }
        passed = dict.fromkeys((*letter.message.died_in, letter.source))
        expected["x-death-topics"] = json.dumps([TOPICS[name] for name in passed], separators=(",", ":"))
        if letter.message.ttl is not None:
            expected["x-original-message-ttl"] = letter.message.ttl
        return expected

    def _deliveries(self, ends: dict[str, int]) -> None:
        names = {full: name for name, full in TOPICS.items()}
        for consumer, entry, redeliveries, remaining in self.client.take():
            name = names[str(consumer.subscription.topic.name)]
            topic = self.oracle.topics[name]
            subscription = topic.subscriptions.get(consumer.subscription.name)
            require(subscription is not None, f"{name}: a message for a subscription that is gone")
            assert subscription is not None
            sent = {index for index in range(entry.messages) if remaining is None or remaining >> index & 1}
            if entry.offset in self._evicted.get((name, subscription.name), ()):
                # Due for delivery and for eviction at the same moment: in which order is not said.
                subscription.permits[consumer.consumer_id] -= len(sent)
                continue
            self.oracle.delivered(
                topic, subscription, (consumer.consumer_id, entry.offset, redeliveries, sent), ends[name]
            )
            texts = [text for _, text in _decode(entry.frame)[1]]
            require(texts == [message.text for message in topic.entries[entry.offset].messages], f"{name}: not {texts}")
            self.result.delivered += len(sent)
        for name, topic in self.oracle.topics.items():
            for subscription in topic.subscriptions.values():
                self.oracle.nothing_left(topic, subscription, ends[name])

    def _compare(self) -> None:
        for name, oracle in self.oracle.topics.items():
            topic = self._topic(name)
            kept = oracle.kept()
            _same(f"{name}: entries", topic.end_offset, len(oracle.entries))
            _same(f"{name}: messages stored", topic.stored_messages, sum(len(entry.messages) for entry in kept))
            _same(f"{name}: bytes stored", topic.stored_bytes, sum(entry.size for entry in kept))
            _same(f"{name}: subscriptions", sorted(topic.subscriptions), sorted(oracle.subscriptions))
            for subscription in oracle.subscriptions.values():
                self._compare_subscription(oracle, subscription, topic.subscription(subscription.name))
            sizes = [self.oracle.backlog(oracle, subscription)[1] for subscription in oracle.durable()]
            _same(f"{name}: backlog size", topic.backlog_size(), max(sizes, default=0))
            self._compare_quota(topic, oracle)

    def _compare_quota(self, topic: Topic, oracle: OracleTopic) -> None:
        for counter in ("evicted_size", "evicted_age", "refused_size", "refused_age"):
            _same(f"{oracle.name}: {counter}", getattr(topic.quota, counter), getattr(oracle, counter))

    def _compare_subscription(self, topic: OracleTopic, oracle: OracleSubscription, core: Subscription) -> None:
        where = f"{topic.name}/{oracle.name}"
        messages, size = self.oracle.backlog(topic, oracle)
        unacked = {
            entry.number: {
                index for index in range(len(entry.messages)) if core.cursor.partial.get(entry.number, -1) >> index & 1
            }
            for entry in topic.kept()
            if not core.cursor.is_acked(entry.number)
        }
        _same(f"{where}: unacknowledged", unacked, dict(sorted(oracle.unacked.items())))
        _same(f"{where}: backlog in messages", core.backlog_messages, messages)
        _same(f"{where}: backlog in bytes", core.backlog_bytes, size)
        _same(f"{where}: age of the oldest", core.oldest_unacked_age_ms(), self.oracle.oldest_age(topic, oracle))
        _same(f"{where}: expired", core.msg_expired, oracle.expired)
        held = sum(len(oracle.unacked[number]) for number in oracle.held)
        _same(f"{where}: held by consumers", core.unacked_messages, held)
        for counter in ("dead_lettered", "loops"):
            name = {"loops": "dead_letter_loops"}.get(counter, counter)
            _same(f"{where}: {name}", getattr(core, name), getattr(oracle, counter))


def _same(what: str, core: object, oracle: object) -> None:
    require(core == oracle, f"{what}: the broker has {core}, the oracle {oracle}")


def _policies(level: dict[str, Any]) -> Policies:
    policies = Policies()
    for name, value in level.items():
        if name == "retention":
            value = Retention(*value)
        elif name.startswith("backlog_quota"):
            value = BacklogQuota(*value)
        elif name == "dead_letter_topic":
            value = TOPICS[value]
        setattr(policies, name, value)
    return policies


def _encode(
    messages: list[Message], batch: bool, size: int, key: str | None, deliver_at: int, now: int
) -> tuple[wire.MessageMetadata, bytes]:
    """An entry as a client sends it; ``size`` is how much its payloads are padded."""
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=now)
    if deliver_at:
        metadata.deliver_at_time = deliver_at
    if key is not None:
        metadata.partition_key = key
    payloads = [message.text.encode() + b"." * (size // len(messages)) for message in messages]
    if not batch:
        if messages[0].ttl is not None:
            metadata.properties.add(key=_TTL, value=messages[0].ttl)
        return metadata, batches.build_frame(metadata, payloads[0])
    singles = []
    for message, payload in zip(messages, payloads, strict=True):
        single = wire.SingleMessageMetadata(payload_size=len(payload))
        if key is not None:
            single.partition_key = key
        if message.ttl is not None:
            single.properties.add(key=_TTL, value=message.ttl)
        singles.append((single, payload))
    metadata, payload = batches.build_batch(metadata, singles)
    return metadata, batches.build_frame(metadata, payload)


def _decode(frame: bytes) -> tuple[wire.MessageMetadata, list[tuple[dict[str, str], str]]]:
    """Properties and text of every message of an entry."""
    metadata, at = parse_entry(frame)
    found: list[tuple[Any, bytes]] = [(metadata, frame[at:])]
    if batches.is_batch(metadata):
        found = list(batches.open_batch(metadata, frame[at:]))
    return metadata, [
        ({pair.key: pair.value for pair in single.properties}, payload.rstrip(b".").decode())
        for single, payload in found
    ]
