"""Expires messages of a subscription: Pulsar's TTL and RabbitMQ's rules.

An expired message is acknowledged for that subscription, after a copy went to the dead-letter topic if there is one.
From the moment it expires no consumer gets it, whether or not it was acknowledged yet. A message in flight to a
consumer expires like any other, except one with a TTL of 0 ("deliver now or never"): its delivery was in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from heliograph_api.policies.policies import of_subscription
from heliograph_api.protocol.frames import EntryError
from pyroaring import BitMap64

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.base.errors import BrokerError, NotAllowed
from heliograph_broker.messaging.log.damaged import received_from
from heliograph_broker.messaging.log.retention import first_received_after
from heliograph_broker.messaging.log.skipping import skip_entry

from .entry_expiry import base_ms, expired_messages, has_zero_ttl, is_expired, zero_ttl_messages
from .expiry_run import ExpiryRun, RunOwner

if TYPE_CHECKING:
    from heliograph_broker.messaging.acknowledgment.acknowledgment import AckedSubscription
    from heliograph_broker.messaging.base.errors import Done
    from heliograph_broker.storage.base.entry import Entry

log = structlog.get_logger(__name__)

#: The duty that :mod:`.containment` suspends when expiry raises.
EXPIRE = "expire"
#: The duty that is suspended while dead letters are refused.
STORE_LETTERS = "store letters"
#: A run that could not read entries is tried again after this pause.
RETRY_MS = 1000
#: Ticks release delayed entries: an entry counts as due just now for this long after its time.
_DELAY_GRAIN_MS = 500


class LettersRefused(NotAllowed):
    """A dead-letter topic does not take a letter."""


class Expiry(RunOwner):
    """Expires the messages of one subscription: :meth:`run` when :meth:`next_due_ms` says that some are due.

    An entry that expires is in these sets until it is acknowledged:

    - ``exempt_in_flight``: delivered with a TTL of 0; goes to ``recheck`` when the delivery ends without an ack.
    - ``recheck``: the next run examines it.
    - ``masked_bits`` and ``_never_sent_bits``: a batch of which only some messages have expired; the former until the
      rest is delivered, the latter until the expired ones are acknowledged.
    - ``_skipped``: passed by the dispatcher; offered again when the policies change.
    - ``_refused`` and ``_retried``: its dead letter was refused; a run tries it again after a pause.
    """

    __slots__ = (
        "_delayed_until",
        "_has_room",
        "_never_sent_bits",
        "_own_until",
        "_refused",
        "_regular_from",
        "_retried",
        "_retry_ms",
        "_skipped",
        "_waiting",
        "dead_letter_failures",
        "dead_letter_loops",
        "dead_lettered",
        "exempt_in_flight",
        "last_expire_ms",
        "masked_bits",
        "msg_expired",
        "recheck",
    )

    def __init__(self, subscription: AckedSubscription) -> None:
        super().__init__(subscription)
        self.msg_expired = 0
        self.last_expire_ms = 0
        #: Messages that went to the dead-letter topic, had been there before, or were refused there.
        self.dead_lettered = 0
        self.dead_letter_loops = 0
        self.dead_letter_failures = 0
        #: Entries with a TTL of 0 that are in flight: exempt, as they were delivered in time.
        self.exempt_in_flight: set[int] = set()
        #: Entries for the next run to examine: found expired by the dispatcher, or given back with a TTL of 0.
        self.recheck = BitMap64()
        #: Expired messages of batches, masked when the rest is delivered: offset -> bits of their indexes.
        self.masked_bits: dict[int, int] = {}
        #: The same until they are acknowledged: a TTL of 0 exempts delivered messages, not those masked beside them.
        self._never_sent_bits: dict[int, int] = {}
        #: Entries that the dispatcher skipped as expired and will not read again by itself.
        self._skipped = BitMap64()
        #: Entries whose dead letters were refused: no run includes them before the pause of STORE_LETTERS is over.
        self._refused = BitMap64()
        #: Those of them that the run under way, or the last one, tried again.
        self._retried = BitMap64()
        #: Whether the dead-letter topic got room during the run that is under way.
        self._has_room = False
        #: Runs that an operator asked for while another one was under way.
        # A list: an empty deque takes 0.7 KiB, and there is one of these for each subscription.
        self._waiting: list[ExpiryRun] = []
        #: No run starts before then (monotonic ms).
        self._retry_ms = 0
        self.restart()

    @property
    def ttl_ms(self) -> int:
        """The message TTL that holds for the subscription: its own, else its topic's; -1 without."""
        topic = self.subscription.topic
        if topic.effective.subscription_policies is None:
            return topic.timing.ttl_ms
        ttl_ms = of_subscription(topic.effective, self.subscription.name).message_ttl_ms
        return -1 if ttl_ms is None else ttl_ms

    @property
    def dead_letter_topic(self) -> str | None:
        return of_subscription(self.subscription.topic.effective, self.subscription.name).dead_letter_topic

    def restart(self) -> None:
        """The cursor was moved by hand: everything beyond it may have to expire again."""
        self._own_until = 0
        self._delayed_until = 0
        self._regular_from = 0

    def policies_changed(self) -> None:
        """Withheld entries may live longer now: the dispatcher checks them again, before any later entry."""
        if self._skipped:
            skipped, self._skipped = self._skipped, BitMap64()
            self.subscription.offer_again(skipped)
        if self._refused:
            # Perhaps to another topic, or not at all any more.
            self.recheck |= self._refused
            self._refused.clear()
            self.subscription.topic.host.containment.succeeded(self.subscription, STORE_LETTERS)

    def give_back(self, offset: int) -> None:
        """A delivery ended without an ack (nack, disconnect): the message keeps its expiry, past for a TTL of 0."""
        if offset in self.exempt_in_flight:
            self.exempt_in_flight.discard(offset)
            self.recheck.add(offset)
            self.subscription.topic.check_soon()

    def give_back_all(self) -> None:
        if self.exempt_in_flight:
            self.recheck.update(self.exempt_in_flight)
            self.exempt_in_flight.clear()
            self.subscription.topic.check_soon()

    def withholds(self, entry: Entry, now_ms: int) -> bool:
        """Whether ``entry`` has expired and must not be delivered; the next run acknowledges it then.

        If only some messages of a batch expired, these are masked: see :meth:`visible`.
        """
        topic = self.subscription.topic
        ttl_ms = self.ttl_ms
        if not is_expired(topic, entry, now_ms, ttl_ms):
            return False
        if has_zero_ttl(entry, ttl_ms) and self._is_first_chance(entry, now_ms):
            self.exempt_in_flight.add(entry.offset)
            return False
        try:
            expired, _ = expired_messages(topic, entry, now_ms, ttl_ms)
        except EntryError as error:
            skip_entry(self.subscription, entry.offset, str(error))
            return True
        self.recheck.add(entry.offset)
        topic.check_soon()
        if self.subscription.acks.unacked_bits(entry.offset, entry.messages) & ~expired:
            self.masked_bits[entry.offset] = self._never_sent_bits[entry.offset] = expired
            return False
        self._skipped.add(entry.offset)
        return True

    def visible(self, offset: int, messages: int, remaining: int | None) -> int | None:
        """Return the batch indexes to deliver, out of ``remaining`` (bits, None for all)."""
        masked = self.masked_bits.pop(offset, None)
        if masked is None:
            return remaining
        return (remaining if remaining is not None else (1 << messages) - 1) & ~masked

    @property
    def withheld(self) -> BitMap64:
        """The unacknowledged entries that the dispatcher has passed as expired."""
        cursor = self.subscription.acks.cursor
        withheld = self._skipped - cursor.acked
        withheld.remove_range(0, cursor.first_unacked())
        return withheld

    def dispatch_restarts(self) -> None:
        """The dispatcher starts again at the first unacknowledged entry, so it will read withheld entries by itself."""
        self._skipped.clear()

    def _is_first_chance(self, entry: Entry, now_ms: int) -> bool:
        """Whether ``entry`` became deliverable just now: it is new, or its delay has ended with this tick."""
        topic = self.subscription.topic
        if entry.offset >= topic.timing.first_fresh_offset:
            return True
        begins = base_ms(topic, entry, entry.offset)
        return (
            begins > topic.log.received_ms(entry.offset, entry.receive_ms)
            and now_ms - begins < _DELAY_GRAIN_MS
            and entry.offset not in self.recheck
        )

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when the next message may expire (wall-clock ms), or None if none has a TTL."""
        subscription = self.subscription
        topic = subscription.topic
        ttl_ms = self.ttl_ms
        first = max(subscription.acks.cursor.first_unacked(), topic.log.first_offset)
        if first >= topic.log.end_offset or self.running:
            return None
        wait_ms = self._retry_ms - monotonic_ms(topic.host.clock)
        if wait_ms > 0:
            return now_ms + wait_ms
        due: list[int] = []
        if ttl_ms >= 0:
            regular = max(first, self._regular_from)
            received = received_from(topic.log, regular)
            if received is not None:
                due.append(received + ttl_ms)
            if topic.timing.timed.delayed and topic.timing.ttl_from_delivery:
                delayed = topic.timing.timed.by_delivery.next_after(max(self._delayed_until, 0))
                if delayed is not None:
                    due.append(delayed + ttl_ms)
        if topic.timing.timed.own:
            own = topic.timing.timed.by_own_expiry.next_after(self._own_until)
            if own is not None:
                due.append(own)
        if self.recheck or self._may_retry():
            due.append(now_ms)
        return min(due) if due else None

    def run(self, now_ms: int) -> None:
        """Let all messages that are due expire.

        It returns before that is complete if entries must be read, or dead letters stored, first.
        """
        subscription = self.subscription
        topic = subscription.topic
        ttl_ms = self.ttl_ms
        if self.running or not subscription.durable:
            return
        if ttl_ms < 0 and not topic.timing.timed.own and not self.recheck and not self._may_retry():
            return
        if self._retry_ms > monotonic_ms(topic.host.clock):
            return
        if self._may_retry():
            self.recheck |= self._refused
            self._retried, self._refused = self._refused, BitMap64()
        recheck = self.recheck.copy()
        try:
            self._run(now_ms)
        except Exception:
            # Entries that were due stay due.
            self.recheck |= recheck
            self.running = False
            self.restart()
            raise

    def _may_retry(self) -> bool:
        """Whether refused dead letters may be tried again now."""
        subscription = self.subscription
        return bool(self._refused) and not subscription.topic.host.containment.holds(subscription, STORE_LETTERS)

    def _run(self, now_ms: int) -> None:
        subscription = self.subscription
        topic = subscription.topic
        ttl_ms = self.ttl_ms
        first = max(subscription.acks.cursor.first_unacked(), topic.log.first_offset)
        due = self.recheck
        self.recheck = BitMap64()
        if topic.timing.timed.own:
            due.update(topic.timing.timed.by_own_expiry.between(self._own_until, now_ms))
            # An entry published in this very millisecond, after this run, may have a TTL of 0: the next run sees it.
            self._own_until = now_ms - 1
        point = first
        waiting = BitMap64()
        if ttl_ms >= 0 and first < topic.log.end_offset:
            cutoff = now_ms - ttl_ms
            point = first_received_after(topic.log, max(first, self._regular_from), cutoff)
            self._regular_from = point
            if topic.timing.timed.delayed and topic.timing.ttl_from_delivery:
                now_due = BitMap64(topic.timing.timed.by_delivery.between(self._delayed_until, cutoff))
                due |= now_due
                self._delayed_until = max(cutoff, 0)
                waiting.add_range(first, point)
                waiting &= topic.timing.timed.delayed
                waiting -= now_due
        pending = subscription.acks.pending
        spared = bool(self.exempt_in_flight) or (
            bool(pending) and (ttl_ms == 0 or any(offset in topic.timing.timed.own for offset in pending))
        )
        if point > first and not waiting and not spared and self.dead_letter_topic is None:
            subscription.acks.acknowledge_up_to(point - 1, None, counted=self.count_expired, failed=self._not_read)
            if due and due.max() < point:
                return
        elif point > first:
            reached = BitMap64()
            reached.add_range(first, point)
            # Not taken from ``due``: an entry that was given back expires although it is a delayed one.
            due |= reached - waiting
        due -= self._refused
        ExpiryRun(self, due, now_ms, forced=False, done=None).start()

    def force(self, offsets: BitMap64, now_ms: int, done: Done) -> None:
        """Let ``offsets`` expire whatever their TTL (an operator's request), after the run that is under way.

        Two runs at once would send the same messages to the dead-letter topic twice.
        """
        run = ExpiryRun(self, offsets, now_ms, forced=True, done=done)
        if self.running:
            self._waiting.append(run)
        else:
            run.start()

    def expire_older_than(self, age_ms: int, done: Done) -> None:
        """Let everything expire that the broker received more than ``age_ms`` ago."""
        topic = self.subscription.topic
        now_ms = topic.host.clock.now_ms()
        first = max(self.subscription.acks.cursor.first_unacked(), topic.log.first_offset)
        self._expire_below(first_received_after(topic.log, first, now_ms - age_ms - 1), done)

    def expire_up_to(self, ledger_id: int, entry_id: int, done: Done) -> None:
        """Let everything expire up to and including a position."""
        self._expire_below(self.subscription.topic.log.offset_at_or_after(ledger_id, entry_id + 1), done)

    def _expire_below(self, offset: int, done: Done) -> None:
        acks = self.subscription.acks
        if self.dead_letter_topic is None:
            acks.acknowledge_up_to(offset - 1, done, counted=self.count_expired)
            return
        offsets = BitMap64()
        offsets.add_range(acks.cursor.first_unacked(), max(offset, acks.cursor.first_unacked()))
        self.force(offsets, self.subscription.topic.host.clock.now_ms(), done)

    def count_expired(self, messages: int) -> None:
        """Count messages that were acknowledged because they expired."""
        self.msg_expired += messages
        self.last_expire_ms = self.subscription.topic.host.clock.now_ms()

    def count_letters(self, *, stored: int = 0, loops: int = 0, refused: int = 0) -> None:
        self.dead_lettered += stored
        self.dead_letter_loops += loops
        self.dead_letter_failures += refused

    # -- called by the run that is under way --------------------------------------------------------------------

    def run_ended(self) -> None:
        """The run is over and ``running`` is False: the next one starts that an operator has asked for meanwhile."""
        while self._waiting and not self.running:
            self._waiting.pop(0).start()

    def messages_to_expire(self, entry: Entry, now_ms: int, *, forced: bool) -> int:
        """Return the messages of ``entry`` that expire now, a bit for each. Raises :class:`EntryError`."""
        subscription = self.subscription
        topic = subscription.topic
        ttl_ms = self.ttl_ms
        bits = subscription.acks.unacked_bits(entry.offset, entry.messages)
        if not forced and bits:
            expired, later_ms = expired_messages(topic, entry, now_ms, ttl_ms)
            if later_ms is not None and bits & ~expired:
                topic.timing.timed.add_own(entry.offset, later_ms)
            bits &= expired
            if bits and has_zero_ttl(entry, ttl_ms) and entry.offset in subscription.acks.pending:
                # In flight: it was delivered in time, or a TTL of 0 came later. Given back, it will expire.
                bits &= ~zero_ttl_messages(entry, ttl_ms) | self._never_sent_bits.get(entry.offset, 0)
                self.exempt_in_flight.add(entry.offset)
        return bits

    def forget_withheld(self, offset: int) -> bool:
        """The run has judged the entry at ``offset``; return whether it was withheld from consumers until then."""
        was_withheld = offset in self._skipped
        self._skipped.discard(offset)
        return was_withheld

    def acknowledge(self, expiring: list[tuple[Entry, int]]) -> None:
        """Acknowledge and count the given messages (a bit for each) of each entry."""
        subscription = self.subscription
        before = subscription.acks.cursor.acked_messages
        for entry, bits in expiring:
            remaining = subscription.acks.unacked_bits(entry.offset, entry.messages) & ~bits
            subscription.acks.acknowledge_entry(entry.offset, entry.messages, len(entry.frame), remaining or None)
            if not remaining:
                self.exempt_in_flight.discard(entry.offset)
                self._skipped.discard(entry.offset)
            unsent = self._never_sent_bits.pop(entry.offset, 0) & ~bits
            if unsent:
                self._never_sent_bits[entry.offset] = unsent
        self.count_expired(subscription.acks.cursor.acked_messages - before)

    def letters_ended(self, refused: BitMap64, error: str | None, *, forced: bool) -> None:
        """The run is over; ``error`` says why dead letters of the entries ``refused`` were not stored.

        They stay, withheld from consumers, and are tried again after pauses that grow until one of them is stored.
        """
        subscription = self.subscription
        topic = subscription.topic
        containment = topic.host.containment
        if forced:
            # The next run tries those again that have expired by their TTL, and leaves out the others.
            self.recheck |= refused
            if refused:
                topic.check_soon()
            return
        retried, self._retried = self._retried, BitMap64()
        has_room, self._has_room = self._has_room, False
        if error is not None and refused:
            self._refused |= refused
            if has_room:
                self.letters_have_room()
                return
            if retried - refused:
                containment.succeeded(subscription, STORE_LETTERS)
            if not containment.holds(subscription, STORE_LETTERS):
                containment.failed(subscription, STORE_LETTERS, LettersRefused(error), topic.check_soon)
        elif not self._refused and containment.suspended:
            containment.succeeded(subscription, STORE_LETTERS)

    def letters_have_room(self) -> None:
        """The dead-letter topic, which was over its quota, has room again: try at once."""
        if self.running:
            self._has_room = True
        elif self._refused and not self.subscription.closed:
            topic = self.subscription.topic
            topic.host.containment.succeeded(self.subscription, STORE_LETTERS)
            topic.check_soon()

    def retry_later(self, due: BitMap64, error: str) -> None:
        """The run could not settle ``due``: try it again after :data:`RETRY_MS`. No consumer gets it meanwhile."""
        self.running = False
        self.recheck |= due
        self._pause(error)

    def suspend(self, due: BitMap64, error: Exception) -> None:
        """The run raised ``error``: suspend this expiry, and try ``due`` again when it resumes."""
        subscription = self.subscription
        topic = subscription.topic
        self.running = False
        self.recheck |= due
        topic.host.containment.failed(subscription, EXPIRE, error, topic.check_soon)

    def _not_read(self, error: BrokerError) -> None:
        """Not everything that expired as a whole could be acknowledged: search for it again later."""
        self._regular_from = 0
        self._pause(str(error))

    def _pause(self, error: str) -> None:
        topic = self.subscription.topic
        log.error("messages could not expire yet", topic=str(topic.name), sub=self.subscription.name, error=error)
        self._retry_ms = monotonic_ms(topic.host.clock) + RETRY_MS
        topic.check_soon()
