"""All segments of a data directory: which hold a ledger, which one is written, which are worth rewriting."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import structlog

from .scheduler import Scheduler
from .segment import Segment

log = structlog.get_logger(__name__)

#: A sealed segment with a smaller share of live bytes is rewritten.
REWRITE_BELOW = 0.5
#: An open segment that is mostly dead is sealed, so that it can be rewritten, once it holds this much (bytes).
SEAL_DEAD_BYTES = 4 * 1024 * 1024


class SegmentSet:
    """Owned by the event loop. The last segment of the list is the open one."""

    def __init__(self, directory: Path, segment_bytes: int, scheduler: Scheduler) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        # Virtual room only: the file grows as it is written. A group may go in after the roll size is reached.
        self._map_size = segment_bytes * 4 + 256 * 1024 * 1024
        self._scheduler = scheduler
        self._segments: list[Segment] = []
        self._by_ledger: dict[int, list[Segment]] = {}
        self._dirty = False
        self._rewriting = False
        self._retired: list[Segment] = []
        self._load()

    def _load(self) -> None:
        newest: dict[int, Path] = {}
        for path in sorted(self._directory.iterdir()):
            if path.suffix != ".lmdb":
                if not path.name.endswith("-lock") or not path.with_name(path.name.removesuffix("-lock")).exists():
                    path.unlink()
                continue
            order = int(path.stem.split("-")[0])
            older = newest.get(order)
            if older is not None:
                older.unlink()
                older.with_name(older.name + "-lock").unlink(missing_ok=True)
            newest[order] = path
        for order in sorted(newest):
            generation = int(newest[order].stem.split("-")[1])
            segment = Segment(self._directory, order, generation, self._map_size)
            segment.load_runs()
            self._segments.append(segment)
            self._index(segment)
        if not self._segments or self._segments[-1].written_bytes >= self._segment_bytes:
            self._open_next()

    def _index(self, segment: Segment) -> None:
        for ledger_id in segment.runs:
            self._by_ledger.setdefault(ledger_id, []).append(segment)

    def _open_next(self) -> None:
        order = self._segments[-1].order + 1 if self._segments else 1
        self._segments.append(Segment(self._directory, order, 1, self._map_size))

    @property
    def open_segment(self) -> Segment:
        return self._segments[-1]

    def written(self, segment: Segment, ledgers: set[int]) -> None:
        """``segment`` got entries of ``ledgers``; roll it when it is full."""
        for ledger_id in ledgers:
            holders = self._by_ledger.get(ledger_id)
            if holders is None:
                self._by_ledger[ledger_id] = [segment]
            elif holders[-1] is not segment:
                holders.append(segment)
        if segment.written_bytes >= self._segment_bytes:
            self._open_next()
            self._dirty = True

    def live_bytes(self) -> int:
        return sum(segment.live_bytes for segment in self._segments)

    def bounds(self, ledger_id: int) -> tuple[int, int] | None:
        holders = self._by_ledger.get(ledger_id)
        if not holders:
            return None
        return holders[0].runs[ledger_id].first, holders[-1].runs[ledger_id].last

    def holder(self, ledger_id: int, entry_id: int) -> Segment | None:
        """Return the first segment that has ``entry_id`` or a later entry of the ledger."""
        for segment in self._by_ledger.get(ledger_id, ()):
            if segment.runs[ledger_id].last >= entry_id:
                return segment
        return None

    # -- space -----------------------------------------------------------------------------------------------

    def retain(self, kept: Mapping[int, int]) -> None:
        for ledger_id in list(self._by_ledger):
            first = kept.get(ledger_id)
            if first is None:
                self.drop(ledger_id)
            elif first > 0:
                self.trim(ledger_id, first)

    def trim(self, ledger_id: int, below: int) -> None:
        for segment in self._by_ledger.get(ledger_id, ()):
            run = segment.runs[ledger_id]
            if run.live_from < below:
                run.live_from = below
                self._dirty = True

    def drop(self, ledger_id: int) -> None:
        for segment in self._by_ledger.get(ledger_id, ()):
            run = segment.runs[ledger_id]
            run.live_from = run.last + 1
            self._dirty = True

    def reclaim(self, *, writing: bool) -> None:
        """Give back disk space: unlink dead segments, begin to rewrite a mostly dead one. Cheap if nothing changed.

        ``writing`` says that a group is on its way into the open segment, which then cannot be sealed.
        """
        if not self._dirty or self._rewriting:
            return
        self._dirty = False
        current = self.open_segment
        if (
            not writing
            and current.written_bytes >= SEAL_DEAD_BYTES
            and current.live_bytes < REWRITE_BELOW * current.written_bytes
        ):
            self._open_next()
        for segment in self._segments[:-1]:
            live = segment.live_bytes
            if live == 0:
                self._remove(segment)
            elif live < REWRITE_BELOW * segment.written_bytes and not self._rewriting:
                self._rewrite(segment)

    def _remove(self, segment: Segment) -> None:
        self._segments.remove(segment)
        self._forget_runs(segment)
        self._retire(segment)

    def _forget_runs(self, segment: Segment) -> None:
        for ledger_id in segment.runs:
            holders = self._by_ledger[ledger_id]
            holders.remove(segment)
            if not holders:
                del self._by_ledger[ledger_id]

    def _retire(self, segment: Segment) -> None:
        segment.retire()
        self._scheduler.background(segment.remove_files, _log_failure("removing a segment"))

    def _rewrite(self, segment: Segment) -> None:
        self._rewriting = True
        wanted = {
            ledger_id: (run.live_from, run.last) for ledger_id, run in segment.runs.items() if run.live_from <= run.last
        }
        segment.acquire()

        def done(result: Segment | Exception) -> None:
            self._rewriting = False
            segment.release()
            if isinstance(result, Exception):
                log.error("rewriting a segment failed; it stays as it is", path=str(segment.path), error=str(result))
                return
            self._dirty = True
            for ledger_id, run in result.runs.items():
                # What was trimmed while the copy was made is dead in the copy too.
                run.live_from = max(run.first, segment.runs[ledger_id].live_from)
            for ledger_id in segment.runs:
                holders = self._by_ledger[ledger_id]
                at = holders.index(segment)
                if ledger_id in result.runs:
                    holders[at] = result
                else:
                    del holders[at]
                    if not holders:
                        del self._by_ledger[ledger_id]
            self._segments[self._segments.index(segment)] = result
            self._retire(segment)

        self._scheduler.background(lambda: segment.rewrite(wanted), done)

    def close(self) -> None:
        for segment in self._segments:
            segment.retire()


def _log_failure(what: str):  # type: ignore[no-untyped-def]
    def done(result: object) -> None:
        if isinstance(result, Exception):
            log.error(f"{what} failed", error=str(result))

    return done
