"""Messages sent in chunks are put together for Spark: interleaved, sent again, and with chunks missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from heliograph_api.protocol.frames import parse_entry
from heliograph_spark.decode.chunks import ChunkAssembly, MissingChunks
from heliograph_spark.decode.entries import Entry, UndecodableMessage, messages_of
from hypothesis import given
from hypothesis import strategies as st

from tests.support.entries import COMPRESS, make_batch, make_frame

#: A message by its producer's sequence id, and one of its chunks.
Chunk = tuple[int, int]


def _pieces(message: int, count: int) -> list[bytes]:
    return [b"<%d.%d>" % (message, at) for at in range(count)]


def _chunks(sent: Iterable[Chunk], counts: Sequence[int], **fields: object) -> list[Entry]:
    found = []
    for at, (message, chunk) in enumerate(sent):
        count = counts[message]
        pieces = _pieces(message, count)
        metadata, frame = make_frame(
            pieces[chunk],
            sequence_id=message,
            chunk=(chunk, count),
            total_chunk_msg_size=sum(map(len, pieces)),
            key=f"k{message}",
            **fields,  # type: ignore[arg-type]
        )
        found.append(Entry(1, at, metadata, frame[parse_entry(frame).payload_offset :]))
    return found


def _read(entries: Iterable[Entry], assembly: ChunkAssembly | None = None) -> list[tuple[int, bytes | MissingChunks]]:
    """Return what each entry made complete, with its place."""
    assembly = assembly or ChunkAssembly()
    found: list[tuple[int, bytes | MissingChunks]] = []
    for entry in entries:
        whole = assembly.add(entry)
        if isinstance(whole, MissingChunks):
            found.append((whole.last.entry, whole))
        elif whole is not None:
            found.extend((whole.entry, message.value or b"") for message in messages_of(whole))
    return found


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[int], list[Chunk]]:
    """Messages of several producers, who lose connections meanwhile and send chunks again."""
    counts = draw(st.lists(st.integers(2, 6), min_size=1, max_size=4))
    queues: list[list[Chunk]] = []
    for message, count in enumerate(counts):
        sent = [(message, chunk) for chunk in range(count)]
        for _ in range(draw(st.integers(0, 2))):
            # The producer sends again from some chunk on, as nothing from there was confirmed.
            cut = draw(st.integers(1, len(sent)))
            again = draw(st.integers(0, sent[cut - 1][1]))
            sent = [*sent[:cut], *((message, chunk) for chunk in range(again, count))]
        queues.append(sent)
    order = draw(st.permutations([message for message, sent in enumerate(queues) for _ in sent]))
    return counts, [queues[message].pop(0) for message in order]


@given(_histories())
def test_every_message_is_given_once_at_its_last_chunk(history: tuple[list[int], list[Chunk]]) -> None:
    counts, sent = history
    found = _read(_chunks(sent, counts))
    wholes = {message: b"".join(_pieces(message, count)) for message, count in enumerate(counts)}
    assert {data for _, data in found} == set(wholes.values())
    for at, data in found:
        message, chunk = sent[at]
        assert chunk == counts[message] - 1
        assert data == wholes[message]
    # A message that was complete may only be given again if it was sent again from its first chunk on.
    for message, whole in wholes.items():
        first_chunks = sent.count((message, 0))
        assert 1 <= sum(data == whole for _, data in found) <= first_chunks


@given(_histories(), st.data())
def test_what_begins_before_the_range_is_completed_from_there(
    history: tuple[list[int], list[Chunk]], data: st.DataObject
) -> None:
    counts, sent = history
    start = data.draw(st.integers(0, len(sent)))
    entries = _chunks(sent, counts)
    wanted = [each for each in _read(entries) if each[0] >= start]
    found: list[tuple[int, bytes | MissingChunks]] = []
    for at, each in _read(entries[start:]):
        if isinstance(each, MissingChunks):
            assert each.before[1] >= start
            earlier = each.completed(entries[: each.before[1]])
            assert earlier is not None
            found.extend((at, message.value or b"") for whole in earlier for message in messages_of(whole))
        else:
            found.append((at, each))
    assert found == wanted


def test_missing_chunks_are_named_and_not_made_up() -> None:
    entries = _chunks([(0, chunk) for chunk in range(4)], [4])
    ((at, missing),) = _read([entries[0], *entries[2:]])
    assert isinstance(missing, MissingChunks)
    assert (at, missing.uuid, missing.count, missing.before) == (3, "p-0", 2, (1, 2))
    assert missing.completed([]) is None
    assert missing.completed(entries[:1]) is None
    assert missing.completed(entries[1:]) is None
    (whole,) = missing.completed(entries) or []
    assert whole.payload == b"".join(_pieces(0, 4))
    assert (whole.entry, whole.first_chunk) == (3, (1, 0))


def test_a_message_has_its_own_metadata_and_is_no_chunk_any_more() -> None:
    assembly = ChunkAssembly()
    found = [assembly.add(entry) for entry in _chunks([(0, 0), (0, 1)], [2], event_time=7)]
    assert found[0] is None
    whole = found[1]
    assert isinstance(whole, Entry)
    assert (whole.ledger, whole.entry, whole.first_chunk) == (1, 1, (1, 0))
    (message,) = messages_of(whole)
    assert (message.key, message.event_time, message.batch_index) == (b"k0", 7, -1)
    assert assembly.held_bytes == 0


def test_the_whole_is_decompressed_and_not_its_chunks() -> None:
    text = b"a line that repeats\n" * 1000
    data = COMPRESS["ZSTD"](text)
    entries = []
    for chunk in range(3):
        size = -(-len(data) // 3)
        metadata, _ = make_frame(chunk=(chunk, 3), compression="ZSTD", uncompressed_size=len(text))
        entries.append(Entry(1, chunk, metadata, data[chunk * size : (chunk + 1) * size]))
    assert _read(entries) == [(2, text)]


def test_what_is_no_chunk_goes_through_as_it_is() -> None:
    metadata, frame = make_batch(b"a", b"b")
    entry = Entry(1, 1, metadata, frame[parse_entry(frame).payload_offset :])
    assert ChunkAssembly().add(entry) is entry


def test_what_waits_longest_is_given_up_when_there_is_too_much_of_it() -> None:
    sent = [(message, 0) for message in range(5)] + [(message, 1) for message in (4, 3, 2, 1, 0)]
    assembly = ChunkAssembly(max_held=10)
    entries = _chunks(sent, [2] * 5)
    found = dict(_read(entries, assembly))
    assert [at for at, each in found.items() if isinstance(each, bytes)] == [5, 6, 7]
    for at in (8, 9):
        missing = found[at]
        assert isinstance(missing, MissingChunks)
        (whole,) = missing.completed(entries[:5]) or []
        assert [message.value for message in messages_of(whole)] == [b"".join(_pieces(sent[at][0], 2))]
    assert assembly.held_bytes == 0


@pytest.mark.parametrize("chunk", [(-1, 3), (3, 3)])
def test_a_chunk_beyond_its_message_is_refused(chunk: tuple[int, int]) -> None:
    metadata, _ = make_frame(chunk=chunk)
    with pytest.raises(UndecodableMessage, match=f"message 4:2 cannot be read: chunk {chunk[0]} of 3"):
        ChunkAssembly().add(Entry(4, 2, metadata, b"x"))


def test_chunks_that_make_another_size_than_announced_are_refused() -> None:
    first, second = _chunks([(0, 0), (0, 1)], [2])
    assembly = ChunkAssembly()
    assembly.add(first)
    with pytest.raises(UndecodableMessage, match="message 1:1 cannot be read: its chunks have 11 bytes, not the 10"):
        assembly.add(Entry(1, 1, second.metadata, second.payload + b"!"))
