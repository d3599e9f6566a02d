"""What policies do to messages, said in the plainest way: lists, loops over all of it, nothing kept up to date.

Written from the texts, not from the broker: it imports none of the core. It knows topics by a short name, entries
by their number in the topic, and time in ms. Where the texts leave the broker a choice (which of two Shared
consumers gets an entry; when, within a second, something due is done) the test tells the oracle what the broker
did, and the oracle says whether that was allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: One level's policies: the names of ``Policies``' fields with plain values; quotas are (limit, action), retention
#: is (time, size). A missing name is "not set here".
Level = dict[str, Any]

FIELDS = (
    "retention",
    "message_ttl_ms",
    "dead_letter_topic",
    "backlog_quota_size",
    "backlog_quota_age",
    "delayed_delivery",
    "ttl_in_batches",
)
#: How late after its time a delayed message may come, ms.
DELAY_GRAIN = 500
REFUSE, HOLD, EVICT = "producer_exception", "producer_request_hold", "consumer_backlog_eviction"


class Disagreement(AssertionError):
    """The broker did what the texts do not allow; the text says what."""


def require(condition: bool, said: str) -> None:
    if not condition:
        raise Disagreement(said)


def valid_ttl(text: str) -> bool:
    """Whether a message may carry this as its own TTL: the decimal text of a whole number of ms from 0 on."""
    return text != "" and all(digit in "0123456789" for digit in text) and int(text) < 2**63


@dataclass
class Message:
    """One message as published; ``died_in`` are the topics it expired in, the oldest first."""

    text: str
    ttl: str | None = None
    died_in: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)


@dataclass
class StoredEntry:
    """An entry: one message, or a client's batch of several."""

    number: int
    size: int
    received: int
    deliver_at: int
    messages: list[Message]
    batch: bool
    key: str | None
    #: Whether the messages' own TTLs counted when it was published.
    own_ttls: bool


@dataclass
class OracleSubscription:
    """Who has not acknowledged what. ``unacked`` holds the batch indexes still to come of each entry not done."""

    name: str
    durable: bool
    unacked: dict[int, set[int]]
    kind: str | None = None
    permits: dict[int, int] = field(default_factory=dict)
    #: entry -> consumer that holds it
    held: dict[int, int] = field(default_factory=dict)
    #: entry -> the messages of it that the consumer was sent
    sent: dict[int, set[int]] = field(default_factory=dict)
    returned: dict[int, int] = field(default_factory=dict)
    #: Entries that were delivered and came back.
    spent: set[int] = field(default_factory=set)
    expired: int = 0
    dead_lettered: int = 0
    loops: int = 0
    #: Over a quota since the last tick, at least.
    overdue: bool = False

    def forget(self, number: int) -> None:
        """All of the entry is acknowledged."""
        self.unacked.pop(number, None)
        self.held.pop(number, None)
        self.returned.pop(number, None)


@dataclass
class Letter:
    """A copy of an expired message that must arrive in its dead letter topic."""

    target: str
    source: str
    subscription: str
    entry: int
    index: int | None
    message: Message
    key: str | None
    time: int


@dataclass
class OracleTopic:
    name: str
    entries: list[StoredEntry] = field(default_factory=list)
    #: Entries before this number are gone.
    first: int = 0
    subscriptions: dict[str, OracleSubscription] = field(default_factory=dict)
    #: What must have been let go by the next tick.
    overdue_trim: int = 0
    refused_size: int = 0
    refused_age: int = 0
    evicted_size: int = 0
    evicted_age: int = 0

    def kept(self) -> list[StoredEntry]:
        return self.entries[self.first :]

    def durable(self) -> list[OracleSubscription]:
        return [subscription for subscription in self.subscriptions.values() if subscription.durable]


def _lower(one: int | None, other: int | None) -> int | None:
    """The lower of two limits; None and below 0 are no limit."""
    limits = [limit for limit in (one, other) if limit is not None and limit >= 0]
    return min(limits) if limits else None


