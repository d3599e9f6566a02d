"""The wheels of a commit are the same bytes wherever they are built, and have their bills of materials in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.wheel_sboms import WHEELS

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("api", "broker", "operator", "pipeline", "locks")


def built(directory: Path, name: str, time_s: int, umask: int) -> Path:
    """Build a wheel from a copy of the project whose files have a time and modes of their own."""
    copy = directory / "copy"
    for part in PARTS:
        # Compiled modules are of one machine, and are left out where there is nothing to compile them.
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "build_native.py")
        shutil.copytree(ROOT / part, copy / part, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    for path in copy.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        os.utime(path, (time_s, time_s))
    source = copy if name == "heliograph" else copy / "pipeline"
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", str(directory)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = directory.glob("*.whl")
    return wheel


@pytest.mark.parametrize("name", WHEELS)
def test_a_wheel_is_the_same_each_time_and_has_its_bill_of_materials(tmp_path: Path, name: str) -> None:
    first = built(tmp_path / "one", name, 10**9, 0o022)
    second = built(tmp_path / "another place", name, 1_700_000_000, 0o077)
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    committed = ROOT / WHEELS[name].path
    with zipfile.ZipFile(first) as archive:
        (path,) = [each for each in archive.namelist() if "/sboms/" in each]
        assert path.endswith(f".dist-info/sboms/{committed.name}")
        assert archive.read(path) == committed.read_bytes()
