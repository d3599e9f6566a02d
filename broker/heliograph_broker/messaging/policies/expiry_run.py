"""One run of a subscription's expiry: it reads the entries that are due and acknowledges expired messages.

If the topic has a dead-letter topic, a message is copied there first and acknowledged once the copy is durable.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from heliograph_api.protocol.frames import EntryError
from pyroaring import BitMap64

from heliograph_broker.messaging.base.containment import first_line
from heliograph_broker.messaging.base.errors import NotAllowed
from heliograph_broker.messaging.log.damaged import lost_range
from heliograph_broker.messaging.log.skipping import skip_entry, skip_range
from heliograph_broker.messaging.log.subscribed_topic import LogExpiry

if TYPE_CHECKING:
    from heliograph_broker.messaging.acknowledgment.acknowledgment import AckedSubscription
    from heliograph_broker.messaging.base.errors import Done
    from heliograph_broker.storage.base.entry import Entry

#: The most that one read returns (bytes of frames, entries); a single larger entry is returned whole.
_READ_BYTES = 1024 * 1024
_READ_ENTRIES = 1000


class RunOwner(LogExpiry):
    """Starts runs for one subscription, and judges for them which messages have expired."""

    __slots__ = ("running", "subscription")

    def __init__(self, subscription: AckedSubscription) -> None:
        self.subscription = subscription
        #: Whether a run is under way: it reads entries or waits for dead letters to be stored.
        self.running = False

    @property
    def dead_letter_topic(self) -> str | None:
        """Full name of the topic that expired messages go to."""
        raise NotImplementedError

    def run_ended(self) -> None:
        """The run is over and ``running`` is False."""
        raise NotImplementedError

    def messages_to_expire(self, entry: Entry, now_ms: int, *, forced: bool) -> int:
        """Return the messages of ``entry`` that expire now, a bit for each. Raises :class:`EntryError`."""
        raise NotImplementedError

    def forget_withheld(self, offset: int) -> bool:
        """The run has judged the entry at ``offset``; return whether it was withheld from consumers until then."""
        raise NotImplementedError

    def acknowledge(self, expiring: list[tuple[Entry, int]]) -> None:
        """Acknowledge and count the given messages (a bit for each) of each entry."""
        raise NotImplementedError

    def letters_ended(self, refused: BitMap64, error: str | None, *, forced: bool) -> None:
        """The run is over; ``error`` says why dead letters of the entries ``refused`` were not stored."""
        raise NotImplementedError

    def retry_later(self, due: BitMap64, error: str) -> None:
        """The run could not settle ``due``: try it again after a pause. No consumer gets it meanwhile."""
        raise NotImplementedError

    def suspend(self, due: BitMap64, error: Exception) -> None:
        """The run raised ``error``: suspend this expiry, and try ``due`` again when it resumes."""
        raise NotImplementedError


class ExpiryRun:
    """Call :meth:`start` once. A subscription has at most one run at a time: ``expiry.running`` says whether."""

    __slots__ = (
        "_done",
        "_due",
        "_error",
        "_expiry",
        "_forced",
        "_generation",
        "_now_ms",
        "_refused",
        "_subscription",
        "_topic",
    )

    def __init__(self, expiry: RunOwner, due: BitMap64, now_ms: int, *, forced: bool, done: Done | None) -> None:
        """``due`` is owned by the run; ``forced`` expires its entries whatever their TTL; ``done`` gets the result."""
        self._expiry = expiry
        self._subscription = expiry.subscription
        self._topic = expiry.subscription.topic
        self._due = due
        self._now_ms = now_ms
        self._forced = forced
        self._done = done
        #: Entries whose dead letters were refused, and why the first one was.
        self._refused = BitMap64()
        self._error: str | None = None
        self._generation = self._subscription.acks.generation

    def start(self) -> None:
        """Begin with the first entry that is due, or end at once if none is, or if a seek came since it was made."""
        subscription, topic, due = self._subscription, self._topic, self._due
        if due:
            due.remove_range(0, max(subscription.acks.cursor.first_unacked(), topic.log.first_offset))
            due.difference_update(subscription.acks.cursor.acked)
        if not due or due.min() >= topic.log.end_offset or not self._is_current():
            self._expiry.letters_ended(BitMap64(), None, forced=self._forced)
            if self._done is not None:
                topic.cursor_moved(subscription, self._done)
            return
        self._expiry.running = True
        self._next_chunk()

    def _next_chunk(self) -> None:
        """Read the next neighbouring entries that are due; :meth:`_read` continues from there."""
        subscription, topic, due = self._subscription, self._topic, self._due
        self._generation = subscription.acks.generation
        if due:
            due.remove_range(0, topic.log.first_offset)
        if not due or subscription.closed or topic.closed or due.min() >= topic.log.end_offset:
            self._finished()
            return
        first = due.min()
        count = 1
        while count < _READ_ENTRIES and first + count in due:
            count += 1
        topic.log.read(first, count, _READ_BYTES, partial(self._read, first))

    def _read(self, first: int, result: list[Entry] | Exception) -> None:
        """Continue with the entries read from offset ``first`` on; an exception ends this run only."""
        try:
            lost = lost_range(self._topic.log, first, result)
            if lost is not None:
                skip_range(self._subscription, first, *lost)
                self._due.remove_range(0, lost[0] + 1)
                self._next_chunk()
            elif not result:
                # Trimmed meanwhile.
                self._next_chunk()
            elif isinstance(result, Exception):
                self._give_up(f"cannot read: {first_line(result)}")
            elif not self._is_current():
                # A seek came in between and started a search of its own.
                self._finished()
            else:
                self._expire_entries(result)
        except Exception as error:
            self._abandon(error)

    def _expire_entries(self, entries: list[Entry]) -> None:
        expiring: list[tuple[Entry, int]] = []
        offered = BitMap64()
        for entry in entries:
            try:
                bits = self._expiry.messages_to_expire(entry, self._now_ms, forced=self._forced)
            except EntryError as error:
                self._expiry.forget_withheld(entry.offset)
                skip_entry(self._subscription, entry.offset, str(error))
                continue
            if bits:
                expiring.append((entry, bits))
            elif self._expiry.forget_withheld(entry.offset):
                offered.add(entry.offset)
        if offered:
            self._subscription.offer_again(offered)
            self._subscription.notify()
        self._due.remove_range(0, entries[-1].offset + 1)
        target = self._expiry.dead_letter_topic
        if target is None or not expiring:
            self._expiry.acknowledge(expiring)
            self._next_chunk()
            return
        self._topic.host.dead_letters.forward(
            target,
            self._subscription,
            expiring,
            self._now_ms,
            self._letter_stored,
            partial(self._letters_ended, expiring),
        )

    def _letter_stored(self, entry: Entry, bits: int) -> None:
        """The copy of the messages ``bits`` of ``entry`` is durable."""
        if self._is_current() and not self._subscription.closed:
            self._expiry.acknowledge([(entry, bits)])

    def _letters_ended(self, expiring: list[tuple[Entry, int]], error: str | None, takes_nothing: bool) -> None:
        """Every copy is durable, or ``error`` says why not; the others wait if the target ``takes_nothing`` at all."""
        subscription = self._subscription
        try:
            if not self._is_current() or subscription.closed:
                self._finished()
                return
            if error is not None:
                self._error = self._error or error
                self._refused.update(
                    entry.offset
                    for entry, bits in expiring
                    if subscription.acks.unacked_bits(entry.offset, entry.messages) & bits
                )
            if takes_nothing:
                self._refused |= self._due
                self._due.clear()
            self._next_chunk()
        except Exception as failure:
            self._abandon(failure)

    def _is_current(self) -> bool:
        """Whether no seek has moved the cursor since the entries were read."""
        return self._generation == self._subscription.acks.generation

    def _finished(self) -> None:
        self._expiry.running = False
        error = self._error if self._is_current() else None
        self._expiry.letters_ended(self._refused, error, forced=self._forced)
        if error is None:
            self._subscription.acks.acked(self._done)
        else:
            self._subscription.acks.acked(None)
            if self._done is not None:
                self._done(NotAllowed(f"messages could not expire: {error}"))
        self._topic.expiry_ended(self._subscription)
        self._expiry.run_ended()

    def _give_up(self, error: str) -> None:
        """Leave the rest withheld and try again later."""
        self._expiry.retry_later(self._due | self._refused, error)
        self._refuse(error)

    def _abandon(self, error: Exception) -> None:
        """This run raised ``error``: suspend the subscription's expiry, which will try the rest again."""
        self._expiry.suspend(self._due | self._refused, error)
        self._refuse(first_line(error))

    def _refuse(self, error: str) -> None:
        # Messages that the run has acknowledged until now stay acknowledged.
        self._subscription.acks.acked(None)
        if self._done is not None:
            self._done(NotAllowed(f"messages could not expire: {error}"))
        self._expiry.run_ended()