class Oracle:
    """All topics, and the levels of policies: ``topic:<name>``, ``namespace:<name>``, ``broker``, and two limits."""

    def __init__(self, namespaces: dict[str, str]) -> None:
        self._namespace_of = namespaces
        self.levels: dict[str, Level] = {}
        self.topics = {name: OracleTopic(name) for name in namespaces}
        self.now = 0
        #: When the broker last looked at the clock by itself: delayed messages come with its ticks.
        self.ticked = 0
        #: Entries found expired since the last tick: should they not be any more, the next tick brings them.
        self._passed_over: set[tuple[str, str, int]] = set()
        self._delayed_at_tick = dict.fromkeys(namespaces, True)
        #: What happened in all, for the report of a run.
        self.totals = {"expired": 0, "evicted": 0, "loops": 0}
        #: (topic, subscription, entry) sent in this step and not looked at yet.
        self.just_sent: set[tuple[str, str, int]] = set()

    # -- policies --------------------------------------------------------------------------------------------

    def policy(self, topic: str, name: str) -> Any:
        """What holds for a topic: its own word, else its namespace's, else the broker's; then the limits."""
        value = None
        for level in (f"topic:{topic}", f"namespace:{self._namespace_of[topic]}", "broker"):
            value = self.levels.get(level, {}).get(name)
            if value is not None:
                break
        for level in ("tenant limits", "broker limits"):
            cap = self.levels.get(level, {}).get(name)
            if cap is None:
                continue
            if name == "message_ttl_ms":
                value = _lower(value, cap)
            elif name == "retention" and value is not None:
                limits = [_lower(own, limit) for own, limit in zip(value, cap, strict=True)]
                value = tuple(-1 if limit is None else limit for limit in limits)
            elif name.startswith("backlog_quota") and cap[0] >= 0 and (not value or not 0 <= value[0] <= cap[0]):
                value = cap
        if name == "message_ttl_ms":
            return None if value is None or value < 0 else value
        if name.startswith("backlog_quota"):
            return None if value is None or value[0] < 0 else value
        if name == "delayed_delivery":
            return value is not False
        return value or None

    def tick(self, ms: int) -> None:
        """Time passes, and the broker looks at the clock."""
        self.now += ms
        self.ticked = self.now
        self._passed_over.clear()
        for topic in self.topics:
            self._delayed_at_tick[topic] = self.policy(topic, "delayed_delivery")

    # -- expiry ----------------------------------------------------------------------------------------------

    def due(self, topic: OracleTopic, entry: StoredEntry, index: int) -> tuple[int, int] | None:
        """When a message expires and the TTL that says so, ms; None: never."""
        own = entry.messages[index].ttl
        ttl = _lower(
            self.policy(topic.name, "message_ttl_ms"), int(own) if own is not None and entry.own_ttls else None
        )
        if ttl is None:
            return None
        base = entry.received
        if self.policy(topic.name, "delayed_delivery"):
            base = max(base, entry.deliver_at)
        return base + ttl, ttl

    def expired(
        self, topic: OracleTopic, subscription: OracleSubscription, entry: StoredEntry, fresh: int | None = None
    ) -> set[int]:
        """Which unacknowledged messages of the entry are over; from ``fresh`` on entries became durable just now."""
        over: set[int] = set()
        if not subscription.durable:
            return over
        for index in subscription.unacked.get(entry.number, ()):
            due = self.due(topic, entry, index)
            if due is None or self.now < due[0]:
                continue
            if due[1] == 0 and entry.number in subscription.held and index in subscription.sent[entry.number]:
                continue
            if due[1] == 0 and self._has_its_chance(topic, subscription, entry, due[0], fresh):
                continue
            over.add(index)
        return over

    def _has_its_chance(
        self, topic: OracleTopic, subscription: OracleSubscription, entry: StoredEntry, since: int, fresh: int | None
    ) -> bool:
        """Whether a TTL of 0 spares an entry: it is new, or was sent when its delay ended (ticks are not exact)."""
        if fresh is not None and entry.number >= fresh:
            return True
        if (topic.name, subscription.name, entry.number) not in self.just_sent or entry.number in subscription.spent:
            return False
        return since > entry.received and self.now - since < DELAY_GRAIN

    def expire(self, topic: OracleTopic) -> list[Letter]:
        """Acknowledge what is over, for each subscription; return the dead letters that must come of it."""
        letters: list[Letter] = []
        for subscription in topic.durable():
            for entry in topic.kept():
                over = self.expired(topic, subscription, entry)
                letters += self._bury(topic, subscription, entry, sorted(over))
        return letters

    def _bury(
        self, topic: OracleTopic, subscription: OracleSubscription, entry: StoredEntry, over: list[int]
    ) -> list[Letter]:
        letters: list[Letter] = []
        if not over:
            return letters
        target = self.policy(topic.name, "dead_letter_topic")
        for index in over:
            message = entry.messages[index]
            if target is not None:
                if target in (topic.name, *message.died_in):
                    subscription.loops += 1
                    self.totals["loops"] += 1
                else:
                    at = index if entry.batch else None
                    letters.append(
                        Letter(target, topic.name, subscription.name, entry.number, at, message, entry.key, self.now)
                    )
                    subscription.dead_lettered += 1
            subscription.unacked[entry.number].discard(index)
        subscription.expired += len(over)
        self.totals["expired"] += len(over)
        if not subscription.unacked[entry.number]:
            subscription.forget(entry.number)
        return letters

    def expire_by_hand(self, topic: OracleTopic, subscription: OracleSubscription, below: int) -> list[Letter]:
        """Expire everything before an entry, as an operator asked."""
        letters: list[Letter] = []
        for entry in topic.kept():
            if entry.number < below and entry.number in subscription.unacked:
                letters += self._bury(topic, subscription, entry, sorted(subscription.unacked[entry.number]))
        return letters

    # -- backlog ---------------------------------------------------------------------------------------------

    def backlog(self, topic: OracleTopic, subscription: OracleSubscription) -> tuple[int, int]:
        """Messages and bytes not acknowledged; a batch's bytes count while any message of it does."""
        messages = sum(len(indexes) for indexes in subscription.unacked.values())
        return messages, sum(topic.entries[number].size for number in subscription.unacked)

    def oldest_age(self, topic: OracleTopic, subscription: OracleSubscription) -> int:
        if not subscription.unacked:
            return -1
        return self.now - topic.entries[min(subscription.unacked)].received

    def refusal(self, topic: OracleTopic, size: int) -> tuple[str, str] | None:
        """(quota, action) that keeps a new entry out. What is on its way to the disk is in the backlog already."""
        if not topic.durable():
            return None
        quota = self.policy(topic.name, "backlog_quota_size")
        if quota is not None and quota[1] != EVICT:
            slowest = max(self.backlog(topic, subscription)[1] for subscription in topic.durable())
            if slowest + size > quota[0]:
                return "size", quota[1]
        quota = self.policy(topic.name, "backlog_quota_age")
        if quota is not None and quota[1] != EVICT:
            oldest = max(self.oldest_age(topic, subscription) for subscription in topic.durable())
            if oldest > quota[0]:
                return "age", quota[1]
        return None

    def over_quota(self, topic: OracleTopic, subscription: OracleSubscription) -> str | None:
        """Which quota takes from this backlog now."""
        quota = self.policy(topic.name, "backlog_quota_size")
        if quota is not None and quota[1] == EVICT and self.backlog(topic, subscription)[1] > quota[0]:
            return "size"
        quota = self.policy(topic.name, "backlog_quota_age")
        if quota is not None and quota[1] == EVICT and self.oldest_age(topic, subscription) > quota[0]:
            return "age"
        return None

    def evict(self, topic: OracleTopic, gone: dict[str, set[int]]) -> None:
        """Let go the oldest of every durable subscription that is over a quota, until none is.

        ``gone`` is what the broker no longer has in each subscription's backlog: it may take its time, but not
        until the tick after this one.
        """
        for subscription in topic.durable():
            while quota := self.over_quota(topic, subscription):
                if min(subscription.unacked) not in gone[subscription.name]:
                    where = f"{topic.name}/{subscription.name}"
                    require(not subscription.overdue, f"{where}: over its {quota} quota, and nothing is evicted")
                    break
                messages = self._evict_oldest(subscription)
                self.totals["evicted"] += messages
                if quota == "size":
                    topic.evicted_size += messages
                else:
                    topic.evicted_age += messages
            subscription.overdue = self.over_quota(topic, subscription) is not None

    def note_quotas(self, topic: OracleTopic) -> None:
        """Something other than time happened: what is within its quotas now is not overdue."""
        for subscription in topic.durable():
            subscription.overdue = subscription.overdue and self.over_quota(topic, subscription) is not None

    def _evict_oldest(self, subscription: OracleSubscription) -> int:
        number = min(subscription.unacked)
        messages = len(subscription.unacked[number])
        subscription.forget(number)
        return messages

    # -- retention -------------------------------------------------------------------------------------------

    def trim_point(self, topic: OracleTopic) -> int:
        """The first entry that must be kept."""
        retention = self.policy(topic.name, "retention") or (0, 0)
        time, size = retention
        for entry in topic.kept():
            if any(entry.number in subscription.unacked for subscription in topic.durable()):
                return entry.number
            from_here = sum(later.size for later in topic.entries[entry.number :])
            if (
                time != 0
                and size != 0
                and (time < 0 or self.now - entry.received < time)
                and (size < 0 or from_here <= size)
            ):
                return entry.number
        return len(topic.entries)

    def trimmed(self, topic: OracleTopic, first: int, ticked: bool) -> None:
        """The broker now keeps entries from ``first`` on: say whether that is right."""
        point = self.trim_point(topic)
        require(first >= topic.first, f"{topic.name}: entry {first} is back, {topic.first} was the first kept")
        require(first <= point, f"{topic.name}: first kept is {first}, but {point} must be kept")
        least = min(topic.overdue_trim, point)
        require(not ticked or first >= least, f"{topic.name}: first kept is {first}, {least} and on were due to stay")
        topic.first = first
        for subscription in topic.subscriptions.values():
            for number in [number for number in subscription.unacked if number < first]:
                subscription.forget(number)
        topic.overdue_trim = point if ticked else least

    # -- delivery --------------------------------------------------------------------------------------------

    def deliverable(
        self, topic: OracleTopic, subscription: OracleSubscription, entry: StoredEntry, fresh: int, *, must: bool = True
    ) -> set[int]:
        """The messages of an entry that a consumer must be sent now, or only may be if not ``must``."""
        number = entry.number
        if number < topic.first or number in subscription.held or number not in subscription.unacked:
            return set()
        delayed = self.policy(topic.name, "delayed_delivery") or (must and self._delayed_at_tick[topic.name])
        waits = delayed and entry.deliver_at > (self.ticked if must else self.now)
        if waits and subscription.kind in ("Shared", "Key_Shared"):
            return set()
        return subscription.unacked[number] - self.expired(topic, subscription, entry, fresh)

    def delivered(
        self,
        topic: OracleTopic,
        subscription: OracleSubscription,
        event: tuple[int, int, int, set[int]],
        fresh: int,
    ) -> None:
        """The broker sent (consumer, entry, redeliveries so far, messages): say whether it may."""
        consumer, number, redeliveries, sent = event
        where = f"{topic.name}/{subscription.name}: entry {number} to consumer {consumer}"
        require(consumer in subscription.permits, f"{where}, which is gone")
        require(subscription.permits[consumer] > 0, f"{where} without permits")
        may = self.deliverable(topic, subscription, topic.entries[number], fresh, must=False)
        require(bool(may), f"{where}, which is not deliverable now")
        require(sent == may, f"{where}: messages {sorted(sent)} of it, not {sorted(may)}")
        earlier = [
            other.number
            for other in topic.kept()
            if other.number < number and self.deliverable(topic, subscription, other, fresh)
        ]
        if subscription.kind in ("Exclusive", "Failover"):
            require(not earlier, f"{where} before entries {earlier}")
        elif subscription.kind == "Key_Shared":
            key = topic.entries[number].key
            if key is not None:
                # A delayed entry that has become due does not come before those that were delivered meanwhile.
                same = [other for other in earlier if topic.entries[other].key == key]
                require(not same, f"{where} before {same} of its key")
                holders = {held for at, held in subscription.held.items() if topic.entries[at].key == key}
                require(holders <= {consumer}, f"{where}, but consumers {holders} hold entries of its key")
        if subscription.kind in ("Shared", "Key_Shared"):
            expected = subscription.returned.get(number, 0)
            require(redeliveries == expected, f"{where} as redelivery {redeliveries}, not {expected}")
        subscription.held[number] = consumer
        subscription.sent[number] = sent
        subscription.permits[consumer] -= len(sent)

    def nothing_left(self, topic: OracleTopic, subscription: OracleSubscription, fresh: int) -> None:
        """No consumer that could take something is left without something it should get."""
        ready = {consumer for consumer, permits in subscription.permits.items() if permits > 0}
        for entry in topic.kept():
            if self.expired(topic, subscription, entry, fresh):
                self._passed_over.add((topic.name, subscription.name, entry.number))
        if not ready:
            return
        for entry in topic.kept():
            if not self.deliverable(topic, subscription, entry, fresh):
                continue
            if (topic.name, subscription.name, entry.number) in self._passed_over:
                continue
            if subscription.kind == "Key_Shared" and len(subscription.permits) > 1:
                # Whose key it is is the broker's choice: only if all of them are ready nothing may be left.
                if ready != set(subscription.permits):
                    continue
                if any(topic.entries[at].key == entry.key for at in subscription.held):
                    continue
            raise Disagreement(
                f"{topic.name}/{subscription.name}: entry {entry.number} was not delivered to any of {sorted(ready)}"
            )

    def give_back(self, subscription: OracleSubscription, consumer: int, *, count: bool) -> None:
        """What a consumer holds is to be delivered again."""
        for number in [number for number, holder in subscription.held.items() if holder == consumer]:
            del subscription.held[number]
            subscription.spent.add(number)
            if count:
                subscription.returned[number] = subscription.returned.get(number, 0) + 1
