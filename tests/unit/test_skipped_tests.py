"""A run of the tests names the tests that it left out at its end, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("shared", [(), ("-n", "2", "--dist", "loadfile")], ids=["one process", "two processes"])
def test_each_reason_is_named_once_for_a_file_with_how_many(tmp_path: Path, shared: tuple[str, ...]) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_all.py").write_text("import pytest\npytest.skip('no client here', allow_module_level=True)\n")
    environment = os.environ | {FILE: str(tmp_path / "skipped"), "PYTHONPATH": str(ROOT)}
    # The other plugins take longer to import than these tests to run.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-p", "tests.support.skipped_tests"]
    command += [*shared, "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "skipped").read_text().splitlines() == [
        "not run: 1 of test_all.py (no client here)",
        "not run: 2 of test_some.py (a small file system cannot be mounted here)",
        "not run: 1 of test_some.py (strace is not on this machine)",
    ]
