"""Entries become Arrow columns with and without the compiled module: the same ones, for any bytes."""

from __future__ import annotations

import base64
import dataclasses
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.decode import columns as columns_module
from heliograph_spark.decode.columns import (
    BATCH_BYTES,
    BATCH_ROWS,
    ENTRY_COLUMNS,
    METADATA_COLUMNS,
    EntryColumns,
)
from heliograph_spark.decode.entries import Entry, UndecodableMessage, messages_of
from heliograph_spark.decode.kept_values import UnfitValue
from heliograph_spark.decode.rows import COMPILED, ROW_COLUMNS, new_rows
from hypothesis import given
from hypothesis import strategies as st

from tests.support.entries import batch_payload

ALL = pa.schema([("value", pa.binary()), *METADATA_COLUMNS.items()])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: Where there is a compiler, a decoder that is not compiled makes tests fail.
NOT_COMPILED = "no C compiler: scripts/setup spark compiles heliograph_spark.decode._batch"

BOTH = [
    pytest.param(False, id="pure"),
    pytest.param(
        True,
        id="compiled",
        marks=pytest.mark.skipif(not COMPILED and shutil.which("cc") is None, reason=NOT_COMPILED),
    ),
]


@pytest.fixture(params=BOTH)
def compiled(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def _columns(compiled: bool, names: Sequence[str] = ALL.names, **options: Any) -> EntryColumns:
    schema = pa.schema([ALL.field(name) for name in names])
    return EntryColumns("persistent://a/b/c-partition-2", schema, partition=2, compiled=compiled, **options)


def _batch(singles: Sequence[tuple[dict[str, Any], bytes]], **fields: Any) -> Entry:
    """Return a batch of messages with these fields of their metadata."""
    messages = []
    for given_fields, value in singles:
        properties = given_fields.pop("properties", ())
        single = wire.SingleMessageMetadata(**{"payload_size": len(value)} | given_fields)
        for name, text in properties:
            single.properties.add(key=name, value=text)
        messages.append((single, value))
    own: dict[str, Any] = {"sequence_id": 70, "publish_time": 1000, "num_messages_in_batch": len(messages)}
    metadata = wire.MessageMetadata(producer_name="p", **own | fields)
    return Entry(5, 6, metadata, batch_payload(messages))


def _rows(columns: EntryColumns) -> list[dict[str, Any]]:
    return [row for batch in columns.take() for row in batch.to_pylist()]


def test_every_column_of_a_batch(compiled: bool) -> None:
    columns = _columns(compiled)
    batch = _batch(
        [
            ({"partition_key": "kä", "event_time": 5, "sequence_id": 8, "ordering_key": b"o"}, b"one"),
            ({"properties": [("a", "1"), ("ä", ""), ("a", "2")]}, b""),
            ({"compacted_out": True}, b""),
            ({"null_value": True, "partition_key": "gA==", "partition_key_b64_encoded": True}, b""),
        ],
        schema_version=b"\0\1",
    )
    columns.add(dataclasses.replace(batch, redelivery_count=3))
    (taken,) = columns.take()
    taken.validate(full=True)
    assert taken.schema == ALL
    of_entry = {
        "__topic": "persistent://a/b/c-partition-2",
        "__publishTime": EPOCH + timedelta(seconds=1),
        "__ledger": 5,
        "__entry": 6,
        "__partition": 2,
        "__producer": "p",
        "__schemaVersion": b"\0\1",
        "__redeliveryCount": 3,
    }
    assert of_entry.keys() == ENTRY_COLUMNS.keys()

    def row(index: int, value: bytes | None, **given: Any) -> dict[str, Any]:
        message_id = wire.MessageIdData(ledgerId=5, entryId=6, partition=2, batch_index=index, batch_size=4)
        nothing: dict[str, Any] = {"__key": None, "__orderingKey": None, "__messageProperties": [], "__eventTime": None}
        own = {"value": value, "__messageId": message_id.SerializeToString(), "__batchIndex": index}
        return of_entry | nothing | {"__sequenceId": 70} | own | {f"__{name}": each for name, each in given.items()}

    event_time = EPOCH + timedelta(milliseconds=5)
    assert taken.to_pylist() == [
        row(0, b"one", key="kä".encode(), eventTime=event_time, sequenceId=8, orderingKey=b"o"),
        row(1, b"", messageProperties=[("a", "2"), ("ä", "")]),
        row(3, None, key=b"\x80"),
    ]


def test_a_message_that_is_no_batch_and_one_of_chunks(compiled: bool) -> None:
    columns = _columns(compiled, ["__messageId", "__batchIndex", "value", "__key"])
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, partition_key="k")
    columns.add(Entry(5, 6, metadata, b"v"))
    columns.add(Entry(5, 9, metadata, b"long", first_chunk=(4, 2)))
    first = wire.MessageIdData(ledgerId=4, entryId=2, partition=2)
    ids = [
        wire.MessageIdData(ledgerId=5, entryId=6, partition=2),
        wire.MessageIdData(ledgerId=5, entryId=9, partition=2, first_chunk_message_id=first),
    ]
    assert _rows(columns) == [
        {"__messageId": each.SerializeToString(), "__batchIndex": -1, "value": value, "__key": b"k"}
        for each, value in zip(ids, (b"v", b"long"), strict=True)
    ]


