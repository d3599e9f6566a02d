"""Adds the compiled module to the wheel of ``heliograph-spark``, where it can be compiled.

``build_native.py``, if it is there, compiles it. Without a C compiler the wheel is the same without that module, whose
Python form does the same more slowly.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledModule(BuildHookInterface):
    """The build hook that hatchling calls before it writes a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        script = Path(self.root) / "build_native.py"
        if version == "editable" or not script.exists():
            return
        self._scratch = tempfile.TemporaryDirectory()
        directory = Path(self._scratch.name)
        try:
            made = _build(script, directory)
        except Exception as error:
            # Compilers fail in many ways, and none of them keeps the pure wheel from being right.
            print(f"heliograph-spark: no module was compiled, the wheel is pure Python: {error}", file=sys.stderr)
            return
        build_data["force_include"][str(made)] = str(made.relative_to(directory))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()


def _build(script: Path, directory: Path) -> Path:
    found = importlib.util.spec_from_file_location("build_native", script)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    made: Path = module.build(directory)
    return made
