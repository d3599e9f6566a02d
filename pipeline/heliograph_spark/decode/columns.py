"""Collects the messages of one partition's entries as Arrow columns: only those that are asked for.

The columns of metadata have the names of the data source. What the messages of an entry have in common is kept once
for each entry and repeated in Arrow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from heliograph_spark.wire.entry_reader import ReceivedEntry

from .entries import (
    Entry,
    Message,
    UndecodableMessage,
    batch_size,
    is_batch,
    message_of,
    messages_of_batch,
    open_payload,
    unacknowledged,
)
from .kept_values import BAD_RECORD, UnfitValue, Values, kept_values
from .key_values import joined
from .message_ids import MessageIds
from .rows import COMPILED, ROW_COLUMNS, TIMESTAMP, new_rows

#: Limits of a batch, whichever is reached first: rows, and bytes of values, keys and properties. With 1 MiB what a
#: batch costs beside its rows was a fifth of the time of messages of 1 KiB; more than this made reading no faster.
BATCH_ROWS = 16_384
BATCH_BYTES = 4 << 20
#: With so much of a batch it is taken: the entry that comes last has room, instead of beginning a small batch.
_FULL_ROWS = BATCH_ROWS * 3 // 4
_FULL_BYTES = BATCH_BYTES * 3 // 4

#: The columns in which all messages of an entry are the same, with their types.
ENTRY_COLUMNS: dict[str, pa.DataType] = {
    "__topic": pa.string(),
    "__publishTime": TIMESTAMP,
    "__ledger": pa.int64(),
    "__entry": pa.int64(),
    "__partition": pa.int32(),
    "__producer": pa.string(),
    "__schemaVersion": pa.binary(),
    "__redeliveryCount": pa.int32(),
}
#: All columns of metadata.
METADATA_COLUMNS = {name: kind for name, kind in (ROW_COLUMNS | ENTRY_COLUMNS).items() if name != "value"}

_LAST_MS = ((1 << 63) - 1) // 1000
_ALL = (1 << 31) - 1


class _Collected(NamedTuple):
    """An entry with rows, the last of which is before ``end``."""

    end: int
    ledger: int
    entry: int
    publish_time: int | None
    producer: str
    schema_version: bytes | None
    redelivery_count: int


class EntryColumns:
    """Collects messages as columns of ``schema``.

    Columns that are none of the metadata's are those of ``values``, in its order; without it there may be one, of
    bytes. With the column :data:`BAD_RECORD` nothing in an entry ends the reading: values that do not fit are null and
    in that column, and so is the payload of an entry that cannot be taken apart, as one row. ``partition`` is -1 for
    a topic without partitions. ``separated`` is whether ``values`` has to be given keys and payloads as key-value
    schemas join them. ``compiled`` is whether the compiled module is used.
    """

    def __init__(
        self,
        topic: str,
        schema: pa.Schema,
        *,
        partition: int = -1,
        values: Values | None = None,
        separated: bool = False,
        compiled: bool = COMPILED,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._schema = schema
        self._values = values
        self._value_names = [name for name in schema.names if name not in (*METADATA_COLUMNS, BAD_RECORD)]
        self._keeps_bad = BAD_RECORD in schema.names
        self._joins = separated and bool(self._value_names)
        wanted = {name for name in schema.names if name in METADATA_COLUMNS}
        needed = {"value"} if self._value_names or self._keeps_bad else set()
        self._row_names = frozenset(wanted & ROW_COLUMNS.keys() | needed | ({"__key"} if self._joins else set()))
        self._entry_names = [name for name in ENTRY_COLUMNS if name in wanted]
        if values is not None and self._value_names and "__schemaVersion" not in wanted:
            self._entry_names.append("__schemaVersion")
        self._times = "__publishTime" in wanted
        self._ids = MessageIds(partition) if "__messageId" in wanted else None
        self._id_end = MessageIds(partition).end
        self._rows = new_rows(self._row_names, compiled=compiled)
        self._entries: list[_Collected] = []
        #: Why the rows that are whole entries could not be read.
        self._unreadable: dict[int, str] = {}
        self._opened_bytes = 0

    @property
    def rows(self) -> int:
        """The number of rows that are collected."""
        return self._rows.count

    @property
    def full(self) -> bool:
        """Whether they make a whole batch, so that they should be taken."""
        return self._opened_bytes >= _FULL_BYTES or self._rows.count >= _FULL_ROWS

    def add_whole(self, entry: ReceivedEntry) -> bool:
        """Add all messages of an entry, if nothing about it is uncommon or wrong; False if none is added.

        Earlier rows must be taken once they are :attr:`full`.
        """
        added = self._rows.add_whole(entry, self._id_end)
        if added is None:
            return False
        size, common = added
        if common is not None:
            # Half the time of _Collected(…): this is done for each entry.
            self._entries.append(tuple.__new__(_Collected, common))
        self._opened_bytes += size
        return True

    def add(self, entry: ReceivedEntry, after: int = -1, up_to: int | None = None) -> None:
        """Add the messages of an entry, of a batch those after index ``after`` up to and with ``up_to``.

        Raises :class:`UndecodableMessage` if any of them cannot be read, and then adds none, unless such entries are
        kept. Earlier rows must be taken once they are :attr:`full`.
        """
        before = self._rows.count
        try:
            self._add(entry, after, up_to)
        except UndecodableMessage as error:
            self._rows.truncate(before)
            # The rest of an entry that is read in part was kept with its beginning.
            if not self._keeps_bad or after < 0 or after < entry.metadata.num_messages_in_batch - 1:
                self.add_unreadable(entry, error)
            return
        except BaseException:
            self._rows.truncate(before)
            raise
        self._add_entry(entry, before)

    def add_unreadable(self, entry: ReceivedEntry, error: UndecodableMessage) -> None:
        """Add an entry that cannot be taken apart as one row. Raises ``error`` if such entries are not kept."""
        error.topic = self._topic
        if not self._keeps_bad:
            raise error
        before = self._rows.count
        message_id = self._ids.head(entry) if self._ids is not None else b""
        sequence_id = _signed(entry.metadata.sequence_id)
        self._rows.add(-1, entry.payload, None, None, 0, sequence_id, {}, message_id)
        self._unreadable[before] = str(error)
        self._opened_bytes += len(entry.payload)
        self._add_entry(entry, before)

    def _add_entry(self, entry: ReceivedEntry, before: int) -> None:
        """Add what the rows of an entry have in common, if it has any after the first ``before``."""
        if self._rows.count > before:
            metadata = entry.metadata
            self._entries.append(
                _Collected(
                    self._rows.count,
                    entry.ledger,
                    entry.entry,
                    metadata.publish_time * 1000 if metadata.publish_time <= _LAST_MS else None,
                    metadata.producer_name,
                    metadata.schema_version if metadata.HasField("schema_version") else None,
                    entry.redelivery_count,
                )
            )

    def _add(self, entry: ReceivedEntry, after: int, up_to: int | None) -> None:
        metadata = entry.metadata
        opened = open_payload(entry)
        if self._opened_bytes + len(opened) > _ALL:
            raise OverflowError("more than 2 GiB are collected, which nobody has taken")
        if self._times and metadata.publish_time > _LAST_MS:
            raise UndecodableMessage(entry.ledger, entry.entry, -1, f"published at {metadata.publish_time} ms")
        head = self._ids.head(entry) if self._ids is not None else b""
        if is_batch(metadata):
            self._add_batch(entry, opened, head, after, up_to)
        else:
            if self._ids is not None and isinstance(entry, Entry) and entry.first_chunk is not None:
                head = self._ids.in_chunks(head, entry.first_chunk)
            self._add_message(entry, message_of(entry, opened), head)
        self._opened_bytes += len(opened)

    def _add_batch(
        self, entry: ReceivedEntry, opened: bytes | memoryview, head: bytes, after: int, up_to: int | None
    ) -> None:
        count, remaining = batch_size(entry), unacknowledged(entry)
        tail = self._ids.tail(count) if self._ids is not None else b""
        bits = None if remaining is None else remaining.to_bytes(remaining.bit_length() // 8 + 1, "little")
        last = _ALL if up_to is None else up_to
        sequence_id = _signed(entry.metadata.sequence_id)
        if self._rows.add_batch(opened, count, after, last, bits, sequence_id, head, tail):
            return
        for message in messages_of_batch(entry, opened, after, up_to):
            message_id = self._ids.in_batch(head, message.batch_index, tail) if self._ids is not None else b""
            self._add_message(entry, message, message_id)

    def _add_message(self, entry: ReceivedEntry, message: Message, message_id: bytes) -> None:
        event_time = 0
        if "__eventTime" in self._row_names:
            if message.event_time > _LAST_MS:
                reason = f"its event time is {message.event_time} ms"
                raise UndecodableMessage(entry.ledger, entry.entry, message.batch_index, reason)
            event_time = message.event_time * 1000
        self._rows.add(
            message.batch_index,
            message.value,
            message.key,
            message.ordering_key,
            event_time,
            _signed(message.sequence_id),
            message.properties,
            message_id,
        )

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield what is collected, in order, and begin again without any rows.

        No batch has more rows than :data:`BATCH_ROWS`, or more bytes than :data:`BATCH_BYTES` unless it is one row.
        Raises :class:`UndecodableMessage` if a value does not become columns.
        """
        count, ends, entries = self._rows.count, self._rows.ends(), self._entries
        ends = ends[:] if isinstance(ends, list) else ends
        columns = self._rows.take() | self._repeated(entries, count)
        unreadable = self._unreadable
        self._entries, self._unreadable, self._opened_bytes = [], {}, 0
        names = list(columns)
        whole = pa.RecordBatch.from_arrays(list(columns.values()), names)
        start = 0
        while start < count:
            most = (ends[start - 1] if start else 0) + BATCH_BYTES
            stop = max(start + 1, bisect_right(ends, most, start, min(count, start + BATCH_ROWS)))
            found = {row - start: why for row, why in unreadable.items() if start <= row < stop}
            yield self._batch(whole.slice(start, stop - start), entries, start, found)
            start = stop

    def _repeated(self, entries: list[_Collected], count: int) -> dict[str, pa.Array]:
        found: dict[str, pa.Array] = {}
        ends = pa.array([each.end for each in entries], pa.int32())
        for name in self._entry_names:
            kind = ENTRY_COLUMNS[name]
            if name == "__topic":
                found[name] = pa.repeat(pa.scalar(self._topic, kind), count)
            elif name == "__partition":
                found[name] = pa.repeat(pa.scalar(self._partition, kind), count)
            elif entries:
                at = _Collected._fields.index(_FIELDS[name])
                once = pa.array([each[at] for each in entries], kind)
                found[name] = pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, once))
            else:
                found[name] = pa.array([], kind)
        return found

    def _batch(
        self, taken: pa.RecordBatch, entries: list[_Collected], start: int, unreadable: dict[int, str]
    ) -> pa.RecordBatch:
        columns: dict[str, Any] = {name: taken.column(name) for name in taken.schema.names}
        given = joined(columns["__key"], columns["value"]) if self._joins else columns.get("value")
        if self._keeps_bad:
            decoder = self._values if self._value_names else None
            versions = columns.get("__schemaVersion")
            bad, *decoded = kept_values(decoder, given, versions, unreadable, raw=columns["value"])
            columns |= {BAD_RECORD: bad} | dict(zip(self._value_names, decoded, strict=bool(self._value_names)))
        elif self._values is not None and self._value_names:
            try:
                decoded = list(self._values.columns(given, columns["__schemaVersion"]))
            except UnfitValue as error:
                row = start + error.row
                of = entries[bisect_right(entries, row, key=lambda each: each.end)]
                index = columns["__batchIndex"][error.row].as_py()
                unfit = UndecodableMessage(of.ledger, of.entry, index, error.reason)
                unfit.topic = self._topic
                raise unfit from error
            columns |= dict(zip(self._value_names, decoded, strict=True))
        elif self._value_names:
            columns[self._value_names[0]] = columns["value"]
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)


#: Which field of a collected entry a column is.
_FIELDS = {
    "__publishTime": "publish_time",
    "__ledger": "ledger",
    "__entry": "entry",
    "__producer": "producer",
    "__schemaVersion": "schema_version",
    "__redeliveryCount": "redelivery_count",
}


def _signed(number: int) -> int:
    """Return an unsigned number of 64 bits as Java's clients give it."""
    return number - (1 << 64) if number >> 63 else number
