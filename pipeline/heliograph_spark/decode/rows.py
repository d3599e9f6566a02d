"""Collects what differs between messages, for Arrow arrays: in lists, or in the compiled module's buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from heliograph_spark.wire.entry_reader import OpenedEntry, ReceivedEntry, open_entry
from heliograph_spark.wire.message_heads import MessageHead

from .compiled import built

TIMESTAMP = pa.timestamp("us", tz="UTC")
PROPERTIES = pa.map_(pa.string(), pa.string())

#: The columns that differ between the messages of a batch, with their types.
ROW_COLUMNS: dict[str, pa.DataType] = {
    "value": pa.binary(),
    "__key": pa.binary(),
    "__orderingKey": pa.binary(),
    "__messageId": pa.binary(),
    "__messageProperties": PROPERTIES,
    "__eventTime": TIMESTAMP,
    "__sequenceId": pa.int64(),
    "__batchIndex": pa.int32(),
}


class Rows(Protocol):
    """Rows that are being collected, of the columns it was made for and always ``__batchIndex``."""

    @property
    def count(self) -> int:
        """The number of rows."""

    def ends(self) -> Sequence[int]:
        """Return, for each row, the bytes of values, keys and properties up to its end."""

    def add(
        self,
        index: int,
        value: bytes | memoryview | None,
        key: bytes | None,
        ordering_key: bytes | None,
        event_time: int,
        sequence_id: int,
        properties: dict[str, str],
        message_id: bytes,
    ) -> None:
        """Add a row; ``event_time`` in microseconds, 0 for null, ``sequence_id`` below 2^63."""

    def add_batch(
        self,
        opened: bytes | memoryview,
        count: int,
        after: int,
        up_to: int,
        remaining: bytes | None,
        sequence_id: int,
        head: bytes,
        tail: bytes,
    ) -> bool:
        """Add the messages of a batch of ``count`` that are after ``after``, up to ``up_to`` and in ``remaining``.

        ``remaining`` has a bit for each message, least significant first. False if it has not added any, because
        something about the batch is uncommon or wrong: then :func:`.entries.messages_of_batch` has to read it.
        """

    def add_whole(self, entry: ReceivedEntry, partition: bytes) -> tuple[int, tuple[Any, ...] | None] | None:
        """Add all messages of an entry of :data:`OPEN_ENTRY`; ``partition`` ends their ids.

        Return the payload's size (bytes), and a tuple of the number of rows, ledger, entry, publish time
        (microseconds), producer, version of the schema and number of earlier deliveries, or None if it added no row.
        None alone, and no row, if anything about the entry is uncommon or wrong.
        """

    def truncate(self, count: int) -> None:
        """Forget all rows but the first ``count``."""

    def take(self) -> dict[str, pa.Array]:
        """Return the rows as columns, and begin again without any."""


class ListedRows:
    """The rows as lists of Python's objects."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self._ends: list[int] = []
        self._columns: dict[str, list[Any]] = {
            name: [] for name in ROW_COLUMNS if name in wanted or name == "__batchIndex"
        }
        # None for a column that is not wanted.
        self._values, self._keys, self._ordering_keys, self._ids, self._properties, self._times, self._numbers = (
            self._columns.get(name) for name in list(ROW_COLUMNS)[:-1]
        )
        self._indexes = self._columns["__batchIndex"]

    @property
    def count(self) -> int:
        return len(self._ends)

    def ends(self) -> Sequence[int]:
        return self._ends

    def add(
        self,
        index: int,
        value: bytes | memoryview | None,
        key: bytes | None,
        ordering_key: bytes | None,
        event_time: int,
        sequence_id: int,
        properties: dict[str, str],
        message_id: bytes,
    ) -> None:
        size = self._ends[-1] if self._ends else 0
        self._indexes.append(index)
        if self._values is not None:
            # Arrow never gives a view back that it made an array of.
            self._values.append(None if value is None else bytes(value))
            size += len(value or b"")
        if self._keys is not None:
            self._keys.append(key)
            size += len(key or b"")
        if self._ordering_keys is not None:
            self._ordering_keys.append(ordering_key)
            size += len(ordering_key or b"")
        if self._properties is not None:
            self._properties.append(list(properties.items()))
            for name, text in properties.items():
                size += len(name.encode()) + len(text.encode())
        if self._ids is not None:
            self._ids.append(message_id)
        if self._times is not None:
            self._times.append(event_time or None)
        if self._numbers is not None:
            self._numbers.append(sequence_id)
        self._ends.append(size)

    def add_batch(
        self,
        opened: bytes | memoryview,
        count: int,
        after: int,
        up_to: int,
        remaining: bytes | None,
        sequence_id: int,
        head: bytes,
        tail: bytes,
    ) -> bool:
        return False

    def add_whole(self, entry: ReceivedEntry, partition: bytes) -> None:
        return None

    def truncate(self, count: int) -> None:
        del self._ends[count:]
        for column in self._columns.values():
            del column[count:]

    def take(self) -> dict[str, pa.Array]:
        taken = {name: pa.array(column, ROW_COLUMNS[name]) for name, column in self._columns.items()}
        self.truncate(0)
        return taken


class BufferedRows:
    """The rows in buffers of the compiled module, which become Arrow's without a copy."""

    def __init__(self, wanted: frozenset[str]) -> None:
        assert _compiled is not None
        self._names = [name for name in ROW_COLUMNS if name in wanted or name == "__batchIndex"]
        self._buffers = _compiled.RowBuffers(frozenset(self._names))
        self.add = self._buffers.add
        self.add_batch = self._buffers.add_batch
        self._opened = _compiled.OpenedEntry
        self.truncate = self._buffers.truncate

    def add_whole(self, entry: ReceivedEntry, partition: bytes) -> tuple[int, tuple[Any, ...] | None] | None:
        return self._buffers.add_whole(entry, partition) if type(entry) is self._opened else None

    @property
    def count(self) -> int:
        return int(self._buffers.count)

    def ends(self) -> Sequence[int]:
        return memoryview(self._buffers.ends()).cast("q")

    def take(self) -> dict[str, pa.Array]:
        count = self.count
        return {name: _array(ROW_COLUMNS[name], count, *parts) for name, parts in self._buffers.take().items()}


def _array(kind: pa.DataType, count: int, nulls: int, validity: Any, *buffers: Any) -> pa.Array:
    if kind == PROPERTIES:
        offsets = pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(buffers[0])])
        pairs = len(buffers[1]) // 4 - 1
        names, texts = (
            pa.Array.from_buffers(pa.string(), pairs, [None, pa.py_buffer(buffers[at]), pa.py_buffer(buffers[at + 1])])
            for at in (1, 3)
        )
        return pa.MapArray.from_arrays(offsets, names, texts)
    present = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(kind, count, [present, *map(pa.py_buffer, buffers)], nulls)


_compiled = built("_batch")
#: Whether the compiled module is there.
COMPILED = _compiled is not None


def _open(head: MessageHead, data: bytes | memoryview) -> OpenedEntry:
    """As :func:`heliograph_spark.wire.entry_reader.open_entry`, natively unless something is uncommon or wrong."""
    return _compiled.open_entry(head, data) or open_entry(head, data)


#: Opens entries as a reader needs it.
OPEN_ENTRY = _open if COMPILED else open_entry


def new_rows(wanted: frozenset[str], *, compiled: bool = COMPILED) -> Rows:
    """Return empty rows of these columns, in buffers of the compiled module if it is there."""
    return BufferedRows(wanted) if compiled else ListedRows(wanted)
