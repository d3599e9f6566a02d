"""The page of ``docs/verification`` on the verbs of the admin tools, from the scripts and the recorded answers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tests.support.verb_answers import Answer
from tests.support.verb_records import Recorded, recorded
from tests.support.verb_tools import TOOLS, VerbTool
from tests.support.verbs import Table, load, verb

PAGE = Path(__file__).parents[2] / "docs" / "verification" / "admin-tools.md"
_ABOUT = """\
Every verb of these tools is run against an Apache Pulsar 4.2.4 and against Heliograph, by the scripts in
`tests/verbs`, and the answers are compared: with [every change](../../tests/integration/test_admin_verbs.py) against
the recorded answers of Pulsar, and these against a
[running Pulsar](../../tests/spark/test_verbs_against_pulsar.py). Times, identifiers and the wording of refusals are not
compared; of statistics the fields are, not the measurements."""
_CLASSES = """\
- *works*: every command answers as on Pulsar. Remarks name the settings that hold here without any work, and the
  commands that do what they say here while Pulsar, or the tool, fails by a defect of its own ("Pulsar fails").
- *kept and shown*: every command answers as on Pulsar, but the setting has no effect here, which a warning says.
- *refused*: the refusal names what is missing.
- *differs*: a command answers in another way; the first one is shown. Uncommon uses are not counted: they are listed
  below their group.
- *not run*: without a script."""


class Class(StrEnum):
    """The outcome of a verb."""

    WORKS = "works"
    KEPT = "kept and shown"
    REFUSED = "refused"
    DIFFERS = "differs"
    NOT_RUN = "not run"


class Row(NamedTuple):
    """A verb of a table, with the reason for its class."""

    verb: str
    what: Class
    remark: str


def own_verbs(tool: VerbTool, table: Table, tables: list[Table]) -> list[str]:
    """Return the verbs that belong to a table: scripts of several may use one, the tool says whose it is."""
    names = frozenset(each.name for each in tables)
    return sorted(each for each in table.verbs() if tool.table_of(each, names) == table.name)


def rows(tool: VerbTool, table: Table, tables: list[Table]) -> list[Row]:
    """Return the verbs of a table with their classes."""
    answered = recorded(table)
    # A script without its variants.
    counted = answered[: sum(bool(verb(line)) for script in table.scripts for line in script)]
    unlike: dict[str, Recorded] = {}
    for row in counted:
        if row.here is not None:
            unlike.setdefault(verb(row.line), row)
    found = []
    for each in own_verbs(tool, table, tables):
        if each in table.without_script:
            found.append(Row(each, Class.NOT_RUN, table.without_script[each]))
        elif table.refusal(each):
            found.append(Row(each, Class.REFUSED, table.refusal(each)))
        elif each in unlike and each not in table.pulsar_fails:
            found.append(Row(each, Class.DIFFERS, _difference(unlike[each])))
        elif each in table.kept:
            found.append(Row(each, Class.KEPT, table.kept[each]))
        else:
            found.append(Row(each, Class.WORKS, _remark(each, table)))
    return found


def _remark(what: str, table: Table) -> str:
    remarks = (
        (table.pulsar_fails, "does what it says; Pulsar fails: {}"),
        (table.holds, "holds here: {}"),
        (table.shape, "the fields are compared, not the measurements"),
        (table.opaque, "only that it answers: {}"),
    )
    return "; ".join(text.format(reasons[what]) for reasons, text in remarks if what in reasons)


def variants(table: Table) -> Iterator[Recorded]:
    """Yield the uncommon uses that differ."""
    counted = sum(bool(verb(line)) for script in table.scripts for line in script)
    return (row for row in recorded(table)[counted:] if row.here is not None)


def share(found: list[Row]) -> float:
    """Return the share of the verbs that work, in per cent."""
    return 100 * sum(row.what is Class.WORKS for row in found) / len(found)


def _difference(row: Recorded) -> str:
    assert row.here is not None
    return f"{_code(row.line)}: Pulsar {_outcome(row.pulsar)}, here {_outcome(row.here)}"


def _outcome(answer: Answer) -> str:
    text = " ".join(answer.text.split())
    if len(text) > 90:
        # Cut at a word, which JSON without blanks does not have.
        text = (text[:90].rpartition(" ")[0] or text[:90]) + "…"
    if answer.code:
        return f"refuses: {_code(text)}"
    return f"answers {_code(text)}" if text else "answers nothing"


def _code(text: str) -> str:
    return "`" + text.replace("`", "'").replace("|", "\\|") + "`"


def markdown() -> str:
    """Return the page."""
    found = {tool.name: _rows_by_group(tool) for tool in TOOLS}
    lines = ["# Verbs of the admin tools", "", _ABOUT, "", _CLASSES, ""]
    lines += ["Made by scripts/generate-verification from tests/verbs: not to be edited.", ""]
    lines += _counts("tool", {name: [row for of in groups.values() for row in of] for name, groups in found.items()})
    for tool in TOOLS:
        lines += _of_tool(tool, found[tool.name])
    return "\n".join([*lines, ""])


def _rows_by_group(tool: VerbTool) -> dict[str, list[Row]]:
    tables = load(tool.name)
    return {table.name: rows(tool, table, tables) for table in tables}


def _of_tool(tool: VerbTool, found: dict[str, list[Row]]) -> Iterator[str]:
    tables = load(tool.name)
    yield from ("", f"## {tool.name}", "", tool.about, "")
    yield from _counts("group", {table.group: found[table.name] for table in tables})
    everyday = [row for name in tool.everyday for row in found[name]]
    groups = f"{', '.join(tool.everyday[:-1])} and {tool.everyday[-1]}"
    shown = sum(row.what in (Class.WORKS, Class.KEPT) for row in everyday)
    yield ""
    yield (
        f"{share(everyday):.1f} % of the {len(everyday)} verbs for {groups} work;"
        f" with those that are kept and shown it is {100 * shown / len(everyday):.1f} %."
    )
    for table in tables:
        yield from ("", f"### {table.group}", "", "| verb | class | remark |", "|---|---|---|")
        yield from (f"| `{row.verb}` | {row.what} | {row.remark} |" for row in found[table.name])
        unlike = [f"- {_difference(row)}" for row in variants(table)]
        if unlike:
            yield from ("", "Uncommon uses that differ:", "", *unlike)


def _counts(what: str, found: dict[str, list[Row]]) -> Iterator[str]:
    yield f"| {what} | verbs | " + " | ".join(Class) + " | works |"
    yield "|---|---|" + "---|" * len(Class) + "---|"
    for name, of_it in found.items():
        counts = Counter(row.what for row in of_it)
        cells = [name, str(len(of_it)), *(str(counts[each]) for each in Class)]
        yield "| " + " | ".join([*cells, f"{share(of_it):.0f} %"]) + " |"


def main() -> None:
    """Write the page, or check that it is current."""
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(markdown(), "utf-8")
    elif not PAGE.is_file() or PAGE.read_text("utf-8") != markdown():
        sys.exit("docs/verification/admin-tools.md is not current: run scripts/generate-verification")


if __name__ == "__main__":
    main()
