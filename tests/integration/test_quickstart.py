"""The README's first command, with the whole data set, and its options."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.support.polling import eventually

ROOT = Path(__file__).resolve().parents[2]

#: Time limit on two cores, installation excluded.
ALLOWED_S = 180.0


def quickstart(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the job as ``scripts/quickstart`` does once everything is installed; asserts that every number is right."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.flights.run", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "numbers agree with the data set" in done.stdout
    return done


def row(output: str, subscription: str) -> list[str]:
    """Return the table's row of a subscription, in words."""
    return next(line.split() for line in output.splitlines() if line.startswith(f"{subscription} "))


def test_a_year_of_flights() -> None:
    started = time.monotonic()
    output = quickstart().stdout
    assert time.monotonic() - started < ALLOWED_S
    # The README shows how it ends.
    ends = next(line for line in output.splitlines() if line.endswith("numbers agree with the data set"))
    assert ends in (ROOT / "README.md").read_text().splitlines()
    assert row(output, "audit")[:4] == ["audit", "-", "0", "336,776"]
    assert row(output, "ops")[:6] == ["ops", "Shared", "336,776", "0", "0", "-"]
    assert row(output, "by-carrier")[:6] == ["by-carrier", "Key_Shared", "336,776", "0", "0", "-"]
    assert "received   336,776 messages" in output


def test_a_data_directory_is_kept_and_a_second_run_starts_over(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    assert "starting over" not in quickstart("--limit", "3000", "--data-dir", str(data_dir)).stdout
    assert data_dir.is_dir()
    again = quickstart("--limit", "2000", "--data-dir", str(data_dir)).stdout
    assert "starting over" in again
    assert row(again, "audit")[3] == "2,000"


def test_the_broker_may_go_on(tmp_path: Path) -> None:
    output = quickstart("--limit", "1000", "--data-dir", str(tmp_path / "data"), "--keep-running").stdout
    pid = re.search(r"kill (\d+)", output)
    url = re.search(r"HELIOGRAPH_HTTP_URL=(\S+)", output)
    assert pid is not None
    assert url is not None

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{url[1]}/health/ready", timeout=60) as response:
                return bool(response.status == 200)
        except OSError:
            # One that is ending refuses the connection, or closes it without an answer.
            return False

    try:
        assert answers()
    finally:
        os.kill(int(pid[1]), signal.SIGTERM)
    eventually(lambda: not answers(), what="the broker ended")


def test_a_broker_that_cannot_start_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = subprocess.run(
        [sys.executable, "-m", "examples.flights.run", "--data-dir", str(tmp_path / "file")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1
    assert "is not a directory" in done.stderr
    assert "Traceback" not in done.stderr
