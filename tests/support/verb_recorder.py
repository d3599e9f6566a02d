"""Records what Apache Pulsar and Heliograph answer to the scripts of ``tests/verbs``: see ``scripts/record-verbs``."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from tests.support import verb_records
from tests.support.broker_process import BrokerProcess
from tests.support.real_pulsar import real_pulsar
from tests.support.verb_answers import Answer
from tests.support.verb_tools import TOOLS, VerbTool
from tests.support.verbs import Given, Table, Target, load

#: Settings of the Pulsar that answers, where its defaults forbid a verb.
SETTINGS = ("forceDeleteTenantAllowed=true",)
#: How often a script is run before a command counts as one that Pulsar answers in another way.
_RUNS = 4
_DESCRIPTION = """\
Run the scripts of tests/verbs against an Apache Pulsar or a Heliograph that it starts, and write what it answered into
tests/verbs/recorded: after a change of the scripts first pulsar, then heliograph. scripts/generate-verification then
writes the page."""


@contextmanager
def targets(http_url: str, service_url: str, directory: Path) -> Iterator[Callable[[VerbTool], Target]]:
    """Yield what gives a broker that a tool's scripts can run against, with the tool in one process from then on."""
    with ExitStack() as stack:

        @cache
        def with_tool(tool: VerbTool) -> Target:
            running = stack.enter_context(tool.start(directory, http_url, service_url))
            return stack.enter_context(Target(http_url, service_url, running))

        yield with_tool


def unlike_pulsar(broker: Target, table: Table) -> dict[str, tuple[Answer, Answer]]:
    """Return the commands that a Pulsar answers in another way than recorded, each time it is asked.

    A Pulsar applies some changes after it has answered, for example topic policies, which it reads from a topic, or the
    expiry of messages. The scripts are run again while a command differs: one that agrees once is as recorded.
    """
    found = verb_records.unlike_pulsar(table, broker.run(table))
    for _ in range(_RUNS - 1):
        if not found:
            break
        again = verb_records.unlike_pulsar(table, broker.run(table))
        found = {line: answers for line, answers in again.items() if line in found}
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser("scripts/record-verbs", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("of", choices=("pulsar", "heliograph"), help="whose answers are recorded")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="names of files in tests/verbs/TOOL; default: all")
    parser.add_argument("--tool", choices=[tool.name for tool in TOOLS], help="whose scripts are run; default: all")
    parser.add_argument("--at", metavar="HTTP-URL,SERVICE-URL", help="a running one instead of one of its own")
    options = parser.parse_intermixed_args(arguments)
    record: Callable[[Table, Sequence[Given]], list[verb_records.Recorded]] = (
        verb_records.with_pulsar if options.of == "pulsar" else verb_records.with_heliograph
    )
    tools = [tool for tool in TOOLS if options.tool in (None, tool.name)]
    with (
        tempfile.TemporaryDirectory(prefix="heliograph-record-") as name,
        _running(options.of, options.at, Path(name)) as (http_url, service_url),
        targets(http_url, service_url, Path(name)) as broker_with,
    ):
        for tool in tools:
            for table in load(tool.name):
                if options.tables and table.name not in options.tables:
                    continue
                rows = record(table, broker_with(tool).run(table))
                verb_records.write(table, rows)
                unlike = sum(row.here is not None for row in rows)
                print(f"{tool.name}, {table.name}: {len(rows)} commands, {unlike} differ")


@contextmanager
def _running(of: str, at: str | None, directory: Path) -> Iterator[tuple[str, str]]:
    if at is not None:
        http_url, service_url = at.split(",")
        yield http_url, service_url
    elif of == "pulsar":
        with real_pulsar(directory / "pulsar", *SETTINGS) as pulsar:
            yield pulsar.http_url, pulsar.service_url
    else:
        with BrokerProcess(directory / "data") as broker:
            yield broker.http_url, broker.service_url


if __name__ == "__main__":
    main()
