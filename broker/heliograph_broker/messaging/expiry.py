"""When a message expires, and what happens to it then: Pulsar's TTL and RabbitMQ's rules.

A message expires for a subscription when the lower of the topic's TTL and its own has passed since the broker
received it, or since it became deliverable if it was delayed. It is acknowledged for that subscription, after a copy
went to the dead-letter topic if there is one. From the moment it expires no consumer gets it, whether or not it was
acknowledged yet. A message in flight to a consumer expires as any other; only with a TTL of 0, which means
"deliver now or never", does delivery end the wait.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog
from pyroaring import BitMap64

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.protocol import wire_pb2 as wire
from heliograph_broker.protocol.frames import EntryError, parse_entry

from .batches import BatchError, is_batch, open_batch
from .containment import first_line
from .damaged import lost_range, received_from, skip_entry, skip_range
from .errors import BrokerError, NotAllowed
from .retention import first_received_after

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heliograph_broker.storage.entry import Entry, EntryHeader

    from .subscription import Done, Subscription
    from .topic import Topic

log = structlog.get_logger(__name__)

#: The message property that holds a TTL of its own, a decimal number of ms as text.
TTL_PROPERTY = "x-message-ttl"
_MAX_TTL_MS = (1 << 63) - 1
_READ_BYTES = 1024 * 1024
_READ_ENTRIES = 1000
#: The duty that :mod:`.containment` suspends when expiry raises.
EXPIRE = "expire"
#: A subscription whose dead letters could not be stored tries again after so long.
RETRY_MS = 1000
#: Delayed entries are looked at by ticks: within so long of its time an entry counts as due just now.
_DELAY_GRAIN_MS = 500


class InvalidMessageTtl(NotAllowed):
    """A message carries a TTL that is not a number of ms."""


def ttl_of(properties: Iterable[wire.KeyValue]) -> int:
    """Return the TTL among a message's properties in ms, -1 if there is none. Raises :class:`InvalidMessageTtl`."""
    for pair in properties:
        if pair.key == TTL_PROPERTY:
            text = pair.value
            if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > _MAX_TTL_MS:
                shown = text if len(text) <= 40 else f"{text[:40]}..."
                raise InvalidMessageTtl(
                    f"property {TTL_PROPERTY} is '{shown}'; valid: milliseconds as decimal text, 0 to {_MAX_TTL_MS}"
                )
            return int(text)
    return -1


def ttls_in(metadata: wire.MessageMetadata, frame: bytes) -> list[int]:
    """Return the TTL of every message of a batch (-1 without), empty if it cannot be opened.

    Raises :class:`InvalidMessageTtl`.
    """
    try:
        opened = open_batch(metadata, frame[parse_entry(frame).payload_offset :])
    except BatchError:
        # Encrypted, or of no use to any consumer either: the topic's own TTL is all that counts.
        return []
    return [ttl_of(single.properties) for single, _ in opened]


def _stored_ttls(metadata: wire.MessageMetadata, frame: bytes) -> list[int]:
    """As :func:`ttls_in` for an entry that is stored, whatever was checked then: one that is invalid counts as none."""
    try:
        return ttls_in(metadata, frame)
    except InvalidMessageTtl:
        opened = open_batch(metadata, frame[parse_entry(frame).payload_offset :])
    ttls = []
    for single, _ in opened:
        try:
            ttls.append(ttl_of(single.properties))
        except InvalidMessageTtl:
            ttls.append(-1)
    return ttls


def base_ms(topic: Topic, entry: Entry | EntryHeader, offset: int) -> int:
    """Return when the TTL of ``entry`` begins, wall-clock ms."""
    received = topic.received_ms(offset, entry.receive_ms)
    if topic.delayed_delivery and entry.deliver_at_ms > entry.receive_ms:
        return max(entry.deliver_at_ms, received)
    return received


def is_expired(topic: Topic, entry: Entry, now_ms: int) -> bool:
    """Whether every message of ``entry`` has expired; for a batch with TTLs of its own whether any has."""
    ttl = topic.ttl_ms
    if entry.ttl_ms >= 0 and (ttl < 0 or entry.ttl_ms < ttl):
        ttl = entry.ttl_ms
    return ttl >= 0 and base_ms(topic, entry, entry.offset) + ttl <= now_ms


