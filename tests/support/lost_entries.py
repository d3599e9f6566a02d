"""A store that says of chosen entries that they are lost, as it does where a segment is damaged."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_broker.storage.base.damage import DamagedEntries
from heliograph_broker.storage.base.entry import EntryHeader
from heliograph_broker.storage.ledgers.ledger_reader import LedgerReader

from .core import Core


class LostEntries:
    """Loses entries of the ledger that the entries of ``core`` are in; restarts of the core do not bring them back."""

    def __init__(self, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
        self._core = core
        self.entries: set[int] = set()
        header = LedgerReader.header
        lost = self.entries

        def damaged_header(reader: LedgerReader, ledger_id: int, entry_id: int) -> EntryHeader | None:
            if entry_id in lost:
                raise DamagedEntries(ledger_id, entry_id, entry_id, "damaged")
            return header(reader, ledger_id, entry_id)

        monkeypatch.setattr(LedgerReader, "header", damaged_header)
        for name in ("read", "read_headers"):
            monkeypatch.setattr(LedgerReader, name, self._around(getattr(LedgerReader, name)))

    def lose(self, *entries: int) -> None:
        """These entries cannot be read from now on."""
        self.entries.update(entries)

    def _around(self, real: Any) -> Any:
        lost = self.entries

        def read(reader: LedgerReader, ledger_id: int, first: int, last: int, *rest: Any) -> None:
            until = first
            if first in lost:
                while until + 1 <= last and until + 1 in lost:
                    until += 1
                rest[-1](DamagedEntries(ledger_id, first, until, "damaged"))
                return
            while until + 1 <= last and until + 1 not in lost:
                until += 1
            real(reader, ledger_id, first, until, *rest)

        return read
