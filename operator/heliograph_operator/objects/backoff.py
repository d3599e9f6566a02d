"""Delays between attempts, which grow with each failure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """A delay (s) that doubles from ``first_s`` up to ``cap_s``."""

    first_s: float
    cap_s: float

    def delay(self, failures: int) -> float:
        """Return the delay (s) after this many failures in a row (1 and up)."""
        # A larger power would overflow; every cap is reached long before.
        return min(self.cap_s, self.first_s * 2.0 ** min(max(failures, 1) - 1, 40))


#: For an unreachable broker; an attempt is one request for all its resources together.
UNREACHABLE = Backoff(10.0, 30.0)
#: For requests that a broker refuses: something else has to change first.
REFUSED = Backoff(10.0, 300.0)
#: For unexpected errors and those of the API server.
FAILED = Backoff(1.0, 60.0)
