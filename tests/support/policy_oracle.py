"""The effects of policies on messages, in the plainest way: lists, loops over all of it, nothing kept up to date.

Written from the texts, not from the broker: it imports none of the core. It knows topics by a short name, entries
by their number in the topic, and time in ms. Where the texts leave the broker a choice (which of two Shared
consumers gets an entry; when, within a second, something due is done) the test tells the oracle what the broker
did, and the oracle says whether that was allowed.
"""

from __future__ import annotations

from .policy_levels import PolicyLevels, lower
from .policy_oracle_state import (
    EVICT,
    Letter,
    OracleSubscription,
    OracleTopic,
    StoredEntry,
    require,
)

#: Longest delay after its time with which a delayed message may come, ms.
DELAY_GRAIN = 500


class Oracle(PolicyLevels):
    """All topics: what of them is kept, over, evicted or refused. Delivery is in a module of its own."""

    def __init__(self, namespaces: dict[str, str]) -> None:
        super().__init__(namespaces)
        self.topics = {name: OracleTopic(name) for name in namespaces}
        self.now = 0
        #: When the broker last looked at the clock by itself: delayed messages come with its ticks.
        self.ticked = 0
        #: Entries found expired since the last tick: should they not be any more, the next tick brings them.
        self.passed_over: set[tuple[str, str, int]] = set()
        self.delayed_at_tick = dict.fromkeys(namespaces, True)
        #: Counts of all events, for the report of a run.
        self.totals = {"expired": 0, "evicted": 0, "loops": 0}
        #: (topic, subscription, entry) sent in this step and not looked at yet.
        self.just_sent: set[tuple[str, str, int]] = set()

    def tick(self, ms: int) -> None:
        """Time passes, and the broker looks at the clock."""
        self.now += ms
        self.ticked = self.now
        self.passed_over.clear()
        for topic in self.topics:
            self.delayed_at_tick[topic] = self.policy(topic, "delayed_delivery")

    # -- expiry ----------------------------------------------------------------------------------------------

    def due(self, topic: OracleTopic, entry: StoredEntry, index: int) -> tuple[int, int] | None:
        """When a message expires and the TTL that says so, ms; None: never."""
        own = entry.messages[index].ttl
        ttl = lower(self.policy(topic.name, "message_ttl_ms"), int(own) if own is not None and entry.own_ttls else None)
        if ttl is None:
            return None
        base = entry.received
        if self.policy(topic.name, "delayed_delivery") and not self.policy(topic.name, "ttl_counts_delay"):
            base = max(base, entry.deliver_at)
        return base + ttl, ttl

    def expired(
        self, topic: OracleTopic, subscription: OracleSubscription, entry: StoredEntry, fresh: int | None = None
    ) -> set[int]:
        """Return expired unacknowledged messages of the entry; from ``fresh`` on entries became durable just now."""
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
                letters += self._dead_letter(topic, subscription, entry, sorted(over))
        return letters

    def _dead_letter(
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
                letters += self._dead_letter(topic, subscription, entry, sorted(subscription.unacked[entry.number]))
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
        """(quota, action) that keeps a new entry out. Entries on their way to the disk are in the backlog already."""
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

    def full(self, topic: OracleTopic) -> bool:
        """Whether a producer is refused or held now: nothing fits, or not what was refused last."""
        if not topic.durable():
            return False
        quota = self.policy(topic.name, "backlog_quota_size")
        if quota is not None and quota[1] != EVICT:
            slowest = max(self.backlog(topic, subscription)[1] for subscription in topic.durable())
            if slowest + max(topic.wanted, 1) > quota[0]:
                return True
        quota = self.policy(topic.name, "backlog_quota_age")
        if quota is not None and quota[1] != EVICT:
            return any(self.oldest_age(topic, subscription) > quota[0] for subscription in topic.durable())
        return False

    def answered(self, topic: OracleTopic, answered: bool, ticked: bool) -> None:
        """A producer is held: say whether it is right that the broker let it go on, or that it did not."""
        full = self.full(topic)
        if answered:
            require(not full, f"{topic.name}: a held producer goes on, and there is no room")
            topic.held = topic.overdue_answer = False
            topic.wanted = 0
            topic.producers = 1
            topic.used = self.now
            return
        require(not (ticked and topic.overdue_answer), f"{topic.name}: there is room, and the producer is still held")
        topic.overdue_answer = not full and (ticked or topic.overdue_answer)

    # -- unused topics ---------------------------------------------------------------------------------------

    def unused_since(self, topic: OracleTopic) -> int | None:
        """When the topic was left by its last client; None while it is in use."""
        if topic.producers or topic.held or any(subscription.permits for subscription in topic.subscriptions.values()):
            return None
        return topic.used

    def expires_now(self, topic: OracleTopic) -> bool:
        """Whether nobody used the topic for its period."""
        period = self.policy(topic.name, "expires_ms")
        since = self.unused_since(topic)
        return period is not None and since is not None and self.now - since >= period

    def over_quota(self, topic: OracleTopic, subscription: OracleSubscription) -> str | None:
        """Return the quota that evicts from this backlog now."""
        quota = self.policy(topic.name, "backlog_quota_size")
        if quota is not None and quota[1] == EVICT and self.backlog(topic, subscription)[1] > quota[0]:
            return "size"
        quota = self.policy(topic.name, "backlog_quota_age")
        if quota is not None and quota[1] == EVICT and self.oldest_age(topic, subscription) > quota[0]:
            return "age"
        return None

    def evict(self, topic: OracleTopic, gone: dict[str, set[int]]) -> None:
        """Evict the oldest of every durable subscription that is over a quota, until none is.

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
        time, size, by_ledger = self.policy(topic.name, "retention")
        # The size is of what nobody has in a backlog any more: a slow subscription's backlog is beside it.
        backlogs = [number for subscription in topic.durable() for number in subscription.unacked]
        waiting = min(backlogs, default=len(topic.entries))
        closed = self._closed_before(topic, waiting)
        for entry in topic.entries[topic.first : waiting]:
            from_here = sum(later.size for later in topic.entries[entry.number : waiting])
            if (
                time != 0
                and size != 0
                and (time < 0 or self.now - entry.received < time)
                and (size < 0 or from_here <= size)
                and not (by_ledger and entry.number < closed)
            ):
                return entry.number
        return waiting

    def _closed_before(self, topic: OracleTopic, waiting: int) -> int:
        """The end of the last closed ledger of which no entry waits."""
        ends = topic.ledgers[1:]
        if topic.ledgers and topic.ledger_is_closed(self.now):
            ends = [*ends, len(topic.entries)]
        return max((end for end in ends if end <= waiting), default=0)

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
