"""Message ids: sets of acknowledged messages in a batch, and the numbers of ids as paths and bodies have them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from google.protobuf.message import DecodeError
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.ack_sets import MAX_ACK_SET_WORDS, ack_set_of, remaining_of
from heliograph_api.protocol.encoder import Encoder
from heliograph_api.protocol.varints import varint
from heliograph_spark.wire.message_heads import MessageHeads

from tests.fuzz.target import Finding, Source, sized

_ENCODER = Encoder()


def run(data: bytes) -> None:
    source = Source(data)
    for encoded in (source.sized(), source.rest()):
        try:
            position = wire.MessageIdData.FromString(encoded)
        except DecodeError:
            continue
        _ack_set(list(position.ack_set))
        number = position.ledgerId
        if wire.MessageIdData.FromString(b"\x08" + varint(number) + b"\x10" + varint(-1)).ledgerId != number:
            raise Finding(f"{number} as a varint is another number")
        _heads(position)


def _ack_set(words: list[int]) -> None:
    try:
        remaining = remaining_of(words)
    except ValueError:
        if len(words) <= MAX_ACK_SET_WORDS:
            raise
        return
    if remaining is None:
        if words:
            raise Finding(f"no bits of {words}")
        return
    again = ack_set_of(remaining)
    if remaining_of(again) != remaining or len(again) > len(words):
        raise Finding(f"{words} became {again}")


def _heads(position: wire.MessageIdData) -> None:
    """The broker's encoder of MESSAGE, and the pipeline's reader of it that compares instead of decoding."""
    heads = MessageHeads()
    remaining = remaining_of(position.ack_set[:100])
    for step in (0, 1, 2, 127, 128, 1 << 40):
        place = position.ledgerId, (position.entryId + step) % (1 << 64)
        head = _ENCODER.message_head(3, *place, position.partition, 4, 0, remaining, 0)
        (size,) = struct.unpack_from(">I", head, 4)
        found = heads.read(head[8 : 8 + size])
        if found is None or found[:4] != (3, *place, 4):
            raise Finding(f"{place} was read as {found}")
        if remaining_of(found[4]) != remaining:
            raise Finding(f"the set {remaining} was read as {found[4]}")


def seeds() -> Iterator[bytes]:
    for position in (
        wire.MessageIdData(ledgerId=1, entryId=2, partition=3, batch_index=4, ack_set=[5, -1]),
        wire.MessageIdData(ledgerId=1 << 62, entryId=(1 << 64) - 2, ack_set=[-1] * 3),
        wire.MessageIdData(ledgerId=0, entryId=0, ack_set=[0, 0, 1]),
    ):
        yield sized(position.SerializeToString()) + position.SerializeToString()
        yield sized(b"") + position.SerializeToString()
