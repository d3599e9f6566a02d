"""The directory of the segments: what a start finds there, which files it takes, and which are kept aside."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import lmdb
import structlog

from heliograph_broker.storage.base.failure import lacks_space
from heliograph_broker.storage.disk.data_dir import DataDirError
from heliograph_broker.storage.disk.disk import Disk
from heliograph_broker.storage.disk.identity import UNREADABLE

from .segment import DAMAGE, DAMAGED_SUFFIX, Segment, parse_name

log = structlog.get_logger(__name__)


class SegmentFiles:
    """Creates and loads segments; owned by the event loop, except :meth:`keep_aside`."""

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int, store_id: str, *, adopt: bool) -> None:
        """``segment_bytes``: a segment of this size is full. ``adopt``: files without a store's id are this one's."""
        self._disk = disk
        self._directory = directory
        self.segment_bytes = segment_bytes
        # Virtual room only: the file grows as it is written. A group may go in after the roll size is reached.
        self._map_size = segment_bytes * 4 + 256 * 1024 * 1024
        self._store_id = store_id
        self._adopt = adopt
        #: False if the disk was too full to write the store's id into every file.
        self.all_adopted = True
        #: Files that are damaged and kept aside, in this directory.
        self.damaged: list[Path] = []

    def segment(self, orders: tuple[int, int], generation: int, *, writable: bool) -> Segment:
        """Return the segment with the first and last number ``orders``, whether its file exists or not."""
        return Segment(
            self._disk, self._directory, orders, generation, self._map_size, self._store_id, writable=writable
        )

    def load(self) -> list[Segment]:
        """Return the segments of the directory in the order of their numbers, and remove files that were replaced.

        Raises :class:`OSError`, ``lmdb.Error`` or, for files of another store, :class:`DataDirError`.
        """
        self.damaged.clear()
        found: list[tuple[int, int, int, Path]] = []
        for path in self._disk.files(self._directory):
            if path.suffix == DAMAGED_SUFFIX:
                self.damaged.append(path)
            elif path.suffix == ".lmdb":
                first, last, generation = parse_name(path)
                # The widest first, and among equals the latest generation.
                found.append((first, -last, -generation, path))
            elif not path.name.endswith("-lock") or not self._disk.exists(
                path.with_name(path.name.removesuffix("-lock"))
            ):
                self._disk.remove(path)
        covered = 0
        kept: list[tuple[tuple[int, int], int]] = []
        replaced: list[Path] = []
        for first, minus_last, minus_generation, path in sorted(found):
            if -minus_last <= covered:
                replaced.append(path)
                continue
            covered = -minus_last
            kept.append(((first, covered), -minus_generation))
        segments: list[Segment] = []
        for orders, generation in kept:
            # The last one may be written on.
            segment = self.segment(orders, generation, writable=orders[1] == covered and generation == 1)
            try:
                segment.load_runs()
                self._check_identity(segment, segments)
            except DAMAGE as error:
                for each in [*segments, segment]:
                    each.close()
                self.keep_aside(segment, str(error))
                # The files that it had replaced may still exist.
                return self.load()
            segments.append(segment)
        for path in replaced:
            self._disk.remove(path)
            self._disk.remove(path.with_name(path.name + "-lock"))
        return segments

    def damaged_orders(self) -> Iterable[int]:
        """Return the last number of each file that is kept aside: no new file must be taken for it."""
        return [parse_name(path.with_suffix(""))[1] for path in self.damaged]

    def _check_identity(self, segment: Segment, opened: Iterable[Segment]) -> None:
        found = segment.found_store_id
        if found == self._store_id or not self._store_id or not (found or segment.runs):
            return
        if found == UNREADABLE:
            log.error("a segment's id is damaged; the file is taken for one of this store", path=str(segment.path))
            return
        if found is None and self._adopt:
            try:
                segment.adopt()
            except (lmdb.Error, OSError) as error:
                if not lacks_space(error):
                    raise
                self.all_adopted = False
            return
        for each in [*opened, segment]:
            each.close()
        raise DataDirError(
            f"{segment.path} belongs to {f'the store {found}' if found else 'no store'}, the directory to the store "
            f"{self._store_id}; move the file away, or rescue what is in both with 'heliograph store salvage'"
        )

    def keep_aside(self, segment: Segment, reason: str) -> None:
        """Keep a damaged file under another name, where nothing removes it. Any thread. Raises :class:`OSError`."""
        log.error(
            "a segment is damaged; its file is kept aside and entries that only it held are lost",
            path=str(segment.path),
            error=reason,
        )
        segment.keep_aside()
        self.damaged.append(segment.path.with_name(segment.path.name + DAMAGED_SUFFIX))
