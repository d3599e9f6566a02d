"""Processor time of running processes, by process and by what the threads of a JVM are for."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import psutil

#: The beginning of a JVM's thread names, and what these threads do.
_THREADS = (
    ("Executor task", "the task's thread"),
    ("C1 Compiler", "compiling"),
    ("C2 Compiler", "compiling"),
    ("GC Thread", "collecting garbage"),
    ("G1 ", "collecting garbage"),
)


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    # Children that have ended count, too.
    return float(times.user + times.system + times.children_user + times.children_system)


def processor_s(pid: int) -> float:
    """Return the processor time (s) of a process and of all below it."""
    root = psutil.Process(pid)
    used = _used(root)
    for each in root.children(recursive=True):
        try:
            used += _used(each)
        except psutil.NoSuchProcess:
            continue
    return used


def by_part(root: psutil.Process) -> dict[str, float]:
    """Return the processor time (s) of all below a process: a JVM's by its threads, and that of Python's workers."""
    found: dict[str, float] = defaultdict(float)
    for each in root.children(recursive=True):
        try:
            if each.name() != "java":
                found["Python"] += _used(each)
                continue
            for thread in each.threads():
                name = Path(f"/proc/{each.pid}/task/{thread.id}/comm").read_text()
                part = next((part for beginning, part in _THREADS if name.startswith(beginning)), "other threads")
                found[f"JVM, {part}"] += thread.user_time + thread.system_time
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            continue
    return found
