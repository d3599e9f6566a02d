"""The use that test sessions make of a cluster: the first brings it up, the last ends it."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "cluster"
#: Ending it takes seconds.
DOWN_WITHIN_S = 120.0


def state_directory() -> Path:
    """Return the directory of the cluster's state: the one that ``HELIOGRAPH_CLUSTER_DIR`` names, or the project's."""
    return Path(os.environ.get("HELIOGRAPH_CLUSTER_DIR") or ROOT / ".cache" / "cluster")


@contextmanager
def in_use() -> Iterator[None]:
    """Keep the cluster up in the block, if it is or gets up, and end it after the last use that anybody makes of it.

    One that was up before the tests stays, and so does any with ``HELIOGRAPH_KEEP_CLUSTER`` set. Raises
    :class:`subprocess.CalledProcessError` if it does not end.
    """
    state = state_directory()
    state.parent.mkdir(parents=True, exist_ok=True)
    # Each use has a shared lock; the one that gets the lock alone is the last.
    with (state.parent / f"{state.name}.used").open("w") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        yield
        try:
            fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if made_by_tests(state).exists() and not os.environ.get("HELIOGRAPH_KEEP_CLUSTER"):
            subprocess.run([SCRIPT, "down"], capture_output=True, timeout=DOWN_WITHIN_S, check=True)


def made_by_tests(state: Path) -> Path:
    """Return the file that is there if tests brought the cluster up: it goes with the cluster."""
    return state / "by-tests"
