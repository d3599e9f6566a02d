"""Lost entries: entries that were stored and can no longer be read, and how reads of the store report them.

Every read of the store follows these rules, so that the core can skip exactly the lost entries:

- ``read`` and ``read_headers`` return the readable entries from the requested one on, up to the first damaged one. If
  the requested entry itself is lost, the result is a :class:`DamagedEntries` with the lost range, cut to the requested
  one; entries after its ``last_entry`` may be readable, so the next read begins there.
- ``map_frames`` yields the entries before the first damaged one and raises :class:`DamagedEntries` there.
- ``header`` raises it for an entry that is lost. It returns None for one that was trimmed or never stored.
- ``first_entry_where`` never raises it: a lost entry counts as the readable one before it.

An empty result always means that nothing is stored at or after the requested entry. Any other exception (no
descriptors left, an I/O error that may pass) says nothing about the entries: the same read may succeed later.
"""

from __future__ import annotations

from typing import NamedTuple


class LostRange(NamedTuple):
    """Entries ``first..last`` of a ledger, both included, and the reason why they cannot be read."""

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
