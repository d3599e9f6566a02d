"""Metrics of the broker's certificates; the edge that loads them fills them in."""

from __future__ import annotations


class TlsMetrics:
    """The certificates in effect, how often the files were loaded again, and the handshakes that are under way."""

    __slots__ = ("expiry", "failures", "handshakes_running", "handshakes_waiting", "refused", "reloads")

    def __init__(self) -> None:
        #: When the first certificate of each kind expires (s since the epoch); empty without TLS.
        self.expiry: dict[str, float] = {}
        self.reloads = 0
        #: Contents of the files that could not be used.
        self.failures = 0
        #: Whether the files are not those in effect, because they cannot be used.
        self.refused = False
        #: Handshakes that have begun, and clients that have asked for one and wait for their turn.
        self.handshakes_running = 0
        self.handshakes_waiting = 0
