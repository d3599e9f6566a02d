"""``scripts/reading-histories``: any number of seeds, and one failing history, made small."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from tests.support.broker_process import BrokerProcess

from .defects import DEFECTS, put_back
from .history import generate, run, shrink
from .topic import LEDGER


def main() -> int:
    """Return 1 if a history failed, or a defect that was put back was not found."""
    parser = argparse.ArgumentParser(prog="scripts/reading-histories", description="Read topics with random histories.")
    parser.add_argument("--seeds", type=int, default=100, help="how many histories (%(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--seed", type=int, help="run this one only and, if it fails, show it made small")
    parser.add_argument("--defect", choices=DEFECTS, help="put a defect back and say which seed finds it")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        put_back(given.defect) if given.defect is not None else nullcontext(),
        BrokerProcess(Path(directory) / "data", environment={"HELIOGRAPH_LEDGER_MAX_ENTRIES": str(LEDGER)}) as broker,
    ):
        if given.seed is not None:
            return _show(broker, given.seed)
        failed = 0
        for seed in range(given.start, given.start + given.seeds):
            began = time.monotonic()
            result = run(broker, seed)
            print(f"seed {seed}: {result.violation or 'good'} ({time.monotonic() - began:.1f} s)", flush=True)
            failed += result.violation is not None
            if failed and given.defect is not None:
                return 0
        print(f"{failed} of {given.seeds} histories failed")
        return failed > 0 if given.defect is None else 1


def _show(broker: BrokerProcess, seed: int) -> int:
    result = run(broker, seed)
    print(*result.lines, sep="\n")
    if result.violation is None:
        return 0
    print(f"seed {seed}: {result.violation}\nmade small:", flush=True)
    small = run(broker, seed, shrink(broker, seed, generate(seed)))
    print(*small.lines, small.violation, sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
