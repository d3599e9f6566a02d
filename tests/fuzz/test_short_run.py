"""The tier ``fuzz``: a short coverage-guided run of every target with a fixed seed."""

from __future__ import annotations

import os
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


#: Replaces a target in the worker's process.
_BROKEN_TARGET = """
import sys, types

def run(data):
    if len(data) > 3:
        raise ValueError(f"a defect shown by {len(data)} bytes")

broken = types.ModuleType("tests.fuzz.targets.names")
broken.run, broken.seeds = run, list
sys.modules[broken.__name__] = broken
"""


def test_a_defect_is_told_with_its_input_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_BROKEN_TARGET)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    work = ["--work", str(tmp_path / "work")]
    assert main(["names", "--executions", "5000", "--seed", "1", *work]) == 1
    output = capsys.readouterr()
    assert "ValueError: a defect shown by" in output.err
    found = re.search(r"names: found a defect; again: scripts/fuzz names --input (\S+)", output.out)
    assert found is not None
    assert len(Path(found[1]).read_bytes()) > 3
    assert main(["--report", *work]) == 0
    assert re.search(r"\| `names` \| [\d,]+ \| \d+ \| \d+ \| 1 \| \d+\.\d \|", capsys.readouterr().out)
