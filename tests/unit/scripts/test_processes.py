"""Ways in which a command of the project ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.processes import exit_code

ROOT = Path(__file__).resolve().parents[3]
WAITS = """
import subprocess, sys
from scripts.processes import run
def main(arguments):
    try:
        print("waits", flush=True)
        subprocess.run(["sleep", "600"], check=True)
    finally:
        print("cleaned up", flush=True)
run(main)
"""


def heed_signals() -> None:
    """Undo what is inherited: a shell ignores one in the background, and ``nohup`` the other."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def command(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=heed_signals,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_after_its_cleanup(number: signal.Signals) -> None:
    with command(WAITS) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(number)
        assert process.stdout.readline() == "cleaned up\n"
        assert process.wait() == 128 + number


def test_it_ends_with_the_exit_code_of_a_process_that_failed() -> None:
    failing = "import subprocess; from scripts.processes import run"
    with command(f"{failing}; run(lambda _: subprocess.run(['sh', '-c', 'exit 4'], check=True).returncode)") as process:
        assert process.wait() == 4


def test_a_process_ended_by_a_signal_has_the_exit_code_that_a_shell_gives_it() -> None:
    assert exit_code(-signal.SIGKILL) == 137
    assert exit_code(3) == 3
