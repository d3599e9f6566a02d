"""Logs that the disk is full, that it has space again, and at intervals how much was refused meanwhile."""

from __future__ import annotations

import structlog

from heliograph_broker.clock import Clock

log = structlog.get_logger(__name__)

#: While the disk stays full, refusals are logged at most this often (s).
LOG_INTERVAL_S = 60.0


class Shortage:
    """The counts are of refused groups, and of the entries in them, since the start."""

    __slots__ = (
        "_clock",
        "_entries_before",
        "_full",
        "_groups_before",
        "_logged_at",
        "_logged_full",
        "entries",
        "groups",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.groups = 0
        self.entries = 0
        #: The counts when that was last logged.
        self._groups_before = 0
        self._entries_before = 0
        #: Whether the disk is known to be full, and whether the log says so.
        self._full = self._logged_full = False
        #: When the log last said so (monotonic).
        self._logged_at: float | None = None

    def begins(self, error: str = "") -> None:
        """Note that the disk is full."""
        if not self._full:
            self._full = True
            self._log("the disk is full: new messages are refused, metadata is written later", error)

    def refused(self, entries: int, error: Exception) -> None:
        """Count a refused group with this number of entries."""
        self.groups += 1
        self.entries += entries
        self.begins(str(error))
        self._log("the disk is still full", str(error))

    def ends(self) -> None:
        """Note that the disk has room."""
        if self._logged_full:
            log.info("the disk has room again", **self._since())
        self._full = self._logged_full = False

    def _log(self, event: str, error: str) -> None:
        """Log it, unless the log said that the disk is full just now: of a disk that is full by turns, too."""
        now = self._clock.monotonic()
        if self._logged_at is None or now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            self._logged_full = True
            log.error(event, **self._since(), error=error)

    def _since(self) -> dict[str, int]:
        """Return what was refused since this was last asked."""
        groups, entries = self.groups - self._groups_before, self.entries - self._entries_before
        self._groups_before, self._entries_before = self.groups, self.entries
        return {"refused_groups": groups, "refused_entries": entries}
