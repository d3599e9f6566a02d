"""A command that is killed with all its processes, and goes on from its checkpoint when it is started again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

#: A machine busy with other tests may need minutes to start a Spark.
STARTED_WITHIN_S = 900.0
_EVERY_S = 0.05


class JobFailed(Exception):
    """A job ended with an error, or has done nothing for :data:`STARTED_WITHIN_S`."""


class Killed:
    """A command; ``state`` is the directory of its streaming queries' checkpoints, or of one of them."""

    def __init__(self, arguments: Sequence[str], state: Path, log: Path) -> None:
        self._arguments = arguments
        self._state = state
        self._log = log
        #: How long the last start took up to the first commit (s).
        self._first_commit_s = 10.0

    def _newest(self, kind: str) -> int:
        """Return the newest batch with a plan (``offsets``) or a commit (``commits``); -1 for none."""
        found = [*self._state.glob(f"{kind}/[0-9]*"), *self._state.glob(f"*/{kind}/[0-9]*")]
        return max((int(each.name) for each in found if each.name.isdigit()), default=-1)

    def _failed(self, what: str) -> JobFailed:
        return JobFailed(f"{what}; the log ends:\n{self._log.read_text(errors='replace')[-3000:]}")

    def _start(self, *more: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            # In a group of its own, so that Spark's Java process is killed at the same moment.
            return subprocess.Popen([*self._arguments, *more], stdout=log, stderr=log, start_new_session=True)

    def run_and_kill(self, moment: float, window_s: float) -> str | None:
        """Start it with something to write, kill it and return when that was; None if it had ended before.

        From 0 to 1, ``moment`` is a share of the time of a start up to its first commit; from 1 to 2, of ``window_s``
        after it. Raises :class:`JobFailed`.
        """
        before = self._newest("commits")
        process = self._start()
        began = time.monotonic()
        try:
            if moment < 1:
                self._wait(process, moment * self._first_commit_s)
                when = f"{time.monotonic() - began:.2f} s after its start"
            else:
                while process.poll() is None and self._newest("commits") == before:
                    if time.monotonic() > began + STARTED_WITHIN_S:
                        raise self._failed("nothing was committed")
                    time.sleep(_EVERY_S)
                committed = time.monotonic()
                self._first_commit_s = committed - began
                self._wait(process, (moment - 1) * window_s)
                when = f"{time.monotonic() - committed:.2f} s after its first commit"
            if process.poll() not in (None, 0):
                raise self._failed(f"ended with {process.returncode}")
            ended = process.poll() is not None
        finally:
            end(process)
        if ended:
            return None
        within = self._newest("offsets") > self._newest("commits")
        return f"{when}, {'within a micro-batch' if within else 'between two micro-batches'}"

    @staticmethod
    def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return

    def finish(self, *more: str) -> None:
        """Start it and wait for its end. Raises :class:`JobFailed`."""
        process = self._start(*more)
        try:
            if process.wait():
                raise self._failed(f"ended with {process.returncode}")
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those it has started in its group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
