"""Entries that were stored and cannot be read any more: how the store says so, and what the core does about it.

Every read of the store keeps to these rules, so that the core can go around exactly what is lost:

- ``read`` and ``read_headers`` give what is readable from the asked-for entry on, up to the first damaged place. If the
  asked-for entry itself is lost, the result is a :class:`DamagedEntries` that names the range, within what was asked
  for; what follows ``last_entry`` may be readable, so the next read begins there.
- ``map_frames`` yields what comes before the damaged place and raises :class:`DamagedEntries` when it gets there.
- ``header`` raises it for an entry that is lost. It returns None for one that was trimmed or never stored.
- ``first_entry_where`` never raises it: a lost entry is like the readable one before it.

An empty result means, as ever, that nothing is stored at or after the asked-for entry. Any other exception (no
descriptors left, an I/O error that may pass) says nothing about the entries: the same read may succeed later.
"""

from __future__ import annotations

from typing import NamedTuple


class LostRange(NamedTuple):
    """Entries ``first..last`` of a ledger, both included, and in a few words why they cannot be read."""

    ledger_id: int
    first: int
    last: int
    reason: str


class DamagedEntries(Exception):
    """The entries ``first_entry..last_entry`` of a ledger cannot be read, now or later; later ones may be."""

    def __init__(self, ledger_id: int, first_entry: int, last_entry: int, reason: str) -> None:
        super().__init__(f"entries {first_entry} to {last_entry} of ledger {ledger_id} are lost: {reason}")
        self.ledger_id = ledger_id
        self.first_entry = first_entry
        self.last_entry = last_entry
        self.reason = reason

    def within(self, last_entry: int) -> DamagedEntries:
        """Return the same for a read that ends with ``last_entry``."""
        return DamagedEntries(self.ledger_id, self.first_entry, min(self.last_entry, last_entry), self.reason)
