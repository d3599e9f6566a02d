"""The ids of ledgers: never given out twice, also not by two stores, as every store has an epoch of its own."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from heliograph_broker.storage.base.record_sum import number_in
from heliograph_broker.storage.commit.group_commit import GroupCommit

log = structlog.get_logger(__name__)

#: Key of the record of the ids that are reserved.
RESERVED_KEY = b"next-ledger-id"
#: So many ids are reserved at a time.
_BLOCK = 1000
#: A ledger's id is the store's epoch and a number: ids of two stores can meet without clashing.
_EPOCH_SHIFT = 40
#: Epochs are below this, so that ids stay below 2^53, where readers of JSON keep integers exact.
MAX_EPOCH = 1 << 13


class LedgerIds:
    """Owned by the event loop."""

    def __init__(self, writer: GroupCommit, stored: bytes | None, ledgers: Iterable[int], new_epoch: int) -> None:
        """``stored`` is the record at :data:`RESERVED_KEY`; without one, ids are of the epoch ``new_epoch``.

        The ids of ``ledgers``, which have entries, are taken whatever the record says.
        """
        self._writer = writer
        number = number_in(stored)
        if stored is not None and number is None:
            log.error("the record of the ids given to ledgers is damaged; ledgers get ids of another epoch")
        reserved = new_epoch << _EPOCH_SHIFT if number is None else number
        # Metadata that is older than the segments, put there by hand, must not lead to ids that are taken.
        limit = reserved + (1 << _EPOCH_SHIFT) - (reserved & ((1 << _EPOCH_SHIFT) - 1))
        taken = max((ledger for ledger in ledgers if ledger < limit), default=0)
        self._last = self._reserved = max(reserved, taken)

    def next(self) -> int:
        """Return a ledger id never returned before, also not before a crash.

        The reservation it comes from joins the group that is filled now. Whatever names the id comes later, so it is
        neither durable nor confirmed before the reservation is: a group that fails is written again with the next one.
        """
        if self._last >= self._reserved:
            self._reserved = self._last + _BLOCK
            self._writer.put(RESERVED_KEY, str(self._reserved).encode())
        self._last += 1
        return self._last

    @property
    def epoch(self) -> int:
        """The store's part of its ledger ids; 0 for a store of a version that had no epochs."""
        return self._last >> _EPOCH_SHIFT
