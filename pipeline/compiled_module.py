"""Adds the compiled modules to the wheel of ``heliograph-spark``, where they can be compiled.

``build_native.py``, if it is there, compiles them. Without a C compiler the wheel is the same without these modules,
whose Python form does the same more slowly.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledModules(BuildHookInterface[Any]):
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
            print(f"heliograph-spark: no modules were compiled, the wheel is pure Python: {error}", file=sys.stderr)
            return
        for each in made:
            build_data["force_include"][str(each)] = str(each.relative_to(directory))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()


def _build(script: Path, directory: Path) -> list[Path]:
    found = importlib.util.spec_from_file_location("build_native", script)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    made: list[Path] = module.build(directory)
    return made
