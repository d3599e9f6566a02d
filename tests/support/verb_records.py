"""The recorded answers to the scripts of ``tests/verbs``: Apache Pulsar's, and Heliograph's where it differs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.verb_answers import Answer
from tests.support.verbs import VERBS, Given, Table


class Recorded(NamedTuple):
    """A command with Pulsar's answer; ``here`` is Heliograph's, None if it agrees."""

    line: str
    pulsar: Answer
    here: Answer | None = None


def path_of(table: Table) -> Path:
    """Return the file with the answers of a table."""
    return VERBS / "recorded" / table.tool / f"{table.name}.json"


def recorded(table: Table) -> list[Recorded]:
    """Return the commands of a table in their order, none if it was never recorded."""
    path = path_of(table)
    rows = json.loads(path.read_text("utf-8")) if path.exists() else []
    return [
        Recorded(row["run"], Answer(*row["pulsar"]), Answer(*row["here"]) if "here" in row else None) for row in rows
    ]


def write(table: Table, rows: Sequence[Recorded]) -> None:
    """Write the answers of a table, a command a line."""
    path = path_of(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    documents = [
        {"run": row.line, "pulsar": list(row.pulsar)} | ({"here": list(row.here)} if row.here else {}) for row in rows
    ]
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in documents)
    path.write_text(f"[\n{lines}\n]\n", "utf-8")


def with_pulsar(table: Table, given: Sequence[Given]) -> list[Recorded]:
    """Return the record with Pulsar's new answers; Heliograph's stay where the command does."""
    here = {(row.line, at): row.here for at, row in enumerate(recorded(table))}
    return [Recorded(each.line, each.answer, here.get((each.line, at))) for at, each in enumerate(given)]


def with_heliograph(table: Table, given: Sequence[Given]) -> list[Recorded]:
    """Return the record with Heliograph's new answers. Raises :class:`ValueError` if the commands are others."""
    return [
        Recorded(row.line, row.pulsar, None if each.answer.agrees(row.pulsar) else each.answer)
        for row, each in _paired(table, given)
    ]


def unlike_pulsar(table: Table, given: Sequence[Given]) -> dict[str, tuple[Answer, Answer]]:
    """Return the commands to which a Pulsar answers in another way than recorded, with both answers."""
    pairs = _paired(table, given)
    return {
        f"{at}: {row.line}": (row.pulsar, each.answer)
        for at, (row, each) in enumerate(pairs)
        if not each.answer.agrees(row.pulsar)
    }


def unlike_record(table: Table, given: Sequence[Given]) -> dict[str, tuple[Answer, Answer]]:
    """Return the commands to which Heliograph answers in another way than recorded, with both answers."""
    found = {}
    for at, (row, each) in enumerate(_paired(table, given)):
        agreed = each.answer.agrees(row.pulsar)
        if agreed != (row.here is None) or (row.here is not None and not each.answer.agrees(row.here)):
            found[f"{at}: {row.line}"] = (row.here or row.pulsar, each.answer)
    return found


def _paired(table: Table, given: Sequence[Given]) -> list[tuple[Recorded, Given]]:
    rows = recorded(table)
    if [row.line for row in rows] != [each.line for each in given]:
        raise ValueError(f"the commands of {table.name} are not those that were recorded: run scripts/record-verbs")
    return list(zip(rows, given, strict=True))
