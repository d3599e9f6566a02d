"""docs/clients.md names the clients that are tested, with their versions and no more tests than there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import java_client, rust_client

ROOT = Path(__file__).resolve().parents[2]
INTEGRATION = ROOT / "tests" / "integration"
#: Modules of the integration tests named after a client that have no test of the Python client.
_OTHERS = ("test_client_go.py", "test_client_java.py", "test_client_rust.py")


class Row(NamedTuple):
    """One row of the table."""

    version: str
    tests: int


def _rows() -> dict[str, Row]:
    page = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (\w+), `[^|]+ \| ([\d.]+) \| (\d+) \|", page, re.MULTILINE)
    return {language: Row(version, int(tests)) for language, version, tests in found}


def _found(pattern: str, path: str) -> str:
    match = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    assert match, f"{path} has no {pattern}"
    return match[1]


def _python_tests() -> int:
    modules = [
        path
        for path in INTEGRATION.glob("test_client_*.py")
        if path.name not in _OTHERS and not path.name.startswith("test_client_wire_")
    ]
    return sum(
        isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        for path in modules
        for node in ast.parse(path.read_text(encoding="utf-8")).body
    )


def _go_tests() -> int:
    return sum(
        len(re.findall(r"^func Test\w+\(t \*testing\.T\)", path.read_text(encoding="utf-8"), re.MULTILINE))
        for path in (INTEGRATION / "go").glob("*_test.go")
    )


CLIENTS = {
    "Python": (_found(r"^pulsar-client==([\d.]+)", "locks/dev.lock"), _python_tests()),
    "Java": (
        _found(r"<pulsar.version>([\d.]+)<", "tests/integration/java/client/pom.xml"),
        len(java_client.case_names()),
    ),
    "Go": (_found(r"pulsar-client-go v([\d.]+)", "tests/integration/go/go.mod"), _go_tests()),
    "Rust": (
        _found(r'^pulsar = \{ version = "=([\d.]+)"', "tests/integration/rust/Cargo.toml"),
        len(rust_client.case_names()),
    ),
}


def test_every_client_has_a_row() -> None:
    assert _rows().keys() == CLIENTS.keys()


@pytest.mark.parametrize("language", CLIENTS)
def test_version_and_number_of_tests_are_true(language: str) -> None:
    version, tests = CLIENTS[language]
    row = _rows()[language]
    assert row.version == version
    # New tests may be added without a change of the page, as long as it is roughly true.
    assert 0.8 * tests <= row.tests <= tests, f"{language} has {tests} tests"
