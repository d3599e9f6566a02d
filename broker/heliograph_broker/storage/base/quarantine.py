"""Records of quarantined ledgers: for each ledger, when a start first found that nothing refers to it."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from .record_sum import number_in

PREFIX = b"store/quarantine/"
_LEDGER = struct.Struct(">Q")


def key(ledger_id: int) -> bytes:
    """Return the key of a ledger's record, whose content is a time (wall-clock ms)."""
    return PREFIX + _LEDGER.pack(ledger_id)


def since(records: Iterable[tuple[bytes, bytes]]) -> dict[int, int]:
    """Return when each ledger was found first (wall-clock ms); damaged records are left out."""
    found: dict[int, int] = {}
    for record_key, content in records:
        name, time_ms = record_key.removeprefix(PREFIX), number_in(content)
        if len(name) == _LEDGER.size and time_ms is not None:
            found[_LEDGER.unpack(name)[0]] = time_ms
    return found
