"""Reads the compacted view for a subscription: the compacted ledger up to the horizon, the topic from there on.

What compaction left out counts as acknowledged for the subscription as soon as everything before it is: its backlog
comes to zero, and its originals can be trimmed. The compacted copies of trimmed entries are delivered too;
the cursor knows nothing of those, so how far they are acknowledged is kept here, as the offset from which on they are
still *owed*.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import structlog

from heliograph_broker.messaging.base.entry_counts import EntryCounts
from heliograph_broker.messaging.base.errors import PersistenceError
from heliograph_broker.messaging.log.damaged import lost_range
from heliograph_broker.messaging.log.skipping import skip_range
from heliograph_broker.storage.base.damage import DamagedEntries

from .dispatcher import READ_ENTRIES, ReadView

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.consumer import Consumer
    from heliograph_broker.messaging.compaction.compacted_ledger import CompactedEntry, CompactedLedger

    from .dispatcher import DispatchedSubscription, Dispatcher, OrderedDispatcher

log = structlog.get_logger(__name__)

#: Bytes of one read, and so about the memory that waits for a consumer that does not take it.
VIEW_READ_BYTES = 256 * 1024
_HEADERS_AT_ONCE = 1000

#: First and last offset of a gap that was left out, and its messages and bytes.
Gap = tuple[int, int, int, int]


class CompactedView(ReadView):
    """The reading position of one subscription in the compacted ledger, and its acknowledgments there."""

    __slots__ = (
        "_ahead",
        "_dispatcher",
        "_follows",
        "_gaps",
        "_generation",
        "_index",
        "_ledger",
        "_next",
        "_outstanding",
        "_passed",
        "_subscription",
        "owed_from",
    )

    def __init__(self, subscription: DispatchedSubscription, owed_from: int = -1) -> None:
        self._subscription = subscription
        #: Lowest offset that is trimmed from the topic and not acknowledged in the view, -1 if nothing is owed.
        self.owed_from = owed_from
        self._dispatcher: Dispatcher | None = None
        self._generation = -1
        self._ledger: CompactedLedger | None = None
        self._index = 0
        #: Offset of the topic that comes next.
        self._next = 0
        self._ahead: deque[CompactedEntry] = deque()
        #: Whether the dispatcher is beyond the view and reads the topic itself.
        self._follows = False
        #: Trimmed entries in flight: (ledger id, entry id) -> offset, bits of the messages not acknowledged.
        self._outstanding: dict[tuple[int, int], tuple[int, int]] = {}
        #: The last entry seen: its offset, and the topic's totals up to it.
        self._passed = (-1, 0, 0)
        #: Offset of an entry in flight -> the gap right after it.
        self._gaps: dict[int, Gap] = {}

    def clear(self) -> None:
        """Count everything as acknowledged."""
        for position in list(self._outstanding):
            self.acknowledge_trimmed(*position, None)
        self._next = max(self._next, self._subscription.topic.log.first_offset)
        self.owed_from = -1

    def owe(self, offset: int) -> None:
        """Owe the trimmed entries from ``offset`` on, after a seek or for a new subscription; -1: none."""
        self.owed_from = offset
        self._dispatcher = None

    # -- delivering --------------------------------------------------------------------------------------------

    def dispatch(self, dispatcher: OrderedDispatcher, consumer: Consumer) -> bool:
        """Deliver what the view has up to the horizon; return whether the topic's own entries are next."""
        if self._dispatcher is not dispatcher or self._generation != dispatcher.generation:
            self._restart(dispatcher)
        if self._follows:
            self._follows = False
            self._next = max(self._next, dispatcher.read_offset)
        while True:
            ledger = self._subscription.topic.compaction.ledger
            if ledger is None or self._next > ledger.horizon:
                self._follows = True
                return True
            if ledger is not self._ledger:
                self._ledger = ledger
                self._ahead.clear()
                self._index = ledger.index_of(self._next)
            while self._ahead and consumer.ready:
                self._deliver(dispatcher, consumer, self._ahead.popleft())
            if self._ahead or not consumer.ready:
                return False
            if self._index >= ledger.entries:
                self._pass_horizon(ledger)
                dispatcher.read_offset = max(dispatcher.read_offset, self._next)
                continue
            dispatcher.reading = True
            dispatcher.reading_since_ms = self._subscription.topic.host.clock.now_ms()
            count = min(consumer.permits, READ_ENTRIES)
            ledger.read(self._index, count, VIEW_READ_BYTES, partial(self._read_done, dispatcher, ledger))
            if dispatcher.reading or not self._ahead:
                return False

    def unread(self, dispatcher: Dispatcher) -> bool:
        """Whether ``dispatcher`` has to go on here, before the topic's own entries."""
        ledger = self._subscription.topic.compaction.ledger
        if ledger is None:
            return False
        if self._dispatcher is not dispatcher or self._generation != dispatcher.generation:
            return (self.owed_from if self.owed_from >= 0 else dispatcher.read_offset) <= ledger.horizon
        return (max(self._next, dispatcher.read_offset) if self._follows else self._next) <= ledger.horizon

    def _restart(self, dispatcher: Dispatcher) -> None:
        """Restart for a new dispatcher, or a rewound one: entries in flight count as not delivered."""
        self._dispatcher = dispatcher
        self._generation = dispatcher.generation
        self._ledger = None
        self._follows = False
        self._ahead.clear()
        self._outstanding.clear()
        self._gaps.clear()
        self._next = self.owed_from if self.owed_from >= 0 else dispatcher.read_offset
        self._passed = (-1, 0, 0)

    def _read_done(
        self, dispatcher: Dispatcher, ledger: CompactedLedger, result: list[CompactedEntry] | Exception
    ) -> None:
        if self._dispatcher is not dispatcher or self._generation != dispatcher.generation:
            return
        dispatcher.reading = False
        if ledger is self._ledger:
            if isinstance(result, DamagedEntries):
                self._skip_lost(result)
            elif isinstance(result, Exception) or not result:
                # An empty answer is that of a ledger replaced meanwhile, or one that may change.
                if ledger is self._subscription.topic.compaction.ledger:
                    error = result if isinstance(result, Exception) else PersistenceError("a read brought nothing")
                    dispatcher.failed_to_read(error)
                    return
            else:
                self._index += len(result)
                self._ahead.extend(result)
            dispatcher.read_succeeded()
        dispatcher.notify()

    def _skip_lost(self, lost: DamagedEntries) -> None:
        """Continue after unreadable entries of the compacted ledger: they count as left out, and as skipped."""
        subscription = self._subscription
        self._index = lost.last_entry + 1
        subscription.acks.count_skipped(lost.last_entry - lost.first_entry + 1, 0)
        log.error(
            "damaged compacted entries skipped",
            topic=str(subscription.topic.name),
            subscription=subscription.name,
            reason=str(lost),
        )

    def _deliver(self, dispatcher: OrderedDispatcher, consumer: Consumer, item: CompactedEntry) -> None:
        subscription = self._subscription
        topic = subscription.topic
        cursor = subscription.acks.cursor
        entry = item.entry
        offset = entry.offset
        if offset < self._next:
            return
        trimmed = offset < topic.log.first_offset
        if not trimmed:
            self._leave_out(offset - 1, entry.total_messages - entry.messages, entry.total_bytes - item.size)
        self._next = offset + 1
        self._passed = (offset, entry.total_messages, entry.total_bytes)
        if not trimmed:
            dispatcher.read_offset = max(dispatcher.read_offset, offset + 1)
            if item.retained is not None and not cursor.is_acked(offset):
                # Clients skip the messages that are left out by the ack set, and get no permits wrong.
                cursor.ack_batch(offset, item.retained, entry.messages, item.size)
                topic.cursor_moved(subscription, None)
            if cursor.is_acked(offset) or dispatcher.passes_by(entry):
                return
            if topic.timing.may_expire and subscription.withholds(entry):
                return
            dispatcher.deliver(consumer, entry)
            messages = entry.messages
            if self.owed_from >= 0:
                self._settle_owed()
        else:
            if self.owed_from < 0:
                self.owed_from = offset
            bits = (1 << entry.messages) - 1 if item.retained is None else item.retained
            passed_by = dispatcher.passes_by(entry)
            if subscription.durable or not passed_by:
                self._outstanding[entry.ledger_id, entry.entry_id] = offset, bits
            if passed_by:
                return
            dispatcher.deliver(consumer, entry, item.retained)
            messages = bits.bit_count()
        if item.size != len(entry.frame) or messages != entry.messages:
            # Acknowledgments count published bytes; of trimmed entries only those in flight.
            delivery = subscription.acks.pending[offset]
            delivery.messages, delivery.size = messages, item.size

    # -- what is left out ----------------------------------------------------------------------------------------

    def _pass_horizon(self, ledger: CompactedLedger) -> None:
        """The ledger is read to its end: what follows in the topic up to the horizon was left out."""
        if ledger.horizon >= self._subscription.topic.log.first_offset:
            self._leave_out(ledger.horizon, ledger.record.total_messages, ledger.record.total_bytes)
        self._next = ledger.horizon + 1
        self._passed = (ledger.horizon, ledger.record.total_messages, ledger.record.total_bytes)
        self._settle_owed()

    def _leave_out(self, last: int, total_messages: int, total_bytes: int) -> None:
        """Acknowledge what lies between the last entry seen and ``last``; the totals are those up to ``last``."""
        topic = self._subscription.topic
        first = max(self._next, topic.log.first_offset)
        if first > last:
            return
        passed, messages, size = self._passed
        if first == topic.log.first_offset:
            messages, size = topic.log.trimmed_messages, topic.log.trimmed_bytes
        elif first != passed + 1:
            header = topic.log.header(first - 1)
            if header is None:
                log.error("entry has no header", topic=str(topic.name), offset=first - 1)
                return
            messages, size = header.total_messages, header.total_bytes
        gap = (first, last, total_messages - messages, total_bytes - size)
        if passed in self._subscription.acks.pending and passed >= topic.log.first_offset:
            self._gaps[passed] = gap
        else:
            self._acknowledge_gap(gap)
            topic.cursor_moved(self._subscription, None)

    def _acknowledge_gap(self, gap: Gap) -> None:
        first, last, messages, size = gap
        cursor = self._subscription.acks.cursor
        if last > cursor.mark_delete and not cursor.ack_range(first, last, messages, size):
            # Somebody acknowledged parts of it before: entry by entry.
            self._acknowledge_slowly(max(first, cursor.mark_delete + 1), last)

    def _acknowledge_slowly(self, first: int, last: int) -> None:
        subscription = self._subscription
        topic = subscription.topic
        generation = subscription.acks.generation
        first = max(first, topic.log.first_offset)
        if first > last:
            return

        def found(entries: list[EntryCounts] | Exception) -> None:
            lost = lost_range(topic.log, first, entries)
            if lost is not None and generation == subscription.acks.generation and not subscription.closed:
                skip_range(subscription, first, min(lost[0], last), lost[1])
                self._acknowledge_slowly(lost[0] + 1, last)
                return
            if isinstance(entries, Exception):
                log.error("read failed", topic=str(topic.name), error=str(entries))
                return
            if generation != subscription.acks.generation or subscription.closed or not entries:
                return
            for entry in entries:
                subscription.acks.acknowledge_entry(entry.offset, entry.messages, entry.size, None)
            topic.cursor_moved(subscription, None)
            self._acknowledge_slowly(entries[-1].offset + 1, last)

        topic.log.read_headers(first, min(last, first + _HEADERS_AT_ONCE), found)

    # -- acknowledgments -------------------------------------------------------------------------------------------

    def entry_acknowledged(self, offset: int) -> None:
        """An entry of the topic is acknowledged in full: so is the gap right after it."""
        gap = self._gaps.pop(offset, None)
        if gap is not None:
            self._acknowledge_gap(gap)

    def acknowledged_up_to(self, offset: int) -> None:
        """All of the topic is acknowledged up to and including ``offset``, and the gap right after it."""
        for before in [before for before in self._gaps if before <= offset]:
            self._acknowledge_gap(self._gaps.pop(before))

    def acknowledge_trimmed(self, ledger_id: int, entry_id: int, remaining: int | None) -> None:
        """A client acknowledged an entry, or of its batch all but ``remaining``, which the topic has trimmed."""
        found = self._outstanding.get((ledger_id, entry_id))
        if found is None:
            return
        offset, bits = found
        left = 0 if remaining is None else bits & remaining
        acks = self._subscription.acks
        delivery = acks.pending.get(offset)
        if delivery is not None:
            consumer = delivery.consumer
            newly = (bits & ~left).bit_count()
            consumer.unacked -= newly
            acks.unacked_messages -= newly
            consumer.messages_acked += newly
            acks.messages_acked += newly
            if left:
                delivery.messages = left.bit_count()
            else:
                acks.pending.settle(offset)
        if left:
            self._outstanding[ledger_id, entry_id] = offset, left
        else:
            del self._outstanding[ledger_id, entry_id]
            self._settle_owed()

    def acknowledge_trimmed_up_to(self, ledger_id: int, entry_id: int, remaining: int | None) -> None:
        """A client acknowledged everything up to an id; of the batch it names only the indexes up to it."""
        for position in list(self._outstanding):
            if position < (ledger_id, entry_id):
                self.acknowledge_trimmed(*position, None)
            elif position == (ledger_id, entry_id):
                self.acknowledge_trimmed(*position, remaining)

    def _settle_owed(self) -> None:
        """Search again for the first trimmed entry that is owed."""
        if self.owed_from < 0:
            return
        subscription = self._subscription
        owed = next(iter(self._outstanding.values()), (self._next, 0))[0]
        if owed >= subscription.topic.log.first_offset:
            owed = -1
        if owed != self.owed_from:
            self.owed_from = owed
            subscription.topic.cursor_moved(subscription, None)
