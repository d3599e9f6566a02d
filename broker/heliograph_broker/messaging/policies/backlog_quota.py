"""Backlog quotas of a topic, exact to the entry: admission of published messages, and eviction.

The backlog of a topic is that of its slowest durable subscription, by bytes or by the age of its oldest
unacknowledged message. Two of the three actions close a producer that would exceed the limit, which is how official
clients learn of it: they open the producer again and are refused by name (``producer_exception``), or answered
when there is room (``producer_request_hold``). The third acknowledges the oldest messages of subscriptions that are too
far behind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from heliograph_api.policies.policies import BACKLOG_QUOTA_POLICIES, Policies
from heliograph_api.values.durations import format_duration

from heliograph_broker.messaging.base.entry_counts import EntryCounts
from heliograph_broker.messaging.base.errors import BacklogQuotaExceeded, BacklogQuotaHeld
from heliograph_broker.messaging.clients.waiting_room import Resume, WaitingRoom
from heliograph_broker.messaging.log.backlog import backlog_size, backlogged, oldest_backlog, slowest_acked_bytes
from heliograph_broker.messaging.log.damaged import lost_range
from heliograph_broker.messaging.log.retention import first_received_after
from heliograph_broker.messaging.log.skipping import skip_range

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.producer import Producer
    from heliograph_broker.messaging.log.subscribed_topic import LogSubscription, SubscribedTopic

HOLD, EXCEPTION, EVICT = BACKLOG_QUOTA_POLICIES

#: The duty that :mod:`.containment` suspends when an eviction raises.
EVICTION = "evict"


class QuotaState(WaitingRoom):
    """The quotas in force and how the topic stands to them. ``active``: a publish has to be asked for."""

    __slots__ = (
        "_after_expiry",
        "_age_in_order_until",
        "_evicting",
        "_floor",
        "_held_names",
        "_letters",
        "_refused_bytes",
        "_topic",
        "active",
        "age_action",
        "age_limit_ms",
        "evicted_age",
        "evicted_size",
        "evictions_age",
        "evictions_size",
        "refused_age",
        "refused_size",
        "size_action",
        "size_limit",
    )

    def __init__(self, topic: SubscribedTopic) -> None:
        super().__init__()
        self._topic = topic
        self.active = False
        self.size_limit = -1
        self.size_action = HOLD
        self.age_limit_ms = -1
        self.age_action = HOLD
        self.evictions_size = 0
        self.evictions_age = 0
        self.evicted_size = 0
        self.evicted_age = 0
        self.refused_size = 0
        self.refused_age = 0
        #: Acknowledged bytes of the slowest subscription when last looked at: they only grow, so it is a lower bound.
        self._floor: int | None = None
        #: Until then (wall-clock ms) no backlog is too old, whatever happens but a cursor moved back.
        self._age_in_order_until = 0
        #: Size of the entry that was refused last: there is room again when it would fit.
        self._refused_bytes = 0
        self._held_names: set[str] = set()
        #: Subscriptions whose dead letters were refused: what tells them that there is room, and for how many bytes.
        self._letters: dict[object, tuple[Resume, int]] = {}
        self._evicting: set[LogSubscription] = set()
        self._after_expiry: set[LogSubscription] = set()

    def configure(self, policies: Policies) -> None:
        """Take over the effective quotas."""
        size, age = policies.backlog_quota_size, policies.backlog_quota_age
        self.size_limit, self.size_action = (size.limit, size.policy) if size is not None else (-1, HOLD)
        self.age_limit_ms, self.age_action = (age.limit, age.policy) if age is not None else (-1, HOLD)
        self.active = (self.size_limit >= 0 and self.size_action != EVICT) or (
            self.age_limit_ms >= 0 and self.age_action != EVICT
        )
        self._refused_bytes = 0
        self.moved_back()

    def moved_back(self) -> None:
        """Forget the slowest subscription: another one was created or moved back."""
        self._floor = None
        self._age_in_order_until = 0

    # -- statistics ---------------------------------------------------------------------------------------------

    @property
    def size_exceeded(self) -> bool:
        """Whether the backlog is at its limit, or the entry refused last would still not fit."""
        if self.size_limit < 0 or slowest_acked_bytes(self._topic) is None:
            return False
        wanted = self._refused_bytes if self._refused_bytes <= self.size_limit else 0
        return backlog_size(self._topic) + max(wanted, 1) > self.size_limit

    @property
    def age_exceeded(self) -> bool:
        """Whether the oldest unacknowledged message is older than its limit."""
        if self.age_limit_ms < 0:
            return False
        oldest = oldest_backlog(self._topic)
        return oldest is not None and oldest[1] > self.age_limit_ms

    # -- producers -------------------------------------------------------------------------------------------

    def admits(self, producer: Producer, size: int, now_ms: int) -> bool:
        """Whether an entry of ``size`` bytes may be stored; if not, its producer is closed."""
        action = self._refusing_action(size, now_ms)
        if action is None:
            return True
        if action == HOLD:
            self._held_names.add(producer.name)
        producer.topic.producer_registry.disconnect(producer)
        return False

    def never_admits(self, size: int) -> bool:
        """Whether an entry of ``size`` bytes would be refused even if nothing else were in the backlog."""
        refuses = self.size_limit >= 0 and self.size_action != EVICT
        return refuses and size > self.size_limit and slowest_acked_bytes(self._topic) is not None

    def _refusing_action(self, size: int, now_ms: int) -> str | None:
        topic = self._topic
        if self.size_limit >= 0 and self.size_action != EVICT:
            wanted = topic.log.next_bytes + size
            if self._floor is None or wanted - self._floor > self.size_limit:
                self._floor = slowest_acked_bytes(topic)
                if self._floor is not None and wanted - self._floor > self.size_limit:
                    self._refused_bytes = size
                    self.refused_size += 1
                    return EXCEPTION if size > self.size_limit else self.size_action
        if self.age_limit_ms >= 0 and self.age_action != EVICT and now_ms > self._age_in_order_until:
            oldest = oldest_backlog(topic)
            if oldest is not None and oldest[1] > self.age_limit_ms:
                self.refused_age += 1
                return self.age_action
            age = oldest[1] if oldest is not None else 0
            self._age_in_order_until = now_ms - age + self.age_limit_ms
        return None

    def check_creation(self, name: str, *, returning: bool) -> bool:
        """Whether a producer may be created now; False: it was held before, so :meth:`hold` it.

        Raises :class:`BacklogQuotaExceeded` or :class:`BacklogQuotaHeld`, as the policy says.
        """
        if not self.active:
            return True
        if self._refused_bytes > self.size_limit >= 0 and self.size_action != EVICT:
            # It would never fit: its producer gets one error, and may send other messages.
            size, self._refused_bytes = self._refused_bytes, 0
            raise BacklogQuotaExceeded(
                f"an entry of {size} bytes does not fit the backlog quota of {self.size_limit} bytes of "
                f"{self._topic.name}"
            )
        if self.size_action != EVICT and self.size_exceeded:
            action = self.size_action
            reason = f"{backlog_size(self._topic)} of {self.size_limit} bytes"
        elif self.age_action != EVICT and self.age_exceeded:
            action = self.age_action
            oldest = oldest_backlog(self._topic)
            age = format_duration(oldest[1]) if oldest is not None else "too old"
            reason = f"the oldest message is {age} old, allowed are {format_duration(self.age_limit_ms)}"
        else:
            return True
        text = f"Cannot create producer on topic with backlog quota exceeded: {self._topic.name}: {reason}"
        if action == EXCEPTION:
            raise BacklogQuotaExceeded(text)
        if returning or name in self._held_names:
            return False
        raise BacklogQuotaHeld(text)

    def hold_letters(self, subscription: object, resume: Resume, size: int) -> None:
        """As :meth:`hold` for the dead letters of a subscription, the smallest of which refused has ``size`` bytes."""
        held = self._letters.get(subscription)
        self._letters[subscription] = (resume, size if held is None else min(size, held[1]))

    def release(self) -> None:
        """Let held producers, and refused dead letters, go on if there is room for the last refused one."""
        if (self._held or self._letters) and not (
            (self.size_action != EVICT and self.size_exceeded) or (self.age_action != EVICT and self.age_exceeded)
        ):
            self._refused_bytes = 0
            held = self.take_held()
            self._held_names.clear()
            letters, self._letters = self._letters, {}
            for subscription, (resume, size) in letters.items():
                if self.never_admits(size):
                    self._letters[subscription] = (resume, size)
                else:
                    held.append(resume)
            for resume in held:
                resume()

    # -- eviction --------------------------------------------------------------------------------------------

    def evict(self, now_ms: int) -> None:
        """Acknowledge the oldest messages of every durable subscription that is too far behind."""
        if not self._evicts:
            return
        for subscription in backlogged(self._topic):
            if subscription.expiry.running:
                # Messages on their way to a dead-letter topic have expired: this quota no longer counts them.
                self._after_expiry.add(subscription)
            else:
                self._attempt(subscription, partial(self._evict, subscription, now_ms))

    def _attempt(self, subscription: LogSubscription, action: Callable[[], None]) -> None:
        """Do a step of an eviction; if it raises the subscription's eviction is over until it is tried again."""
        topic = self._topic

        def step() -> None:
            try:
                action()
            except Exception:
                self._evicting.discard(subscription)
                raise

        topic.host.containment.attempt(subscription, EVICTION, step, topic.check_soon)

    def expired(self, subscription: LogSubscription, now_ms: int) -> None:
        """Evict again after an expiry run during which eviction left the subscription alone."""
        if subscription in self._after_expiry:
            self._after_expiry.discard(subscription)
            if self._evicts and not subscription.closed:
                self._attempt(subscription, partial(self._evict, subscription, now_ms))

    @property
    def _evicts(self) -> bool:
        return (self.size_limit >= 0 and self.size_action == EVICT) or (
            self.age_limit_ms >= 0 and self.age_action == EVICT
        )

    def _evict(self, subscription: LogSubscription, now_ms: int) -> None:
        if subscription in self._evicting:
            return
        if self.size_action == EVICT and 0 <= self.size_limit < subscription.acks.backlog_bytes:
            self.evictions_size += 1
            self._evict_size(subscription)
        # A size eviction that is still reading is followed by another check.
        if self.age_action == EVICT and subscription not in self._evicting and self._too_old(subscription):
            self.evictions_age += 1
            self._evict_age(subscription, now_ms - self.age_limit_ms)

    def _too_old(self, subscription: LogSubscription) -> bool:
        return 0 <= self.age_limit_ms < subscription.acks.oldest_unacked_age_ms()

    def _evict_size(self, subscription: LogSubscription) -> None:
        """Walk from the oldest unacknowledged entry on until the rest fits."""
        topic = self._topic
        acks = subscription.acks
        generation = acks.generation
        self._evicting.add(subscription)

        def found(first: int, headers: list[EntryCounts] | Exception) -> None:
            self._attempt(subscription, partial(walk, first, headers))

        def walk(first: int, headers: list[EntryCounts] | Exception) -> None:
            before = acks.cursor.acked_messages
            lost = lost_range(topic.log, first, headers)
            if lost is not None and not subscription.closed and generation == acks.generation:
                skip_range(subscription, first, *lost)
                if acks.cursor.is_acked(first):
                    step()
                    return
            if not isinstance(headers, Exception) and not subscription.closed and generation == acks.generation:
                for entry in headers:
                    if acks.backlog_bytes <= self.size_limit:
                        break
                    acks.acknowledge_entry(entry.offset, entry.messages, entry.size, None)
                evicted = acks.cursor.acked_messages - before
                self.evicted_size += evicted
                if evicted and acks.backlog_bytes > self.size_limit:
                    step()
                    return
            self._evicting.discard(subscription)
            acks.acked(None)

        def step() -> None:
            if acks.backlog_bytes <= self.size_limit:
                self._evicting.discard(subscription)
                return
            first = max(acks.cursor.first_unacked(), topic.log.first_offset)
            topic.log.read_headers(first, topic.log.end_offset - 1, partial(found, first))

        step()

    def _evict_age(self, subscription: LogSubscription, received_before_ms: int) -> None:
        first = subscription.acks.cursor.first_unacked()
        point = first_received_after(self._topic.log, first, received_before_ms - 1)
        if point <= first:
            return
        self._evicting.add(subscription)

        def counted(messages: int) -> None:
            self.evicted_age += messages

        def done(_: object) -> None:
            self._evicting.discard(subscription)

        subscription.acks.acknowledge_up_to(point - 1, done, counted=counted)

    def next_eviction_ms(self) -> int | None:
        """Return when a message becomes too old to be kept, wall-clock ms; None without such a policy or backlog."""
        if self.age_limit_ms < 0 or self.age_action != EVICT:
            return None
        received = [subscription.acks.oldest_unacked_receive_ms() for subscription in backlogged(self._topic)]
        return min(received) + self.age_limit_ms + 1 if received else None
