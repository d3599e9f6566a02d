"""Reads what the fuzzer prints, and keeps inputs as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import corpus, totals
from tests.fuzz.run import Progress, dictionary


def test_the_state_of_a_worker_follows_from_its_lines() -> None:
    progress = Progress("names")
    for line in (
        "INFO: Instrumenting heliograph_api.values\n",
        "#64\tINITED cov: 242 ft: 377 corp: 12/828b exec/s: 0 rss: 155Mb\n",
        "#100000\tDONE   cov: 269 ft: 518 corp: 48/2475b lim: 245 exec/s: 2959 rss: 156Mb\n",
        "stat::number_of_executed_units: 100003\n",
    ):
        progress.read(line)
    progress.ended(0)
    assert str(progress) == "names: 100003 executions, 242 to 269 branches, 48 inputs"
    assert (progress.failed, progress.finding, progress.error, progress.features) == (False, None, "", 518)


def test_a_finding_has_its_traceback_and_the_file_of_the_input() -> None:
    progress = Progress("names")
    for line in (
        "#5\tNEW    cov: 3 ft: 4 corp: 2/3b\n",
        " === Uncaught Python exception: ===\n",
        "IndexError: string index out of range\n",
        "==17== ERROR: libFuzzer: fuzz target exited\n",
        "artifact_prefix='/w/'; Test unit written to /w/crash-1f\n",
    ):
        progress.read(line)
    progress.ended(77)
    assert progress.failed
    assert progress.finding == Path("/w/crash-1f")
    assert progress.error.startswith("=== Uncaught Python exception: ===\nIndexError: string index out of range")


def test_words_are_written_as_libfuzzer_reads_them() -> None:
    assert dictionary(['a"\\', "\u00e4b"]) == '"a\\x22\\x5C"\n"\\xC3\\xA4b"\n'


def test_kept_inputs_are_lines_in_the_order_of_their_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "DIRECTORY", tmp_path)
    assert corpus.load("names") == []
    corpus.save("names", [b"longer", b"\0", b"", b"\0"])
    assert (tmp_path / "names.b64").read_text() == "\nAA==\nbG9uZ2Vy\n"
    assert corpus.load("names") == [b"", b"\0", b"longer"]


def test_runs_are_kept_and_added_up(tmp_path: Path) -> None:
    assert totals.load(tmp_path) == []
    for executions, branches, defect in ((1000, 7, False), (500, 9, True)):
        run = totals.Run("names", executions, branches, 90, 2 * branches, defect)
        totals.add(tmp_path / "work", run)
    lines = totals.table(totals.load(tmp_path / "work"), ["names", "rest"]).splitlines()
    assert lines[2:] == [
        "| `names` | 1,500 | 9 | 18 | 1 | 3.0 |",
        "| `rest` | 0 | 0 | 0 | 0 | 0.0 |",
        "| all | 1,500 | | | 1 | 3.0 |",
    ]
