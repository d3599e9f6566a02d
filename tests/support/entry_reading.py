"""Reading a topic with the pipeline's own client, and taking its entries apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from heliograph_broker.messaging.messages.batches import is_batch, open_batch, open_payload
from heliograph_spark.plan.options import Connection
from heliograph_spark.plan.positions import Position
from heliograph_spark.wire.brokers import Brokers
from heliograph_spark.wire.entry_reader import EARLIEST, EntryReader, OpenedEntry, Start

from .polling import DEADLINE_S


def connection_to(url: str, **client: Any) -> Connection:
    """Return the options of a connection; ``client`` are the client's settings."""
    return Connection(url, None, client, {})


def whole(topic: str) -> str:
    """Return the whole name of a topic in public/default."""
    return f"persistent://public/default/{topic}"


def read_until(
    reader: EntryReader, enough: Callable[[list[OpenedEntry]], object], *, within_s: float = DEADLINE_S
) -> list[OpenedEntry]:
    """Read until ``enough`` of all that came; fails at the deadline."""
    found: list[OpenedEntry] = []
    deadline = time.monotonic() + within_s
    while not enough(found):
        assert time.monotonic() < deadline, f"{len(found)} entries in {within_s} s, the last {found[-1:]}"
        found += reader.read(0.5)
    return found


def read_count(reader: EntryReader, count: int) -> list[OpenedEntry]:
    """Read that many entries, and fail if more come with them."""
    found = read_until(reader, lambda entries: len(entries) >= count)
    assert len(found) == count
    return found


def read_to_end(reader: EntryReader) -> list[OpenedEntry]:
    """Read everything up to what is last now; of a topic without anything nothing."""
    last = reader.last_position()
    if last is None:
        return []
    return read_until(reader, lambda found: found and (found[-1].ledger, found[-1].entry) >= last.entry_key)


def everything(brokers: Brokers, topic: str, start: Start = EARLIEST, **settings: Any) -> list[OpenedEntry]:
    """Return the entries of a topic from ``start`` to its end."""
    with EntryReader(brokers, whole(topic), start, settings) as reader:
        return read_to_end(reader)


def contents(entries: Iterable[OpenedEntry]) -> list[bytes]:
    """Return what the messages hold, in order; a chunk is one."""
    return [content for entry in entries for content in _contents(entry)]


def _contents(entry: OpenedEntry) -> list[bytes]:
    payload = bytes(entry.payload)
    if is_batch(entry.metadata):
        return [bytes(content) for _, content in open_batch(entry.metadata, payload)]
    if entry.metadata.num_chunks_from_msg > 1:
        # A message is compressed before it is cut.
        return [payload]
    return [bytes(open_payload(entry.metadata, payload))]


def position_of(entry: OpenedEntry) -> Position:
    """Return the position of a whole entry."""
    return Position(entry.ledger, entry.entry)
