"""Official clients that send numbers while a test does something to their broker.

Each client is a process of its own. Those of :data:`PROGRAMS` send and receive while everything that secures the
broker is replaced, and print a line for each token that they ask for, each receipt and each message. Those of
:data:`IN_FLIGHT` send with many messages in flight, and print a line for each receipt.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from . import java_client
from .polling import eventually

_ROOT: Final = Path(__file__).resolve().parents[2]


def _python(module: str, _: Path) -> list[str]:
    return [sys.executable, "-m", f"tests.support.{module}"]


def _java(name: str, directory: Path) -> list[str]:
    if reason := java_client.missing():
        pytest.skip(f"the Java client is not tested: {reason}")
    return java_client.program(directory, name)


def _go(package: str, directory: Path) -> list[str]:
    if shutil.which("go") is None:
        pytest.skip("the go command is not installed: the Go client is not tested")
    program = directory / package
    subprocess.run(
        ["go", "build", "-o", str(program), f"./{package}"],
        cwd=_ROOT / "tests" / "integration" / "go",
        env=os.environ | {"CGO_ENABLED": "0"},
        check=True,
        timeout=1500,
    )
    return [str(program)]


#: By language: compile the program into a directory, and return the beginning of its command. Skips the test if a tool
#: is missing.
PROGRAMS: Final[Mapping[str, Callable[[Path], list[str]]]] = {
    "python": partial(_python, "rotation_program"),
    "java": partial(_java, "Rotating"),
    "go": partial(_go, "rotation"),
}
#: The same of the programs that have many messages in flight; their arguments are the address and the topic.
IN_FLIGHT: Final[Mapping[str, Callable[[Path], list[str]]]] = {
    "python": partial(_python, "in_flight_program"),
    "java": partial(_java, "InFlight"),
    "go": partial(_go, "inflight"),
}


def runnable(directory: Path) -> dict[str, list[str]]:
    """Compile the programs whose tools are there into a directory; return the beginnings of their commands."""
    found = {}
    for language, compiled in PROGRAMS.items():
        with suppress(pytest.skip.Exception):
            found[language] = compiled(directory)
    return found


def finished_client(finished: Mapping[str, RotationClient], language: str, directory: Path) -> RotationClient:
    """Return the client of a language, which has finished. Skips the test if a tool that it needs is missing."""
    if language not in finished:
        PROGRAMS[language](directory)
    return finished[language]


class RotationClient:
    """The process of a client, and the lines that it has printed: what it did, and the number of the message.

    ``arguments`` of :data:`PROGRAMS` are the address, the file of the authorities that it trusts, its topic, and the
    file of its token, those of its certificate and key, or an issuer's URL with the files of its authority and of the
    client's credentials there.
    """

    def __init__(self, command: list[str], *arguments: str | Path, **environment: str) -> None:
        self._process = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path])} | environment,
        )
        self.numbers: dict[str, list[int]] = {"asked": [], "sent": [], "received": []}
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read, self._read_errors)]
        self._errors = ""
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, number = line.split()
            self.numbers[kind].append(int(number))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors = self._process.stderr.read()

    def does_more(self, kind: str, times: int) -> None:
        """Wait until it has done something so often again."""
        before = len(self.numbers[kind])
        eventually(lambda: len(self.numbers[kind]) >= before + times, what=f"{kind} {times} times")

    def finish(self) -> None:
        """Let it send no more, and wait for all answers; if it also receives, it receives the rest."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(120)
        finally:
            self._process.kill()
            self._process.wait()
            for thread in self._threads:
                thread.join()
            for stream in (self._process.stdout, self._process.stderr):
                assert stream is not None
                stream.close()
        assert self._process.returncode == 0, self._errors

    def lost_nothing(self) -> None:
        """Assert that it has received what it has sent in order.

        A message may come again if its connection ended before its acknowledgment, which most messages do not.
        """
        sent, received = self.numbers["sent"], self.numbers["received"]
        assert sent == list(range(len(sent)))
        assert list(dict.fromkeys(received)) == sent
        assert sum(times > 1 for times in Counter(received).values()) <= len(sent) // 2
