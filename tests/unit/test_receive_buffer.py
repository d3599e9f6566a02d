"""Received bytes come out unchanged, and cost no more memory than has arrived."""

from __future__ import annotations

import random

import pytest
from heliograph_api.protocol.receive_buffer import ReceiveBuffer, SharedBuffer

SHARED = 1024


def frame(size: int, rng: random.Random) -> bytes:
    return size.to_bytes(4, "big") + rng.randbytes(size)


def take_frames(buffer: ReceiveBuffer, count: int = 0) -> list[bytes]:
    """Receive ``count`` bytes, handle whole frames and keep the rest, as a session does."""
    buffer.received(count)
    unhandled = buffer.rest()
    frames, at, announced = [], 0, 0
    while len(unhandled) - at >= 4:
        announced = 4 + int.from_bytes(unhandled[at : at + 4], "big")
        if len(unhandled) - at < announced:
            break
        frames.append(bytes(unhandled[at : at + announced]))
        at += announced
        announced = 0
    buffer.handled(at, announced)
    return frames


@pytest.mark.parametrize("seed", range(40))
def test_frames_come_out_as_they_went_in_whatever_one_read_brings(seed: int) -> None:
    """Two connections take turns with the shared buffer; frames are up to twenty times as large as it is."""
    rng = random.Random(seed)
    shared = SharedBuffer(SHARED)
    buffers = [ReceiveBuffer(shared), ReceiveBuffer(shared)]
    sent = [[frame(int(2 ** rng.uniform(0, 14.3)), rng) for _ in range(30)] for _ in buffers]
    data = [b"".join(frames) for frames in sent]
    got: list[list[bytes]] = [[], []]
    while any(data):
        which = rng.choice([number for number in (0, 1) if data[number]])
        buffer = buffers[which]
        room = buffer.room()
        assert len(room)
        count = min(len(room), len(data[which]), rng.choice([1, 7, 300, SHARED, 100_000]))
        room[:count] = data[which][:count]
        data[which] = data[which][count:]
        got[which] += take_frames(buffer, count)
    assert got == sent
    assert [len(buffer) for buffer in buffers] == [0, 0]


def test_an_announced_frame_costs_no_more_than_sixteen_times_what_arrived() -> None:
    buffer = ReceiveBuffer(SharedBuffer(SHARED))
    data = frame(1_000_000, random.Random(1))
    arrived = 0
    while arrived < len(data):
        room = buffer.room()
        count = min(100, len(room), len(data) - arrived)
        room[:count] = data[arrived : arrived + count]
        arrived += count
        frames = take_frames(buffer, count)
        assert len(buffer) <= 16 * arrived
    assert frames == [data]


def test_what_is_left_stays_in_place_until_another_connection_reads() -> None:
    shared = SharedBuffer(SHARED)
    first, second = ReceiveBuffer(shared), ReceiveBuffer(shared)
    data = frame(500, random.Random(3))
    first.room()[:300] = data[:300]
    assert take_frames(first, 300) == []
    assert len(first) == 0
    second.room()[:4] = b"\0\0\0\0"
    assert len(first) == 300
    assert take_frames(second, 4) == [b"\0\0\0\0"]
    first.room()[:204] = data[300:]
    assert take_frames(first, 204) == [data]


def test_what_is_kept_while_the_connection_waits_is_handled_later() -> None:
    buffer = ReceiveBuffer(SharedBuffer(SHARED))
    data = frame(10, random.Random(2)) * 5
    buffer.room()[: len(data)] = data
    buffer.received(len(data))
    buffer.handled(14, 0)
    assert take_frames(buffer) == [data[:14]] * 4
    assert len(buffer) == 0