@pytest.mark.parametrize("name", ALL.names)
def test_each_column_alone_is_what_it_is_among_all(compiled: bool, name: str) -> None:
    batch = _batch([({"partition_key": "k", "properties": [("a", "b")], "event_time": 9}, b"v"), ({}, b"w")])
    alone, among = _columns(compiled, [name]), _columns(compiled)
    for columns in (alone, among):
        columns.add(batch)
    assert _rows(alone) == [{name: row[name]} for row in _rows(among)]


def test_no_columns_are_still_rows(compiled: bool) -> None:
    columns = _columns(compiled, [])
    columns.add(_batch([({}, b"v"), ({}, b"w")]))
    assert columns.rows == 2


def test_ranges_acknowledged_messages_and_the_next_entries(compiled: bool) -> None:
    columns = _columns(compiled, ["__entry", "__batchIndex"])
    batch = _batch([({}, b"%d" % at) for at in range(200)])
    columns.add(batch, 2, 5)
    columns.add(dataclasses.replace(batch, entry=7), 300)
    columns.add(dataclasses.replace(batch, entry=8), 197)
    columns.add(dataclasses.replace(batch, entry=9, ack_set=[0b101, 0, 1 - (1 << 63)]))
    columns.add(dataclasses.replace(batch, entry=10), up_to=0)
    found = [(row["__entry"], row["__batchIndex"]) for row in _rows(columns)]
    assert found == [(6, 3), (6, 4), (6, 5), (8, 198), (8, 199), (9, 0), (9, 2), (9, 128), (9, 191), (10, 0)]
    # Taken is taken.
    assert _rows(columns) == []
    columns.add(batch, up_to=1)
    assert [row["__batchIndex"] for row in _rows(columns)] == [0, 1]


