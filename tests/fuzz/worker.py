"""Runs one target under atheris: ``python -m tests.fuzz.worker TARGET [libFuzzer's options and directories]``.

Instruments the project's modules as they are imported, so it must be the first to import them. libFuzzer starts itself
again when it merges inputs; the variable :data:`PROGRAM` names what it has to start.
"""

from __future__ import annotations

import os
import sys

import atheris

#: The modules whose branches count; manifests are read by PyYAML, whose own are worth finding too.
_MEASURED = ["heliograph_api", "heliograph_broker", "heliograph_spark", "yaml"]


PROGRAM = "HELIOGRAPH_FUZZ_WORKER"


def main() -> None:
    name = sys.argv[1]
    with atheris.instrument_imports(include=_MEASURED):
        from tests.fuzz.targets import load

        target = load(name)
    options = [f"-max_len={target.max_bytes}", *sys.argv[2:]]
    atheris.Setup([os.environ.get(PROGRAM, sys.argv[0]), *options], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
