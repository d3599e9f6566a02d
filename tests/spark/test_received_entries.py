"""Entries that come over a connection become columns, whatever their sizes; nothing of what was received is kept."""

from __future__ import annotations

import contextlib
import gc
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.decode.chunks import ChunkAssembly, MissingChunks
from heliograph_spark.decode.columns import EntryColumns
from heliograph_spark.decode.entries import Entry, message_of
from heliograph_spark.decode.kept_values import BAD_RECORD, BAD_RECORD_TYPE
from heliograph_spark.decode.rows import COMPILED, OPEN_ENTRY
from heliograph_spark.wire import link as link_module
from heliograph_spark.wire import stream as stream_module
from heliograph_spark.wire.entry_reader import OpenedEntry, open_entry
from heliograph_spark.wire.link import Link
from heliograph_spark.wire.message_heads import MessageHead
from heliograph_spark.wire.receiver import Receiver
from heliograph_spark.wire.stream import Address
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.entries import make_batch, make_frame
from tests.support.fake_broker import CONNECTED

_VIEWED_FROM = link_module._VIEWED_FROM_BYTES
HEAD: MessageHead = (1, 5, 6, 2, ())
#: How an entry is opened, and whether the compiled module makes its columns.
WAYS = [(open_entry, False), (OPEN_ENTRY, COMPILED)]
BOTH_WAYS = pytest.mark.parametrize(("opens", "compiled"), WAYS, ids=["in Python", "natively"])
Opens = Callable[[MessageHead, bytes | memoryview], OpenedEntry]


def _frame(consumer_id: int, entry_id: int, entry: bytes) -> bytes:
    command = wire.BaseCommand(type=wire.BaseCommand.MESSAGE)
    command.message.consumer_id = consumer_id
    command.message.message_id.ledgerId = 7
    command.message.message_id.entryId = entry_id
    encoded = command.SerializeToString()
    return struct.pack(">II", 4 + len(encoded) + len(entry), len(encoded)) + encoded + entry


