"""Methods of ``pulsaradmin``, the Go library of pulsarctl: many calls in one process, by a small program.

A command is ``Interface Method``, followed by the arguments as JSON with spaces between them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tests.support.asked_process import AskedProcess
from tests.support.ran import Ran

_MODULE = Path(__file__).parents[1] / "integration" / "go"
#: A fresh machine downloads and compiles the library first.
_BUILT_WITHIN_S = 500.0
_CALLED_WITHIN_S = 120.0


def missing() -> str | None:
    """Return what keeps the library from running here, None if nothing does."""
    return "the go command is not installed" if shutil.which("go") is None else None


def methods_of_the_library() -> set[str]:
    """Return every method of the library's interfaces, as ``Interface Method``."""
    return set(_go("run", "./admin").splitlines())


class GoAdmin(AskedProcess):
    """Calls methods with one broker; ends its process as a context manager."""

    def __init__(self, directory: Path, http_url: str, _service_url: str) -> None:
        self._program = str(directory / "admin")
        super().__init__([self._program, http_url], directory / "admin.log", _CALLED_WITHIN_S)

    def __enter__(self) -> Self:
        _go("build", "-o", self._program, "./admin")
        return super().__enter__()

    def run(self, command: str) -> Ran:
        """Call a method; the code is the status of a refusal, 1 for one by the library itself."""
        interface, method, *arguments = command.split(" ", 2)
        asked = {"call": f"{interface} {method}", "arguments": list(_documents("".join(arguments)))}
        result = json.loads(self.ask(json.dumps(asked)))
        if result["status"]:
            return Ran(result["status"], "", result.get("reason", ""))
        answer = result["answer"]
        return Ran(0, "" if answer is None else json.dumps(answer, ensure_ascii=False), "")


def _go(*arguments: str) -> str:
    done = subprocess.run(
        ["go", *arguments],
        cwd=_MODULE,
        # Without cgo no C compiler is needed.
        env=os.environ | {"CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=_BUILT_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _documents(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        yield document
        text = text[end:]
