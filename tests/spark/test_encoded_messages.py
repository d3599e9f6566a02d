"""Messages are encoded alike by the compiled module and in Python, and are read as they were, without a broker."""

from __future__ import annotations

import shutil
import struct
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import FRAME_OVERHEAD, read_entry
from heliograph_spark.decode.chunks import ChunkAssembly
from heliograph_spark.decode.entries import Entry, Message, messages_of
from heliograph_spark.encode import columns, primitives
from heliograph_spark.encode.compiled import COMPILED
from heliograph_spark.encode.entries import java_hash, text_of
from heliograph_spark.encode.framing import BLOCK_BYTES, Framing, Messages, new_batch
from heliograph_spark.encode.messages import MESSAGE_COLUMNS, Head
from heliograph_spark.plan.errors import PulsarSourceError, SchemaError
from heliograph_spark.plan.sending import COMPRESSIONS
from heliograph_spark.run.primitives import PRIMITIVES
from heliograph_spark.run.topic_writer import grouped
from heliograph_spark.wire.frames import Frames
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from tests.support.wire_client import take_frames

KEYS = st.one_of(st.none(), st.text(max_size=5).map(str.encode), st.binary(max_size=5), st.just(b"\xff\x00"))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.one_of(st.none(), st.binary(max_size=40)),
            "key": KEYS,
            "ordering_key": st.one_of(st.none(), st.binary(max_size=3)),
            "properties": st.one_of(
                st.none(), st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=3)
            ),
            "event_ms": st.one_of(st.none(), st.just(0), st.integers(1, (1 << 43) - 1)),
        }
    ),
    max_size=12,
)
#: Rows before and after those that count, so that the arrays do not begin where their memory does.
MARGIN = {"value": b"margin", "key": b"m", "ordering_key": b"m", "properties": [("m", "m")], "event_ms": 7}
#: Where there is a compiler, a module that is not compiled makes tests fail.
WHERE_COMPILED = pytest.mark.skipif(
    not COMPILED and shutil.which("cc") is None,
    reason="no C compiler: scripts/setup spark compiles heliograph_spark.encode._entries",
)
BOTH = [pytest.param(False, id="pure"), pytest.param(True, id="compiled", marks=WHERE_COMPILED)]
HEAD = Head(300, "producer", b"\0\0\0\1")
LARGEST = 200


def made(rows: list[dict[str, Any]], first: int | None = None, *, without: tuple[str, ...] = ()) -> pa.RecordBatch:
    """Return rows as messages, with every seventh number from ``first`` on as sequence ids."""
    numbered = [] if first is None else [first + 7 * at for at in range(len(rows) + 2)]
    found = {}
    for name, kind in MESSAGE_COLUMNS.items():
        if name == "sequence":
            if numbered:
                found[name] = pa.array(numbered, kind)
        elif name not in without:
            found[name] = pa.array([MARGIN[name], *(row[name] for row in rows), MARGIN[name]], kind)
    return pa.RecordBatch.from_pydict(found)[1:-1]


def entries_in(frames: Frames) -> list[tuple[wire.CommandSend, Entry]]:
    """Return the commands and entries of frames, as a broker takes them apart."""
    found = []
    for at, frame in enumerate(take_frames(bytearray(frames.data))):
        metadata, payload_at = read_entry(frame.entry)
        found.append((frame.body, Entry(1, at, metadata, frame.entry[payload_at:])))
    assert [len(bytes(frames.data))] == frames.ends[-1:]
    assert [command.sequence_id for command, _ in found] == list(frames.sequences)
    return found


def expected(rows: list[dict[str, Any]], numbers: list[int], *, batch: bool) -> list[Message]:
    return [
        Message(
            at if batch else -1,
            row["value"],
            row["key"],
            row["ordering_key"],
            row["event_ms"] or 0,
            number,
            dict(row["properties"] or ()),
        )
        for at, (row, number) in enumerate(zip(rows, numbers, strict=True))
    ]


