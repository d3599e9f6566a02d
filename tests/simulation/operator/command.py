"""``scripts/simulate-operator``: any number of histories in any number of processes, and one that fails, made small."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext
from multiprocessing import Pool

from tests.simulation.run import quiet

from .defects import DEFECTS, put_back
from .run import run, shrink


def _one(task: tuple[int, str | None, int]) -> tuple[int, str | None]:
    seed, defect, operators = task
    with quiet(), put_back(defect) if defect is not None else nullcontext():
        violation = run(seed, operators=operators).violation
    return seed, None if violation is None else str(violation)


def main() -> int:
    """Return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="scripts/simulate-operator", description="Simulate an operator, its API server, brokers and trouble."
    )
    parser.add_argument("--seeds", type=int, default=200, help="how many histories (%(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (%(default)s)")
    parser.add_argument("--seed", type=int, help="run this one only and, if it fails, show it made small")
    parser.add_argument(
        "--defect", choices=["all", *DEFECTS], help="put a defect back and say after how many seeds it is found"
    )
    parser.add_argument(
        "--operators", type=int, default=1, help="operators that share a Lease (%(default)s: one without a Lease)"
    )
    given = parser.parse_args()
    if given.seed is not None:
        return _show(given.seed, None if given.defect == "all" else given.defect, given.operators)
    seeds = range(given.start, given.start + given.seeds)
    if given.defect is not None:
        names = list(DEFECTS) if given.defect == "all" else [given.defect]
        return sum([not _search(name, seeds, given) for name in names])
    failed: list[int] = []
    began = time.monotonic()
    plain = [(seed, None, given.operators) for seed in seeds]
    with Pool(given.jobs) as pool:
        for done, (seed, violation) in enumerate(pool.imap_unordered(_one, plain), 1):
            if violation is not None:
                failed.append(seed)
                print(f"seed {seed}: {violation}", flush=True)
            if done % 50 == 0 or done == given.seeds:
                print(f"{done} of {given.seeds} histories, {len(failed)} failed, {time.monotonic() - began:.0f} s")
    return _show(min(failed), None, given.operators) if failed else 0


def _search(name: str, seeds: range, given: argparse.Namespace) -> bool:
    """Print the first seed that finds a defect; return whether there is one."""
    tasks = [(seed, name, given.operators) for seed in seeds]
    with Pool(given.jobs) as pool:
        for tried, (seed, violation) in enumerate(pool.imap(_one, tasks), 1):
            if violation is not None:
                print(f"{name} ({DEFECTS[name].number}): found after {tried} seeds, by {seed}: {violation}", flush=True)
                return True
    print(f"{name} ({DEFECTS[name].number}): not found in {len(seeds)} seeds", flush=True)
    return False


def _show(seed: int, defect: str | None, operators: int) -> int:
    with quiet(), put_back(defect) if defect is not None else nullcontext():
        result = run(seed, operators=operators)
        if result.violation is None:
            print(f"seed {seed}: everything held; {result.lives} lives of the operator")
            return 0
        print(f"seed {seed}: {result.violation}")
        print("making the history small", file=sys.stderr)
        operations = shrink(seed, result.operations, result.violation.kind, operators=operators)
        small = run(seed, operations, operators=operators)
    print(f"{len(operations)} of {len(result.operations)} operations are enough: {small.violation}")
    print(*operations, sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
