"""Power loss: the recorded writes of a whole broker under load, replayed up to more than a thousand moments.

For each moment a directory is made as a disk may keep it: what was synced is there; of pages that were not, any, torn
at 512 bytes; names only once their directory was synced. A broker opens on it and has to keep every promise a client
had been given before that moment. ``--seed`` repeats a run's choices.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from .power.recording import SYSTEM_CALLS, Recording, Removed, Renamed
from .power.replay import ReplayJob

POINTS = 2000
RECORDED_WITHIN_S = 600.0
REPLAYED_WITHIN_S = 1200.0


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory in memory if there is one: thousands of stores are made in it and synced."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="heliograph-power-", dir=memory if usable else None) as directory:
        yield Path(directory)


def _may_trace() -> bool:
    tried = subprocess.run(["strace", "-f", "-o", os.devnull, sys.executable, "-c", ""], capture_output=True)
    return tried.returncode == 0


def _record(scratch: Path, seed: int) -> ReplayJob:
    """Run a broker under load under strace; return where everything is."""
    trace, data_dir, promises = scratch / "trace", scratch / "data", scratch / "promises"
    command = ["strace", "-f", "-qq", "-xx", "-s", str(64 << 20), "-e", "signal=none", "-e", f"trace={SYSTEM_CALLS}"]
    command += ["-o", str(trace), sys.executable, "-m", "tests.faults.power.recorded_run"]
    command += [str(data_dir), str(promises), str(seed)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RECORDED_WITHIN_S, cwd=root)
    assert done.returncode == 0, f"the run that was to be recorded ended with {done.returncode}:\n{done.stderr[-4000:]}"
    moments = scratch / "moments"
    moments.mkdir()
    return ReplayJob(str(trace), str(data_dir), str(promises), str(moments), POINTS, seed, 0, 1)


def _replay(job: ReplayJob, workers: int) -> list[dict[str, object]]:
    """Replay in processes of their own: a broken file may end the process that maps it."""
    root = Path(__file__).parents[2]
    started = []
    for worker in range(workers):
        job = msgspec.structs.replace(job, worker=worker, of=workers)
        command = [sys.executable, "-m", "tests.faults.power.replay", msgspec.json.encode(job).decode()]
        log = Path(job.scratch) / f"worker-{worker}"
        with log.open("wb") as output:
            started.append((subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=root), log))
    found: list[dict[str, object]] = []
    try:
        for process, log in started:
            code = process.wait(REPLAYED_WITHIN_S)
            lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
            for asked, answered in zip(lines[::2], lines[1::2], strict=False):
                found.append(asked | answered)
            if len(lines) % 2:
                found.append(lines[-1] | {"read": 0, "error": f"the process ended with {code}"})
            assert code == 0 or len(lines) % 2, f"a replay ended with {code}:\n{log.read_text()[-4000:]}"
    finally:
        for process, _ in started:
            if process.poll() is None:
                process.kill()
                process.wait()
    return found


@pytest.mark.timeout(2000)
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not on this machine")
def test_power_loss_at_any_moment_leaves_every_promise_kept(scratch: Path, seed: int) -> None:
    if not _may_trace():
        pytest.skip("processes may not be traced here")
    began = time.monotonic()
    job = _record(scratch, seed)
    recording = Recording(Path(job.trace), Path(job.data_dir), Path(job.promises))
    recorded_s = time.monotonic() - began
    kinds = Counter(type(operation).__name__ for operation in recording.operations)
    renamed = [operation for operation in recording.operations if isinstance(operation, Renamed)]
    removed = [operation for operation in recording.operations if isinstance(operation, Removed)]
    # It means something only if all that the store does with files was under way.
    assert kinds["Promised"] > 500, kinds
    assert kinds["Synced"] > 100, kinds
    assert any(operation.path.endswith("metadata.tmp") for operation in renamed), "the metadata was not compacted"
    rewritten = [op for op in renamed if "/segments/" in op.path and op.path.endswith(".tmp")]
    assert rewritten, "no segment was rewritten"
    assert any(operation.path.endswith(".leaving") for operation in removed), "no segment was unlinked"
    found = _replay(job, min(2, os.cpu_count() or 1))
    broken = [each for each in found if each["error"]]
    print(
        f"{len(recording.operations)} operations recorded in {recorded_s:.0f} s, {len(found)} moments replayed in "
        f"{time.monotonic() - began - recorded_s:.0f} s, {sum(int(str(each['read'])) for each in found)} entries read"
    )
    assert not broken, f"{len(broken)} of {len(found)} moments break a promise; the first: {broken[:3]}"
    assert len(found) == POINTS
