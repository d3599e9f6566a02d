"""The recorded answers to the verbs of the admin tools are those of a running Apache Pulsar."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support import real_pulsar
from tests.support.verb_recorder import SETTINGS, targets, unlike_pulsar
from tests.support.verb_tools import TOOLS, VerbTool
from tests.support.verbs import Table, Target, load


def _skipped_without(tool: VerbTool) -> pytest.MarkDecorator:
    missing = real_pulsar.missing() or tool.missing()
    return pytest.mark.skipif(missing is not None, reason=f"{tool.name} is not run against Pulsar: {missing}")


@pytest.fixture(scope="module")
def pulsar_with(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[VerbTool], Target]]:
    directory = tmp_path_factory.mktemp("verbs")
    with (
        real_pulsar.real_pulsar(directory / "pulsar", *SETTINGS) as running,
        targets(running.http_url, running.service_url, directory) as found,
    ):
        yield found


@pytest.mark.parametrize(
    ("tool", "table"),
    [
        pytest.param(tool, table, id=f"{tool.name}-{table.name}", marks=_skipped_without(tool))
        for tool in TOOLS
        for table in load(tool.name)
    ],
)
def test_pulsar_answers_as_recorded(pulsar_with: Callable[[VerbTool], Target], tool: VerbTool, table: Table) -> None:
    assert unlike_pulsar(pulsar_with(tool), table) == {}, "record it: scripts/record-verbs pulsar"
