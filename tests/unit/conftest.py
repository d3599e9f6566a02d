"""Fixtures of unit tests: a broker's core, opened for each test and closed after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.core import Core


@pytest.fixture
def core_settings() -> dict[str, Any]:
    """The settings that ``core`` is opened with; a module that needs others overrides this fixture."""
    return {}


@pytest.fixture
def core(tmp_path: Path, core_settings: dict[str, Any]) -> Iterator[Core]:
    """A broker's core on a new data directory ``d``; a module overrides it to set policies first."""
    opened = Core(tmp_path / "d", **core_settings)
    yield opened
    opened.close()
