"""Runs of the fuzzer's workers, each a process: what one is given, and what is read from what it prints."""

from __future__ import annotations

import os
import re
import string
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha1
from pathlib import Path
from typing import NamedTuple

from . import corpus
from .targets import load

#: An input that takes longer (s) is a finding.
_INPUT_S = 30
_MEMORY_MB = 2048

#: Workers that run now.
_running: set[subprocess.Popen[str]] = set()
_PLAIN = string.ascii_letters + string.digits
_LINE = re.compile(r"#(\d+)\s+(\w+)\s+cov: (\d+) ft: (\d+) corp: (\d+)/\S+")
_EXECUTIONS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_ARTIFACT = re.compile(r"Test unit written to (\S+)")
_ERROR = re.compile(r"=== Uncaught Python exception: ===")


class Limits(NamedTuple):
    """When a run ends: after seconds, executions, or whichever comes first; 0 is no limit."""

    seconds: int = 0
    executions: int = 0


class Progress:
    """The state of one worker; ``branches`` is what it reached in all, ``first`` what its first inputs did.

    ``features`` also tells branches that were taken once from those that were taken often, and counts compared values.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.executions = 0
        self.first = 0
        self.branches = 0
        self.features = 0
        self.inputs = 0
        #: The file with the input that showed a defect, and what was raised.
        self.finding: Path | None = None
        self.error = ""
        self.failed = False
        self._tail: list[str] = []

    def read(self, line: str) -> None:
        """Take in one line of the worker's output."""
        if line.startswith("INFO: Instrumenting"):
            return
        if match := _LINE.match(line):
            self.executions, self.inputs = int(match[1]), int(match[5])
            self.branches, self.features = int(match[3]), int(match[4])
            if match[2] == "INITED":
                self.first = self.branches
        elif match := _EXECUTIONS.match(line):
            self.executions = int(match[1])
        elif match := _ARTIFACT.search(line):
            self.finding = Path(match[1])
        if _ERROR.search(line):
            self._tail = []
        self._tail = [*self._tail[-400:], line]

    def ended(self, code: int) -> None:
        """The worker ended with this exit code."""
        self.failed = code != 0
        if self.failed:
            self.error = "".join(self._tail).strip()

    def __str__(self) -> str:
        grown = f"{self.first} to {self.branches} branches, {self.inputs} inputs"
        return f"{self.target}: {self.executions} executions, {grown}"


class Workplace:
    """The directories of one target: ``corpus`` grows over runs, ``findings`` has inputs that showed defects."""

    def __init__(self, root: Path, target: str) -> None:
        self.corpus = root / target / "corpus"
        self.findings = root / target / "findings"
        for each in (self.corpus, self.findings):
            each.mkdir(parents=True, exist_ok=True)


def write_inputs(directory: Path, inputs: Iterable[bytes]) -> list[Path]:
    """Write inputs to files named after their content, and return these, each once."""
    files = {directory / sha1(data, usedforsecurity=False).hexdigest(): data for data in inputs}
    for path, data in files.items():
        path.write_bytes(data)
    return list(files)


def dictionary(words: Iterable[str]) -> str:
    """Return words as libFuzzer reads them from a file."""
    lines = []
    for word in words:
        escaped = "".join(chr(byte) if chr(byte) in _PLAIN else f"\\x{byte:02X}" for byte in word.encode())
        lines.append(f'"{escaped}"\n')
    return "".join(lines)


def fuzz(target: str, root: Path, limits: Limits, seed: int, report: Callable[[Progress], None]) -> Progress:
    """Run one worker to its end and return its last state; ``report`` gets it now and then.

    Seed 0 lets the fuzzer draw one.
    """
    loaded = load(target)
    place = Workplace(root, target)
    progress = Progress(target)
    with tempfile.TemporaryDirectory() as name:
        given = Path(name) / "given"
        given.mkdir()
        # The order in a directory is up to the file system.
        (Path(name) / "first").write_text(
            ",".join(map(str, write_inputs(given, [*loaded.seeds(), *corpus.load(target)])))
        )
        options = [
            f"-seed_inputs=@{name}/first",
            "-reload=0",
            f"-artifact_prefix={place.findings}/",
            f"-timeout={_INPUT_S}",
            f"-rss_limit_mb={_MEMORY_MB}",
        ]
        options += ["-print_final_stats=1", f"-seed={seed}", f"-max_total_time={limits.seconds}"]
        if limits.executions:
            options.append(f"-runs={limits.executions}")
        if loaded.words:
            (Path(name) / "words").write_text(dictionary(loaded.words), "ascii")
            options.append(f"-dict={name}/words")
        _run(target, [*options, str(place.corpus)], progress, report)
    return progress


def _run(
    target: str,
    options: list[str],
    progress: Progress,
    report: Callable[[Progress], None],
    variables: Mapping[str, str] | None = None,
) -> None:
    command = [sys.executable, "-m", "tests.fuzz.worker", target, *options]
    # The order of a set of texts would differ from run to run.
    environment = {**os.environ, "PYTHONHASHSEED": "0", **(variables or {})}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", env=environment
    ) as worker:
        assert worker.stdout is not None
        _running.add(worker)
        done = threading.Event()

        def remind() -> None:
            while not done.wait(10):
                report(progress)

        reminder = threading.Thread(target=remind, daemon=True)
        reminder.start()
        try:
            for line in worker.stdout:
                progress.read(line)
        finally:
            _running.discard(worker)
            done.set()
            reminder.join()
        progress.ended(worker.wait())


def stop() -> None:
    """End all workers."""
    for worker in list(_running):
        worker.terminate()


def keep(target: str, root: Path, most_bytes: int) -> int:
    """Replace the kept inputs of a target by a minimal set that reaches as much; return their number.

    The smallest are taken until they have ``most_bytes`` together.
    """
    loaded = load(target)
    place = Workplace(root, target)
    with tempfile.TemporaryDirectory() as name:
        given, merged = Path(name) / "given", Path(name) / "merged"
        given.mkdir()
        merged.mkdir()
        write_inputs(given, [*loaded.seeds(), *corpus.load(target)])
        program = Path(name) / "worker"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fuzz.worker {target} "$@"\n', "utf-8")
        program.chmod(0o700)
        progress = Progress(target)
        options = ["-merge=1", str(merged), str(given), str(place.corpus)]
        _run(target, options, progress, lambda progress: None, {"HELIOGRAPH_FUZZ_WORKER": str(program)})
        if progress.failed:
            raise RuntimeError(f"merging {target} failed:\n{progress.error}")
        found = sorted((path.read_bytes() for path in merged.iterdir()), key=len)
    kept: list[bytes] = []
    for data in found:
        most_bytes -= len(data)
        if most_bytes < 0:
            break
        kept.append(data)
    corpus.save(target, kept)
    return len(kept)
