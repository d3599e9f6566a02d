"""``scripts/simulate``: any number of seeds in any number of processes, and one failing history, made small."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext
from multiprocessing import Pool

from .defects import DEFECTS, put_back
from .history import DAMAGE, TROUBLES, generate
from .run import LENGTH, Result, quiet, run, shrink


def _one(task: tuple[int, int, tuple[str, ...], str | None]) -> tuple[int, str | None]:
    seed, length, troubles, defect = task
    with quiet(), put_back(defect) if defect is not None else nullcontext():
        violation = run(seed, generate(seed, length, troubles)).violation
    return seed, None if violation is None else str(violation)


def main() -> int:
    """Return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="scripts/simulate", description="Simulate brokers, their clients and trouble."
    )
    parser.add_argument("--seeds", type=int, default=200, help="how many histories (%(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (%(default)s)")
    parser.add_argument("--seed", type=int, help="run this one only and, if it fails, show it made small")
    parser.add_argument("--length", type=int, default=LENGTH, help="operations of a history (%(default)s)")
    parser.add_argument("--damage", action="store_true", help="flip stored bits and lose files in any run")
    parser.add_argument(
        "--defect", choices=["all", *DEFECTS], help="put a defect back and say after how many seeds it is found"
    )
    given = parser.parse_args()
    troubles = TROUBLES + (DAMAGE if given.damage else ())
    if given.defect is not None:
        names = list(DEFECTS) if given.defect == "all" else [given.defect]
        return sum([not _search(name, given) for name in names])
    if given.seed is not None:
        return _show(given.seed, given.length, troubles)
    failed: list[int] = []
    began = time.monotonic()
    tasks = [(seed, given.length, troubles, None) for seed in range(given.start, given.start + given.seeds)]
    with Pool(given.jobs) as pool:
        for done, (seed, violation) in enumerate(pool.imap_unordered(_one, tasks), 1):
            if violation is not None:
                failed.append(seed)
                print(f"seed {seed}: {violation}", flush=True)
            if done % 50 == 0 or done == given.seeds:
                print(f"{done} of {given.seeds} histories, {len(failed)} failed, {time.monotonic() - began:.0f} s")
    if failed:
        return _show(min(failed), given.length, troubles)
    return 0


def _search(name: str, given: argparse.Namespace) -> bool:
    """Print the first seed that finds a defect; return whether there is one."""
    defect = DEFECTS[name]
    tasks = [(seed, given.length, TROUBLES, name) for seed in range(given.start, given.start + given.seeds)]
    with Pool(given.jobs) as pool:
        for tried, (seed, violation) in enumerate(pool.imap(_one, tasks), 1):
            if violation is not None:
                print(f"{name} ({defect.number}): found after {tried} seeds, by {seed}: {violation}", flush=True)
                return True
    print(f"{name} ({defect.number}): not found in {given.seeds} seeds", flush=True)
    return False


def _show(seed: int, length: int, troubles: tuple[str, ...]) -> int:
    with quiet():
        result: Result = run(seed, generate(seed, length, troubles))
        if result.violation is None:
            print(f"seed {seed}: everything held; {result.messages} entries, {result.crashes} crashes")
            return 0
        print(f"seed {seed}: {result.violation}")
        print("making the history small", file=sys.stderr)
        operations = shrink(seed, result.operations, result.violation.kind)
        small = run(seed, operations, lines=True)
    print(f"{len(operations)} of {len(result.operations)} operations are enough: {small.violation}")
    print(*small.lines, sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
