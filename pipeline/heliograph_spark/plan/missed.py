"""Detects, while a range is read, that entries of it are gone."""

from __future__ import annotations

import logging
import time

from .errors import DataLossError
from .options import ReadOptions
from .positions import Position
from .ranges import Range
from .topics import ledgers_of

log = logging.getLogger(__name__)

#: Entries that were not received are looked for among the stored ones this often.
_CHECK_EVERY_S = 1.0


class Missed:
    """Entries of a range that were not received: they are gone, or hold no message.

    Where the options let the query go on without those that are gone, the log names them.
    """

    def __init__(self, wanted: Range, options: ReadOptions) -> None:
        self._range = wanted
        self._options = options
        self._last = wanted.start.entry_key
        self._begins = True
        #: Whether something before the range was received: then all that follows it is there.
        self._follows = False
        self._gaps: list[tuple[Position, Position]] = []
        self._check_at = 0.0

    def received(self, ledger: int, entry: int) -> None:
        """Take notice of the next entry. Raises :class:`DataLossError` if it shows that others are gone."""
        key, before, begins = (ledger, entry), self._last, self._begins
        if key <= before:
            self._follows = True
            return
        self._last, self._begins = key, False
        if (entry == before[1] + 1 and ledger == before[0]) or not self._options.notices_loss:
            return
        last = self._range.start if begins else Position(*before)
        place = Position(ledger, entry)
        if self._options.connection.admin_url is None:
            # Where the query begins, a ledger's first entries may have been deleted before that.
            if begins and not self._follows and not self._range.begins:
                self._check_first(place)
            return
        if not self._gaps:
            self._check_at = time.monotonic() + _CHECK_EVERY_S
        self._gaps.append((last, place))
        if time.monotonic() >= self._check_at:
            self.check()

    def check(self) -> None:
        """Look for the entries that were not received. Raises :class:`DataLossError` if any are not stored."""
        gaps, self._gaps = self._gaps, []
        if not gaps:
            return
        now = ledgers_of(self._options.connection, self._range.topic)
        for read, found in gaps:
            if lost := now.lost_between(read, found, self._range.ledgers):
                self._gone(
                    f"{lost} of the entries after {read} and before {found} were deleted while the query read them"
                    " (failOnDataLoss=false goes on without them)"
                )

    def all_after(self, last: Position) -> None:
        """Take notice that nothing more is stored. Raises :class:`DataLossError`."""
        if self._options.notices_loss:
            self._gone(f"nothing is stored after {last}, but the query reads up to {self._range.end}")

    def _gone(self, what: str) -> None:
        if self._options.looks_for_loss:
            raise DataLossError(f"{self._range.topic}: {what}")
        log.warning("%s: %s", self._range.topic, what)

    def _check_first(self, first: Position) -> None:
        """Judge the first message without the ledgers, by which it may be the first of a later one."""
        start = self._range.start
        if first.ledger == start.ledger or first.entry > 0:
            self._gone(
                f"the messages after {start} and before {first} are gone (a retention, their ledger's end, a TTL or a"
                " quota let them go; failOnDataLoss=false goes on without them)"
            )


def gone_topic(topic: str, position: str) -> str:
    """Return what to say of a partition that a stream has read up to a position, and that it does not find any more."""
    return (
        f"{topic} is gone, of which the query has read up to {position}; failOnDataLoss=false goes on without it, and a"
        " query of other topics needs a checkpoint of its own"
    )
