"""Checks of a data directory without a broker: each finding states its meaning and the action to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from heliograph_broker.messaging.base.records import TopicRecord
from heliograph_broker.messaging.log import invariants
from heliograph_broker.messaging.log.unreadable_records import readable_key
from heliograph_broker.storage.base.record_sum import number_in
from heliograph_broker.storage.base.tombstones import HAS_TOMBSTONES
from heliograph_broker.storage.copies.inspection import Contents
from heliograph_broker.storage.disk.identity import FORMAT_VERSION, KNOWN_VERSIONS
from heliograph_broker.storage.ledgers.ledger_ids import RESERVED_KEY

from .claims import Claim, Claims

#: By ledger, the first and last entry of each range that is there, in order.
Stored = Mapping[int, Sequence[tuple[int, int]]]


class Finding(NamedTuple):
    """A finding: the problem, its meaning, and the action to take; each continues the sentence."""

    what: str
    meaning: str
    action: str

    def __str__(self) -> str:
        return f"{self.what}: {self.meaning}; {self.action}"


class Quarantined(NamedTuple):
    """A ledger that no record speaks of, its first and last entry and its bytes."""

    ledger_id: int
    first: int
    last: int
    size: int


_SALVAGE = "rescue what can be read with 'heliograph store salvage', or restore a backup with 'heliograph restore'"


def check(contents: Contents, claims: Claims) -> list[Finding]:
    """Return everything that is wrong, the worst first."""
    return [
        *_format(contents),
        *_metadata(contents, claims),
        *_segments(contents),
        *_ledgers(contents, claims),
        *_records(contents, claims),
    ]


def quarantined(contents: Contents, claims: Claims) -> list[Quarantined]:
    """Return the ledgers that are kept although no record names them."""
    if not contents.has_metadata:
        return []
    # Versions without tombstones left ledgers behind, which go at the first start of this one.
    garbage_to = 0 if HAS_TOMBSTONES in contents.records else number_in(contents.records.get(RESERVED_KEY)) or 0
    return [
        Quarantined(ledger_id, runs[0].first, runs[-1].last, sum(run.total - run.dead_total for run in runs))
        for ledger_id, runs in sorted(contents.stored().items())
        if ledger_id not in claims.ledgers and ledger_id not in claims.tombstones and ledger_id > garbage_to
    ]


def _readable_ranges(contents: Contents) -> Stored:
    return {ledger_id: [(run.first, run.last) for run in runs] for ledger_id, runs in contents.stored().items()}


def end_offset(stored: Stored, record: TopicRecord) -> int:
    """Return one beyond the offset of a topic's last stored entry."""
    end = record.first_offset
    base = record.base_offset
    for ledger in record.ledgers:
        for _, last in stored.get(ledger.ledger_id, ()):
            end = max(end, base + last + 1)
        base += ledger.entries
    return end


def lost(stored: Stored, expected: Stored, claims: Claims) -> Iterator[tuple[int, Claim, int, int]]:
    """Yield the entries that topics still want and ``stored`` does not have: ledger, claim, first and last entry.

    ``expected`` are the entries stored once, readable or not.
    """
    ends = {name: end_offset(expected, record) for name, record in claims.topics.items()}
    for ledger_id, claim in sorted(claims.ledgers.items()):
        last = claim.last
        if last is None:
            last = max((end for _, end in expected.get(ledger_id, ())), default=-1)
        elif not claim.compacted:
            # A kill may leave a record of more entries than ever became durable, if none came after them.
            last = min(last, ends[claim.topic] - 1 - claim.base)
        for first, end in gaps(stored.get(ledger_id, ()), claim.first, last):
            yield ledger_id, claim, first, end


