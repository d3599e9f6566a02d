"""A program that answers questions: a line each on standard input, its answer a line on standard output."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self


class AskedProcess:
    """Runs a program and asks it; ends it as a context manager. Without ``environment`` it has this process's own."""

    def __init__(
        self, command: Sequence[str], log: Path, within_s: float, environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = command
        self._environment = environment
        self._log = log.open("w+")
        self._within_s = within_s
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=self._environment,
        )
        return self

    def __exit__(self, *_: object) -> None:
        process = self._running()
        if process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            process.stdout.close()
        try:
            process.wait(self._within_s)
        finally:
            process.kill()
            process.wait()
            self._log.close()

    def ask(self, question: str) -> str:
        """Return the answer. Raises :class:`AssertionError` with the program's errors if there is none in time."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(question + "\n")
        process.stdin.flush()
        watchdog = threading.Timer(self._within_s, process.kill)
        watchdog.start()
        answer = process.stdout.readline()
        watchdog.cancel()
        if not answer:
            raise AssertionError(f"no answer to {question}; the program said: {self.logged()}")
        return answer

    def logged(self) -> str:
        """Return the program's errors."""
        return Path(self._log.name).read_text()

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "not started"
        return self._process
