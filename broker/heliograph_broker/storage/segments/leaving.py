"""Segments that are out of use, until their files are gone: readers keep the files until they release them."""

from __future__ import annotations

import structlog

from heliograph_broker.storage.base.scheduler import Scheduler

from .segment import Segment
from .segment_files import SegmentFiles

log = structlog.get_logger(__name__)

#: A file that is deleted is truncated by so much at a time (bytes), with a pause: to free much of it in one go keeps
#: the file system's syncs waiting.
_CUT_BYTES = 2 * 1024 * 1024
_CUT_PAUSE_S = 0.02


class LeavingSegments:
    """Owned by the event loop; unlinks in the background."""

    def __init__(self, files: SegmentFiles, scheduler: Scheduler) -> None:
        self._files = files
        self._scheduler = scheduler
        self._segments: dict[Segment, None] = {}
        #: Their disk space.
        self.disk_bytes = 0
        self._closed = False

    def holds(self, ledger_id: int) -> bool:
        """Return whether a file that is not gone yet has entries of a ledger."""
        return any(ledger_id in segment.runs for segment in self._segments)

    def retire(self, segment: Segment) -> None:
        """Unlink a segment that is no longer in the index, once its last reader has released it.

        A file in which damage was found is kept aside instead.
        """
        self.disk_bytes += segment.file_bytes
        self._segments[segment] = None

        def remove() -> None:
            segment.close()
            if segment.damage:
                self._files.keep_aside(segment, str(segment.damage[0]))
                return
            segment.remove_files(_CUT_BYTES, lambda: self._scheduler.pause(_CUT_PAUSE_S))

        def removed(result: object) -> None:
            self.disk_bytes -= segment.file_bytes
            if isinstance(result, Exception):
                log.error("removing a segment failed", path=str(segment.path), error=str(result))
                return
            del self._segments[segment]

        def unused() -> None:
            # Unmapping and unlinking take a while for a large file: not on the event loop.
            if self._closed:
                segment.close()
            else:
                self._scheduler.background(remove, removed)

        segment.retire(unused)

    def close(self) -> None:
        """Unlink nothing more and close every file; the next start removes what is left. The threads have ended."""
        self._closed = True
        for segment in self._segments:
            segment.close()
