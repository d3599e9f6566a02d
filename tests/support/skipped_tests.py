"""Names the tests that were skipped, and why, in a file: a run of several tiers shows them all at the end."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

#: The environment names the file here; a line is added to it for each file of tests and reason.
FILE = "HELIOGRAPH_TESTS_SKIPPED"

_skipped: Counter[tuple[str, str]] = Counter()


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    # One that fails as it should is skipped, too, without a place.
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        _skipped[report.nodeid.partition("::")[0], reason] += 1


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = os.environ.get(FILE)
    # A process that shares the tests with others reports to the one that started it.
    if path and _skipped and not hasattr(session.config, "workerinput"):
        with Path(path).open("a", encoding="utf-8") as file:
            for (name, reason), count in sorted(_skipped.items()):
                file.write(f"not run: {count} of {name} ({' '.join(reason.split())})\n")
    _skipped.clear()
