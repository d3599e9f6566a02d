"""The pipeline's connection puts frames together, wherever the network cuts them."""

from __future__ import annotations

import struct
import time
from unittest import mock

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.encoder import encode_command
from heliograph_spark.wire import link as module
from heliograph_spark.wire.failures import LinkLost
from heliograph_spark.wire.link import Link
from heliograph_spark.wire.receiver import Receiver
from heliograph_spark.wire.stream import Address
from hypothesis import given
from hypothesis import strategies as st

_Type = wire.BaseCommand


class _Script:
    """The bytes of a connection, in the pieces in which they are received."""

    def __init__(self) -> None:
        connected = wire.BaseCommand(type=_Type.CONNECTED)
        connected.connected.server_version = "a broker"
        self.pieces = [encode_command(connected)]

    def send(self, data: bytes, within_s: float) -> None:
        """Take what is sent."""

    def receive(self, within_s: float) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    def end(self) -> None:
        """End the connection."""

    def close(self) -> None:
        """Give the connection back."""


def _link() -> tuple[Link, _Script]:
    script = _Script()
    with mock.patch.object(module, "Stream", return_value=script):
        return Link(Address("localhost", 6650), {}, secured=False, within_s=5.0), script


def _frame(consumer_id: int, entry_id: int, entry: bytes) -> bytes:
    command = wire.BaseCommand(type=_Type.MESSAGE)
    command.message.consumer_id = consumer_id
    command.message.message_id.ledgerId = 7
    command.message.message_id.entryId = entry_id
    encoded = command.SerializeToString()
    return struct.pack(">II", 4 + len(encoded) + len(entry), len(encoded)) + encoded + entry


@st.composite
def _cut(draw: st.DrawFn) -> tuple[list[bytes], list[int]]:
    entries = draw(st.lists(st.binary(max_size=60), min_size=1, max_size=8))
    size = len(b"".join(_frame(1, number, entry) for number, entry in enumerate(entries)))
    return entries, sorted(draw(st.sets(st.integers(1, size - 1), max_size=40)))


@given(_cut())
def test_frames_arrive_whole_and_in_order_wherever_they_are_cut(cut: tuple[list[bytes], list[int]]) -> None:
    entries, places = cut
    link, script = _link()
    receiver = Receiver(1 << 20)
    consumer_id = link.attach(receiver)
    stream = b"".join(_frame(consumer_id, number, entry) for number, entry in enumerate(entries))
    script.pieces = [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]

    assert link.wait(lambda: len(receiver.arrived) == len(entries), time.monotonic() + 10)

    arrived, size = receiver.take()
    assert [(head[1], head[2], bytes(data)) for head, data in arrived] == [
        (7, number, entry) for number, entry in enumerate(entries)
    ]
    assert size == len(stream) - 4 * len(entries)
    assert not script.pieces


def test_a_frame_that_is_too_long_ends_the_connection_after_those_before_it() -> None:
    link, script = _link()
    receiver = Receiver(1 << 20)
    whole = _frame(link.attach(receiver), 1, b"first")
    too_long = struct.pack(">II", 1 << 30, 4)
    script.pieces = [whole[:5], whole[5:] + too_long[:3], too_long[3:]]

    with pytest.raises(LinkLost, match="no frame of Pulsar's protocol"):
        link.wait(lambda: False, time.monotonic() + 10)

    assert [bytes(data) for _, data in receiver.arrived] == [b"first"]
    assert link.lost


def test_a_connection_on_which_sending_was_interrupted_is_of_no_more_use() -> None:
    link, script = _link()
    with mock.patch.object(script, "send", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        link.send(b"a part of this may have gone")
    with pytest.raises(LinkLost, match="sending was interrupted"):
        link.send(b"this would follow within the frame")
