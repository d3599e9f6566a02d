"""The Rust client: builds and runs the cases in ``tests/integration/rust``."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.support.clients import RunningBroker

_ROOT = Path(__file__).resolve().parents[2]
_MAIN = _ROOT / "tests" / "integration" / "rust" / "src" / "main.rs"
_PROGRAM = _ROOT / ".cache" / "rust-client" / "target" / "debug" / "heliograph-client-tests"
#: The exit codes of scripts/rust-client for what a machine lacks and for what cannot be fetched.
_NOT_TO_BE_HAD = (3, 4)
#: Compiling takes a minute and a half the first time; a machine busy with other tests gets more.
_BUILD_WITHIN_S = 1500.0
#: All cases take ten seconds; each of them ends after 120 s.
_CASES_WITHIN_S = 900.0


class NotToBeHad(Exception):
    """The Rust client cannot be built on this machine; the text says why."""


def case_names() -> list[str]:
    """Return the names of all cases, as the table in ``main.rs`` has them."""
    table = _MAIN.read_text(encoding="utf-8").partition("\ncases! {\n")[2].partition("\n}\n")[0]
    return re.findall(r"^ {8}(\w+);?$", table, re.MULTILINE)


def build() -> None:
    """Build the cases, which is quick if they are built. Raises :class:`NotToBeHad`."""
    done = subprocess.run(
        [str(_ROOT / "scripts" / "rust-client")], capture_output=True, text=True, timeout=_BUILD_WITHIN_S, check=False
    )
    if done.returncode in _NOT_TO_BE_HAD:
        raise NotToBeHad(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr


def run_cases(broker: RunningBroker, names: Iterable[str]) -> dict[str, str]:
    """Run the named cases; return the outcome of each by its name: ``passed``, or ``failed`` and the reason."""
    done = subprocess.run(
        [str(_PROGRAM), *names],
        env=os.environ | {"HELIOGRAPH_SERVICE_URL": broker.service_url, "HELIOGRAPH_HTTP_URL": broker.http_url},
        capture_output=True,
        text=True,
        timeout=_CASES_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = {}
    for line in done.stdout.splitlines():
        outcome, name, *reason = line.split(" ", 2)
        outcomes[name] = " ".join([outcome, *reason])
    return outcomes
