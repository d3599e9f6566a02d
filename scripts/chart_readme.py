"""Prints the README of a Helm chart: its values, with the comments ``# -- …`` that stand above them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Value(NamedTuple):
    """A value that may be set: its path (``operator.replicas``), its default and what it is for."""

    path: str
    default: Any
    meaning: str


def values(text: str) -> list[Value]:
    """Return the values of a ``values.yaml``. Raises :class:`ValueError` for one without a comment."""
    return list(_values(yaml.compose(text), text.splitlines(), ""))


def _values(node: yaml.Node | None, lines: list[str], prefix: str) -> Iterator[Value]:
    assert isinstance(node, yaml.MappingNode)
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        meaning = _comment(lines, key.start_mark.line)
        if meaning:
            yield Value(path, yaml.safe_load(yaml.serialize(value)), meaning)
        elif isinstance(value, yaml.MappingNode) and value.value:
            yield from _values(value, lines, f"{path}.")
        else:
            raise ValueError(f"{path} has no comment that begins with '# -- '")


def _comment(lines: list[str], line: int) -> str:
    found: list[str] = []
    for text in reversed(lines[:line]):
        stripped = text.strip()
        if not stripped.startswith("#"):
            break
        found.append(stripped.removeprefix("#").strip())
        if stripped.startswith("# -- "):
            return " ".join(reversed(found)).removeprefix("-- ")
    return ""


def readme(chart: Path) -> str:
    """Return the README of the chart in a directory."""
    about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    rows = [
        f"| `{value.path}` | `{json.dumps(value.default)}` | {value.meaning} |"
        for value in values((chart / "values.yaml").read_text(encoding="utf-8"))
    ]
    return "\n".join(
        [
            f"# {about['name']}",
            "",
            f"{about['description']}. To install, upgrade or uninstall it, see",
            "[docs/install.md](../../docs/install.md).",
            "",
            "Made by scripts/generate-chart from values.yaml: not to be edited.",
            "",
            "| value | default | meaning |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(readme(Path(sys.argv[1])))
