"""Frames of what the broker sends: each says what it was given, and nothing of the one before."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.encoder import NO_REQUEST, Encoder

BEFORE_FIRST = (1 << 64) - 1


def decoded(frame: bytes, entry_size: int = 0) -> wire.BaseCommand:
    """Return the command of a frame, whose sizes are checked."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4 + entry_size
    assert int.from_bytes(frame[4:8], "big") == len(frame) - 8
    return wire.BaseCommand.FromString(frame[8:])


def message(encoder: Encoder, *, partition: int = -1, epoch: int = 0, remaining: int | None = None) -> Any:
    return decoded(encoder.message_head(7, 3, 5, partition, 2, epoch, remaining, 100), 100).message


def test_a_message_has_what_it_was_given() -> None:
    sent = message(Encoder(), partition=4, epoch=9, remaining=0b101)
    position = sent.message_id
    assert (sent.consumer_id, position.ledgerId, position.entryId, position.partition) == (7, 3, 5, 4)
    assert (sent.redelivery_count, sent.consumer_epoch, list(sent.ack_set)) == (2, 9, [0b101])


def test_a_message_has_nothing_of_the_one_before() -> None:
    encoder = Encoder()
    message(encoder, partition=4, epoch=9, remaining=1 << 70)
    plain = message(encoder)
    assert not plain.message_id.HasField("partition")
    assert not plain.HasField("consumer_epoch")
    assert list(plain.ack_set) == []
    assert plain == message(Encoder())


def test_receipts_follow_each_other_in_one_piece() -> None:
    encoder = Encoder()
    data = encoder.receipts(1, [(5, 6, 3, 0), (7, 7, -1, -1)])
    half = len(encoder.receipts(1, [(5, 6, 3, 0)]))
    first, second = decoded(data[:half]).send_receipt, decoded(data[half:]).send_receipt
    assert (first.producer_id, first.sequence_id, first.highest_sequence_id) == (1, 5, 6)
    assert (first.message_id.ledgerId, first.message_id.entryId) == (3, 0)
    assert (second.sequence_id, second.message_id.ledgerId) == (7, BEFORE_FIRST)
    assert second.message_id.entryId == BEFORE_FIRST
    assert encoder.receipts(1, []) == b""


def test_only_an_exclusive_producer_learns_the_epoch_of_its_topic() -> None:
    encoder = Encoder()
    shared = decoded(encoder.producer_success(2, "p", -1, b"", None, ready=True)).producer_success
    exclusive = decoded(encoder.producer_success(2, "p", 4, b"\1", 0, ready=True)).producer_success
    assert not shared.HasField("topic_epoch")
    assert (exclusive.HasField("topic_epoch"), exclusive.topic_epoch, exclusive.last_sequence_id) == (True, 0, 4)


@pytest.mark.parametrize(
    ("frame", "kind", "fields"),
    [
        (Encoder().send_error(1, 2, wire.ChecksumError, "bad"), "send_error", {"sequence_id": 2, "message": "bad"}),
        (Encoder().success(3), "success", {"request_id": 3}),
        (Encoder().error(4, wire.NotAllowedError, "no"), "error", {"error": wire.NotAllowedError, "message": "no"}),
        (Encoder().close_producer(5), "close_producer", {"producer_id": 5, "request_id": NO_REQUEST}),
        (Encoder().close_consumer(6), "close_consumer", {"consumer_id": 6, "request_id": NO_REQUEST}),
        (Encoder().active_consumer_change(7, active=False), "active_consumer_change", {"is_active": False}),
        (Encoder().end_of_topic(8), "reachedEndOfTopic", {"consumer_id": 8}),
        (Encoder().ping(), "ping", {}),
        (Encoder().pong(), "pong", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_type_of_a_command_is_that_of_its_body(frame: bytes, kind: str, fields: dict[str, Any]) -> None:
    command = decoded(frame)
    assert [field.name for field, _ in command.ListFields()] == ["type", kind]
    assert wire.BaseCommand.Type.Name(command.type).replace("_", "").lower() == kind.replace("_", "").lower()
    body = getattr(command, kind)
    assert {name: getattr(body, name) for name in fields} == fields
