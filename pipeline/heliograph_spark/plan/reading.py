"""Reads the messages of a range, in order, and detects whether any of them are gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pulsar

from .errors import DataLossError, PulsarSourceError, named
from .options import ReadOptions
from .positions import Position
from .ranges import Range
from .topics import ledgers_of

#: Time of one wait before the broker is asked whether there is anything to wait for.
_WAIT_MS = 500
#: Entries before the start that are looked at again: a message sent in chunks is read with its last one, and the client
#: gives it only to whom it has given the first.
_LOOKBACK = 32
#: Entries that were not received are looked for among the stored ones this often.
_CHECK_EVERY_S = 1.0


def read_range(client: pulsar.Client, wanted: Range, options: ReadOptions) -> Iterator[pulsar.Message]:
    """Yield every message after ``wanted.start`` up to ``wanted.end``.

    The reader begins before the start, with what was read already: while any of that is there, so is all that follows.
    Raises :class:`DataLossError` if messages of the range are gone and the options ask for it, and
    :class:`PulsarSourceError` if nothing came for ``pollTimeoutMs``.
    """
    topic, start, end = wanted.topic, wanted.start, wanted.end
    if end <= start:
        return
    missed = _Missed(wanted, options)
    at = pulsar.MessageId(-1, start.ledger, max(0, start.entry - _LOOKBACK), -1)._msg_id
    with named(f"reading {topic} from {start}"):
        reader = client.create_reader(topic, at, start_message_id_inclusive=True, **options.reader)
    try:
        place: Position | None = None
        while True:
            if place is not None and place.entry_key == end.entry_key and not _more(reader, topic):
                break
            message = _next(reader, topic, start if place is None else place, options)
            if message is None:
                if place is None or place < end:
                    missed.all_after(place or start)
                break
            place = Position.of(message.message_id())
            missed.received(place)
            if place > end:
                break
            if place > start:
                yield message
            # An end without batch index is a whole entry, of which more may come.
            if place.batch == end.batch and place.entry_key == end.entry_key:
                break
        missed.check()
    finally:
        reader.close()


class _Missed:
    """Entries of a range that were not received: they are gone, or hold no message."""

    def __init__(self, wanted: Range, options: ReadOptions) -> None:
        self._range = wanted
        self._options = options
        self._last = wanted.start
        #: Whether something before the range was received: then all that follows it is there.
        self._follows = False
        self._gaps: list[tuple[Position, Position]] = []
        self._check_at = 0.0

    def received(self, place: Position) -> None:
        """Take notice of the next message. Raises :class:`DataLossError` if it shows that others are gone."""
        last = self._last
        if place.entry_key <= last.entry_key:
            self._follows = True
            return
        self._last = place
        if not self._options.looks_for_loss or (place.ledger == last.ledger and place.entry == last.entry + 1):
            return
        if self._options.connection.admin_url is None:
            if last is self._range.start and not self._follows:
                self._check_first(place)
            return
        if not self._gaps:
            self._check_at = time.monotonic() + _CHECK_EVERY_S
        self._gaps.append((last, place))
        if time.monotonic() >= self._check_at:
            self.check()

    def check(self) -> None:
        """Look for the entries that were not received. Raises :class:`DataLossError` if any are not stored."""
        gaps, self._gaps = self._gaps, []
        if not gaps:
            return
        now = ledgers_of(self._options.connection, self._range.topic)
        for read, found in gaps:
            if lost := now.lost_between(read, found, self._range.ledgers):
                raise DataLossError(
                    f"{self._range.topic}: {lost} of the entries after {read} and before {found} were deleted while"
                    " the query read them (failOnDataLoss=false goes on without them)"
                )

    def all_after(self, last: Position) -> None:
        """Take notice that nothing more is stored. Raises :class:`DataLossError`."""
        if self._options.looks_for_loss:
            raise DataLossError(
                f"{self._range.topic}: nothing is stored after {last}, but the query reads up to {self._range.end}"
            )

    def _check_first(self, first: Position) -> None:
        """Judge the first message without the ledgers, by which it may be the first of a later one."""
        start = self._range.start
        if first.ledger == start.ledger or first.entry > 0:
            raise DataLossError(
                f"{self._range.topic}: the messages after {start} and before {first} are gone (a retention, their"
                " ledger's end, a TTL or a quota let them go; failOnDataLoss=false goes on without them)"
            )


def _more(reader: pulsar.Reader, topic: str) -> bool:
    with named(f"asking whether {topic} has more"):
        return bool(reader.has_message_available())


def _next(reader: pulsar.Reader, topic: str, after: Position, options: ReadOptions) -> pulsar.Message | None:
    deadline = time.monotonic() + options.poll_timeout_ms / 1000
    while True:
        try:
            return reader.read_next(min(_WAIT_MS, options.poll_timeout_ms))
        except pulsar.Timeout:
            if not _more(reader, topic):
                return None
        except pulsar.PulsarException as error:
            raise PulsarSourceError(f"reading {topic} after {after}: {error}") from error
        if time.monotonic() > deadline:
            raise PulsarSourceError(
                f"reading {topic} after {after}: nothing came for {options.poll_timeout_ms} ms (pollTimeoutMs)"
            )
