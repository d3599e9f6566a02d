"""The statements of ``tests/statements``: what the documentation promises, and the tests that show it.

``python -m tests.support.statements`` writes a page in ``docs/verification`` for each file of statements. With
``--check`` it writes nothing, and fails if a page is not current.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

TESTS = Path(__file__).parents[1]
PROJECT = TESTS.parent
PAGES = PROJECT / "docs" / "verification"

_TEST = re.compile(
    r"([a-z0-9_/]+/test_[a-z0-9_]+\.py)(?:::(test_\w+))?"
    r"|([a-z0-9_/]+/[a-z0-9_]+_test\.go|[a-z0-9_/]+/[A-Z]\w+\.java)::(\w+)"
)
_JAVA_WORD = re.compile(r"[A-Z]")
#: The tests of a file by its suffix; Python's are read from its syntax tree.
_OTHER_LANGUAGES = {
    ".go": re.compile(r"^func (Test\w+)\(", re.MULTILINE),
    ".java": re.compile(r"@Case\s+static void (\w+)\("),
}


class Statement(NamedTuple):
    """A statement with the tests that show it (``unit/test_x.py::test_name`` or a file), or why none can.

    Tests in Go and Java are named ``integration/go/x_test.go::TestName`` and ``…/cases/X.java::caseName``.
    """

    says: str
    shown_by: list[str]
    remark: str = ""
    not_applicable: str = ""


class Page(NamedTuple):
    """The statements about one subject, by section."""

    name: str
    title: str
    about: str
    sections: dict[str, list[Statement]]
    #: The document whose tables have the same statements, as a path from the project's root; else empty.
    guide: str = ""

    def statements(self) -> Iterator[Statement]:
        """Yield the statements of all sections."""
        for section in self.sections.values():
            yield from section


def load() -> list[Page]:
    """Return the pages of all files of statements, by name. Raises :class:`TypeError` for an unknown field."""
    return [
        _page(path.stem, yaml.safe_load(path.read_text("utf-8"))) for path in sorted(TESTS.glob("statements/*.yaml"))
    ]


def _page(name: str, document: dict[str, Any]) -> Page:
    sections = {
        section["title"]: [Statement(**({"shown_by": []} | each)) for each in section["statements"]]
        for section in document.pop("sections")
    }
    return Page(name, sections=sections, **document)


def split_reference(reference: str) -> tuple[str, str]:
    """Return the file and the function (empty: the whole file). Raises :class:`ValueError` for another form."""
    named = _TEST.fullmatch(reference)
    if named is None:
        raise ValueError(
            f"{reference!r} names no test; valid: unit/test_x.py::test_name, unit/test_x.py or go/x_test.go::TestX"
        )
    return named[1] or named[3], named[2] or named[4] or ""


@cache
def functions_of(file: str) -> frozenset[str]:
    """Return the names of all functions of a file below ``tests/``, none if there is no such file."""
    path = TESTS / file
    text = path.read_text("utf-8") if path.is_file() else ""
    if path.suffix in _OTHER_LANGUAGES:
        return frozenset(_OTHER_LANGUAGES[path.suffix].findall(text))
    tree = ast.parse(text)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def markdown(page: Page) -> str:
    """Return the page of ``docs/verification``."""
    lines = [
        f"# {page.title}",
        "",
        page.about,
        "",
        f"Made by scripts/generate-verification from tests/statements/{page.name}.yaml: not to be edited.",
    ]
    for title, statements in page.sections.items():
        lines += ["", f"## {title}", "", "| statement | shown by |", "|---|---|"]
        lines += [f"| {_says(page, each)} | {_shown_by(each)} |" for each in statements]
    return "\n".join([*lines, ""])


def _says(page: Page, statement: Statement) -> str:
    """The statement; its links to sections of the guide lead there from the page, too."""
    return statement.says.replace("](#", f"](../{page.guide.rpartition('/')[2]}#")


def _shown_by(statement: Statement) -> str:
    if statement.not_applicable:
        return f"not applicable: {statement.not_applicable}"
    links = ", ".join(map(_link, statement.shown_by))
    return f"{statement.remark}: {links}" if statement.remark else links


def _link(reference: str) -> str:
    file, function = split_reference(reference)
    text = function.removeprefix("test_").replace("_", " ") or file.rpartition("/")[2]
    if file.endswith(".go"):
        text = f"Go, {function}"
    elif file.endswith(".java"):
        text = f"Java, {_JAVA_WORD.sub(lambda found: ' ' + found[0].lower(), function)}"
    return f"[{file.partition('/')[0]}: {text}](../../tests/{file})"


def main() -> None:
    """Write the pages, or check that they are current."""
    pages = {PAGES / f"{page.name}.md": markdown(page) for page in load()}
    if sys.argv[1:] != ["--check"]:
        PAGES.mkdir(exist_ok=True)
        for path, text in pages.items():
            path.write_text(text, "utf-8")
        return
    for path, text in pages.items():
        if not path.is_file() or path.read_text("utf-8") != text:
            sys.exit(f"{path.relative_to(PROJECT)} is not current: run scripts/generate-verification")


if __name__ == "__main__":
    main()
