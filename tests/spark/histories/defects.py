"""Known defects of reading, which are put back by replacing what prevents them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from heliograph_spark.decode.chunks import MissingChunks
from heliograph_spark.decode.entries import is_chunk
from heliograph_spark.plan.errors import DataLossError, PulsarSourceError
from heliograph_spark.plan.ledgers import Ledgers
from heliograph_spark.plan.missed import Missed
from heliograph_spark.plan.options import ReadOptions
from heliograph_spark.plan.positions import Position
from heliograph_spark.plan.ranges import Range, cut
from heliograph_spark.run import reading, source
from heliograph_spark.wire.entry_reader import EntryReader, Start


class Defect(NamedTuple):
    """``what`` says it in words; ``owner.name`` is replaced by ``broken`` for each of ``patches``."""

    what: str
    patches: tuple[tuple[Any, str, Any], ...]


class _HeldLedgers(Missed):
    """With a subscription it takes what comes for what follows."""

    def __init__(self, wanted: Range, options: ReadOptions) -> None:
        super().__init__(wanted, replace(options, fail_on_data_loss=False) if options.subscription else options)


class _EndsOfLedgers(Missed):
    """Without a subscription it also takes the first entry of a later ledger for a loss."""

    def __init__(self, wanted: Range, options: ReadOptions) -> None:
        super().__init__(wanted, options)
        self._first = wanted.start.entry >= 0 and options.looks_for_loss and options.subscription is None
        self._wanted = wanted

    def received(self, ledger: int, entry: int) -> None:
        start, self._first, first = self._wanted.start, False, self._first
        if first and ledger > start.ledger:
            raise DataLossError(
                f"{self._wanted.topic}: the messages after {start} and before {ledger}:{entry} are gone"
            )
        super().received(ledger, entry)


def _start_inclusive(wanted: Range, _: ReadOptions) -> Start:
    return Start.at(wanted.start) if wanted.start.entry >= 0 else Start.after(wanted.start)


_check_stored = source._check_stored


def _checked_unheld(wanted: Range, ledgers: Ledgers, options: ReadOptions) -> None:
    if options.subscription is None:
        _check_stored(wanted, ledgers, options)


_last_position = EntryReader.last_position


def _last_read(self: EntryReader) -> Position | None:
    last = _last_position(self)
    if last is None:
        return None
    with EntryReader(self._brokers, self._topic, Start.at(last)) as reader:
        for entry in reader.read(10.0):
            if is_chunk(entry.metadata):
                raise PulsarSourceError(f"{self._topic}: there was no answer in time")
    return last


def _near(_: str, missing: MissingChunks, __: ReadOptions) -> Iterator[Start]:
    ledger, entry = missing.before
    yield Start(ledger, max(0, entry - 32))


def _without_ledgers(whole: Range, max_entries: int) -> list[Range]:
    return cut(Range(whole.topic, whole.start, whole.end), max_entries)


DEFECTS = {
    "held-ledgers": Defect(
        "with a subscription, whatever comes first is taken for what follows",
        ((source, "_check_stored", _checked_unheld), (reading, "Missed", _HeldLedgers)),
    ),
    "ends-of-ledgers": Defect(
        "without a subscription, the first entry of a later ledger is taken for a loss",
        ((reading, "_begin", _start_inclusive), (reading, "Missed", _EndsOfLedgers)),
    ),
    "last-chunk": Defect(
        "the end of a topic is found by reading its last message",
        ((EntryReader, "last_position", _last_read),),
    ),
    "compacted-is-lost": Defect(
        "what compaction removed is taken for a loss",
        ((ReadOptions, "notices_loss", property(lambda _: True)),),
    ),
    "near-chunks": Defect(
        "earlier chunks are looked for in 32 entries of one ledger",
        ((reading, "_places_before", _near),),
    ),
    "one-split": Defect(
        "everything before the last ledger is one split",
        ((source, "cut", _without_ledgers),),
    ),
}


@contextmanager
def put_back(name: str) -> Iterator[None]:
    """Have a defect for the time of the ``with``."""
    with ExitStack() as stack:
        for owner, attribute, broken in DEFECTS[name].patches:
            stack.enter_context(patch.object(owner, attribute, broken))
        yield