def test_batches_are_of_so_many_rows_and_bytes_at_most(compiled: bool) -> None:
    columns = _columns(compiled, ["value", "__batchIndex"])
    sizes = [*[0] * (BATCH_ROWS + 5), *[BATCH_BYTES // 2] * 3, BATCH_BYTES + 1, 3]
    columns.add(_batch([({}, bytes(size)) for size in sizes]))
    assert columns.full
    taken = list(columns.take())
    assert [batch.num_rows for batch in taken] == [BATCH_ROWS, 7, 1, 1, 1]
    for batch in taken:
        batch.validate(full=True)
    assert [index for batch in taken for index in batch["__batchIndex"].to_pylist()] == list(range(BATCH_ROWS + 10))
    assert not columns.full


def test_entries_as_clients_send_them_fill_one_batch_at_a_time(compiled: bool) -> None:
    columns = _columns(compiled, ["value"])
    entry = _batch([({}, bytes(1000)) for _ in range(100)])
    taken = []
    for _ in range(64):
        columns.add(entry)
        if columns.full:
            taken.append([batch.num_rows for batch in columns.take()])
    assert taken == [[3200]] * 2


def test_an_entry_that_cannot_be_read_adds_nothing_and_the_others_stay(compiled: bool) -> None:
    columns = _columns(compiled)
    good = _batch([({"partition_key": "k", "properties": [("a", "b")]}, b"v"), ({"null_value": True}, b"")])
    columns.add(good)
    broken = dataclasses.replace(good, payload=good.payload + b"\0\0")
    broken.metadata.num_messages_in_batch = 3
    with pytest.raises(UndecodableMessage, match="message 5:6:2 of persistent://a/b/c-partition-2 cannot be read") as e:
        columns.add(broken)
    assert (e.value.ledger, e.value.entry, e.value.index) == (5, 6, 2)
    broken.metadata.num_messages_in_batch = 2
    columns.add(good)
    assert [(row["value"], row["__key"], row["__messageProperties"]) for row in _rows(columns)] == [
        (b"v", b"k", [("a", "b")]),
        (None, None, []),
    ] * 2


@pytest.mark.parametrize(("field", "column"), [("publish_time", "__publishTime"), ("event_time", "__eventTime")])
def test_a_time_that_is_no_timestamp_is_refused_where_it_is_asked_for(compiled: bool, field: str, column: str) -> None:
    last = ((1 << 63) - 1) // 1000
    for time, batch in [(at, batch) for at in (last, last + 1, (1 << 64) - 1) for batch in (True, False)]:
        if batch:
            entry = _batch([({"event_time": time} if field == "event_time" else {}, b"v")], publish_time=time)
        else:
            fields: dict[str, Any] = {"sequence_id": 1, "publish_time": 1} | {field: time}
            entry = Entry(5, 6, wire.MessageMetadata(producer_name="p", **fields), b"v")
        columns = _columns(compiled, ["value"])
        columns.add(entry)
        assert columns.rows == 1
        columns = _columns(compiled, [column])
        if time == last:
            columns.add(entry)
            assert columns.rows == 1
        else:
            with pytest.raises(UndecodableMessage, match="message 5:6"):
                columns.add(entry)


def test_numbers_of_64_bits_are_signed_as_in_java(compiled: bool) -> None:
    columns = _columns(compiled, ["__sequenceId"])
    columns.add(_batch([({"sequence_id": (1 << 64) - 1}, b""), ({}, b""), ({"sequence_id": 1 << 62}, b"")]))
    assert [row["__sequenceId"] for row in _rows(columns)] == [-1, 70, 1 << 62]


class _Lengths:
    """Decodes a value as its length; one of two bytes does not fit."""

    def columns(self, values: pa.Array, versions: pa.Array) -> list[pa.Array]:
        found = []
        for row, (value, version) in enumerate(zip(values.to_pylist(), versions.to_pylist(), strict=True)):
            if len(value) == 2:
                raise UnfitValue(row, "it has two bytes")
            found.append(f"{len(value)} {version}")
        return [pa.array(found)]


def test_decoded_values_and_the_place_of_one_that_does_not_fit(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "BATCH_ROWS", 2)
    schema = pa.schema([("__key", pa.binary()), ("length", pa.string())])
    columns = EntryColumns("t", schema, values=_Lengths(), compiled=compiled)
    columns.add(_batch([({}, b""), ({}, b"abc")], schema_version=b"x"))
    columns.add(dataclasses.replace(_batch([({}, b"d"), ({}, b"ef")]), entry=7))
    taken = columns.take()
    assert next(taken).to_pylist() == [{"__key": None, "length": "0 b'x'"}, {"__key": None, "length": "3 b'x'"}]
    with pytest.raises(UndecodableMessage, match="message 5:7:1 of t cannot be read: it has two bytes"):
        next(taken)


TEXTS = st.text(max_size=4) | st.sampled_from(["a", "ä", "\U0001f600", "\0"])
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "partition_key": TEXTS | st.binary(max_size=4).map(lambda key: base64.b64encode(key).decode()),
        "partition_key_b64_encoded": st.booleans(),
        "null_partition_key": st.booleans(),
        "ordering_key": st.binary(max_size=4),
        "event_time": st.sampled_from([0, 1, 1 << 40, 1 << 62, (1 << 64) - 1]),
        "sequence_id": st.sampled_from([0, 1, 1 << 35, 1 << 63, (1 << 64) - 1]),
        "null_value": st.booleans(),
        "compacted_out": st.booleans(),
        "properties": st.lists(st.tuples(TEXTS, TEXTS), max_size=4)
        | st.lists(st.tuples(TEXTS, TEXTS), min_size=16, max_size=20),
        "payload_size": st.integers(-2, 9) | st.just((1 << 31) - 1),
    },
)


