"""Metrics of the broker's certificates; the edge that loads them fills them in."""

from __future__ import annotations


class TlsMetrics:
    """The certificates in effect, and how often the files were loaded again."""

    __slots__ = ("expiry", "failures", "refused", "reloads")

    def __init__(self) -> None:
        #: When the first certificate of each kind expires (s since the epoch); empty without TLS.
        self.expiry: dict[str, float] = {}
        self.reloads = 0
        #: Contents of the files that could not be used.
        self.failures = 0
        #: Whether the files are not those in effect, because they cannot be used.
        self.refused = False
