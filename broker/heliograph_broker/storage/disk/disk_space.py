"""The disk space the store may use: new entries leave a reserve free, which metadata and copies may go into."""

from __future__ import annotations

from heliograph_broker.clock import Clock
from heliograph_broker.storage.base.failure import StorageFull, may_be_cut_short

from .data_dir import DataDir
from .shortage import Shortage


class DiskSpace:
    """Owned by the event loop, except :meth:`check_entries` and :meth:`cause`."""

    def __init__(self, data_dir: DataDir, reserve_bytes: int, clock: Clock) -> None:
        self._data_dir = data_dir
        self._reserve = reserve_bytes
        #: Whether the disk is known to be full: new entries are refused.
        self.full = False
        #: When a group of entries was refused last (monotonic, s), None before the first.
        self.refused_at: float | None = None
        self.shortage = Shortage(clock)
        self._clock = clock

    def free_bytes(self) -> int:
        """Return the disk space an ordinary user may still write where the data directory is."""
        return self._data_dir.free_bytes()

    def copy_bytes(self) -> int:
        """Return the disk space a copy may take: all above the reserve, or half of the free space if that is more."""
        free = self._data_dir.free_bytes()
        return max(free - self._reserve, free // 2)

    def check_entries(self, size: int) -> None:
        """Writer thread: raises :class:`StorageFull` unless the reserve stays free after ``size`` bytes of entries."""
        if self._data_dir.free_bytes() < self._reserve + size:
            raise StorageFull(
                f"less than {self._reserve} bytes would be free in {self._data_dir.path}: new messages are refused"
            )

    def cause(self, error: Exception, size: int) -> Exception:
        """Writer thread: return the cause of the ``error`` that a write of ``size`` bytes just failed with.

        It is :class:`StorageFull` if the disk may have had room for a part of them only, and the error otherwise.
        """
        if may_be_cut_short(error) and self._data_dir.free_bytes() <= max(self._reserve, size):
            return StorageFull(f"{self._data_dir.path} has no room for {size} bytes: {error}")
        return error

    def refused(self, entries: int, error: StorageFull) -> None:
        """Note that a group with so many entries was refused for want of space."""
        self.full = True
        self.refused_at = self._clock.monotonic()
        self.shortage.refused(entries, error)

    def available(self) -> None:
        """Note that the disk has room for entries."""
        self.full = False
        self.shortage.ends()

    def watch(self, *, metadata_waits: bool) -> None:
        """Find out whether the disk is full: without traffic no append would, neither that it is nor that it was.

        While metadata that could not be written waits (``metadata_waits``), only its write shows that there is room.
        """
        if self._data_dir.free_bytes() <= self._reserve:
            self.full = True
            self.shortage.begins()
        elif not metadata_waits:
            self.available()