@WHERE_COMPILED
@given(ROWS, st.one_of(st.none(), st.integers(0, 1 << 40)), st.integers(1, 5), st.integers(40, 400))
def test_the_compiled_module_encodes_as_python_does(
    rows: list[dict[str, Any]], first: int | None, most_messages: int, most_bytes: int
) -> None:
    batch = made(rows, first)
    listed, compiled = Messages(batch, compiled=False), Messages(batch, compiled=True)
    for partitions, stride in ((1, 1), (3, 2), (7, 0)):
        one, other = (each.destinations(partitions, 5, stride) for each in (listed, compiled))
        assert (one[0].to_pylist(), one[1]) == (other[0].to_pylist(), other[1])
    for largest in (10, LARGEST):
        ours, theirs = (each.frames(0, len(rows), 9, HEAD, 1_700_000_000_000, largest) for each in (listed, compiled))
        assert (bytes(ours[0]), ours[1]) == (bytes(theirs[0]), theirs[1])
    in_python, natively = new_batch(compiled=False), new_batch(compiled=True)
    start = 0
    while start < len(rows):
        after = in_python.add(listed.rows, start, len(rows), 9 + start, most_messages, most_bytes)
        assert natively.add(compiled.rows, start, len(rows), 9 + start, most_messages, most_bytes) == after
        for name in ("count", "size", "first", "last", "keys"):
            assert getattr(in_python, name) == getattr(natively, name)
        if after == start and not in_python.count:
            after += 1
        else:
            assert in_python.take() == bytes(natively.take())
        start = after


@pytest.mark.parametrize("compiled", BOTH)
@pytest.mark.parametrize("compression", COMPRESSIONS.values())
@given(ROWS.filter(len), st.one_of(st.none(), st.integers(0, 1 << 40)))
def test_a_batch_is_read_as_it_was(
    compiled: bool, compression: int, rows: list[dict[str, Any]], first: int | None
) -> None:
    messages, batch = Messages(made(rows, first), compiled=compiled), new_batch(compiled=compiled)
    assert batch.add(messages.rows, 0, len(rows), 3, 1000, 1 << 20) == len(rows)
    framing = Framing("t", HEAD, compression=compression, largest=1 << 20)
    numbers = [3 + at if first is None else first + 7 * (at + 1) for at in range(len(rows))]
    ((command, entry),) = entries_in(framing.batch(batch))
    assert batch.count == 0
    assert list(messages_of(entry)) == expected(rows, numbers, batch=True)
    metadata = entry.metadata
    assert (metadata.producer_name, metadata.schema_version, metadata.compression) == (
        "producer",
        b"\0\0\0\1",
        compression,
    )
    assert (command.producer_id, command.num_messages) == (300, len(rows))
    assert (metadata.sequence_id, metadata.highest_sequence_id) == (numbers[0], numbers[-1])
    assert (command.sequence_id, command.highest_sequence_id) == (numbers[0], numbers[-1])
    # As clients that do not open a batch see it.
    key = rows[0]["key"]
    assert metadata.HasField("partition_key") == (key is not None)
    assert (metadata.partition_key, metadata.partition_key_b64_encoded) == (
        ("", False) if key is None else text_of(key)
    )
    assert metadata.ordering_key == (rows[0]["ordering_key"] or b"")


@pytest.mark.parametrize("compiled", BOTH)
@pytest.mark.parametrize("compression", [wire.NONE, wire.ZSTD])
@given(ROWS.filter(len), st.one_of(st.none(), st.integers(0, 1 << 40)))
def test_messages_alone_are_read_as_they_were(
    compiled: bool, compression: int, rows: list[dict[str, Any]], first: int | None
) -> None:
    messages = Messages(made(rows, first), compiled=compiled)
    framing = Framing("t", HEAD, compression=compression, largest=1 << 20)
    numbers = [3 + at if first is None else first + 7 * (at + 1) for at in range(len(rows))]
    found: list[Message] = []
    start = 0
    while start < len(rows):
        frames, after = framing.alone(messages, start, len(rows), 3 + start)
        assert list(frames.messages) == [1] * (after - start)
        for command, entry in entries_in(frames):
            assert (command.num_messages, command.is_chunk) == (1, False)
            assert entry.metadata.schema_version == b"\0\0\0\1"
            found += messages_of(entry)
        start = after
    assert found == expected(rows, numbers, batch=False)


