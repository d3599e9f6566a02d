"""``scripts/reading-histories``: any number of seeds, and one failing history, made small."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.real_pulsar import missing, real_pulsar

from .defects import DEFECTS, put_back
from .heliograph_topic import HeliographTopic
from .history import Topics, generate, run, shrink
from .pulsar_topic import SETTINGS, PulsarTopic
from .topic import LEDGER


@contextmanager
def _heliograph(directory: Path) -> Iterator[Topics]:
    settings = {"HELIOGRAPH_LEDGER_MAX_ENTRIES": str(LEDGER)}
    with BrokerProcess(directory / "data", environment=settings) as broker:
        yield partial(HeliographTopic, broker)


@contextmanager
def _pulsar(directory: Path) -> Iterator[Topics]:
    with real_pulsar(directory, *SETTINGS) as broker:
        yield partial(PulsarTopic, broker)


_BROKERS = {"heliograph": _heliograph, "pulsar": _pulsar}


def main() -> int:
    """Return 1 if a history failed, or a defect that was put back was not found."""
    parser = argparse.ArgumentParser(prog="scripts/reading-histories", description="Read topics with random histories.")
    parser.add_argument("--seeds", type=int, default=100, help="how many histories (%(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--seed", type=int, help="run this one only and, if it fails, show it made small")
    parser.add_argument("--defect", choices=DEFECTS, help="put a defect back and say which seed finds it")
    parser.add_argument(
        "--against", choices=_BROKERS, default="heliograph", help="the broker that is started (%(default)s)"
    )
    given = parser.parse_args()
    if given.against == "pulsar" and (why := missing()) is not None:
        parser.error(f"--against pulsar: {why}")
    with (
        tempfile.TemporaryDirectory() as directory,
        put_back(given.defect) if given.defect is not None else nullcontext(),
        _BROKERS[given.against](Path(directory)) as topics,
    ):
        if given.seed is not None:
            return _show(topics, given.seed)
        failed = 0
        for seed in range(given.start, given.start + given.seeds):
            began = time.monotonic()
            result = run(topics, seed)
            print(f"seed {seed}: {result.violation or 'good'} ({time.monotonic() - began:.1f} s)", flush=True)
            failed += result.violation is not None
            if failed and given.defect is not None:
                return 0
        print(f"{failed} of {given.seeds} histories failed")
        return failed > 0 if given.defect is None else 1


def _show(topics: Topics, seed: int) -> int:
    result = run(topics, seed)
    print(*result.lines, sep="\n")
    if result.violation is None:
        return 0
    print(f"seed {seed}: {result.violation}\nmade small:", flush=True)
    small = run(topics, seed, shrink(topics, seed, generate(seed)))
    print(*small.lines, small.violation, sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
