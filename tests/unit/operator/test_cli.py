"""The command line of the operator."""

from __future__ import annotations

import os
import re
import subprocess
import sys


def test_the_help_shows_whole_names_in_80_columns() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "from heliograph_operator.cli import app; app()", "run", "--help"],
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "…" not in found.stdout
    shown = set(re.findall(r"HELIOGRAPH_OPERATOR_\w+", found.stdout))
    assert {"HELIOGRAPH_OPERATOR_NAMESPACES", "HELIOGRAPH_OPERATOR_DELETION_WAIT"} <= shown