def _received(entries: Sequence[bytes], pieces: int) -> list[tuple[MessageHead, bytes | memoryview]]:
    """Return what arrives of entries that are sent over a connection in so many pieces, all of it kept to the end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        # The broker's first frames wait in the listening socket's queue for the link: no other thread is needed.
        with mock.patch.object(Link, "_shake_hands"):
            link = Link(Address(*server.getsockname()[:2]), {}, secured=False, within_s=30)
        peer, _ = server.accept()
        with peer:
            receiver = Receiver(1 << 30)
            consumer_id = link.attach(receiver)
            sent = CONNECTED + b"".join(_frame(consumer_id, at, entry) for at, entry in enumerate(entries))
            step = -(-len(sent) // pieces)
            sending = [memoryview(sent)[at : at + step] for at in range(0, len(sent), step)]
            peer.setblocking(False)
            until = time.monotonic() + 30
            while len(receiver.arrived) < len(entries):
                assert time.monotonic() < until, f"{len(receiver.arrived)} of {len(entries)}"
                if sending:
                    with contextlib.suppress(BlockingIOError):
                        sending[0] = sending[0][peer.send(sending[0]) :]
                    if not sending[0]:
                        del sending[0]
                link.wait(lambda: len(receiver.arrived) == len(entries), time.monotonic() + 0.001)
            link.close()
        return receiver.take()[0]


#: Sizes of payloads around the limits of copies, and of what a read takes.
_SIZES = st.sampled_from([0, 1, 100, 16_000, _VIEWED_FROM - 100, _VIEWED_FROM, 3 * _VIEWED_FROM]) | st.integers(
    _VIEWED_FROM - 60, _VIEWED_FROM + 10
)


@settings(max_examples=40, deadline=None)
@given(st.lists(_SIZES, min_size=1, max_size=8), st.sampled_from([1000, 70_000, 256 << 10]), st.integers(1, 4))
def test_entries_of_any_size_are_what_was_sent_when_all_others_have_come(
    sizes: list[int], read_bytes: int, pieces: int
) -> None:
    values = [bytes([at]) * size for at, size in enumerate(sizes)]
    entries = [make_batch(value, value[:9])[1] if at % 2 else make_frame(value)[1] for at, value in enumerate(values)]
    with mock.patch.object(stream_module, "_READ_BYTES", read_bytes):
        arrived = _received(entries, pieces)
    assert [bytes(data) for _, data in arrived] == entries
    for _, data in arrived:
        # Copies below the limit keep nothing else; views are of bytes, which nobody can change.
        assert isinstance(data, memoryview) == (len(data) >= _VIEWED_FROM)
        assert not isinstance(data, memoryview) or (data.readonly and isinstance(data.obj, bytes))
    wanted = [each for at, value in enumerate(values) for each in ([value, value[:9]] if at % 2 else [value])]
    for opens, compiled in WAYS:
        columns = _columns(compiled=compiled)
        for entry in [opens(head, data) for head, data in arrived]:
            assert columns.add_whole(entry) is compiled
            if not compiled:
                columns.add(entry)
        assert _values(columns) == wanted


def _columns(*, compiled: bool, keeps_bad: bool = False) -> EntryColumns:
    fields = [("value", pa.binary())] + [(BAD_RECORD, BAD_RECORD_TYPE)] * keeps_bad
    return EntryColumns("persistent://a/b/c", pa.schema(fields), compiled=compiled)


def _values(columns: EntryColumns) -> list[Any]:
    return [value for batch in columns.take() for value in batch.column("value").to_pylist()]


def _buffered(opens: Opens, data: bytes, head: MessageHead = HEAD) -> tuple[bytearray, OpenedEntry]:
    """Return an entry opened in the middle of a buffer, and the buffer, which cannot be emptied while there is a view.

    Views of bytes would only keep them, which no test sees.
    """
    buffer = bytearray(b"before" + data + b"after")
    return buffer, opens(head, memoryview(buffer)[6:-5])


_LARGE = b"a text that repeats " * 8_000


@BOTH_WAYS
@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
@pytest.mark.parametrize("large", [_LARGE, b"small"], ids=["large", "small"])
def test_columns_keep_nothing_of_an_entry(opens: Opens, compiled: bool, codec: str, large: bytes) -> None:
    columns = _columns(compiled=compiled)
    buffer, entry = _buffered(opens, make_batch(large, b"last", codec=codec)[1])
    if not columns.add_whole(entry):
        columns.add(entry)
    columns.add(entry)
    batches = list(columns.take())
    del entry
    buffer.clear()
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == [large, b"last"] * 2


@BOTH_WAYS
def test_an_entry_that_cannot_be_read_is_kept_as_a_copy(opens: Opens, compiled: bool) -> None:
    encrypted = make_frame(_LARGE, encryption_keys=[wire.EncryptionKeys(key="k", value=b"v")])[1]
    columns = _columns(compiled=compiled, keeps_bad=True)
    buffer, entry = _buffered(opens, encrypted)
    assert not columns.add_whole(entry)
    columns.add(entry)
    (batch,) = columns.take()
    del entry
    buffer.clear()
    assert batch.column(BAD_RECORD).to_pylist()[0]["value"] == _LARGE
    assert "encrypted" in batch.column(BAD_RECORD).to_pylist()[0]["reason"]


@BOTH_WAYS
@pytest.mark.parametrize("size", [10, 100_000])
def test_chunks_that_wait_for_others_keep_nothing_of_their_entries(opens: Opens, compiled: bool, size: int) -> None:
    del compiled
    parts = [bytes([at]) * size for at in range(3)]
    assembly = ChunkAssembly()
    for at, part in enumerate(parts):
        buffer, entry = _buffered(opens, make_frame(part, chunk=(at, 3))[1], (1, 5, at, 0, ()))
        message = assembly.add(entry)
        del entry
        if at < 2:
            assert message is None
            buffer.clear()
    assert isinstance(message, Entry)
    buffer.clear()
    assert (message_of(message, message.payload).value, message.first_chunk) == (b"".join(parts), (5, 0))


@BOTH_WAYS
def test_chunks_from_before_the_range_keep_nothing_of_their_entries(opens: Opens, compiled: bool) -> None:
    del compiled
    parts = [bytes([at + 1]) * 100_000 for at in range(3)]
    frames = [make_frame(part, chunk=(at, 3))[1] for at, part in enumerate(parts)]
    assembly = ChunkAssembly()
    assert assembly.add(opens((1, 5, 1, 0, ()), frames[1])) is None
    missing = assembly.add(opens((1, 5, 2, 0, ()), frames[2]))
    assert isinstance(missing, MissingChunks)

    def earlier() -> Any:
        buffer, entry = _buffered(opens, frames[0], (1, 5, 0, 0, ()))
        yield entry
        del entry
        buffer[6:-5] = bytes(len(frames[0]))

    (message,) = missing.completed(earlier()) or []
    assert message_of(message, message.payload).value == b"".join(parts)


@BOTH_WAYS
def test_a_changed_byte_of_a_view_is_found_by_the_checksum(opens: Opens, compiled: bool) -> None:
    del compiled
    data = bytearray(make_frame(_LARGE)[1])
    data[-1] ^= 1
    with pytest.raises(ValueError, match="CRC32-C"):
        opens(HEAD, memoryview(bytes(data)))


@pytest.mark.skipif(not COMPILED, reason="the compiled module is not there")
def test_what_an_entry_is_a_view_of_stays_where_it_is_while_the_entry_is_used() -> None:
    buffer, entry = _buffered(OPEN_ENTRY, make_frame(_LARGE)[1])
    with pytest.raises(BufferError):
        buffer.clear()
    columns = _columns(compiled=True)
    assert columns.add_whole(entry)
    del entry
    buffer.clear()
    assert _values(columns) == [_LARGE]


@pytest.mark.skipif(not COMPILED, reason="the compiled module is not there")
def test_an_entry_among_garbage_gives_back_what_it_is_a_view_of() -> None:
    buffer, entry = _buffered(OPEN_ENTRY, make_frame(_LARGE)[1])
    circle: list[Any] = [entry]
    circle.append(circle)
    del entry, circle
    gc.collect()
    buffer.clear()
