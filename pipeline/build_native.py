"""Builds the pipeline's compiled modules beside their sources: ``python pipeline/build_native.py [DIRECTORY]``.

Needs Cython (3.1 or later), setuptools and a C compiler, and gives modules for the Python that runs it. They go into
``heliograph_spark`` in DIRECTORY, by default ``pipeline``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODULES = (
    "heliograph_spark.decode._avro",
    "heliograph_spark.decode._batch",
    "heliograph_spark.decode._protobuf",
    "heliograph_spark.encode._entries",
)


def build(directory: Path = HERE) -> list[Path]:
    """Compile the modules into ``directory`` and return their files."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    with tempfile.TemporaryDirectory() as scratch:
        # Without debug information, which would name the scratch directory, each build gives the same modules.
        extensions = [
            Extension(name, [str(HERE / (name.replace(".", "/") + ".pyx"))], extra_compile_args=["-O2", "-g0"])
            for name in MODULES
        ]
        made = cythonize(extensions, build_dir=scratch, quiet=True)
        command = Distribution({"name": "heliograph-spark", "ext_modules": made}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(directory), scratch
        command.ensure_finalized()
        command.run()
        return [Path(command.get_ext_fullpath(name)) for name in MODULES]


if __name__ == "__main__":
    print(*build(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else HERE), sep="\n")
