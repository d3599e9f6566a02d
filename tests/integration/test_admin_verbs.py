"""Every verb of the admin tools against the broker: the answers are those that were recorded."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support import admin_library, verb_records
from tests.support.broker_process import BrokerProcess
from tests.support.clients import RunningBroker
from tests.support.rest import fetch
from tests.support.verb_recorder import targets
from tests.support.verb_tools import ADMIN_LIBRARY, TOOLS, VerbTool
from tests.support.verbs import Given, Table, Target, load, verb

#: The tools with commands that would end a Pulsar, or move its metadata.
_ENDING = [tool for tool in TOOLS if any(table.only_here for table in load(tool.name))]


def _skipped_without(tool: VerbTool) -> pytest.MarkDecorator:
    missing = tool.missing()
    return pytest.mark.skipif(missing is not None, reason=f"{tool.name} is not tested: {missing}")


@pytest.fixture(scope="module")
def broker_with(
    broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[VerbTool], Target]]:
    """The broker with a tool, which is one process for all its tables."""
    with targets(broker.http_url, broker.service_url, tmp_path_factory.mktemp("verbs")) as found:
        yield found


@pytest.mark.parametrize(
    ("tool", "table"),
    [
        pytest.param(tool, table, id=f"{tool.name}-{table.name}", marks=_skipped_without(tool))
        for tool in TOOLS
        for table in load(tool.name)
    ],
)
def test_the_answers_are_those_that_were_recorded(
    broker_with: Callable[[VerbTool], Target], tool: VerbTool, table: Table
) -> None:
    given = broker_with(tool).run(table)
    unlike = verb_records.unlike_record(table, given)
    assert unlike == {}, "where it is meant, record it: scripts/record-verbs heliograph, scripts/generate-verification"
    _assert_refused(table, given)


def _assert_refused(table: Table, given: Sequence[Given]) -> None:
    refused = {verb(each.line): each.answer for each in reversed(given) if table.refusal(verb(each.line))}
    for what, answer in refused.items():
        assert answer.code != 0, what
        assert table.refusal(what) in answer.text, what


@pytest.mark.parametrize("tool", [pytest.param(tool, id=tool.name, marks=_skipped_without(tool)) for tool in _ENDING])
def test_what_would_end_a_pulsar_is_refused_and_the_broker_goes_on(
    broker_factory: Callable[..., BrokerProcess], tool: VerbTool, tmp_path: Path
) -> None:
    with (
        broker_factory() as broker,
        targets(broker.http_url, broker.service_url, tmp_path) as broker_with,
    ):
        for table in load(tool.name):
            given = broker_with(tool).run_only_here(table) if table.only_here else []
            assert [each.line for each in given] == table.only_here
            _assert_refused(table, given)
        assert fetch(f"{broker.http_url}/admin/v2/brokers/health") == b"ok"


@pytest.mark.parametrize("tool", [pytest.param(tool, id=tool.name, marks=_skipped_without(tool)) for tool in TOOLS])
def test_every_verb_of_the_tool_is_in_a_table(tool: VerbTool) -> None:
    assert tool.verbs() == {each for table in load(tool.name) for each in table.verbs()}


@_skipped_without(ADMIN_LIBRARY)
def test_every_overload_of_the_admin_library_is_called() -> None:
    overloads = {each for each in admin_library.overloads_of_the_library() if each[1] >= 0}
    called: set[tuple[str, int]] = set()
    not_run: set[str] = set()
    for table in load(ADMIN_LIBRARY.name):
        not_run.update(table.without_script)
        scripts = [*table.scripts, *table.variants, table.only_here]
        for line in (line for script in scripts for line in script if verb(line)):
            _, _, *arguments = (word for word in shlex.split(line) if word != "--global")
            called.add((verb(line), len(arguments)))
    assert {each for each in overloads - called if each[0] not in not_run} == set()