def gaps(ranges: Sequence[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield what ``ranges``, which are in order, leave out of the entries ``first..last``."""
    for begin, end in ranges:
        if begin > first and first <= last:
            yield first, min(begin - 1, last)
        first = max(first, end + 1)
    if first <= last:
        yield first, last


def _format(contents: Contents) -> Iterator[Finding]:
    if contents.format_text is None:
        if contents.segments:
            yield Finding("FORMAT is missing", "no broker starts on this directory", _SALVAGE)
        return
    if contents.format is None:
        known = " and ".join(f"'heliograph {version}'" for version in KNOWN_VERSIONS)
        yield Finding(
            f"FORMAT says '{contents.format_text[:80]}'",
            f"this version knows {known}",
            "use the version of Heliograph that wrote it, or, if FORMAT is damaged, 'heliograph store salvage'",
        )


def _metadata(contents: Contents, claims: Claims) -> Iterator[Finding]:
    version = 0 if contents.format is None else contents.format.version
    expected_id = "" if contents.format is None else contents.format.store_id
    if contents.metadata_bytes == 0:
        if contents.segments or version >= FORMAT_VERSION:
            yield Finding(
                "metadata.lmdb is missing", "what topics, subscriptions and policies there were is lost", _SALVAGE
            )
    elif contents.metadata_problem:
        yield Finding(
            f"metadata.lmdb is damaged ({contents.metadata_problem})",
            f"{len(contents.records):,} records of topics, subscriptions and policies can be read, others cannot",
            _SALVAGE,
        )
    elif expected_id and contents.identity is None:
        yield Finding(
            "metadata.lmdb belongs to no store", f"the directory belongs to the store {expected_id}", _SALVAGE
        )
    elif expected_id and contents.identity is not None and contents.identity.store_id != expected_id:
        yield Finding(
            f"metadata.lmdb belongs to the store {contents.identity.store_id}",
            f"the directory belongs to the store {expected_id}, so one of the two was put here by mistake",
            "put back the one that belongs here",
        )
    for key, reason in claims.unreadable.items():
        yield Finding(
            f"the record {readable_key(key)} cannot be read ({reason})",
            "a broker keeps it aside when it starts, and goes on with one that deletes nothing",
            "restore a backup with 'heliograph restore', or configure again what the record held",
        )


def _segments(contents: Contents) -> Iterator[Finding]:
    for file in contents.segments:
        name = _name(contents, file.path)
        if file.problem:
            yield Finding(
                f"{name} is damaged ({file.problem})",
                "a broker sets it aside, and what is only there is lost to it",
                _SALVAGE,
            )
        elif contents.is_foreign(file):
            yield Finding(
                f"{name} belongs to the store {file.store_id}",
                f"the directory belongs to the store {contents.store_id}, and no broker starts with both",
                "move it into a directory of its own",
            )
        elif file.store_id is None and file.runs and contents.format is not None and contents.format.store_id:
            yield Finding(
                f"{name} belongs to no store",
                f"the directory belongs to the store {contents.store_id}, and no broker starts with both",
                "move it into a directory of its own",
            )
    for file in contents.spare:
        if file.problem:
            yield Finding(
                f"{_name(contents, file.path)} was set aside",
                "it was damaged, and what is only there is not served",
                "rescue it with 'heliograph store salvage', or remove it",
            )
    for path in contents.unknown_files:
        yield Finding(
            f"{_name(contents, path)} is no file of a store", "no broker starts with it", "move it somewhere else"
        )


def _ledgers(contents: Contents, claims: Claims) -> Iterator[Finding]:
    if not contents.has_metadata:
        return
    damaged = {file.path.name for file in contents.segments if file.problem}
    for name in sorted(contents.listed().runs.keys() - damaged):
        yield Finding(
            f"segments/{name} is missing",
            "a broker starts, and serves what is in the others",
            "put it back, or restore a backup with 'heliograph restore'",
        )
    for ledger_id, claim, first, last in lost(_readable_ranges(contents), contents.expected(), claims):
        yield Finding(
            f"entries {first} to {last} of ledger {ledger_id} are in no segment",
            f"these messages of {claim.topic} are lost, and each subscription skips and counts them",
            "put back the segment they were in, or restore a backup with 'heliograph restore'",
        )
    for ledger_id, topics in sorted(claims.disputed.items()):
        yield Finding(
            f"ledger {ledger_id} is claimed by {' and '.join(topics)}",
            "two topics would serve the same messages",
            "restore a backup with 'heliograph restore'",
        )
    for found in quarantined(contents, claims):
        yield Finding(
            f"no topic names ledger {found.ledger_id} ({found.last - found.first + 1:,} entries)",
            "it is kept in quarantine and served to nobody",
            "make it a topic with 'heliograph store adopt', or let it go with 'heliograph store drop'",
        )


def _records(contents: Contents, claims: Claims) -> Iterator[Finding]:
    if not contents.has_metadata:
        return
    heals = "a broker heals it when it loads the topic"
    nothing = "nothing needs to be done"
    stored = contents.expected()
    ends = {topic: end_offset(stored, record) for topic, record in claims.topics.items()}
    for (topic, subscription), cursor in sorted(claims.cursors.items()):
        where = f"subscription {subscription} of {topic}"
        record = claims.topics.get(topic)
        if record is None:
            yield Finding(f"{where} has no topic ({invariants.OWNER})", "a broker removes it when it starts", nothing)
        elif cursor.mark_delete < record.first_offset - 1:
            what = f"{where} is at offset {cursor.mark_delete}, behind the trim point {record.first_offset}"
            yield Finding(f"{what} ({invariants.TRIM_POINT})", heals, nothing)
        elif cursor.mark_delete >= ends[topic]:
            what = f"{where} is at offset {cursor.mark_delete}, and entries end before {ends[topic]}"
            yield Finding(f"{what} ({invariants.CURSOR})", heals, nothing)
    for topic, snapshot in sorted(claims.snapshots.items()):
        record = claims.topics.get(topic)
        if record is None:
            continue
        if snapshot.offset > ends[topic]:
            what = f"sequence ids of {topic} cover offset {snapshot.offset}, and entries end before {ends[topic]}"
            yield Finding(f"{what} ({invariants.SEQUENCE_IDS})", heals, nothing)
        elif snapshot.offset < record.first_offset:
            what = f"sequence ids of {topic} cover offset {snapshot.offset}, behind the trim point"
            yield Finding(f"{what} {record.first_offset} ({invariants.SNAPSHOT})", heals, nothing)


def _name(contents: Contents, path: Path) -> str:
    return str(path.relative_to(contents.path))
