"""Reads the messages of a range as columns: in order, complete, and none beside them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from heliograph_spark.decode.chunks import ChunkAssembly, MissingChunks
from heliograph_spark.decode.columns import EntryColumns
from heliograph_spark.decode.entries import UndecodableMessage
from heliograph_spark.decode.rows import OPEN_ENTRY
from heliograph_spark.plan.errors import DataLossError, PulsarSourceError
from heliograph_spark.plan.missed import Missed
from heliograph_spark.plan.options import ReadOptions
from heliograph_spark.plan.positions import Position
from heliograph_spark.plan.ranges import Range
from heliograph_spark.plan.topics import ledgers_of
from heliograph_spark.wire.brokers import Brokers
from heliograph_spark.wire.entry_reader import EARLIEST, EntryReader, ReceivedEntry, Start

#: Time (s) of one wait before the broker is asked whether there is anything to wait for.
_WAIT_S = 0.5
#: Entries before a chunk in which the chunks before it are looked for at first; then eight times as many.
_FIRST_DISTANCE = 32


def read_range(
    brokers: Brokers, wanted: Range, options: ReadOptions, columns: EntryColumns
) -> Iterator[pa.RecordBatch]:
    """Yield every message after ``wanted.start`` up to ``wanted.end`` in the columns.

    A message sent in chunks is where its last chunk is. Raises :class:`DataLossError` if messages of the range are gone
    and the options ask for it, and :class:`PulsarSourceError` if nothing came for ``pollTimeoutMs``.
    """
    start, end = wanted.start, wanted.end
    if end <= start:
        return
    assembly, missed = ChunkAssembly(), Missed(wanted, options)
    lost_for_s = options.poll_timeout_ms / 1000
    begin, settings = _begin(wanted, options), options.reader
    # Batches of which only a part is in the range.
    parts = {each.entry_key for each in (start, end) if each.batch >= 0}
    reading = EntryReader(brokers, wanted.topic, begin, settings, lost_for_s=lost_for_s, opens=OPEN_ENTRY)
    with reading as reader:
        for entry in _entries(reader, wanted, options, missed):
            place = entry.ledger, entry.entry
            if place not in parts and columns.add_whole(entry):
                if columns.full:
                    yield from columns.take()
                continue
            try:
                message = assembly.add(entry)
                if isinstance(message, MissingChunks):
                    messages: list[ReceivedEntry] = _completed(brokers, wanted.topic, message, options)
                else:
                    messages = [] if message is None else [message]
            except UndecodableMessage as error:
                columns.add_unreadable(entry, error)
                messages = []
            for each in messages:
                columns.add(
                    each,
                    start.batch if place == start.entry_key else -1,
                    end.batch if place == end.entry_key and end.batch >= 0 else None,
                )
            if columns.full:
                yield from columns.take()
    missed.check()
    yield from columns.take()


def _begin(wanted: Range, options: ReadOptions) -> Start:
    start = wanted.start
    if options.connection.admin_url is None and start.entry >= 0:
        # Without the ledgers it is the last entry that was read that shows whether all after it are there.
        return Start.at(start)
    return Start.after(start)


def _entries(reader: EntryReader, wanted: Range, options: ReadOptions, missed: Missed) -> Iterator[ReceivedEntry]:
    """Yield the entries that have messages of the range."""
    first = wanted.start.entry_key if wanted.start.batch >= 0 else (wanted.start.ledger, wanted.start.entry + 1)
    last, end = wanted.start.entry_key, wanted.end.entry_key
    waits_until = time.monotonic() + options.poll_timeout_ms / 1000
    while True:
        entries = reader.read(min(_WAIT_S, options.poll_timeout_ms / 1000))
        if not entries:
            stored = reader.last_position()
            place = wanted.start if last == wanted.start.entry_key else Position(*last)
            if stored is None or stored.entry_key <= last:
                if last < end:
                    missed.all_after(place)
                return
            if time.monotonic() > waits_until:
                waited = f"{options.poll_timeout_ms} ms (pollTimeoutMs)"
                raise PulsarSourceError(f"reading {wanted.topic} after {place}: nothing came for {waited}")
            continue
        for entry in entries:
            last = entry.ledger, entry.entry
            missed.received(*last)
            if last > end:
                return
            if last >= first:
                yield entry
            if last == end:
                return
        waits_until = time.monotonic() + options.poll_timeout_ms / 1000


def _completed(brokers: Brokers, topic: str, missing: MissingChunks, options: ReadOptions) -> list[ReceivedEntry]:
    """Return the message whose first chunks are before the range.

    Raises :class:`DataLossError` if they are gone and the options ask for it; otherwise the message is left out.
    """
    for start in _places_before(topic, missing, options):
        found = missing.completed(_of_message(brokers, topic, start, missing, options))
        if found is not None:
            return list(found)
    if options.looks_for_loss:
        last = missing.last
        raise DataLossError(
            f"{topic}: the first {missing.count} chunks of the message {last.ledger}:{last.entry} are gone"
            " (failOnDataLoss=false goes on without it)"
        )
    return []


def _places_before(topic: str, missing: MissingChunks, options: ReadOptions) -> Iterator[Start]:
    """Yield places to read from, each further back than the one before, at last the beginning."""
    ledger, entry = missing.before
    back = max(_FIRST_DISTANCE, missing.count)
    while entry > back:
        yield Start(ledger, entry - back)
        back *= 8
    yield Start(ledger, 0)
    if options.connection.admin_url is not None:
        earlier = [each.id for each in ledgers_of(options.connection, topic).stored if each.id < ledger]
        # Twice as many ledgers each time.
        for power in range(len(earlier).bit_length()):
            yield Start(earlier[-(1 << power)], 0)
    yield EARLIEST


def _of_message(
    brokers: Brokers, topic: str, start: Start, missing: MissingChunks, options: ReadOptions
) -> Iterator[ReceivedEntry]:
    """Yield the chunks of the message from a place up to those that are there."""
    lost_for_s = options.poll_timeout_ms / 1000
    with EntryReader(brokers, topic, start, options.reader, lost_for_s=lost_for_s) as reader:
        while entries := reader.read(lost_for_s):
            for entry in entries:
                if (entry.ledger, entry.entry) >= missing.before:
                    return
                if entry.metadata.uuid == missing.uuid:
                    yield entry
