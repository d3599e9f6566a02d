"""Pulsar's admin library (Java), as released: any of its methods, many calls in one JVM.

A command is the group, the method and its arguments, as a shell would split them: see AdminMethods.java. With
``--global`` after the method it is one of the policies of all clusters.
"""

from __future__ import annotations

import functools
import json
import shlex
import subprocess
from pathlib import Path

from tests.support import java_tools
from tests.support.asked_process import AskedProcess
from tests.support.ran import Ran

_JAVA = (
    *java_tools.QUICK,
    f"{java_tools.FETCHED}/admin-library/*",
    str(java_tools.SOURCES / "admin-library" / "AdminMethods.java"),
)
#: A call takes some hundredths of a second, the first one three seconds; a machine busy with other tests gets more.
_CALLED_WITHIN_S = 180.0


class AdminLibrary(AskedProcess):
    """Calls methods with one broker; ends its JVM as a context manager."""

    def __init__(self, directory: Path, http_url: str, _service_url: str) -> None:
        super().__init__([*_JAVA, http_url], directory / "library.log", _CALLED_WITHIN_S)

    def run(self, command: str) -> Ran:
        """Call a method; the code is the status of a refusal, 1 of one by the library itself."""
        return Ran(**json.loads(self.ask(json.dumps(shlex.split(command)))))


@functools.cache
def overloads_of_the_library() -> frozenset[tuple[str, int]]:
    """Return every method, as ``group method``, with the number of parameters; -1 if it is deprecated in every form."""
    done = subprocess.run(_JAVA, capture_output=True, text=True, timeout=_CALLED_WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr
    found = (line.rsplit(" ", 1) for line in done.stdout.splitlines())
    return frozenset((method, int(parameters)) for method, parameters in found)


def methods_of_the_library() -> set[str]:
    """Return every method, as ``group method``; overloads are one."""
    return {method for method, _ in overloads_of_the_library()}
