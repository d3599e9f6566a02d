"""The ``ack_set`` of a message id: which messages of a batch are still unacknowledged, one bit each. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Sequence

#: More messages than this in one entry are refused: a batch's acknowledgments are kept as one bit each.
MAX_BATCH_MESSAGES = 1 << 20
#: The most words (64 bits each) an ``ack_set`` can need.
MAX_ACK_SET_WORDS = MAX_BATCH_MESSAGES // 64


def ack_set_of(remaining: int) -> list[int]:
    """Return the words (signed 64 bit, least significant first) of a batch's unacknowledged bits."""
    words = max(1, (remaining.bit_length() + 63) // 64)
    return list(struct.unpack(f"<{words}q", remaining.to_bytes(8 * words, "little")))


def remaining_of(ack_set: Sequence[int]) -> int | None:
    """Return the unacknowledged bits of an ``ack_set``, None for an empty one (the whole entry).

    Raises :class:`ValueError` for one that has more than :data:`MAX_ACK_SET_WORDS`.
    """
    if not ack_set:
        return None
    words = len(ack_set)
    if words > MAX_ACK_SET_WORDS:
        raise ValueError(f"an ack_set of {words} words; at most {MAX_ACK_SET_WORDS} are allowed")
    return int.from_bytes(struct.pack(f"<{words}q", *ack_set), "little")
