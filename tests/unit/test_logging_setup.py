"""The log shows where an unexpected error happened without the values of variables, and what it could not write."""

from __future__ import annotations

import fcntl
import json
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


#: Logs a long line, waits for a line of input, and logs another.
TWO_LINES = """
import structlog
from heliograph_api.logging_setup import configure_logging

configure_logging("json")
log = structlog.get_logger("ours")
log.info("x" * 100_000)
print("logged", flush=True)
input()
log.info("what follows")
"""


def test_a_line_that_is_written_in_part_is_counted_and_the_next_one_is_whole() -> None:
    reading, writing = os.pipe()
    room = fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)
    assert room < 100_000
    # It takes what it has room for, as a disk does that is full.
    os.set_blocking(writing, False)
    with (
        subprocess.Popen(
            [sys.executable, "-c", TWO_LINES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writing, text=True
        ) as logging_process,
        os.fdopen(reading) as log,
    ):
        os.close(writing)
        assert logging_process.stdin is not None
        assert logging_process.stdout is not None
        assert logging_process.stdout.readline() == "logged\n"
        torn = os.read(reading, room).decode()
        logging_process.stdin.write("\n")
        logging_process.stdin.flush()
        rest = log.read()
    assert torn.startswith('{"event": "xxx')
    end, lost, following = (torn + rest).splitlines()
    assert len(end) == room
    assert (json.loads(lost)["event"], json.loads(lost)["number"]) == ("lines of the log were lost", 1)
    assert json.loads(following)["event"] == "what follows"