def test_blocks_of_messages_alone_are_of_a_bounded_size() -> None:
    rows = [MARGIN | {"value": Random(at).randbytes(1000)} for at in range(200)]
    for compression in (wire.NONE, wire.LZ4):
        framing = Framing("t", HEAD, compression=compression, largest=1 << 20)
        frames, after = framing.alone(Messages(made(rows)), 0, 200, 0)
        assert after < 200
        if compression == wire.NONE:
            assert BLOCK_BYTES <= frames.size < BLOCK_BYTES + 1200


@given(st.binary(min_size=1, max_size=3000), st.integers(300, 900), st.sampled_from([wire.NONE, wire.SNAPPY]))
def test_a_message_that_is_too_large_is_sent_in_chunks_or_refused(value: bytes, largest: int, compression: int) -> None:
    row = MARGIN | {"value": value}
    messages = Messages(made([row], 50))
    frames, after = Framing("t", HEAD, compression=compression, largest=largest, chunks=True).alone(messages, 0, 1, 0)
    assert after == 1
    assert sum(frames.messages) == 1
    assembly = ChunkAssembly()
    whole = None
    entries = entries_in(frames)
    for command, entry in entries:
        assert len(entry.payload) <= largest
        assert command.is_chunk == (len(entries) > 1)
        whole = assembly.add(entry)
    assert isinstance(whole, Entry)
    assert list(messages_of(whole)) == expected([row], [57], batch=False)
    if len(entries) > 1:
        with pytest.raises(
            PulsarSourceError, match=f"writing to t: a message of .* at most {largest} bytes.*chunkingEn"
        ):
            Framing("t", HEAD, compression=compression, largest=largest).alone(messages, 0, 1, 0)


@pytest.mark.parametrize("compiled", BOTH)
def test_properties_that_are_too_large_are_refused(compiled: bool) -> None:
    row = MARGIN | {"properties": [("p", "x" * (FRAME_OVERHEAD + 1000))]}
    messages = Messages(made([MARGIN, row]), compiled=compiled)
    framing = Framing("t", HEAD, largest=100, chunks=True)
    _, after = framing.alone(messages, 0, 2, 0)
    assert after == 1
    with pytest.raises(
        PulsarSourceError, match=r"writing to t: a message of 6 bytes with keys and properties of 11\d+:"
    ):
        framing.alone(messages, 1, 2, 0)