def has_zero_ttl(topic: Topic, entry: Entry) -> bool:
    """Whether ``entry`` is to be delivered at once or never."""
    return topic.ttl_ms == 0 or entry.ttl_ms == 0


class Expiry:
    """What expires for one subscription. :meth:`run` does what is due, :meth:`next_due_ms` says when to come again."""

    __slots__ = (
        "_delayed_until",
        "_own_until",
        "_regular_from",
        "_retry_ms",
        "_unsent",
        "_withheld",
        "hidden",
        "lent",
        "returned",
        "running",
        "subscription",
    )

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        #: Entries with a TTL of 0 that are in flight, hence exempt.
        self.lent: set[int] = set()
        #: Entries a dispatcher found expired, or that came back with a TTL of 0.
        self.returned = BitMap64()
        #: Messages of batches that must not be delivered with the rest: offset -> bits of their indexes.
        self.hidden: dict[int, int] = {}
        #: The same until they have expired: a TTL of 0 spares what was delivered, not what is hidden beside it.
        self._unsent: dict[int, int] = {}
        #: What the dispatcher passed over, and would not come back to by itself.
        self._withheld = BitMap64()
        #: Whether a run is under way: entries are being read, or letters of theirs stored.
        self.running = False
        #: Nothing is tried before then (monotonic ms).
        self._retry_ms = 0
        self.restart()

    def restart(self) -> None:
        """The cursor was moved by hand: everything beyond it may have to expire again."""
        self._own_until = 0
        self._delayed_until = 0
        self._regular_from = 0

    def policies_changed(self) -> None:
        """What was passed over may live longer now: the dispatcher judges it again, before anything that is later."""
        if self._withheld:
            withheld, self._withheld = self._withheld, BitMap64()
            self.subscription.offer_again(withheld)

    def give_back(self, offset: int) -> None:
        """A delivery was taken back (nack, disconnect): it keeps its original expiry, which for a TTL of 0 is past."""
        if offset in self.lent:
            self.lent.discard(offset)
            self.returned.add(offset)
            self.subscription.topic.host.look_at(self.subscription.topic)

    def give_back_all(self) -> None:
        if self.lent:
            self.returned.update(self.lent)
            self.lent.clear()
            self.subscription.topic.host.look_at(self.subscription.topic)

    def withholds(self, entry: Entry, now_ms: int) -> bool:
        """Whether ``entry`` must not be delivered any more; it is acknowledged with the next run then.

        Of a batch of which only some messages expired those are hidden: see :meth:`visible`.
        """
        topic = self.subscription.topic
        if not is_expired(topic, entry, now_ms):
            return False
        if has_zero_ttl(topic, entry) and self._is_first_chance(entry, now_ms):
            self.lent.add(entry.offset)
            return False
        try:
            expired, _ = _expired(topic, entry, now_ms)
        except EntryError as error:
            skip_entry(self.subscription, entry.offset, str(error))
            return True
        self.returned.add(entry.offset)
        topic.host.look_at(topic)
        if self.subscription.unacked_bits(entry.offset, entry.messages) & ~expired:
            self.hidden[entry.offset] = self._unsent[entry.offset] = expired
            return False
        self._withheld.add(entry.offset)
        return True

    def visible(self, offset: int, messages: int, remaining: int | None) -> int | None:
        """Return the batch indexes to deliver, out of ``remaining`` (bits, None for all)."""
        hidden = self.hidden.pop(offset, None)
        if hidden is None:
            return remaining
        return (remaining if remaining is not None else (1 << messages) - 1) & ~hidden

    def dispatch_restarts(self) -> None:
        """The dispatcher begins again at the first unacknowledged entry: it will meet everything by itself."""
        self._withheld.clear()

    def _is_first_chance(self, entry: Entry, now_ms: int) -> bool:
        """Whether ``entry`` became deliverable just now: it is new, or its delay has ended with this tick."""
        topic = self.subscription.topic
        if entry.offset >= topic.fresh_from:
            return True
        begins = base_ms(topic, entry, entry.offset)
        return (
            begins > topic.received_ms(entry.offset, entry.receive_ms)
            and now_ms - begins < _DELAY_GRAIN_MS
            and entry.offset not in self.returned
        )

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return when the next message may expire, wall-clock ms; None if none will as things are."""
        subscription = self.subscription
        topic = subscription.topic
        first = max(subscription.cursor.first_unacked(), topic.first_offset)
        if first >= topic.end_offset or self.running:
            return None
        wait_ms = self._retry_ms - monotonic_ms(topic.host.clock)
        if wait_ms > 0:
            return now_ms + wait_ms
        due: list[int] = []
        if topic.ttl_ms >= 0:
            regular = max(first, self._regular_from)
            received = received_from(topic, regular)
            if received is not None:
                due.append(received + topic.ttl_ms)
            if topic.timed.delayed:
                delayed = topic.timed.by_delivery.next_after(max(self._delayed_until, 0))
                if delayed is not None:
                    due.append(delayed + topic.ttl_ms)
        if topic.timed.own:
            own = topic.timed.by_own_expiry.next_after(self._own_until)
            if own is not None:
                due.append(own)
        if self.returned:
            due.append(now_ms)
        return min(due) if due else None

    def run(self, now_ms: int) -> None:
        """Let everything expire that is due. What has to be read first, or dead-lettered, is done when it is."""
        subscription = self.subscription
        topic = subscription.topic
        if self.running or not subscription.durable:
            return
        if topic.ttl_ms < 0 and not topic.timed.own and not self.returned:
            return
        if self._retry_ms > monotonic_ms(topic.host.clock):
            return
        returned = self.returned.copy()
        try:
            self._run(now_ms)
        except Exception:
            # What was due stays due.
            self.returned |= returned
            self.running = False
            self.restart()
            raise

    def _run(self, now_ms: int) -> None:
        subscription = self.subscription
        topic = subscription.topic
        first = max(subscription.cursor.first_unacked(), topic.first_offset)
        due = self.returned
        self.returned = BitMap64()
        if topic.timed.own:
            due.update(topic.timed.by_own_expiry.between(self._own_until, now_ms))
            # What is published in this very millisecond, after this run, may have a TTL of 0: the next run sees it.
            self._own_until = now_ms - 1
        point = first
        waiting = BitMap64()
        if topic.ttl_ms >= 0 and first < topic.end_offset:
            cutoff = now_ms - topic.ttl_ms
            point = first_received_after(topic, max(first, self._regular_from), cutoff)
            self._regular_from = point
            if topic.timed.delayed and topic.delayed_delivery:
                now_due = BitMap64(topic.timed.by_delivery.between(self._delayed_until, cutoff))
                due |= now_due
                self._delayed_until = max(cutoff, 0)
                waiting.add_range(first, point)
                waiting &= topic.timed.delayed
                waiting -= now_due
        pending = subscription.pending
        spared = bool(self.lent) or (
            bool(pending) and (topic.ttl_ms == 0 or any(offset in topic.timed.own for offset in pending))
        )
        if point > first and not waiting and not spared and topic.dead_letter_topic is None:
            subscription.acknowledge_up_to(point - 1, None, counted=subscription.count_expired, failed=self._not_read)
            if due and due.max() < point:
                return
        elif point > first:
            reached = BitMap64()
            reached.add_range(first, point)
            # Not taken from ``due``: what was given back expires although it is a delayed one.
            due |= reached - waiting
        self._settle(due, now_ms, forced=False, done=None)

    def force(self, offsets: BitMap64, now_ms: int, done: Done) -> None:
        """Let ``offsets`` expire whatever their TTL (expire by hand)."""
        self._settle(offsets, now_ms, forced=True, done=done)

    # -- entry by entry --------------------------------------------------------------------------------------

    def _settle(self, due: BitMap64, now_ms: int, *, forced: bool, done: Done | None) -> None:
        subscription = self.subscription
        topic = subscription.topic
        if due:
            due.remove_range(0, max(subscription.cursor.first_unacked(), topic.first_offset))
            due -= subscription.cursor.acked
        if not due or due.min() >= topic.end_offset:
            if done is not None:
                topic.cursor_moved(subscription, done)
            return
        self.running = True
        self._next_chunk(due, now_ms, forced, done)

    def _next_chunk(self, due: BitMap64, now_ms: int, forced: bool, done: Done | None) -> None:
        """Read what is next in ``due``, one run of neighbours at most; :meth:`_read` goes on from there."""
        subscription = self.subscription
        topic = subscription.topic
        generation = subscription.generation
        if due:
            due.remove_range(0, topic.first_offset)
        if not due or subscription.closed or topic.closed or due.min() >= topic.end_offset:
            self._finished(done)
            return
        first = due.min()
        count = 1
        while count < _READ_ENTRIES and first + count in due:
            count += 1
        topic.read(first, count, _READ_BYTES, partial(self._step, due, now_ms, forced, done, generation, first))

    def _step(
        self,
        due: BitMap64,
        now_ms: int,
        forced: bool,
        done: Done | None,
        generation: int,
        first: int,
        result: list[Entry] | Exception,
    ) -> None:
        """Go on with what was read, begun at offset ``first``; what raises ends the run, not the expiry for good."""
        try:
            lost = lost_range(self.subscription.topic, first, result)
            if lost is not None:
                skip_range(self.subscription, first, *lost)
                due.remove_range(0, lost[0] + 1)
                self._next_chunk(due, now_ms, forced, done)
            elif not result:
                # Trimmed meanwhile.
                self._next_chunk(due, now_ms, forced, done)
            else:
                self._read(due, now_ms, forced, done, generation, result)
        except Exception as error:
            self._abandon(due, error, done)

    def _abandon(self, due: BitMap64, error: Exception, done: Done | None) -> None:
        """A run raised: suspend the subscription's expiry, and have it try ``due`` again."""
        subscription = self.subscription
        topic = subscription.topic
        self.running = False
        self.returned |= due
        topic.host.containment.failed(subscription, EXPIRE, error, partial(topic.host.look_at, topic))
        if done is not None:
            done(NotAllowed(f"messages could not expire: {first_line(error)}"))

    def _read(
        self,
        due: BitMap64,
        now_ms: int,
        forced: bool,
        done: Done | None,
        generation: int,
        result: list[Entry] | Exception,
    ) -> None:
        subscription = self.subscription
        topic = subscription.topic
        if isinstance(result, Exception):
            self._give_up(due, done, f"cannot read: {first_line(result)}")
            return
        if generation != subscription.generation:
            # A seek came in between, which asked for its own run.
            self._finished(done)
            return
        expiring: list[tuple[Entry, int]] = []
        for entry in result:
            try:
                bits = self._bits_to_expire(entry, now_ms, forced=forced)
            except EntryError as error:
                self._withheld.discard(entry.offset)
                skip_entry(subscription, entry.offset, str(error))
                continue
            if bits:
                expiring.append((entry, bits))
            if entry.offset in self._withheld:
                self._withheld.discard(entry.offset)
                if not bits:
                    subscription.offer_again(BitMap64((entry.offset,)))
        due.remove_range(0, result[-1].offset + 1)
        target = topic.dead_letter_topic
        if target is None or not expiring:
            self._expire(expiring)
            self._next_chunk(due, now_ms, forced, done)
            return

        def current() -> bool:
            return generation == subscription.generation and not subscription.closed

        def settle(entry: Entry, bits: int) -> None:
            if current():
                self._expire([(entry, bits)])

        def ended(error: str | None) -> None:
            try:
                if not current():
                    self._finished(done)
                elif error is None:
                    self._next_chunk(due, now_ms, forced, done)
                else:
                    due.update(
                        entry.offset
                        for entry, bits in expiring
                        if subscription.unacked_bits(entry.offset, entry.messages) & bits
                    )
                    self._give_up(due, done, error)
            except Exception as failure:
                self._abandon(due, failure, done)

        topic.host.dead_letters.forward(target, subscription, expiring, now_ms, settle, ended)

    def _bits_to_expire(self, entry: Entry, now_ms: int, *, forced: bool) -> int:
        """Return the messages of ``entry`` that expire now, a bit for each. Raises :class:`EntryError`."""
        subscription = self.subscription
        topic = subscription.topic
        bits = subscription.unacked_bits(entry.offset, entry.messages)
        if not forced and bits:
            expired, later_ms = _expired(topic, entry, now_ms)
            if later_ms is not None and bits & ~expired:
                topic.timed.add_own(entry.offset, later_ms)
            bits &= expired
            if bits and has_zero_ttl(topic, entry) and entry.offset in subscription.pending:
                # In flight: it was delivered in time, or a TTL of 0 came later. Given back, it will expire.
                bits &= ~_zero_bits(topic, entry) | self._unsent.get(entry.offset, 0)
                self.lent.add(entry.offset)
        return bits

    def _finished(self, done: Done | None) -> None:
        self.running = False
        topic = self.subscription.topic
        self.subscription.acked(done)
        topic.quota.expired(self.subscription, topic.host.clock.now_ms())

    def _give_up(self, due: BitMap64, done: Done | None, error: str) -> None:
        """Leave ``due`` as it is (nobody gets it meanwhile) and try again later."""
        subscription = self.subscription
        log.error(
            "messages could not expire yet", topic=str(subscription.topic.name), sub=subscription.name, error=error
        )
        self.running = False
        self._retry_ms = monotonic_ms(subscription.topic.host.clock) + RETRY_MS
        self.returned |= due
        subscription.topic.host.look_at(subscription.topic)
        if done is not None:
            done(NotAllowed(f"messages could not expire: {error}"))

    def _not_read(self, error: BrokerError) -> None:
        """Of what expired as a whole nothing, or not all, could be acknowledged: see to it again later."""
        topic = self.subscription.topic
        log.error("messages could not expire yet", topic=str(topic.name), sub=self.subscription.name, error=str(error))
        self._regular_from = 0
        self._retry_ms = monotonic_ms(topic.host.clock) + RETRY_MS
        topic.host.look_at(topic)

    def _expire(self, expiring: list[tuple[Entry, int]]) -> None:
        subscription = self.subscription
        before = subscription.cursor.acked_messages
        for entry, bits in expiring:
            remaining = subscription.unacked_bits(entry.offset, entry.messages) & ~bits
            subscription.acknowledge_entry(entry.offset, entry.messages, len(entry.frame), remaining or None)
            if not remaining:
                self.lent.discard(entry.offset)
            unsent = self._unsent.pop(entry.offset, 0) & ~bits
            if unsent:
                self._unsent[entry.offset] = unsent
        subscription.count_expired(subscription.cursor.acked_messages - before)


