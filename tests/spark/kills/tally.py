"""The messages that are published, and what a place that they were written to lacks of them or has too much."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple
from zlib import crc32

KEYS = 97
#: How many numbers a difference names.
NAMED = 5
#: A topic or partition, a ledger, an entry, and the index in its batch, -1 for an entry that is no batch.
Id = tuple[str, int, int, int]


class Row(NamedTuple):
    """A message as it is found."""

    key: str | None
    value: bytes
    id: Id


def message(number: int) -> tuple[str, bytes]:
    """Return the key and the value of a message: its number, and a checksum of number and key."""
    key = f"k{number % KEYS}"
    return key, b"%d %08x" % (number, crc32(b"%s %d" % (key.encode(), number)))


class Tally:
    """Counts rows, each of which should be another of the messages 0 to ``count - 1``."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._rows = 0
        self._sum = 0
        self._seen = bytearray(count)
        self._doubled: list[int] = []
        self._foreign: list[bytes] = []
        #: The indexes of an entry's rows, as bits, so that millions of ids fit into memory.
        self._indexes: dict[tuple[str, int, int], int] = {}
        self._same_id: list[Id] = []

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._rows += 1
            self._add_id(row.id)
            digits = row.value.partition(b" ")[0]
            number = int(digits) if digits.isdigit() else -1
            if not 0 <= number < self._count or message(number) != (row.key, row.value):
                self._foreign.append(row.value)
                continue
            self._sum += number
            if self._seen[number]:
                self._doubled.append(number)
            self._seen[number] = 1

    def _add_id(self, id: Id) -> None:
        topic, ledger, entry, index = id
        found = self._indexes.get((topic, ledger, entry), 0)
        if found >> index + 1 & 1:
            self._same_id.append(id)
        self._indexes[topic, ledger, entry] = found | 1 << index + 1

    def differences(self) -> list[str]:
        """Return what is not as it should be, a line each; nothing if every message is there once."""
        found = []
        if self._rows != self._count:
            found.append(f"{self._rows} messages instead of {self._count}")
        if self._sum != (total := self._count * (self._count - 1) // 2):
            found.append(f"the sum of the numbers is {self._sum} instead of {total}")
        lost = self._count - sum(self._seen)
        if lost:
            first = islice((number for number, seen in enumerate(self._seen) if not seen), NAMED)
            found.append(f"{lost} lost: {_named(first, lost)}")
        for what, rows in (
            ("more often than once", self._doubled),
            ("not as published", self._foreign),
            ("with the id of another", self._same_id),
        ):
            if rows:
                found.append(f"{len(rows)} {what}: {_named(rows[:NAMED], len(rows))}")
        return found


def _named(first: Iterable[object], count: int) -> str:
    return ", ".join(map(str, first)) + (", …" if count > NAMED else "")
