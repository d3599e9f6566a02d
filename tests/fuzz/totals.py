"""Adds up runs of the fuzzer, which are kept as lines of JSON beside its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

_FILE = "runs.jsonl"


class Run(msgspec.Struct):
    """One run of one target: the inputs that ran, the branches that all of them reached, and its time (s)."""

    target: str
    executions: int
    branches: int
    seconds: int
    failed: bool = False


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
    """Return a table in Markdown: the executions of each target and in all, and the most branches that one reached."""
    lines = ["| target | executions | branches | hours |", "|---|---:|---:|---:|"]
    total = seconds = 0
    kept = list(runs)
    for name in names:
        found = [run for run in kept if run.target == name]
        executions, took = sum(run.executions for run in found), sum(run.seconds for run in found)
        total, seconds = total + executions, seconds + took
        branches = max((run.branches for run in found), default=0)
        lines.append(f"| `{name}` | {executions:,} | {branches:,} | {took / 3600:.1f} |")
    return "\n".join([*lines, f"| all | {total:,} | | {seconds / 3600:.1f} |"])