def _expired(topic: Topic, entry: Entry, now_ms: int) -> tuple[int, int | None]:
    """Return the messages of ``entry`` that have expired, a bit for each, and when the next with its own TTL will."""
    whole = (1 << entry.messages) - 1
    base = base_ms(topic, entry, entry.offset)
    if 0 <= topic.ttl_ms <= now_ms - base:
        return whole, None
    if entry.ttl_ms < 0:
        return 0, None
    if base + entry.ttl_ms > now_ms:
        return 0, base + entry.ttl_ms
    metadata = parse_entry(entry.frame).metadata
    if not is_batch(metadata):
        return whole, None
    bits = 0
    later: list[int] = []
    for index, ttl in enumerate(_stored_ttls(metadata, entry.frame)):
        if 0 <= ttl <= now_ms - base:
            bits |= 1 << index
        elif ttl >= 0:
            later.append(base + ttl)
    return bits, min(later, default=None)


def _zero_bits(topic: Topic, entry: Entry) -> int:
    """Return the messages of ``entry`` whose TTL is 0, a bit for each; ``entry`` has one or the topic's is 0."""
    whole = (1 << entry.messages) - 1
    metadata = parse_entry(entry.frame).metadata
    if topic.ttl_ms == 0 or not is_batch(metadata):
        return whole
    return sum(1 << index for index, ttl in enumerate(_stored_ttls(metadata, entry.frame)) if ttl == 0)
