"""The unacknowledged deliveries of a subscription, and how often each entry was redelivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyroaring import BitMap64

if TYPE_CHECKING:
    from .consumer import Consumer


class Delivery(msgspec.Struct):
    """An unacknowledged entry that a consumer holds: its messages and bytes, and the topic's up to and with it.

    ``sent_ms`` is when it was sent, wall-clock ms.
    """

    consumer: Consumer
    messages: int
    size: int
    total_messages: int
    total_bytes: int
    key_hash: int
    sent_ms: int


class Deliveries(dict[int, Delivery]):
    """Deliveries by offset. Each consumer has the offsets of its own in ``held``, in order, whatever others hold.

    Code that adds or removes one changes both; the value of an offset may be replaced.
    """

    __slots__ = ()

    def settle(self, offset: int) -> None:
        """Remove the delivery at ``offset``, which was acknowledged or taken back."""
        self.pop(offset).consumer.held.discard(offset)

    def take_up_to(self, offset: int, consumers: list[Consumer]) -> list[tuple[int, Delivery]]:
        """Remove and return the deliveries up to and including ``offset``; the cost depends on these alone."""
        taken: list[tuple[int, Delivery]] = []
        for consumer in consumers:
            held = consumer.held
            while held:
                first = held.min()
                if first > offset:
                    break
                held.discard(first)
                taken.append((first, self.pop(first)))
        return taken

    def forget_all(self) -> None:
        """Forget all deliveries."""
        for delivery in self.values():
            delivery.consumer.held.clear()
        self.clear()


class RedeliveryCounts(dict[int, int]):
    """Counts the negative acknowledgments of each entry; one that is acknowledged, expired or trimmed is forgotten."""

    __slots__ = ("_offsets",)

    def __init__(self) -> None:
        super().__init__()
        #: None while nothing is counted: an empty bitmap takes more memory than the rest.
        self._offsets: BitMap64 | None = None

    def count(self, offset: int) -> None:
        """Count one more redelivery of the entry."""
        self[offset] = self.get(offset, 0) + 1
        if self._offsets is None:
            self._offsets = BitMap64()
        self._offsets.add(offset)

    def forget(self, offset: int) -> None:
        """Forget the count of an acknowledged entry."""
        if self._offsets is not None and self.pop(offset, None) is not None:
            self._offsets.discard(offset)

    def forget_up_to(self, offset: int) -> None:
        """Forget the counts up to and including ``offset``, which is acknowledged or trimmed."""
        offsets = self._offsets
        while offsets and (first := offsets.min()) <= offset:
            offsets.discard(first)
            del self[first]

    def forget_all(self) -> None:
        """Forget all counts, because the cursor was moved (seek, reset)."""
        self.clear()
        self._offsets = None
