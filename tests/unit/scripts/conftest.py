"""The only programs on the ``PATH`` of a test are those that it adds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.programs import Programs


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    directory = tmp_path / "programs"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return Programs(directory)
