"""The table of docs/policies.md names tests that exist, and names them in full."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_TABLE = (_ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
_NAMED = re.compile(r"([a-z_/]+\.py)::(\w+)")
_ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for section in re.split(r"^## ", _TABLE, flags=re.MULTILINE)
    if section.startswith(("Pulsar", "RabbitMQ"))
    for line in section.splitlines()
    if line.startswith("| ") and not line.startswith("| statement")
]


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("file", sorted({file for file, _ in _NAMED.findall(_TABLE)}))
def test_every_test_named_in_the_table_of_policies_exists(file: str) -> None:
    there = _functions(_ROOT / "tests" / file)
    named = {test for named_file, test in _NAMED.findall(_TABLE) if named_file == file}
    assert named - there == set()


def test_every_statement_has_a_test_or_a_reason() -> None:
    assert len(_ROWS) > 70
    for row in _ROWS:
        assert len(row) == 2, row
        statement, shown_by = row
        assert statement.endswith((".", "?")), statement
        assert _NAMED.search(shown_by) or shown_by.startswith("not applicable: "), statement
