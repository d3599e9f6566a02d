"""Reads the messages of a range, in order, and sees whether any of them are gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pulsar

from .errors import DataLossError, PulsarSourceError, named
from .options import ReadOptions
from .positions import Position
from .ranges import Range

#: Time of one wait before the broker is asked whether there is anything to wait for.
_WAIT_MS = 500
#: Entries before the start that are looked at again: a message sent in chunks is read with its last one, and the client
#: gives it only to whom it has given the first.
_LOOKBACK = 32


def read_range(client: pulsar.Client, wanted: Range, options: ReadOptions) -> Iterator[pulsar.Message]:
    """Yield every message after ``wanted.start`` up to ``wanted.end``.

    The reader begins before the start, with what was read already: while any of that is there, so is all that follows.
    Raises :class:`DataLossError` if messages of the range are gone and the options ask for it, and
    :class:`PulsarSourceError` if nothing came for ``pollTimeoutMs``.
    """
    topic, start, end = wanted.topic, wanted.start, wanted.end
    if end <= start:
        return
    at = pulsar.MessageId(-1, start.ledger, max(0, start.entry - _LOOKBACK), -1)._msg_id
    with named(f"reading {topic} from {start}"):
        reader = client.create_reader(topic, at, start_message_id_inclusive=True, **options.reader)
    try:
        place: Position | None = None
        while True:
            if place is not None and place.entry_key == end.entry_key and not _more(reader, topic):
                return
            message = _next(reader, topic, start if place is None else place, options)
            if message is None:
                if place is None or place < end:
                    _lost(
                        f"{topic}: nothing is stored after {place or start}, but the query reads up to {end}", options
                    )
                return
            first, place = place is None, Position.of(message.message_id())
            if first and (gap := _gap(start, place, guarded=options.subscription is not None)):
                _lost(f"{topic}: the messages after {start} and before {place} are gone{gap}", options)
            if place > end:
                return
            if place > start:
                yield message
            # An end without batch index is a whole entry, of which more may come.
            if place.batch == end.batch and place.entry_key == end.entry_key:
                return
    finally:
        reader.close()


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


def _gap(start: Position, first: Position, *, guarded: bool) -> str:
    """Return an error text if the first message found does not follow the start; empty if it does.

    A subscription holds what is not read yet, so the first entry of a later ledger follows when there is one.
    """
    if first.entry_key <= (start.ledger, start.entry + 1):
        return ""
    if first.ledger > start.ledger and first.entry == 0 and (guarded or start.ledger == 0):
        return ""
    return " (a retention, their ledger's end, a TTL or a quota let them go; failOnDataLoss=false goes on without them)"


def _lost(what: str, options: ReadOptions) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(what)
