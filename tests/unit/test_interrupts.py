"""Tests that send SIGINT work also where their parent ignores it, as for a background job of a shell."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.interrupts import take_interrupts


@pytest.fixture
def _ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ignored")
def test_a_process_that_takes_interrupts_ends_by_one_that_its_parent_ignores() -> None:
    # In short sleeps: a signal in the moment before a sleep is noticed after it.
    program = "import time; print('started', flush=True)\nwhile True: time.sleep(0.05)"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=take_interrupts
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
    finally:
        process.kill()
        process.communicate()
