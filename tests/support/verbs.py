"""The verbs of the admin tools: the scripts of ``tests/verbs`` that exercise them, and what a broker answers.

A script is a list of command lines, run one after the other in a namespace of its own. The same scripts run against
Apache Pulsar, whose answers are recorded, and against Heliograph.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml

from tests.support import java_tools
from tests.support.clients import connect, fresh_name, publish
from tests.support.ran import Ran
from tests.support.rest import call, fetch
from tests.support.verb_answers import Answer, normalised

VERBS = Path(__file__).parents[1] / "verbs"
_JARS = java_tools.FETCHED / "admin-tool"
_NAME = re.compile(r"\{(\w+)\}")
_FOUND = re.compile(r"\{(\w+):([^{}]+)\}")


@dataclass(frozen=True)
class Table:
    """The verbs of one group of a tool; the reasons in it are for the reader of the page."""

    tool: str
    group: str
    name: str
    scripts: list[list[str]]
    #: Scripts of uncommon uses: their differences are on the page, but do not change what their verb counts as.
    variants: list[list[str]] = field(default_factory=list)
    #: Files that commands name as ``{file:NAME}``, or give as ``{content:NAME}``.
    files: dict[str, str] = field(default_factory=dict)
    #: Verbs whose setting is kept and shown, though it has no work here, with the reason.
    kept: dict[str, str] = field(default_factory=dict)
    #: Verbs whose setting holds here without any work, with the reason: they work.
    holds: dict[str, str] = field(default_factory=dict)
    #: Verbs that do here what they say, while Pulsar or the tool fails by its own defect, which is named: they work.
    pulsar_fails: dict[str, str] = field(default_factory=dict)
    #: Verbs that are refused, with words that the refusal has; ``*`` is every verb of the group.
    refused: dict[str, str] = field(default_factory=dict)
    #: Commands that would end or change a Pulsar for the other scripts: each is refused here, and not run there.
    only_here: list[str] = field(default_factory=list)
    #: Verbs that ask no broker and have no script, with the reason.
    without_script: dict[str, str] = field(default_factory=dict)
    #: Verbs whose JSON is compared by its fields and their kinds, as the values are measurements.
    shape: dict[str, str] = field(default_factory=dict)
    #: Verbs of whose answer only is compared that there is one.
    opaque: dict[str, str] = field(default_factory=dict)
    #: Verbs whose lines Pulsar gives in no order.
    unordered: list[str] = field(default_factory=list)

    def refusal(self, what: str) -> str:
        """Return words that the refusal of a verb has, empty if it is not to be refused."""
        own = what.split()[:1] == [self.name] and what not in self.without_script
        return self.refused.get(what) or (self.refused.get("*", "") if own else "")

    def verbs(self) -> list[str]:
        """Return the verbs in the order of their first command, those of other groups included."""
        commands = [verb(line) for script in [*self.scripts, *self.variants] for line in script]
        refused = [verb(line) for line in self.only_here]
        return list(dict.fromkeys([*(each for each in commands if each), *refused, *self.without_script]))


def verb(line: str) -> str:
    """Return what a command line does, ``group verb``; empty for a step that is no command."""
    return "" if line.startswith("publish ") else " ".join(line.split()[:2])


def load(tool: str) -> list[Table]:
    """Return the tables of a tool. Raises :class:`TypeError` for an unknown field."""
    return [_table(tool, path) for path in sorted((VERBS / tool).glob("*.yaml"))]


def _table(tool: str, path: Path) -> Table:
    fields = yaml.safe_load(path.read_text("utf-8"))
    for scripts in ("scripts", "variants"):
        fields[scripts] = [list(_lines(script)) for script in fields.get(scripts, ())]
    return Table(tool=tool, name=path.stem, **fields)


def _lines(script: Sequence[str | Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a script.

    A step with ``each`` and ``run`` is repeated: for every name and value in ``each`` come the lines of ``run``, in
    which ``{name}`` and ``{value}`` are replaced. Where the value is a list of two, its second is ``{other}``.
    """
    for step in script:
        if isinstance(step, str):
            yield step
            continue
        for name, given in step["each"].items():
            value, other, *_ = (*(given if isinstance(given, list) else [given]), "")
            for line in step["run"]:
                yield line.replace("{name}", name).replace("{value}", value).replace("{other}", other)


class Tool(Protocol):
    """Runs command lines of a tool."""

    def run(self, command: str) -> Ran:
        """Run one, without the tool's name."""


class Given(NamedTuple):
    """A command of a script with its answer."""

    line: str
    answer: Answer


class Target:
    """A broker that scripts run against; a context manager."""

    def __init__(self, http_url: str, service_url: str, tool: Tool) -> None:
        self._http_url = http_url
        self._service_url = service_url
        self._tool = tool
        self._client = connect(service_url)

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def run(self, table: Table) -> list[Given]:
        """Run all scripts of a table."""
        return self._run([*table.scripts, *table.variants], table)

    def run_only_here(self, table: Table) -> list[Given]:
        """Run the commands of a table that no Pulsar is asked."""
        return self._run([table.only_here], table)

    def _run(self, scripts: Sequence[Sequence[str]], table: Table) -> list[Given]:
        with tempfile.TemporaryDirectory(prefix="heliograph-verbs-") as directory:
            for name, content in table.files.items():
                (Path(directory) / name).write_text(content)
            return [each for script in scripts for each in self._script(script, table, directory)]

    def _script(self, script: Sequence[str], table: Table, directory: str) -> Iterator[Given]:
        fresh = fresh_name("verbs")
        values = {
            "fresh": fresh,
            "ns": f"public/{fresh}",
            "broker": self._http_url.removeprefix("http://"),
            "service": self._service_url.removeprefix("pulsar://"),
            "jar": str(next(_JARS.glob("pulsar-client-admin-api-*.jar"), "")),
        }
        names = {
            values["service"]: "{service}",
            values["broker"]: "{broker}",
            fresh: "{fresh}",
            directory: "{directory}",
        }
        call(f"{self._http_url}/admin/v2/namespaces/{values['ns']}", "PUT", {})
        for line in script:
            filled = self._filled(line, values, table.files, directory)
            if line.startswith("publish "):
                _, topic, count = filled.split()
                publish(self._client, topic, [b"m%d" % at for at in range(int(count))])
            else:
                yield Given(line, self._answer(verb(line), self._tool.run(filled), names, table))

    def _answer(self, what: str, ran: Ran, names: Mapping[str, str], table: Table) -> Answer:
        return normalised(
            ran, names, shape=what in table.shape, opaque=what in table.opaque, unordered=what in table.unordered
        )

    def _filled(self, line: str, values: dict[str, str], files: Mapping[str, str], directory: str) -> str:
        def found(part: re.Match[str]) -> str:
            kind, argument = part.groups()
            path = argument.replace("://", "/")
            match kind:
                case "file":
                    return f"{directory}/{argument}"
                case "content":
                    return files[argument]
                case "ledger":
                    # The first ledger stays the one that is meant.
                    if f"ledger of {path}" not in values:
                        last = call(f"{self._http_url}/admin/v2/{path}/lastMessageId")
                        values[f"ledger of {path}"] = str(last["ledgerId"])
                    return values[f"ledger of {path}"]
                case "bundle":
                    return fetch(f"{self._http_url}/lookup/v2/topic/{path}/bundle").decode()
            raise ValueError(f"{part[0]} is no placeholder")

        return _FOUND.sub(found, _NAME.sub(lambda part: values[part[1]], line))
