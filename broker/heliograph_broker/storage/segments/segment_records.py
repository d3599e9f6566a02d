"""Records the contents of closed segments in the metadata: a start notices missing ones and names the lost ranges.

A segment's record is written when it gets its first entries (then it is empty), when it is closed or has
replaced others, and deleted when it leaves. The file and the record do not change in one step, which does no harm: what
a record lists counts as lost only if no other file covers the segment's numbers, no other segment has the entries, and
they are still wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import structlog

from heliograph_broker.storage.base.damage import LostRange

from .segment import Segment, parse_name

log = structlog.get_logger(__name__)

PREFIX = b"store/segment/"
#: Ledger, first and last entry.
_Runs = list[tuple[int, int, int]]


def key(name: str) -> bytes:
    """Return the key of the record of the segment in the file ``name``."""
    return PREFIX + name.encode()


#: Record of the open segment: its file must exist, and its content is not listed.
OPEN: bytes = msgspec.msgpack.encode([])


def orders(record_key: bytes) -> tuple[int, int]:
    """Return the first and last number of the segment that a record is of. Raises :class:`ValueError`."""
    first, last, _ = parse_name(Path(record_key.removeprefix(PREFIX).decode()))
    return first, last


def names(record_keys: Iterable[bytes]) -> list[str]:
    """Return the names of the files that records are of."""
    return [record_key.removeprefix(PREFIX).decode() for record_key in record_keys]


def sound(records: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the records that can be decoded; the others are logged."""
    found: dict[bytes, bytes] = {}
    for record_key, value in records:
        try:
            orders(record_key)
            msgspec.msgpack.decode(value, type=_Runs)
        except ValueError as error:
            log.error("the record of a segment is damaged", key=str(record_key), error=str(error))
        else:
            found[record_key] = value
    return found


def encode(segment: Segment) -> bytes:
    """Return the record of a closed segment."""
    return msgspec.msgpack.encode([(ledger_id, run.first, run.last) for ledger_id, run in segment.runs.items()])


class SegmentRecords:
    """The records that change: kept back until the store can write them."""

    def __init__(self) -> None:
        self._kept_back: dict[bytes, bytes | None] = {}
        self._write: Callable[[bytes, bytes | None], None] | None = None

    def write_with(self, write: Callable[[bytes, bytes | None], None]) -> None:
        """Give ``write`` each record from now on, and those kept back until now: key and value, None to delete it."""
        self._write = write
        for record_key, value in self._kept_back.items():
            write(record_key, value)
        self._kept_back.clear()

    def put_open(self, segment: Segment) -> None:
        """Write the record of a segment that gets entries from now on."""
        self._put(key(segment.path.name), OPEN)

    def put(self, segment: Segment) -> None:
        """Write the record of a closed segment."""
        self._put(key(segment.path.name), encode(segment))

    def delete(self, name: str) -> None:
        """Delete the record of the segment in the file ``name``."""
        self._put(key(name), None)

    def _put(self, record_key: bytes, value: bytes | None) -> None:
        if self._write is None:
            self._kept_back[record_key] = value
        else:
            self._write(record_key, value)


class MissingSegments:
    """The segments that have a record and no file, and what they held."""

    def __init__(self, records: Iterable[tuple[bytes, bytes]], present: Iterable[Path]) -> None:
        """``records`` are keys and values. Raises :class:`msgspec.DecodeError` or :class:`ValueError`."""
        covered = [parse_name(path)[:2] for path in present]
        #: By file name.
        self.runs: dict[str, _Runs] = {}
        for record_key, value in records:
            name = record_key.removeprefix(PREFIX).decode()
            first, last = orders(record_key)
            if not any(low <= first and last <= high for low, high in covered):
                self.runs[name] = msgspec.msgpack.decode(value, type=_Runs)
        self._by_ledger: dict[int, list[LostRange]] = {}
        for name, runs in self.runs.items():
            for ledger_id, first, last in runs:
                reason = f"segment {name} is missing or damaged"
                self._by_ledger.setdefault(ledger_id, []).append(LostRange(ledger_id, first, last, reason))

    def __bool__(self) -> bool:
        return bool(self._by_ledger)

    def keys(self) -> set[bytes]:
        """Return the keys of the missing segments' records."""
        return {key(name) for name in self.runs}

    @property
    def open_segment(self) -> bool:
        """Whether the segment that was written last is among them: the end of any ledger may have been in it."""
        return [] in self.runs.values()

    def ledgers(self) -> Iterable[int]:
        """Return the ledgers of which something is missing."""
        return self._by_ledger.keys()

    def entries(self) -> int:
        """Return how many entries that are still wanted are missing."""
        return sum(lost.last - lost.first + 1 for ranges in self._by_ledger.values() for lost in ranges)

    def ranges(self, ledger_id: int) -> list[LostRange]:
        """Return the ranges of a ledger that are missing."""
        return self._by_ledger.get(ledger_id, [])

    def covering(self, ledger_id: int, entry_id: int) -> LostRange | None:
        """Return the missing range that has an entry, None if none has."""
        for missing in self._by_ledger.get(ledger_id, ()):
            if missing.first <= entry_id <= missing.last:
                return missing
        return None

    def keep(self, wanted: Mapping[int, int]) -> list[str]:
        """Forget what is not wanted (ledger -> first entry); return the names of segments of which nothing is left."""
        for ledger_id, ranges in list(self._by_ledger.items()):
            floor = wanted.get(ledger_id)
            left = (
                []
                if floor is None
                else [each._replace(first=max(each.first, floor)) for each in ranges if each.last >= floor]
            )
            if left:
                self._by_ledger[ledger_id] = left
            else:
                del self._by_ledger[ledger_id]
        done = []
        for name, runs in list(self.runs.items()):
            if not any(last >= wanted[ledger_id] for ledger_id, _, last in runs if ledger_id in wanted):
                del self.runs[name]
                done.append(name)
        return done
