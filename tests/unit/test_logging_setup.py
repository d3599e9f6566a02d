"""The log shows where an unexpected error happened, and not what was in the variables there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SECRET = "what only the client knows"
PROGRAM = """
import logging
import sys

import structlog
from heliograph_api.logging_setup import configure_logging

def check(password):
    raise RuntimeError("a defect")

configure_logging(sys.argv[1])
for log in (structlog.get_logger("ours"), logging.getLogger("aiohttp.server")):
    try:
        check(sys.argv[2])
    except RuntimeError:
        log.exception("authentication failed")
"""


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_in_the_log_has_no_values_of_variables(form: str) -> None:
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, "-c", PROGRAM, form, SECRET]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.count("RuntimeError: a defect") == 2
    assert done.stderr.count("in check") == 2
    assert SECRET not in done.stderr
