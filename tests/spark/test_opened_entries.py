"""Entries are opened and their messages become columns natively as they do in Python, for any bytes."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.ack_sets import MAX_BATCH_MESSAGES
from heliograph_api.protocol.frames import EntryError
from heliograph_spark.decode.columns import METADATA_COLUMNS, EntryColumns
from heliograph_spark.decode.entries import UndecodableMessage
from heliograph_spark.decode.rows import COMPILED, OPEN_ENTRY
from heliograph_spark.wire.entry_reader import OpenedEntry, open_entry
from heliograph_spark.wire.message_heads import MessageHead
from hypothesis import given
from hypothesis import strategies as st

from tests.support.entries import (
    COMPRESS,
    Message,
    batch_payload,
    make_batch,
    make_frame,
    make_message,
    seal,
    text_field,
)

HEAD: MessageHead = (1, 5, 6, 2, ())
NAMES = ["value", *METADATA_COLUMNS]

TEXTS = st.text(max_size=4) | st.sampled_from(["a", "\u00e4", "\0"])
LARGE = st.sampled_from([0, 1, 1 << 40, ((1 << 63) - 1) // 1000 + 1, 1 << 62, (1 << 64) - 1])
COMMON = {
    "partition_key": TEXTS | st.binary(max_size=4).map(lambda key: base64.b64encode(key).decode()),
    "partition_key_b64_encoded": st.booleans(),
    "null_partition_key": st.booleans(),
    "ordering_key": st.binary(max_size=4),
    "event_time": LARGE,
    "sequence_id": LARGE,
    "publish_time": LARGE,
    "null_value": st.booleans(),
    "schema_version": st.binary(max_size=4),
    "deliver_at_time": st.sampled_from([-1, 0, 1 << 40]),
    "highest_sequence_id": LARGE,
    "properties": st.dictionaries(TEXTS, TEXTS, max_size=3) | st.dictionaries(TEXTS, TEXTS, min_size=17, max_size=18),
}
UNCOMMON = {
    "num_messages_in_batch": st.sampled_from([1, 2, 0, -1, (1 << 31) - 1]),
    "replicated_from": TEXTS,
    "marker_type": st.integers(-1, 30),
    "encryption_algo": TEXTS,
    "chunk": st.tuples(st.integers(-1, 3), st.integers(-1, 3)),
    "schema_id": st.binary(max_size=4),
    "uncompressed_size": st.sampled_from([0, 1, 100]),
    "producer": TEXTS,
}
#: All messages of a batch, some of them, and no such set.
ACK_SETS = st.sampled_from([(), (), (1,), (-1, 3), (0,) * 20_000])
PARTS = st.binary(max_size=3) | st.sampled_from(
    [b"\xff" * 9, b"\x8a\0\1p", b"\x80" * 10 + b"\1", b"\x22\0", b"\x0a\1\xff"]
)


SINGLE = {
    "partition_key": TEXTS,
    "ordering_key": st.binary(max_size=4),
    "event_time": LARGE,
    "sequence_id": LARGE,
    "null_value": st.booleans(),
    "compacted_out": st.booleans(),
    "properties": st.dictionaries(TEXTS, TEXTS, max_size=3),
}


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """A message of a batch."""
    fields: dict[str, Any] = draw(st.fixed_dictionaries({}, optional=SINGLE))
    payload = draw(st.binary(max_size=9))
    properties = fields.pop("properties", {})
    single = wire.SingleMessageMetadata(payload_size=len(payload), **fields)
    for name, text in properties.items():
        single.properties.add(key=name, value=text)
    return single, payload


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """An entry as it is delivered; its metadata, or all of it, may be changed in some places."""
    fields: dict[str, Any] = draw(st.fixed_dictionaries({}, optional=COMMON))
    if draw(st.booleans()):
        fields |= draw(st.fixed_dictionaries({}, optional=UNCOMMON))
    # Long ones are not copied.
    payload = draw(st.binary(max_size=9)) * draw(st.sampled_from([1, 1, 1, 3000]))
    batch = draw(st.lists(messages(), min_size=1, max_size=4) | st.none())
    if batch is not None:
        payload = batch_payload(batch)
        fields["num_messages_in_batch"] = len(batch) + draw(st.sampled_from([0, 0, 0, -1, 1]))
    if draw(st.booleans()):
        codec = draw(st.sampled_from(sorted(COMPRESS)))
        fields |= {"compression": codec, "uncompressed_size": len(payload)}
        payload = COMPRESS[codec](payload)
    metadata, data = make_frame(payload, **fields)
    kind = draw(st.sampled_from(["whole", "metadata", "anywhere", "without checksum"]))
    if kind == "metadata":
        return seal(_changed(draw, metadata.SerializeToString()), payload)
    if kind == "without checksum":
        return data[6:]
    return _changed(draw, data) if kind == "anywhere" else data


def _changed(draw: st.DrawFn, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(changed)))
        changed[at : at + draw(st.integers(0, 3))] = draw(PARTS)
    return bytes(changed)


#: How entries are handed over: bytes of their own, or a view among others.
HANDED_OVER = st.sampled_from([bytes, lambda data: memoryview(b"x" + data + b"x")[1:-1]])


def _opened(opens: Any, data: bytes | memoryview, head: MessageHead = HEAD) -> OpenedEntry | str:
    try:
        found: OpenedEntry = opens(head, data)
    except EntryError as error:
        return f"{type(error).__name__}: {error}"
    return found


@given(frames(), HANDED_OVER, HANDED_OVER)
def test_any_bytes_are_opened_as_in_python(data: bytes, hands: Any, hands_natively: Any) -> None:
    expected, found = _opened(open_entry, hands(data)), _opened(OPEN_ENTRY, hands_natively(data))
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
        return
    assert (found.ledger, found.entry, found.redelivery_count, found.ack_set) == (5, 6, 2, ())
    assert (found.metadata, found.payload, found.messages) == (expected.metadata, expected.payload, expected.messages)


@pytest.mark.parametrize("field", [1, 4, 6], ids=["producer", "property", "key"])
def test_metadata_whose_text_is_none_is_damaged_when_it_is_opened(field: int) -> None:
    metadata = wire.MessageMetadata(sequence_id=1, publish_time=2)
    spoiled = text_field(field, text_field(1, b"\xff") + text_field(2, b"v") if field == 4 else b"\xff")
    producer = b"" if field == 1 else text_field(1, b"p")
    data = seal(producer + spoiled + metadata.SerializePartialToString(), b"v")
    for opens in (open_entry, OPEN_ENTRY):
        with pytest.raises(EntryError, match="does not decode"):
            opens(HEAD, data)


def _columns(names: list[str], *, compiled: bool) -> EntryColumns:
    schema = pa.schema([(name, METADATA_COLUMNS.get(name, pa.binary())) for name in names])
    return EntryColumns("persistent://a/b/c-partition-2", schema, partition=2, compiled=compiled)


def _taken(columns: EntryColumns, entry: OpenedEntry) -> list[dict[str, Any]] | str:
    """Add an entry twice, the first time natively where that is possible, and return the rows."""
    try:
        if not columns.add_whole(entry):
            columns.add(entry)
        columns.add(entry)
    except UndecodableMessage as refused:
        return f"{refused}, {columns.rows} rows"
    rows = []
    for batch in columns.take():
        batch.validate(full=True)
        # Python's datetime ends with the year 9999.
        times = [name for name in batch.schema.names if pa.types.is_timestamp(batch[name].type)]
        plain = [batch[name].cast("int64") if name in times else batch[name] for name in batch.schema.names]
        rows += pa.RecordBatch.from_arrays(plain, batch.schema.names).to_pylist()
    return rows


@given(frames(), st.just(NAMES) | st.lists(st.sampled_from(NAMES), min_size=1, unique=True), ACK_SETS, HANDED_OVER)
def test_any_entry_gives_the_columns_that_it_gives_in_python(
    data: bytes, names: list[str], ack_set: tuple[int, ...], hands: Any
) -> None:
    head = (*HEAD[:-1], ack_set)
    expected = _opened(open_entry, hands(data), head)
    if isinstance(expected, str):
        return
    found = _opened(OPEN_ENTRY, hands(data), head)
    assert not isinstance(found, str)
    pure, native = _columns(names, compiled=False), _columns(names, compiled=COMPILED)
    assert _taken(native, found) == _taken(pure, expected)


def test_messages_alone_and_batches_are_added_natively_and_what_is_uncommon_is_not() -> None:
    columns = _columns(NAMES, compiled=COMPILED)
    for common in (
        make_frame(b"v", key="k", properties={"a": "b"}, schema_version=b"1", event_time=3, publish_time=4)[1],
        make_batch(b"v", make_message(b"w", key="k", properties={"a": "b"}), publish_time=4)[1],
    ):
        assert columns.add_whole(_one(common)) is COMPILED
    for uncommon in (
        make_batch(b"v", codec="LZ4")[1],
        make_batch(b"v", claimed=2)[1],
        make_batch(b"v", claimed=MAX_BATCH_MESSAGES + 1)[1],
        make_frame(b"v", chunk=(0, 2))[1],
        make_frame(COMPRESS["LZ4"](b"v"), compression="LZ4", uncompressed_size=1)[1],
    ):
        assert columns.add_whole(_one(uncommon)) is False
    assert columns.add_whole(OPEN_ENTRY((*HEAD[:-1], (1,)), make_batch(b"v", b"w")[1])) is False
    assert columns.rows == 3 * COMPILED


def test_a_batch_without_a_message_that_is_left_adds_no_row() -> None:
    columns = _columns(NAMES, compiled=COMPILED)
    gone = wire.SingleMessageMetadata(payload_size=0, compacted_out=True)
    assert columns.add_whole(_one(make_batch((gone, b""))[1])) is COMPILED
    assert (columns.rows, list(columns.take())) == (0, [])


def _one(data: bytes) -> OpenedEntry:
    entry: OpenedEntry = OPEN_ENTRY(HEAD, data)
    return entry


@given(st.lists(st.sampled_from([0, 1, 300, 40_000, 3_000_000]), max_size=6), st.booleans())
def test_batches_of_any_sizes_one_after_the_other_have_their_own_values(sizes: list[int], drop: bool) -> None:
    columns = _columns(["value", "__key"], compiled=COMPILED)
    kept = []
    for at, size in enumerate(sizes):
        columns.add_whole(_one(make_frame(bytes([at]) * size, key=str(at))[1]))
        kept.append(list(columns.take()))
        if drop:
            # The next one may get the memory of this one.
            kept[-1] = [pa.RecordBatch.from_pylist(each.to_pylist(), each.schema) for each in kept[-1]]
    rows = [row for batches in kept for batch in batches for row in batch.to_pylist()]
    assert rows == [{"value": bytes([at]) * size, "__key": str(at).encode()} for at, size in enumerate(sizes)]


@pytest.mark.parametrize("size", [0, 100, 20_000])
def test_a_changed_byte_is_found_by_the_checksum(size: int) -> None:
    data = make_frame(bytes(size))[1]
    assert crc32c(data[6:]) == int.from_bytes(data[2:6], "big")
    for at in (6, 10, len(data) - 1):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(EntryError, match="CRC32-C"):
            OPEN_ENTRY(HEAD, changed)
