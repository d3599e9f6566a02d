"""How long to wait before the next attempt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds that double from ``first_s`` to ``cap_s``."""

    first_s: float
    cap_s: float

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after this many failures in a row (1 and up)."""
        # Beyond this the power would be a number without end; any cap is reached long before.
        return min(self.cap_s, self.first_s * 2.0 ** min(max(failures, 1) - 1, 40))


#: Between attempts to reach a broker that does not answer; each is one request for all its resources together.
UNREACHABLE = Backoff(10.0, 30.0)
#: Between attempts at what a broker refuses: something else there has to change first.
REFUSED = Backoff(10.0, 300.0)
#: After errors nobody expected, and after those of the API server.
FAILED = Backoff(1.0, 60.0)
