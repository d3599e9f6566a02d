"""Tables in the documentation that name the test which shows a statement, as ``unit/test_x.py::test_name``."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
NAMED = re.compile(r"([a-z0-9_/]+\.py)::(\w+)")


def named_in(text: str) -> dict[str, set[str]]:
    """Return the names of the tests that a text names, by their files below ``tests/``."""
    found: dict[str, set[str]] = {}
    for file, test in NAMED.findall(text):
        found.setdefault(file, set()).add(test)
    return found


def functions_of(file: str) -> set[str]:
    """Return the names of all functions of a file below ``tests/``."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
