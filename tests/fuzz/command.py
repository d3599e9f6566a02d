"""``scripts/fuzz``: targets for a time or a number of executions, one input again, and the kept inputs renewed."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.processes import run

from . import corpus, totals
from .run import Limits, Progress, fuzz, keep, stop
from .targets import NAMES, load

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 60
_KEPT_BYTES = 24 * 1024


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz",
        description="Run targets of the fuzzer (docs/fuzzing.md).",
        epilog="Exit codes: 0 nothing found; 1 a defect was found; 2 wrong usage.",
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(NAMES)}; all without any")
    parser.add_argument("--seconds", type=int, default=0, help=f"time for each target ({_SECONDS} without a limit)")
    parser.add_argument("--executions", type=int, default=0, help="inputs for each target")
    parser.add_argument("--seed", type=int, default=0, help="start of the random numbers; 0 draws one")
    parser.add_argument("--jobs", type=int, default=1, help="targets that run at the same time (%(default)s)")
    parser.add_argument(
        "--input", type=Path, metavar="FILE", help="run the one target with this input, and show the end"
    )
    parser.add_argument("--replay", action="store_true", help="run the kept inputs only, without the fuzzer")
    parser.add_argument("--keep", action="store_true", help="renew the kept inputs from those of earlier runs")
    parser.add_argument("--report", action="store_true", help="print a table of all runs so far")
    parser.add_argument(
        "--work", type=Path, default=ROOT / ".fuzz", help="directory of inputs and findings (%(default)s)"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    unknown = [name for name in given.targets if name not in NAMES]
    if unknown:
        parser.error(f"no target {unknown[0]!r}; valid: {', '.join(NAMES)}")
    names = given.targets or list(NAMES)
    if given.input is not None:
        if len(given.targets) != 1:
            parser.error("--input needs one target")
        return _again(names[0], [given.input.read_bytes()])
    if given.replay:
        return max(_again(name, [*load(name).seeds(), *corpus.load(name)]) for name in names)
    if given.report:
        print(totals.table(totals.load(given.work), NAMES))
        return 0
    if given.keep:
        for name in names:
            print(f"{name}: {keep(name, given.work, _KEPT_BYTES)} inputs are kept", flush=True)
        return 0
    seconds = given.seconds if given.seconds or given.executions else _SECONDS
    return _fuzz(names, given, Limits(seconds, given.executions))


def _again(name: str, inputs: list[bytes]) -> int:
    target = load(name)
    for number, data in enumerate(inputs, 1):
        try:
            target.run(data)
        except Exception:
            traceback.print_exc()
            print(f"{name}: input {number} of {len(inputs)} shows a defect: {data!r}", file=sys.stderr)
            return 1
    print(f"{name}: {len(inputs)} inputs, nothing found", flush=True)
    return 0


def _fuzz(names: Sequence[str], given: argparse.Namespace, limits: Limits) -> int:
    began = time.monotonic()

    def report(progress: Progress) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {progress}", flush=True)

    def one(name: str) -> Progress:
        started = time.monotonic()
        progress = fuzz(name, given.work, limits, given.seed, report)
        took = round(time.monotonic() - started)
        defect = progress.finding is not None
        ended = totals.Run(name, progress.executions, progress.branches, took, progress.features, defect)
        totals.add(given.work, ended)
        report(progress)
        if progress.failed:
            print(progress.error, file=sys.stderr)
        if progress.finding is not None:
            print(f"{name}: found a defect; again: scripts/fuzz {name} --input {progress.finding}", flush=True)
        elif progress.failed:
            print(f"{name}: the fuzzer's process failed", flush=True)
        return progress

    with ThreadPoolExecutor(given.jobs) as pool:
        try:
            done = list(pool.map(one, names))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop()
            raise
    found = sum(progress.failed for progress in done)
    executions = sum(progress.executions for progress in done)
    print(f"{len(done)} targets, {executions} executions, {found} failed, {time.monotonic() - began:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    run(main)