@given(ROWS, st.integers(1, 9), st.integers(0, 30), st.integers(0, 4))
def test_keys_go_where_java_sends_them_and_the_rest_in_turn(
    rows: list[dict[str, Any]], partitions: int, turn: int, stride: int
) -> None:
    found, after = Messages(made(rows)).destinations(partitions, turn, stride)
    without = 0
    for row, partition in zip(rows, found.to_pylist(), strict=True):
        if row["key"] is not None:
            assert partition == java_hash(text_of(row["key"])[0]) % partitions
        else:
            assert partition == ((turn + without) // stride if stride else turn) % partitions
            without += 1
    assert after == turn + (without if stride else 0)


@given(st.lists(st.integers(-3, 3), max_size=30))
def test_rows_of_one_group_stay_together_and_in_order(groups: list[int]) -> None:
    table = pa.RecordBatch.from_pydict({"at": pa.array(range(len(groups)), pa.int64())})
    found: dict[int, list[int]] = {}
    for group, rows, start, stop in grouped(table, pa.array(groups, pa.int32())):
        assert group not in found
        found[group] = rows[start:stop].column("at").to_pylist()
    assert found == {group: [at for at, each in enumerate(groups) if each == group] for group in set(groups)}


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BYTES": st.binary(max_size=9),
    "STRING": st.text(max_size=9),
    "BOOLEAN": st.booleans(),
    **{f"INT{bits}": st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    "FLOAT": st.floats(width=32, allow_nan=False),
    "DOUBLE": st.floats(allow_nan=False),
    "DATE": st.dates(),
    "LOCAL_DATE": st.dates(),
    "TIMESTAMP": st.datetimes(),
    "TIME": st.integers(-(1 << 63), (1 << 63) - 1),
    "LOCAL_TIME": st.integers(0, 86_400_000_000_000 - 1),
}


@pytest.mark.parametrize("kind", VALUES)
@given(st.data())
def test_a_column_of_values_is_encoded_as_each_of_them(kind: str, data: st.DataObject) -> None:
    primitive = PRIMITIVES[kind]
    column_type = to_arrow_type(primitive.column, timezone="UTC")
    given_values = data.draw(st.lists(st.one_of(st.none(), VALUES[kind]), max_size=9))
    column = pa.array([None, *given_values, None], column_type)[1:-1]
    found = primitives.encoded(kind, column)
    assert found is not None
    expected_values = [None if each is None else primitive.encode(each) for each in column.to_pylist()]
    assert found.to_pylist() == expected_values


def test_a_narrower_number_is_encoded_as_the_type_of_the_schema() -> None:
    found = primitives.encoded("INT64", pa.array([1, None, -1], pa.int16()))
    assert found is not None
    assert found.to_pylist() == [struct.pack(">q", 1), None, struct.pack(">q", -1)]
    assert primitives.encoded("INSTANT", pa.array([], pa.timestamp("us"))) is None


@pytest.mark.parametrize("beyond", [-1, 86_400_000_000_000])
def test_a_number_that_is_no_time_of_a_day_is_refused(beyond: int) -> None:
    refused = f"{beyond} nanoseconds after midnight are no time of a day"
    with pytest.raises(ValueError, match=refused):
        primitives.encoded("LOCAL_TIME", pa.array([None, 0, beyond], pa.int64()))
    with pytest.raises(ValueError, match=refused):
        PRIMITIVES["LOCAL_TIME"].encode(beyond)


def test_columns_of_metadata_become_those_of_messages() -> None:
    values = pa.array([b"v", None, b"w"], pa.binary())
    properties = pa.array([[("a", None), ("b", "c")], None, []], pa.map_(pa.string(), pa.string()))
    times = pa.array([1_700_000_000_123_999, None, 0], pa.timestamp("us", tz="UTC"))
    found = columns.messages(
        values, {"__key": pa.array(["k", None, ""]), "__messageProperties": properties, "__eventTime": times}
    )
    assert found.to_pydict() == {
        "value": [b"v", None, b"w"],
        "key": [b"k", None, b""],
        "properties": [[("a", ""), ("b", "c")], None, []],
        "event_ms": [1_700_000_000_123, None, 0],
    }


def test_properties_that_are_null_but_in_memory_are_nobody_s() -> None:
    kept = pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["a", "b", "c"]), pa.array(["1", "2", "3"]))
    validity = pa.py_buffer(bytes([0b101]))
    column = pa.Array.from_buffers(kept.type, 3, [validity, kept.buffers()[1]], children=[kept.values])
    assert column.to_pylist() == [[("a", "1")], None, [("c", "3")]]
    values = pa.array([b"v", b"w", b"x"], pa.binary())
    found = columns.messages(values, {"__messageProperties": column})
    assert found.column("properties").to_pylist() == column.to_pylist()


@pytest.mark.parametrize(
    ("name", "column", "text"),
    [
        (
            "__eventTime",
            pa.array([-1], pa.timestamp("us", tz="UTC")),
            "column '__eventTime': -1 ms since 1970 is before",
        ),
        (
            "__messageProperties",
            pa.MapArray.from_arrays([0, 1], pa.array(["a"]), pa.array([b"\xff"]).cast(pa.string(), safe=False)),
            "column '__messageProperties': .*UTF8",
        ),
    ],
)
def test_metadata_that_no_message_can_have_is_refused_by_column(name: str, column: pa.Array, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        columns.messages(pa.array([b"v"], pa.binary()), {name: column})
