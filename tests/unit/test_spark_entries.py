"""An entry is taken apart for Spark as its producer put it together, or refused with its place, without Arrow."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.ack_sets import ack_set_of
from heliograph_api.protocol.frames import parse_entry
from heliograph_spark.decode.entries import MAX_RATIO, Entry, Message, UndecodableMessage, messages_of
from heliograph_spark.plan.errors import PulsarSourceError
from hypothesis import given
from hypothesis import strategies as st

from tests.support.entries import COMPRESS, make_batch, make_frame, make_message

MIB = 1 << 20


def _entry(frame: tuple[wire.MessageMetadata, bytes], **fields: Any) -> Entry:
    metadata, data = frame
    return Entry(7, 3, metadata, data[parse_entry(data).payload_offset :], **fields)


def _read(entry: Entry, *limits: int) -> list[tuple[int, bytes | None]]:
    return [(each.batch_index, each.value) for each in messages_of(entry, *limits)]


def _refusal(entry: Entry, *limits: int) -> str:
    with pytest.raises(UndecodableMessage) as refused:
        list(messages_of(entry, *limits))
    assert isinstance(refused.value, PulsarSourceError)
    assert (refused.value.ledger, refused.value.entry) == (7, 3)
    return str(refused.value)


@pytest.mark.parametrize("codec", COMPRESS)
@given(payload=st.binary(max_size=500), others=st.lists(st.binary(max_size=50), max_size=20))
def test_payloads_are_what_they_were_before_each_kind_of_compression(
    codec: str, payload: bytes, others: list[bytes]
) -> None:
    compressed: dict[str, Any] = {} if codec == "NONE" else {"compression": codec, "uncompressed_size": len(payload)}
    assert _read(_entry(make_frame(COMPRESS[codec](payload), **compressed))) == [(-1, payload)]
    assert _read(_entry(make_batch(payload, *others, codec=codec))) == list(enumerate([payload, *others]))


@pytest.mark.parametrize("codec", [name for name in COMPRESS if name != "NONE"])
@pytest.mark.parametrize("off", [-1, 1, 100])
def test_a_payload_of_another_size_than_announced_is_refused(codec: str, off: int) -> None:
    payload = b"some words " * 100
    frame = make_frame(COMPRESS[codec](payload), compression=codec, uncompressed_size=len(payload) + off)
    assert "message 7:3 cannot be read: payload decompress" in _refusal(_entry(frame)).replace("does not ", "")


def test_a_payload_that_claims_too_much_is_refused_unopened() -> None:
    bomb = COMPRESS["ZSTD"](bytes(65 * MIB))
    assert "at most 67108864" in _refusal(_entry(make_frame(bomb, compression="ZSTD", uncompressed_size=65 * MIB)))
    # It may be that large if it takes as much as large messages do.
    honest = COMPRESS["LZ4"](bytes(65 * MIB))
    assert len(honest) * MAX_RATIO > 65 * MIB
    (message,) = messages_of(_entry(make_frame(honest, compression="LZ4", uncompressed_size=65 * MIB)))
    assert message.value is not None
    assert len(message.value) == 65 * MIB


def test_a_message_that_is_no_batch_has_its_metadata_from_the_entry() -> None:
    frame = make_frame(b"v", key="k", event_time=5, sequence_id=9, ordering_key=b"\xff", properties={"a": "1", "b": ""})
    assert list(messages_of(_entry(frame))) == [Message(-1, b"v", b"k", b"\xff", 5, 9, {"a": "1", "b": ""})]
    assert list(messages_of(_entry(make_frame(b"")))) == [Message(-1, b"", None, None, 0, 0, {})]
    assert _read(_entry(make_frame(b"", null_value=True))) == [(-1, None)]


def test_the_messages_of_a_batch_have_their_own_metadata_and_nothing_of_the_first_one() -> None:
    first, second, third = make_message(b"1", key="k", properties={"a": "1"}), make_message(b"2"), make_message(b"")
    first[0].event_time, first[0].ordering_key, first[0].sequence_id = 5, b"o", 40
    third[0].null_value = True
    batch = make_batch(first, second, third, key="k", event_time=8, sequence_id=40, properties={"of": "all"})
    assert list(messages_of(_entry(batch))) == [
        Message(0, b"1", b"k", b"o", 5, 40, {"a": "1"}),
        Message(1, b"2", None, None, 0, 40, {}),
        Message(2, None, None, None, 0, 40, {}),
    ]


@given(st.binary(max_size=40))
def test_keys_of_bytes_are_the_bytes(key: bytes) -> None:
    text = base64.b64encode(key).decode()
    single = make_message(b"v", key=text)
    single[0].partition_key_b64_encoded = True
    for frame in (make_frame(b"v", key=text, partition_key_b64_encoded=True), make_batch(single)):
        assert [each.key for each in messages_of(_entry(frame))] == [key]
    for nothing in (make_frame(b"v", key="x", null_partition_key=True), make_frame(b"v")):
        assert [each.key for each in messages_of(_entry(nothing))] == [None]


def test_keys_that_say_that_they_are_base64_and_are_not_are_refused() -> None:
    single = make_message(b"v", key="a*b")
    single[0].partition_key_b64_encoded = True
    assert "message 7:3:1 cannot be read: its key is not base64" in _refusal(_entry(make_batch(b"0", single)))
    assert "message 7:3 cannot be read: its key is not base64" in _refusal(
        _entry(make_frame(b"", key="a*b", partition_key_b64_encoded=True))
    )


@given(
    st.integers(1, 12),
    st.integers(-1, 12),
    st.none() | st.integers(0, 12),
    st.none() | st.sets(st.integers(0, 11)),
    st.sets(st.integers(0, 11)),
)
def test_of_a_batch_only_what_is_asked_for_unacknowledged_and_not_compacted_is_read(
    count: int, after: int, up_to: int | None, unacknowledged: set[int] | None, compacted: set[int]
) -> None:
    messages = [make_message(b"" if at in compacted else b"%d" % at) for at in range(count)]
    for at in compacted & set(range(count)):
        messages[at][0].compacted_out = True
    acks = () if unacknowledged is None else ack_set_of(sum(1 << at for at in unacknowledged))
    found = list(messages_of(_entry(make_batch(*messages), ack_set=acks), after, up_to))
    wanted = [
        at
        for at in range(count)
        if after < at <= (count if up_to is None else up_to)
        and at not in compacted
        and (unacknowledged is None or at in unacknowledged)
    ]
    assert [(each.batch_index, each.value) for each in found] == [(at, b"%d" % at) for at in wanted]


def test_what_is_no_batch_is_refused_with_the_index_where_it_ends() -> None:
    assert _refusal(_entry(make_batch(b"a", b"b", claimed=3))).startswith(
        "message 7:3:2 cannot be read: the batch ends"
    )
    assert "a batch of 0 messages" in _refusal(_entry(make_batch(b"a", claimed=0)))
    assert "a batch of -1 messages" in _refusal(_entry(make_batch(b"a", claimed=-1)))
    assert "a batch of 2147483647 messages" in _refusal(_entry(make_batch(b"a", claimed=(1 << 31) - 1)))
    for size in (-1, 2, (1 << 31) - 1):
        single = make_message(b"b")
        single[0].payload_size = size
        assert _refusal(_entry(make_batch(b"a", single))).startswith("message 7:3:1 cannot be read: its payload")
    # What nobody asked for may be damaged.
    assert _read(_entry(make_batch(b"a", b"b", claimed=3)), -1, 1) == [(0, b"a"), (1, b"b")]


def test_what_only_its_consumers_can_open_is_refused() -> None:
    frame = make_frame(b"x")
    frame[0].encryption_keys.add(key="k", value=b"v")
    assert _refusal(_entry(frame)) == "message 7:3 cannot be read: the payload is encrypted"
    assert "chunk 1 of 2" in _refusal(_entry(make_frame(b"x", chunk=(1, 2))))


@given(st.binary(max_size=60), st.integers(1, 5))
def test_any_bytes_are_messages_or_are_refused(payload: bytes, claimed: int) -> None:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=claimed)
    for codec in COMPRESS:
        metadata.compression = codec  # type: ignore[assignment]
        metadata.uncompressed_size = len(payload)
        found = _outcome(Entry(7, 3, metadata, payload))
        assert found.startswith("message 7:3") if isinstance(found, str) else len(found) <= claimed


def _outcome(entry: Entry) -> str | list[tuple[int, bytes | None]]:
    try:
        return _read(entry)
    except UndecodableMessage as refused:
        return str(refused)
