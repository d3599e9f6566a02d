"""Entries for a store without topics, and a sink that notes what became of them."""

from __future__ import annotations

from heliograph_broker.storage.base.entry import Entry


class Sink:
    """Notes the ids of entries that were stored, of those that were not, and why."""

    def __init__(self) -> None:
        self.durable: list[int] = []
        self.failed: list[int] = []
        self.errors: list[Exception] = []

    def entries_durable(self, entries: list[Entry]) -> None:
        self.durable += [entry.entry_id for entry in entries]

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        self.failed += [entry.entry_id for entry in entries]
        self.errors.append(error)


def entry(entry_id: int, size: int = 1024, ledger_id: int = 1) -> Entry:
    """Return one of a ledger's entries, which all have the same size (bytes)."""
    return Entry(ledger_id, entry_id, 0, 0, 0, -1, 1, 1, entry_id + 1, (entry_id + 1) * size, b"x" * size)
