"""Messages that are to be sent, as a record batch: its columns, and what their rows are encoded to."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import pyarrow as pa

#: The columns of messages, all of which but ``value`` may be missing. A null value is a message without one, a null
#: key none, an event time (ms since 1970) of zero or null none. ``sequence`` has the sequence ids, without a null.
MESSAGE_COLUMNS: dict[str, pa.DataType] = {
    "value": pa.binary(),
    "key": pa.binary(),
    "ordering_key": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "event_ms": pa.int64(),
    "sequence": pa.int64(),
}


class Head(NamedTuple):
    """The part that all entries of a producer have in common."""

    producer_id: int
    producer_name: str
    #: Empty if the producer has registered no schema.
    schema_version: bytes


class BatchedKeys(NamedTuple):
    """The keys of a batch's first message, which are also those of the batch; None for no key."""

    key: str | None
    #: Whether ``key`` is bytes in base64.
    in_base64: bool
    ordering_key: bytes | None


class Batch(Protocol):
    """Messages of a batch, encoded one after the other."""

    @property
    def count(self) -> int:
        """The number of messages."""

    @property
    def size(self) -> int:
        """The number of bytes, uncompressed."""

    @property
    def first(self) -> int:
        """The sequence id of the first message."""

    @property
    def last(self) -> int:
        """The sequence id of the last message."""

    @property
    def keys(self) -> BatchedKeys:
        """The keys of the first message."""

    def add(self, rows: Any, start: int, stop: int, sequence: int, most_messages: int, most_bytes: int) -> int:
        """Add rows from ``start`` up to before ``stop`` while there is room; return the row after the last one added.

        A row is larger than the whole batch may be if it is not added to an empty one. ``sequence`` is the sequence id
        of row ``start``, and those after it follow, unless there is a column of them.
        """

    def take(self) -> bytes | memoryview:
        """Return the payload, uncompressed, and begin again without a message."""
