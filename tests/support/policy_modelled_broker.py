"""The real core and the policy oracle side by side: where things are on both sides, and whether they agree."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import BrokerError
from heliograph_broker.messaging.base.records import NamespaceRecord, TenantRecord
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.base.entry import Entry

from .core import Client, Core
from .policy_entries import decode
from .policy_oracle_delivery import DeliveryOracle
from .policy_oracle_state import (
    LEDGER_AGE,
    LEDGER_BYTES,
    LEDGER_ENTRIES,
    Letter,
    Message,
    OracleSubscription,
    OracleTopic,
    StoredEntry,
    require,
)

#: The topics of a history by the names it uses; ``d`` and ``e`` are where messages go that expire, mostly.
TOPICS = {"t": "persistent://acme/live/t", "d": "persistent://acme/dead/d", "e": "persistent://acme/dead/e"}
NAMESPACES = {"t": "live", "d": "dead", "e": "dead"}


@dataclass
class HistoryResult:
    """Counts of the steps of a history, so that a run can show that it tested something."""

    steps: int = 0
    published: int = 0
    refused: int = 0
    delivered: int = 0
    expired: int = 0
    evicted: int = 0
    dead_lettered: int = 0
    loops: int = 0
    trimmed: int = 0
    held: int = 0
    deleted: int = 0

    def add(self, other: HistoryResult) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class ModelledBroker:
    """A broker with three topics, of which ``d`` and ``e`` have a subscription ``watch``, and the oracle of them."""

    def __init__(self, directory: Path) -> None:
        self.core = Core(
            directory,
            ledger_max_entries=LEDGER_ENTRIES,
            ledger_max_bytes=LEDGER_BYTES,
            ledger_max_age_ms=LEDGER_AGE,
            tail_cache_bytes=1500,
        )
        broker = self.core.broker
        broker.tenants.create("acme", TenantRecord(allowed_clusters=[self.core.config.cluster_name]))
        for namespace in ("acme/live", "acme/dead"):
            broker.namespaces.create(namespace, NamespaceRecord())
        for name in TOPICS.values():
            broker.topics.create(TopicName.parse(name))
        self.oracle = DeliveryOracle(NAMESPACES)
        self.oracle.now = self.oracle.ticked = self.core.clock.now_ms()
        for topic in self.oracle.topics.values():
            topic.used = self.oracle.now
        #: The topics as objects: one that was deleted and recreated is another.
        self.seen = {name: self._topic(name) for name in TOPICS}
        self.client = Client()
        self.producers: dict[str, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.result = HistoryResult()
        self._serial = 0
        self._resumed: set[str] = set()
        self._evicted: dict[tuple[str, str], set[int]] = {}
        for name in "de":
            self._topic(name).create_subscription("watch", "earliest")
            self.oracle.topics[name].subscriptions["watch"] = OracleSubscription("watch", True, {})

    # -- the core ----------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> Topic:
        topic = self.core.broker.directory.get_topic(TopicName.parse(TOPICS[name]))
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
        return AckId(*self._topic(topic).log.position(number), remaining)

    def _done(self) -> tuple[list[BrokerError | None], Any]:
        outcome: list[BrokerError | None] = []
        return outcome, outcome.append

    def _note_sent(self) -> None:
        names = {full: name for name, full in TOPICS.items()}
        self.oracle.just_sent = {
            (names[str(consumer.subscription.topic.name)], consumer.subscription.name, entry.offset)
            for consumer, entry, _, _ in self.client.messages
        }

    # -- what came of it ---------------------------------------------------------------------------------------------

    def _read(self, topic: str, first: int) -> list[Entry]:
        """Read from the store, not from memory, everything from an entry on."""
        core = self._topic(topic)
        entries: list[Entry] = []
        while first < core.log.end_offset:
            before = len(entries)

            def add(result: list[Entry] | Exception) -> None:
                if isinstance(result, Exception):
                    raise result
                entries.extend(result)

            core.log.read(first, 1000, 1 << 20, add)
            require(len(entries) > before, f"{topic}: entry {first} cannot be read")
            first = entries[-1].offset + 1
        return entries

    def _receive_letters(self, letters: list[Letter]) -> None:
        """Every dead letter arrived, once, as it should be, and in order for each subscription; nothing else did."""
        waiting = list(letters)
        for name, oracle in self.oracle.topics.items():
            for entry in self._read(name, max(len(oracle.entries), self._topic(name).log.first_offset)):
                metadata, messages = decode(entry.frame)
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
                oracle.add(StoredEntry(number, entry.size, entry.receive_ms, 0, [message], False, letter.key, True))
                for subscription in oracle.subscriptions.values():
                    subscription.unacked[number] = {0}
                self.result.dead_lettered += 1
        require(not waiting, f"dead letters that did not come: {waiting}")

    def _letter_properties(self, letter: Letter) -> dict[str, str]:
        ledger, entry = self._topic(letter.source).log.position(letter.entry)
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
            texts = [text for _, text in decode(entry.frame)[1]]
            require(texts == [message.text for message in topic.entries[entry.offset].messages], f"{name}: not {texts}")
            self.result.delivered += len(sent)
        for name, topic in self.oracle.topics.items():
            for subscription in topic.subscriptions.values():
                self.oracle.nothing_left(topic, subscription, ends[name])

    def _compare(self) -> None:
        for name, oracle in self.oracle.topics.items():
            topic = self._topic(name)
            kept = oracle.kept()
            same(f"{name}: entries", topic.log.end_offset, len(oracle.entries))
            statistics = topic.statistics
            same(f"{name}: messages stored", statistics.stored_messages, sum(len(entry.messages) for entry in kept))
            same(f"{name}: bytes stored", statistics.stored_bytes, sum(entry.size for entry in kept))
            same(f"{name}: subscriptions", sorted(topic.subscriptions), sorted(oracle.subscriptions))
            for subscription in oracle.subscriptions.values():
                self._compare_subscription(oracle, subscription, topic.subscription(subscription.name))
            sizes = [self.oracle.backlog(oracle, subscription)[1] for subscription in oracle.durable()]
            same(f"{name}: backlog size", topic.statistics.backlog_size(), max(sizes, default=0))
            self._compare_quota(topic, oracle)

    def _compare_quota(self, topic: Topic, oracle: OracleTopic) -> None:
        for counter in ("evicted_size", "evicted_age", "refused_size", "refused_age"):
            same(f"{oracle.name}: {counter}", getattr(topic.quota, counter), getattr(oracle, counter))

    def _compare_subscription(self, topic: OracleTopic, oracle: OracleSubscription, core: Subscription) -> None:
        where = f"{topic.name}/{oracle.name}"
        messages, size = self.oracle.backlog(topic, oracle)
        unacked = {
            entry.number: {
                index
                for index in range(len(entry.messages))
                if core.acks.cursor.partial.get(entry.number, -1) >> index & 1
            }
            for entry in topic.kept()
            if not core.acks.cursor.is_acked(entry.number)
        }
        same(f"{where}: unacknowledged", unacked, dict(sorted(oracle.unacked.items())))
        same(f"{where}: backlog in messages", core.acks.backlog_messages, messages)
        same(f"{where}: backlog in bytes", core.acks.backlog_bytes, size)
        same(f"{where}: age of the oldest", core.acks.oldest_unacked_age_ms(), self.oracle.oldest_age(topic, oracle))
        same(f"{where}: expired", core.expiry.msg_expired, oracle.expired)
        held = sum(len(oracle.unacked[number]) for number in oracle.held)
        same(f"{where}: held by consumers", core.acks.unacked_messages, held)
        for counter in ("dead_lettered", "loops"):
            name = {"loops": "dead_letter_loops"}.get(counter, counter)
            same(f"{where}: {name}", getattr(core.expiry, name), getattr(oracle, counter))


def same(what: str, core: object, oracle: object) -> None:
    require(core == oracle, f"{what}: the broker has {core}, the oracle {oracle}")
