"""The tier ``fuzz``: a short coverage-guided run of every target with a fixed seed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import corpus
from .command import main
from .run import Limits, fuzz
from .targets import NAMES, short_run

_SEED = 1


@pytest.mark.parametrize("name", NAMES)
def test_a_short_run_shows_no_defect(name: str, tmp_path: Path) -> None:
    executions = short_run(name)
    progress = fuzz(name, tmp_path, Limits(executions=executions), _SEED, lambda progress: None)
    found = f" by {progress.finding.read_bytes()!r}" if progress.finding else ""
    assert not progress.failed, f"{name}: a defect is shown{found}:\n{progress.error}"
    # A run without instrumented modules would pass as well.
    assert progress.executions >= executions
    assert progress.branches >= progress.first > 0


def test_what_a_run_found_is_kept_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr(corpus, "DIRECTORY", kept)
    work = ["--work", str(tmp_path / "work")]
    assert main(["stored_files", "--executions", "3000", "--seed", "1", *work]) == 0
    capsys.readouterr()
    assert main(["--report", *work]) == 0
    row = r"\| `stored_files` \| 3,\d{3} \| (\d+) \| (\d+) \| 0 \| \d+\.\d \|"
    assert (reported := re.search(row, capsys.readouterr().out))
    assert main(["stored_files", "--keep", *work]) == 0
    assert capsys.readouterr().out == f"stored_files: {len(corpus.load('stored_files'))} inputs are kept\n"
    assert sum(map(len, corpus.load("stored_files"))) <= 24 * 1024
    # They reach all that the whole run has reached.
    again = fuzz("stored_files", tmp_path / "again", Limits(executions=1), _SEED, lambda progress: None)
    assert again.branches >= int(reported[1])
    assert again.features >= int(reported[2])
