"""Searches the unacknowledged messages of a subscription without delivering them, a bounded number at a time."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyroaring import BitMap64

from heliograph_broker.messaging.base.errors import PersistenceError
from heliograph_broker.messaging.base.offsets import run_end
from heliograph_broker.messaging.log.damaged import lost_range
from heliograph_broker.messaging.log.examination import examine_entries
from heliograph_broker.messaging.log.retention import first_received_after
from heliograph_broker.messaging.messages.message_match import Criteria, Examined, MatchedMessage, examine

from .dispatch_key_shared import KeySharedDispatcher, is_held, key_holder
from .dispatcher import READ_BYTES, DelayingDispatcher

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.consumer import Consumer
    from heliograph_broker.storage.base.completion import Completion

    from .subscription import Subscription

#: Entries of one step.
STEP_ENTRIES = 500
#: Entries that one search looks at, and about the memory (bytes) that its result takes.
SEARCH_ENTRIES = 50_000
SEARCH_BYTES = 4 * 1024 * 1024


class DeliveryState(StrEnum):
    """The place of an unacknowledged message."""

    #: A consumer has it.
    SENT = "sent"
    NOT_SENT = "notSent"
    #: It was given back, and is sent again before anything new.
    TO_REDELIVER = "toRedeliver"
    DELAYED = "delayed"
    #: It waits: another consumer holds earlier messages of its key.
    KEY_HELD = "keyHeld"
    #: It has expired, and is about to be acknowledged.
    EXPIRED = "expired"


class FoundMessage(NamedTuple):
    """An unacknowledged message and its state; times are wall-clock ms, 0 for none.

    ``consumer`` has the message, or alone holds its key; ``since_ms`` is when that one got it.
    """

    message: MatchedMessage
    position: tuple[int, int]
    state: DeliveryState
    consumer: Consumer | None
    since_ms: int
    redeliveries: int


class UnackedSearch:
    """One search: call :meth:`step` until it is ``finished``.

    It ends at ``limit`` messages, :data:`SEARCH_ENTRIES` entries or :data:`SEARCH_BYTES`; ``more`` says that there may
    be others, from ``next_offset`` and batch index ``next_index`` on.
    """

    __slots__ = (
        "_criteria",
        "_end",
        "_limit",
        "_subscription",
        "_weight",
        "examined",
        "finished",
        "found",
        "more",
        "next_index",
        "next_offset",
        "unreadable",
    )

    def __init__(
        self, subscription: Subscription, criteria: Criteria, *, limit: int, offset: int = 0, index: int = 0
    ) -> None:
        self._subscription = subscription
        self._criteria = criteria
        self._limit = limit
        self._end = subscription.topic.log.end_offset
        self._weight = SEARCH_BYTES
        self.next_offset = offset
        self.next_index = index
        self.found: list[FoundMessage] = []
        self.examined = 0
        #: Entries that are damaged, and so were left out.
        self.unreadable = 0
        self.finished = False
        self.more = False

    def only(self, offset: int) -> None:
        """Search only the entry at ``offset``."""
        self._begin(offset)
        self._end = min(self._end, offset + 1)

    def older_than(self, received_ms: int) -> None:
        """Search only messages that the broker received at this time (wall-clock ms) or before."""
        log = self._subscription.topic.log
        self._end = min(self._end, first_received_after(log, log.first_offset, received_ms))

    def newer_than(self, received_ms: int) -> None:
        """Search only messages that the broker received after this time (wall-clock ms)."""
        log = self._subscription.topic.log
        self._begin(first_received_after(log, log.first_offset, received_ms))

    def _begin(self, offset: int) -> None:
        if offset > self.next_offset:
            self.next_offset, self.next_index = offset, 0

    def step(self, done: Completion[None]) -> None:
        """Look at the next entries; they are read and taken apart in the reader's thread."""
        log = self._subscription.topic.log
        cursor = self._subscription.acks.cursor
        self._begin(max(cursor.first_unacked(), log.first_offset))
        while self.next_offset < self._end and cursor.acked and self.next_offset in cursor.acked:
            self._begin(run_end(cursor.acked, self.next_offset))
        offset = self.next_offset
        end = min(self._end, log.end_offset)
        if offset >= end or self._subscription.closed:
            self.finished = True
            done(None)
            return
        wanted = BitMap64()
        wanted.add_range(offset, min(offset + STEP_ENTRIES, end))
        wanted -= cursor.acked
        unacked = {each: cursor.partial.get(each) for each in wanted}
        examine_entries(
            log,
            offset,
            wanted.max() - offset + 1,
            READ_BYTES,
            partial(
                examine,
                criteria=self._criteria,
                unacked=unacked,
                from_index=self.next_index,
                limit=self._limit - len(self.found),
                max_weight=self._weight,
                spread_keyless=self._subscription.topic.host.config.subscription_key_shared_spread_keyless,
            ),
            partial(self._examined, offset, done),
        )

    def _examined(self, offset: int, done: Completion[None], result: list[Examined] | Exception) -> None:
        log = self._subscription.topic.log
        lost = lost_range(log, offset, result)
        if lost is not None:
            self.unreadable += lost[0] - offset + 1
            self._begin(lost[0] + 1)
        elif isinstance(result, Exception):
            done(result)
            return
        elif not result:
            if offset >= log.first_offset:
                done(PersistenceError("a read brought nothing"))
                return
        else:
            matches, self.next_offset, self.next_index = result[0]
            self.examined += self.next_offset - offset
            withheld = self._subscription.expiry.withheld
            for match in matches:
                self._weight -= match.weight
                if not self._subscription.acks.cursor.is_acked(match.offset):
                    self.found.append(self._stated(match, withheld))
        if len(self.found) >= self._limit or self._weight <= 0 or self.examined >= SEARCH_ENTRIES:
            self.finished = True
            self.more = self.next_offset < min(self._end, log.end_offset)
        done(None)

    def _stated(self, match: MatchedMessage, withheld: BitMap64) -> FoundMessage:
        """Return a message with its state."""
        subscription = self._subscription
        topic = subscription.topic
        acks = subscription.acks
        offset = match.offset
        state, consumer, since_ms = DeliveryState.NOT_SENT, None, 0
        delivery = acks.pending.get(offset)
        dispatcher = subscription.dispatcher
        if delivery is not None:
            state, consumer, since_ms = DeliveryState.SENT, delivery.consumer, delivery.sent_ms
        elif offset in withheld:
            state = DeliveryState.EXPIRED
        elif dispatcher is not None and offset in dispatcher.replay:
            state = DeliveryState.TO_REDELIVER
        elif isinstance(dispatcher, KeySharedDispatcher) and is_held(dispatcher, offset, match.key_hash):
            state = DeliveryState.KEY_HELD
            consumer = key_holder(dispatcher, match.key_hash)
        elif (
            dispatcher is None or isinstance(dispatcher, DelayingDispatcher)
        ) and offset in topic.timing.timed.waiting:
            state = DeliveryState.DELAYED
        redeliveries = acks.redelivery_counts.get(offset, 0)
        return FoundMessage(match, topic.log.position(offset), state, consumer, since_ms, redeliveries)
