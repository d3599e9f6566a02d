"""The table of docs/policies.md names tests that exist, and names them in full."""

from __future__ import annotations

import re

import pytest

from tests.support.named_tests import NAMED, TESTS, functions_of, named_in

_TABLE = (TESTS.parent / "docs" / "policies.md").read_text(encoding="utf-8")
_BY_FILE = named_in(_TABLE)
_ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for section in re.split(r"^## ", _TABLE, flags=re.MULTILINE)
    if section.startswith(("Pulsar", "RabbitMQ"))
    for line in section.splitlines()
    if line.startswith("| ") and not line.startswith("| statement")
]


@pytest.mark.parametrize("file", sorted(_BY_FILE))
def test_every_test_named_in_the_table_of_policies_exists(file: str) -> None:
    assert _BY_FILE[file] - functions_of(file) == set()


def test_every_statement_has_a_test_or_a_reason() -> None:
    assert len(_ROWS) > 70
    for row in _ROWS:
        assert len(row) == 2, row
        statement, shown_by = row
        assert statement.endswith((".", "?")), statement
        assert NAMED.search(shown_by) or shown_by.startswith("not applicable: "), statement
