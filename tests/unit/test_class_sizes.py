"""No class has more attributes and methods than one concept needs; those that it inherits count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "heliograph_api": ROOT / "api",
    "heliograph_broker": ROOT / "broker",
    "heliograph_operator": ROOT / "operator",
    "heliograph_spark": ROOT / "pipeline",
}
MOST_ATTRIBUTES = 25
MOST_METHODS = 36
#: A class made by one of these is a record, which may have as many fields as the thing it describes.
RECORDS = {"Struct", "NamedTuple", "TypedDict", "BaseModel", "Enum", "IntEnum", "StrEnum"}


class Parsed(NamedTuple):
    """A class as its source has it; bases by their names in that source."""

    attributes: set[str]
    methods: set[str]
    bases: list[str]
    is_record: bool


def _names(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _names(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _own_attributes(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
        elif isinstance(statement, ast.Assign):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            if names == ["__slots__"]:
                yield from ast.literal_eval(statement.value)
            else:
                yield from names
        for inner in ast.walk(statement):
            if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and _names(inner.value) == "self":
                yield inner.attr


def parse(source: str) -> tuple[dict[str, Parsed], dict[str, tuple[str, str]]]:
    """Return the classes of a module, and its imports: for each name the module it comes from and its name there."""
    classes: dict[str, Parsed] = {}
    imported: dict[str, tuple[str, str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imported[alias.asname or alias.name] = ("." * node.level + (node.module or ""), alias.name)
        elif isinstance(node, ast.ClassDef):
            methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
            bases = [_names(base) for base in node.bases]
            decorators = {_names(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list}
            is_record = not RECORDS.isdisjoint(bases) or "dataclass" in decorators
            public = {name for name in methods if not name.startswith("__")}
            classes[node.name] = Parsed(set(_own_attributes(node)) - methods, public, bases, is_record)
    return classes, imported


class Tree:
    """All classes of the packages, found by module and name."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._modules = {module: parse(source) for module, source in sources.items()}

    def _find(self, module: str, name: str) -> tuple[str, str] | None:
        classes, imported = self._modules.get(module, ({}, {}))
        if name in classes:
            return module, name
        if name not in imported:
            return None
        source, original = imported[name]
        if source.startswith("."):
            level = len(source) - len(source.lstrip("."))
            source = ".".join([*module.split(".")[:-level], *filter(None, [source.lstrip(".")])])
        return self._find(source, original)

    def whole(self, module: str, name: str) -> Parsed:
        """Return a class with what it inherits from the packages' own classes."""
        parsed = self._modules[module][0][name]
        attributes, methods, is_record = set(parsed.attributes), set(parsed.methods), parsed.is_record
        for base in parsed.bases:
            found = self._find(module, base)
            if found is not None and found != (module, name):
                inherited = self.whole(*found)
                attributes |= inherited.attributes
                methods |= inherited.methods
                is_record |= inherited.is_record
        return Parsed(attributes - methods, methods, parsed.bases, is_record)

    def too_large(self) -> dict[str, tuple[int, int]]:
        """Return the classes over a limit, with their numbers of attributes and methods."""
        found = {}
        for module, (classes, _) in self._modules.items():
            for name in classes:
                whole = self.whole(module, name)
                size = len(whole.attributes), len(whole.methods)
                fields_only = whole.is_record or not whole.methods
                if size[1] > MOST_METHODS or (size[0] > MOST_ATTRIBUTES and not fields_only):
                    found[f"{module}.{name}"] = size
        return found


def test_no_class_has_more_than_one_concept_needs() -> None:
    sources = {
        ".".join(path.relative_to(root).with_suffix("").parts): path.read_text()
        for package, root in PACKAGES.items()
        for path in sorted((root / package).rglob("*.py"))
        if not path.name.endswith("_pb2.py")
    }
    tree = Tree(sources)
    # It sees what is inherited over several modules.
    topic = tree.whole("heliograph_broker.messaging.topic.topic", "Topic")
    assert {"log", "statistics", "subscriptions"} <= topic.attributes
    assert {"publish", "disconnect_clients", "refuse", "persist"} <= topic.methods
    assert tree.too_large() == {}


@pytest.mark.parametrize(("attributes", "methods"), [(MOST_ATTRIBUTES + 1, 1), (1, MOST_METHODS + 1)])
def test_a_class_over_a_limit_is_found_however_it_is_split(attributes: int, methods: int) -> None:
    fields = "\n".join(f"        self.field_{n} = 0" for n in range(attributes - 1))
    functions = "\n".join(f"    def method_{n}(self) -> None: ..." for n in range(methods - 1))
    sources = {
        "package.base": f"class Base:\n    def __init__(self) -> None:\n        self.first = 0\n{fields}\n",
        "package.whole": f"from .base import Base\nclass Whole(Base):\n    def last(self) -> None: ...\n{functions}\n",
    }
    assert Tree(sources).too_large() == {"package.whole.Whole": (attributes, methods)}
