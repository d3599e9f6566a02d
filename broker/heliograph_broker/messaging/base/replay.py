"""The offsets that a dispatcher has to deliver before anything new, in the order of the topic."""

from __future__ import annotations

from pyroaring import BitMap64

from .offsets import run_end


class Replay(BitMap64):
    """Offsets the dispatcher has been past and has to come back to, the lowest first.

    Three kinds of entries come here, and nothing else goes back: deliveries that were taken back (a negative
    acknowledgment, a consumer that left), delayed entries whose time has come, and entries that were passed over as
    expired and live longer after all. A bitmap keeps them in order however they arrive, each once, in a few bytes.
    """

    def run(self, offset: int, limit: int) -> int:
        """Return how many offsets follow each other from ``offset`` on, at most ``limit``."""
        return min(run_end(self, offset) - offset, limit)
