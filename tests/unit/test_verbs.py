"""The scripts of the admin tools' verbs, their records and their page fit together."""

from __future__ import annotations

import pytest

from tests.support.verb_page import PAGE, Class, markdown, own_verbs, rows, share
from tests.support.verb_records import recorded
from tests.support.verb_tools import ADMIN_LIBRARY, PULSAR_ADMIN, PULSARADMIN_GO, TOOLS, VerbTool
from tests.support.verbs import Table, load, verb

#: The share of verbs (%) that work in the tables that administrators' scripts use; it may grow.
_WORKS = {
    PULSAR_ADMIN: {
        "brokers": 92,
        "clusters": 50,
        "tenants": 100,
        "namespaces": 89,
        "topics": 94,
        "topicPolicies": 95,
        "subscriptions": 92,
    },
    PULSARADMIN_GO: {
        "Brokers": 100,
        "Clusters": 50,
        "Tenants": 100,
        "Namespaces": 87,
        "Topics": 93,
        "TopicPolicies": 94,
        "Subscriptions": 100,
    },
    ADMIN_LIBRARY: {
        "brokers": 92,
        "clusters": 66,
        "tenants": 100,
        "namespaces": 87,
        "topics": 92,
        "topicPolicies": 95,
        "subscriptions": 92,
    },
}
#: The share (%) in all of these tables together that works, and with those that are kept and shown.
_LEAST = {PULSAR_ADMIN: (91, 98), PULSARADMIN_GO: (91, 98), ADMIN_LIBRARY: (90, 97)}
_every_table = pytest.mark.parametrize(
    "table", [pytest.param(table, id=f"{tool.name}-{table.name}") for tool in TOOLS for table in load(tool.name)]
)
_every_tool = pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)


@_every_table
def test_every_command_has_a_recorded_answer(table: Table) -> None:
    commands = [line for script in [*table.scripts, *table.variants] for line in script if verb(line)]
    assert [row.line for row in recorded(table)] == commands, "run scripts/record-verbs pulsar, then heliograph"


@_every_table
def test_what_a_table_says_of_verbs_is_about_verbs_that_it_runs(table: Table) -> None:
    classes = (table.kept, table.holds, table.pulsar_fails, table.refused, table.without_script)
    named = {*(each for of in classes for each in of), *table.shape, *table.opaque, *table.unordered}
    assert named - {"*", *table.verbs()} == set()
    assert sum(len(of) for of in classes) == len({each for of in classes for each in of})
    assert {verb(line) for line in table.only_here} <= set(table.refused)


@_every_table
def test_where_pulsar_fails_it_refuses_what_succeeds_here(table: Table) -> None:
    unlike = [row for row in recorded(table) if row.here is not None and verb(row.line) in table.pulsar_fails]
    failed = {verb(row.line) for row in unlike if row.pulsar.code and row.here is not None and not row.here.code}
    assert failed == set(table.pulsar_fails)


@_every_tool
def test_every_verb_belongs_to_one_table(tool: VerbTool) -> None:
    tables = load(tool.name)
    found = [each for table in tables for each in own_verbs(tool, table, tables)]
    assert len(found) == len(set(found))
    assert set(found) == {each for table in tables for each in table.verbs()}


@pytest.mark.parametrize(
    ("tool", "name"), [pytest.param(tool, name, id=f"{tool.name}-{name}") for tool in TOOLS for name in _WORKS[tool]]
)
def test_no_fewer_verbs_of_a_table_work_than_before(tool: VerbTool, name: str) -> None:
    tables = load(tool.name)
    (table,) = (each for each in tables if each.name == name)
    assert share(rows(tool, table, tables)) >= _WORKS[tool][name]


@_every_tool
def test_nine_of_ten_verbs_of_these_tables_work(tool: VerbTool) -> None:
    tables = load(tool.name)
    found = [row for table in tables if table.name in tool.everyday for row in rows(tool, table, tables)]
    assert tuple(_WORKS[tool]) == tool.everyday
    works, with_kept = _LEAST[tool]
    assert share(found) >= works
    kept = sum(row.what in (Class.WORKS, Class.KEPT) for row in found)
    assert 100 * kept >= with_kept * len(found)


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == markdown(), "run scripts/generate-verification"
