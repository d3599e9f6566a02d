"""docs/architecture.md names modules and names that exist, and its layers are those of the import linter."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text("utf-8")
PACKAGES = {
    "heliograph_api": ROOT / "api/heliograph_api",
    "heliograph_broker": ROOT / "broker/heliograph_broker",
    "heliograph_operator": ROOT / "operator/heliograph_operator",
    "heliograph_spark": ROOT / "pipeline/heliograph_spark",
}
NAMED = sorted(set(re.findall(r"\[`([^`]+)`\]\(\.\./([^)]+)\)", PAGE)))


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return what a module defines: its functions, classes and variables, and members as ``Class.member``."""
    tree = ast.parse(path.read_text("utf-8"))
    found: set[str] = set()
    for node in tree.body:
        for name in _defined(node):
            found.add(name)
            if isinstance(node, ast.ClassDef):
                found.update(f"{name}.{member}" for each in node.body for member in _defined(each))
    return frozenset(found)


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def test_the_page_names_what_it_describes() -> None:
    assert len(NAMED) > 60


@pytest.mark.parametrize(("name", "target"), NAMED, ids=lambda each: each.rpartition("/")[2])
def test_what_the_page_names_exists(name: str, target: str) -> None:
    path = ROOT / target
    assert path.exists()
    if path.suffix == ".py" and name != path.name:
        assert name in names_in(path)
    else:
        assert name == path.name


def test_the_figure_shows_folders_that_exist() -> None:
    (figure,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    packages = set(re.findall(r"\b(heliograph_\w+)\b", figure))
    assert packages == PACKAGES.keys()
    for package, shown in zip(("heliograph_broker", "heliograph_api"), figure.split("heliograph_api"), strict=True):
        folders = {path.parent.name for path in PACKAGES[package].glob("*/__init__.py")}
        assert set(re.findall(r"([a-z]+)/", shown)) == folders


def test_the_layers_of_the_core_are_those_of_the_import_linter() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (core,) = [each for each in contracts if each.get("containers") == ["heliograph_broker.messaging"]]
    shown = re.findall(r"^\| \[`(\w+)`\]\(\.\./broker/heliograph_broker/messaging/\w+\) \|", PAGE, re.MULTILINE)
    assert shown == core["layers"]
