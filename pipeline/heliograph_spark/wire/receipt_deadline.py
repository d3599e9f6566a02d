"""The time in which a broker has to give the next receipt."""

from __future__ import annotations

import time


class ReceiptDeadline:
    """The deadline of the next receipt, ``within_s`` seconds after the last one.

    The time in which nobody looks for receipts, between :meth:`leave` and :meth:`attend`, does not count: the task has
    something else to do then.
    """

    __slots__ = ("_left_at", "_progress_at", "within_s")

    def __init__(self, within_s: float) -> None:
        self.within_s = within_s
        #: When the last receipt came, and when somebody last looked for one (monotonic, s).
        self._progress_at = 0.0
        self._left_at = time.monotonic()

    def begin(self) -> None:
        """Start again: a receipt has come, or the first frame that needs one was sent."""
        self._progress_at = time.monotonic()

    def attend(self) -> None:
        """Look for receipts again."""
        self._progress_at += time.monotonic() - self._left_at

    def leave(self) -> None:
        """Stop looking for receipts."""
        self._left_at = time.monotonic()

    @property
    def at(self) -> float:
        """The deadline (monotonic, s)."""
        return self._progress_at + self.within_s

    @property
    def left_s(self) -> float:
        """The time (s) that is left; at least one."""
        return max(1.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the broker is late."""
        return time.monotonic() > self.at