@st.composite
def spoiled_batches(draw: st.DrawFn) -> Entry:
    """A batch, with some bytes changed, put in or left out, and a number of messages that may be wrong."""
    honest = draw(st.booleans())
    singles = draw(st.lists(st.tuples(FIELDS, st.binary(max_size=6)), min_size=1, max_size=6))
    if honest:
        singles = [
            ({name: each for name, each in fields.items() if name != "payload_size"}, v) for fields, v in singles
        ]
    entry = _batch([(dict(fields), value) for fields, value in singles])
    payload = bytearray(entry.payload)
    for _ in range(0 if honest else draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(payload)))
        put_in = draw(st.binary(max_size=3) | st.sampled_from([b"\xff" * 9, b"\x80" * 10 + b"\1", b"\0\0\0\0"]))
        payload[at : at + draw(st.integers(0, 3))] = put_in
    entry.metadata.num_messages_in_batch = len(singles) if honest else max(1, len(singles) + draw(st.integers(-1, 1)))
    acks = draw(st.just(()) | st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=2))
    return dataclasses.replace(entry, payload=bytes(payload), ack_set=acks)


@given(
    spoiled_batches(),
    st.sets(st.sampled_from(sorted(ROW_COLUMNS)), min_size=1),
    st.integers(-1, 3),
    st.none() | st.integers(0, 5),
)
def test_any_batch_gives_the_columns_of_its_messages(
    entry: Entry, names: set[str], after: int, up_to: int | None
) -> None:
    expected = _expected(entry, sorted(names), after, up_to)
    for compiled in (False, True) if COMPILED else (False,):
        assert _outcome(entry, sorted(names), compiled, after, up_to) == expected


def _outcome(
    entry: Entry, names: list[str], compiled: bool, after: int, up_to: int | None
) -> list[dict[str, Any]] | str:
    columns = _columns(compiled, names)
    try:
        columns.add(entry, after, up_to)
    except UndecodableMessage as refused:
        return f"{refused}, {columns.rows} rows"
    rows = []
    for batch in columns.take():
        batch.validate(full=True)
        # Python's datetime ends with the year 9999.
        plain = [batch[name].cast("int64") if name == "__eventTime" else batch[name] for name in names]
        rows += pa.RecordBatch.from_arrays(plain, names).to_pylist()
    return rows


def _expected(entry: Entry, names: list[str], after: int, up_to: int | None) -> list[dict[str, Any]] | str:
    """Return the rows by the reference, or why it refuses them."""
    rows = []
    last_ms = ((1 << 63) - 1) // 1000
    try:
        for message in messages_of(entry, after, up_to):
            if "__eventTime" in names and message.event_time > last_ms:
                raise UndecodableMessage(5, 6, message.batch_index, f"its event time is {message.event_time} ms")
            message_id = wire.MessageIdData(
                ledgerId=5,
                entryId=6,
                partition=2,
                batch_index=message.batch_index,
                batch_size=entry.metadata.num_messages_in_batch,
            )
            sequence_id = message.sequence_id
            row = {
                "value": message.value,
                "__key": message.key,
                "__orderingKey": message.ordering_key,
                "__messageId": message_id.SerializeToString(),
                "__messageProperties": list(message.properties.items()),
                "__eventTime": message.event_time * 1000 or None,
                "__sequenceId": sequence_id - (1 << 64) if sequence_id >> 63 else sequence_id,
                "__batchIndex": message.batch_index,
            }
            rows.append({name: row[name] for name in names})
    except UndecodableMessage as refused:
        refused.topic = "persistent://a/b/c-partition-2"
        return f"{refused}, 0 rows"
    return rows


@pytest.mark.skipif(not COMPILED and shutil.which("cc") is None, reason=NOT_COMPILED)
def test_the_compiled_module_reads_what_clients_commonly_send_by_itself() -> None:
    singles = [
        ({"partition_key": "kä", "event_time": 5, "sequence_id": 8, "properties": [("a", "1"), ("b", "2")]}, b"one"),
        ({"partition_key": "gA==", "partition_key_b64_encoded": True, "null_value": True}, b""),
        ({"compacted_out": True, "ordering_key": b"o"}, b""),
    ]
    entry = _batch(singles)
    rows = new_rows(frozenset(ROW_COLUMNS), compiled=True)
    assert rows.add_batch(entry.payload, 3, -1, 2, None, 0, b"head", b"tail") is True
    assert rows.count == 2
    # While bytes are looked at, they stay where they are.
    ends = rows.ends()
    assert list(ends) == [len("kä") + 1 + 4 + 3, len("kä") + 1 + 4 + 3 + 1]
    with pytest.raises(BufferError):
        rows.add_batch(_batch([({}, b"")] * 100).payload, 100, -1, 99, None, 0, b"", b"")
    assert rows.count == 2
