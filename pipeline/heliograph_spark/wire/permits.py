"""The number of messages that a broker may send ahead of the reader: as many as fit a number of bytes. No I/O."""

from __future__ import annotations

#: Bytes of entries on their way to one reader, or read ahead for it.
READ_AHEAD_BYTES = 16 << 20
#: The most permits at a time, however small the messages.
_MOST = 200_000


class Permits:
    """Counts a consumer's permits: a batch takes one for each of its messages, though it comes as one entry.

    The size of a message that is yet to come is taken for that of those that came last, and the window grows to at most
    twice what it was before. At first there is no more of it than entries of ``largest`` bytes fit ``budget``, or
    ``most`` of them.
    """

    __slots__ = ("_budget", "_most", "_window", "outstanding")

    def __init__(self, largest: int, most: int | None = None, budget: int = READ_AHEAD_BYTES) -> None:
        self._budget = budget
        self._most = _MOST if most is None else most
        self._window = min(self._most, max(1, budget // largest))
        #: Permits that the broker has and those of messages that were not taken yet; below 0 after a large batch.
        self.outstanding = 0

    def first(self) -> int:
        """Return how many to grant a new consumer."""
        self.outstanding = self._window
        return self._window

    def taken(self, messages: int, size: int) -> int:
        """Count messages of ``size`` bytes together that were read; return how many to grant now, 0 for none yet."""
        self.outstanding -= messages
        fitting = self._budget * messages // max(1, size)
        # A window smaller than a batch is as good as one of the batch: the broker sends whole entries.
        self._window = max(1, min(self._most, fitting, 2 * self._window))
        if self.outstanding * 2 > self._window:
            return 0
        granted = self._window - self.outstanding
        self.outstanding = self._window
        return granted
