"""Defects in how clients are served: connections, clocks, order, and whose subscription is whose."""

from __future__ import annotations

from typing import Any

from heliograph_api.protocol.frame_reader import FrameReader
from heliograph_api.protocol.receive_buffer import ReceiveBuffer, SharedBuffer
from heliograph_broker.messaging.broker import broker
from heliograph_broker.messaging.clients.chunks import ChunkedMessages
from heliograph_broker.messaging.delivery.dispatch_single import SingleActiveDispatcher
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.server import connection
from heliograph_broker.server.commands import cursor_commands
from heliograph_broker.server.connection import Connection

from .patches import Defect, Patch

# 9 and 10: connections


def _close_instead(self: Any, *reason: Any) -> None:
    self.close(str(reason[-1]))


def _buffer_of_its_own(shared: Any) -> ReceiveBuffer:
    return ReceiveBuffer(SharedBuffer(256 * 1024))


_hold = Connection.hold


def _hold_for_others(self: Any, reason: object, ms: int | None = None) -> None:
    if reason is not connection._UNREAD:
        _hold(self, reason, ms)


def _take_writes(self: Any) -> None:
    """``writable`` stays set."""


_handled = ReceiveBuffer.handled


def _allocate_announced(self: Any, count: int, frame_bytes: int) -> None:
    _handled(self, count, frame_bytes)
    if frame_bytes > len(self._shared.view) and self._large is None:
        rest = bytes(self.rest())
        self.clear()
        self._large = bytearray(frame_bytes)
        self._large[: len(rest)] = rest
        self._end, self._frame_bytes = len(rest), frame_bytes


def _shift_words(ack_set: Any) -> int | None:
    bits = 0
    for index, word in enumerate(ack_set):
        bits |= (word & ((1 << 64) - 1)) << (64 * index)
    return bits if ack_set else None


# 11: the wall clock drives everything


class _WallClock:
    """Goes where the machine's clock goes, for machinery too."""

    def __init__(self, clock: Any) -> None:
        self.now_ms = clock.now_ms

    def monotonic(self) -> float:
        return float(self.now_ms()) / 1000

    def follow(self) -> int:
        return 0


class _HighestClock(_WallClock):
    """Never goes back, however far it was ahead once."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._highest = 0
        self.monotonic = clock.monotonic  # type: ignore[method-assign]
        self.now_ms = self._now_ms

    def _now_ms(self) -> int:
        self._highest = max(self._highest, self._clock.now_ms())
        return self._highest


# order


def _last_first(self: Any) -> Any:
    subscription = self.subscription
    topic = subscription.topic
    replay = self.replay
    while replay:
        offset = replay.max()
        if offset < topic.log.first_offset or subscription.acks.cursor.is_acked(offset):
            replay.discard(offset)
            continue
        entry = self.fetch(offset, 1)
        if entry is None:
            return None
        replay.discard(offset)
        if not (topic.timing.may_expire and subscription.withholds(entry)):
            return entry
    return None


DEFECTS = {
    "closed-when-read": Defect(
        "9",
        "a silent peer is closed once it has read everything, not broken off",
        (Patch(Connection, "abort", _close_instead),),
    ),
    "large-buffers": Defect(
        "10",
        "every connection has a large buffer from the beginning",
        (Patch(connection, "ReceiveBuffer", _buffer_of_its_own),),
    ),
    "unread-answers": Defect(
        "10",
        "answers that are not read are collected without limit",
        (Patch(Connection, "hold", _hold_for_others),),
    ),
    "unread-messages": Defect(
        "10",
        "messages go out to a client that does not read",
        (Patch(Connection, "pause_writing", _take_writes),),
    ),
    "announced-frames": Defect(
        "10",
        "a frame that is announced gets its buffer at once, before CONNECT too",
        (
            Patch(ReceiveBuffer, "handled", _allocate_announced),
            Patch(FrameReader, "_check_size", lambda self, total: 5 << 20),
        ),
    ),
    "long-ack-sets": Defect(
        "10",
        "an ack_set of any length is taken, at a cost that grows with its square",
        (Patch(cursor_commands, "remaining_of", _shift_words),),
    ),
    "wall-clock": Defect(
        "11",
        "the wall clock drives flushes, looks and retries",
        (Patch(broker, "SteadyClock", _WallClock),),
    ),
    "receive-time-clamped": Defect(
        "11",
        "one reading of a clock that is ahead dates everything later as late",
        (Patch(broker, "SteadyClock", _HighestClock),),
    ),
    "replay-backwards": Defect(
        "order",
        "Exclusive and Failover deliver what was withheld and released last first",
        (Patch(SingleActiveDispatcher, "next_replayed", _last_first),),
    ),
    "chunks-apart": Defect(
        "chunks",
        "chunks of a message go to the next consumer",
        (Patch(ChunkedMessages, "assign", lambda self, entry, consumer: consumer),),
    ),
    "take-over": Defect(
        "take-over",
        "a reader with the name of a durable subscription gets that one",
        (Patch(Subscription, "check_durability", lambda self, *, durable: None),),
    ),
}
