"""The rights that differ here from Apache Pulsar's: each cell of the matrix that differs has a reason in a table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from .answers import ABSENT, Matrix, kinds_of

_INTEGRATION: Final = Path(__file__).resolve().parents[2] / "integration"
#: Pulsar's answers, as ``scripts/rights-of-pulsar`` writes them.
RECORDED: Final = _INTEGRATION / "pulsar_4_2_4_rights.json"
TABLE: Final = _INTEGRATION / "rights_differences.yaml"
#: Answers that mean that the client may not; every other one means that it may.
REFUSALS: Final = ("401", "403", "AuthenticationError", "AuthorizationError")
MAY: Final = "may"


class Cell(NamedTuple):
    """A cell that differs, with what its client may on either side: :data:`MAY` or a refusal."""

    row: str
    kind: str
    pulsar: str
    here: str


class Cells(msgspec.Struct, forbid_unknown_fields=True):
    """Cells of a difference: rows, and kinds of clients separated by spaces ("*": all that differ so)."""

    #: What the client may, of Pulsar and of Heliograph.
    answers: tuple[str, str]
    clients: str
    rows: tuple[str, ...]

    def have(self, cell: Cell) -> bool:
        """Whether the cell is one of these."""
        return (
            (cell.pulsar, cell.here) == self.answers
            and (self.clients == "*" or cell.kind in self.clients.split())
            and (self.rows == ("*",) or cell.row in self.rows)
        )

    def missing(self, cells: list[Cell]) -> list[str]:
        """Return the rows and clients that are named here, and of which no cell differs so."""
        found = [cell for cell in cells if self.have(cell)]
        there = {cell.row for cell in found} | {cell.kind for cell in found} | ({"*"} if found else set())
        return [name for name in (*self.rows, *self.clients.split()) if name not in there]


class Difference(msgspec.Struct, forbid_unknown_fields=True):
    """Cells that differ for one reason; the texts are those of docs/differences.md."""

    pulsar: str
    here: str
    reason: str
    cells: tuple[Cells, ...]


def recorded() -> dict[str, Any]:
    """Return what Pulsar has answered."""
    answers: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return answers


def table() -> list[Difference]:
    """Return the differences that have a reason."""
    return msgspec.convert(yaml.safe_load(TABLE.read_text(encoding="utf-8")), list[Difference])


def absent_rows(pulsar: Matrix) -> set[str]:
    """Return the routes that Pulsar does not have: it says so to everybody whom it lets in."""
    return {row for row in pulsar if set(pulsar[row]) - {"401"} == {ABSENT}}


def cells(pulsar: Matrix, here: Matrix) -> Iterator[Cell]:
    """Yield the cells of the rows that both have, whether they differ or not."""
    for row in here.keys() - absent_rows(pulsar):
        theirs, ours = kinds_of(pulsar, row), kinds_of(here, row)
        assert theirs.keys() == ours.keys(), (row, "asked as other kinds of clients: record Pulsar's answers again")
        for kind in ours:
            yield Cell(row, kind, _right(theirs[kind]), _right(ours[kind]))


def differing(pulsar: Matrix, here: Matrix) -> list[Cell]:
    """Return the cells that differ, in their order."""
    return sorted(cell for cell in cells(pulsar, here) if cell.pulsar != cell.here)


def _right(answer: str) -> str:
    return answer if answer in REFUSALS else MAY
