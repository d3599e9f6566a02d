"""Adds up runs of the fuzzer, which are kept as lines of JSON beside its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

_FILE = "runs.jsonl"


class Run(msgspec.Struct):
    """One run of one target: the inputs that ran, what all of them reached, its time (s), whether it found a defect.

    It ends with the first defect, or because its process was ended.
    """

    target: str
    executions: int
    branches: int
    seconds: int
    features: int = 0
    defect: bool = False


def add(root: Path, run: Run) -> None:
    """Keep a run in the directory of inputs."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / _FILE).open("ab") as file:
        file.write(msgspec.json.encode(run) + b"\n")


def load(root: Path) -> list[Run]:
    """Return all runs that were kept in a directory."""
    path = root / _FILE
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Run) for line in path.read_bytes().splitlines()]


def table(runs: Iterable[Run], names: Sequence[str]) -> str:
    """Return a table in Markdown, with a line for each target and one for all.

    Executions, defects and minutes are sums; branches and features are the most that one run reached.
    """
    kept = list(runs)
    lines = ["| target | executions | branches | features | defects | minutes |", "|---|---:|---:|---:|---:|---:|"]
    for name in names:
        found = [run for run in kept if run.target == name]
        branches = max((run.branches for run in found), default=0)
        features = max((run.features for run in found), default=0)
        executions, defects, minutes = _sums(found)
        lines.append(f"| `{name}` | {executions} | {branches:,} | {features:,} | {defects} | {minutes} |")
    executions, defects, minutes = _sums([run for run in kept if run.target in names])
    return "\n".join([*lines, f"| all | {executions} | | | {defects} | {minutes} |"])


def _sums(runs: Sequence[Run]) -> tuple[str, int, str]:
    executions, seconds = sum(run.executions for run in runs), sum(run.seconds for run in runs)
    return f"{executions:,}", sum(run.defect for run in runs), f"{seconds / 60:.1f}"
