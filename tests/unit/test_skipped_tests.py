"""What a run of the tests left out is named at its end, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.skipped_tests import FILE

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="strace is not on this machine")
def test_mark(): pass

@pytest.mark.parametrize("number", range(2))
def test_within(number): pytest.skip("a small file system\\ncannot be mounted here")

def test_runs(): pass

@pytest.mark.xfail
def test_fails(): assert False
"""


def test_each_reason_is_named_once_for_a_file_with_how_many(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_all.py").write_text("import pytest\npytest.skip('no client here', allow_module_level=True)\n")
    environment = os.environ | {FILE: str(tmp_path / "skipped"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.support.skipped_tests"]
    done = subprocess.run([*command, "--rootdir", tmp_path, tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "skipped").read_text().splitlines() == [
        "not run: 1 of test_all.py (no client here)",
        "not run: 2 of test_some.py (a small file system cannot be mounted here)",
        "not run: 1 of test_some.py (strace is not on this machine)",
    ]


def test_the_script_shows_them() -> None:
    script = (ROOT / "scripts/test").read_text()
    assert f"export {FILE}" in script
    assert f'sort -u "${FILE}"' in script
