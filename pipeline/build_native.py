"""Builds the pipeline's compiled module beside its source: ``python pipeline/build_native.py [DIRECTORY]``.

Needs Cython (3.1 or later), setuptools and a C compiler, and gives a module for the Python that runs it. The module
goes into ``heliograph_spark/decode`` in DIRECTORY, by default ``pipeline``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAME = "heliograph_spark.decode._batch"
SOURCE = HERE / "heliograph_spark" / "decode" / "_batch.pyx"


def build(directory: Path = HERE) -> Path:
    """Compile the module into ``directory`` and return its file."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    with tempfile.TemporaryDirectory() as scratch:
        # Without debug information, which would name the scratch directory, each build gives the same module.
        extension = Extension(NAME, [str(SOURCE)], extra_compile_args=["-O2", "-g0"])
        made = cythonize([extension], build_dir=scratch, quiet=True)
        command = Distribution({"name": NAME, "ext_modules": made}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(directory), scratch
        command.ensure_finalized()
        command.run()
        return Path(command.get_ext_fullpath(NAME))


if __name__ == "__main__":
    print(build(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else HERE))
