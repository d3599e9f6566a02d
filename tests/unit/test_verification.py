"""Every statement of the documentation has a test that exists, and the pages that list them are current."""

from __future__ import annotations

import re

import pytest

from tests.support.statements import PAGES, PROJECT, TESTS, Page, functions_of, load, markdown, split_reference

_PAGES = {page.name: page for page in load()}
_every_page = pytest.mark.parametrize("page", _PAGES.values(), ids=_PAGES.keys())


def test_no_statement_was_lost() -> None:
    assert sum(len(list(page.statements())) for page in _PAGES.values()) >= 370


@_every_page
def test_every_test_that_is_named_exists(page: Page) -> None:
    named = [split_reference(reference) for each in page.statements() for reference in each.shown_by]
    missing = [
        f"{file}::{test}" for file, test in named if not functions_of(file) or (test and test not in functions_of(file))
    ]
    assert missing == []


@_every_page
def test_every_statement_is_a_sentence_with_either_tests_or_a_reason(page: Page) -> None:
    for each in page.statements():
        assert each.says.endswith((".", "?")), each.says
        assert "|" not in each.says + each.remark + each.not_applicable, each.says
        assert bool(each.shown_by) != bool(each.not_applicable), each.says
        assert not (each.remark and each.not_applicable), each.says
        assert len(each.shown_by) == len(set(each.shown_by)), each.says


@_every_page
def test_its_page_is_current(page: Page) -> None:
    written = (PAGES / f"{page.name}.md").read_text("utf-8")
    assert written == markdown(page), "run scripts/generate-verification"


def test_there_is_no_page_without_statements() -> None:
    # That on the verbs of the admin tools is made from their scripts.
    assert {path.stem for path in PAGES.glob("*.md")} == {*_PAGES, "admin-tools"}


@pytest.mark.parametrize("page", [page for page in _PAGES.values() if page.guide], ids=lambda page: page.name)
def test_a_guide_with_tables_of_statements_has_the_same_ones(page: Page) -> None:
    guide = (PROJECT / page.guide).read_text("utf-8")
    tables = re.findall(r"^\| (?:statement|promise) \|.*\n\|---.*\n((?:\|.*\n)+)", guide, re.MULTILINE)
    in_guide = [row.split(" | ")[0].removeprefix("| ") for table in tables for row in table.splitlines()]
    assert in_guide == [each.says for each in page.statements()]


def test_every_file_of_tests_on_the_api_server_shows_a_promise_of_the_operator() -> None:
    files = {f"operator/{path.name}" for path in (TESTS / "operator").glob("test_*.py")}
    named = {split_reference(reference)[0] for each in _PAGES["operator"].statements() for reference in each.shown_by}
    assert files - named == set()


def test_what_names_no_test_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'unit/x\.py' names no test; valid: unit/test_x\.py::test_name"):
        split_reference("unit/x.py")
