"""The table of docs/operator.md names a test that exists for each thing it promises."""

from __future__ import annotations

import pytest

from tests.support.named_tests import NAMED, TESTS, functions_of, named_in

_GUIDE = (TESTS.parent / "docs" / "operator.md").read_text(encoding="utf-8")
_TABLE = _GUIDE.partition("## What is promised")[2]
_BY_FILE = named_in(_TABLE)
_ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in _TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| promise")
]


@pytest.mark.parametrize("file", sorted(_BY_FILE))
def test_every_test_named_in_the_table_of_promises_exists(file: str) -> None:
    assert _BY_FILE[file] - functions_of(file) == set()


def test_every_promise_has_a_test() -> None:
    assert len(_ROWS) >= 40
    for row in _ROWS:
        assert len(row) == 2, row
        promise, shown_by = row
        assert promise.endswith("."), promise
        assert all(NAMED.fullmatch(each) for each in shown_by.split(", ")), shown_by


def test_every_file_of_tests_on_the_api_server_shows_a_promise() -> None:
    files = {f"operator/{path.name}" for path in (TESTS / "operator").glob("test_*.py")}
    assert files - _BY_FILE.keys() == set()
