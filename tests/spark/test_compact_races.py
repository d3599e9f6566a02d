"""``compact``: runs side by side, stopped before and after every call of the file system, and killed at any of them.

What Spark writes is two small files here, so that hundreds of schedules take seconds; the file system is the real one.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from heliograph_spark.jobs import compact
from heliograph_spark.jobs.archived import Archived, made_of
from heliograph_spark.jobs.archives import FileArchive
from heliograph_spark.jobs.compact import Table
from heliograph_spark.plan.errors import JobError
from heliograph_spark.run.archived import archived_files, topic_directory
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.files import STAGING, Directory
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from .stepping import Run, make_steps, stop_here

TOPIC = "persistent://public/default/t"


def write_two_parts(root: Directory, name: str, _frame: Any, *_partitions: str) -> int:
    """In place of Spark: a table is whole if it has both parts, by one run."""
    table = Path(root.path, STAGING, name)
    table.mkdir(parents=True)
    by = str(threading.get_ident())
    for part in "ab":
        stop_here()
        if not table.is_dir():
            raise PySparkException(f"{table} is gone")
        (table / f"part-{part}").write_text(by)
    stop_here()
    return 2


class Listed(FileArchive):
    """An archive of which only the files are listed."""

    def read(self, topic: str) -> Archived:
        return Archived(None, made_of(archived_files(self._spark, self.name, topic)))


@dataclass
class Tables:
    """An archive with a file, which can have more of them, and the tables that runs make of it."""

    spark: SparkSession
    path: Path
    files: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.archive_more()

    @property
    def directory(self) -> Path:
        return Path(topic_directory(str(self.path / "tables"), TOPIC))

    def archive_more(self) -> None:
        file = Path(
            topic_directory(str(self.path / "archive"), TOPIC), "date=2024-03-01", f"{next(self.files)}.parquet"
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def run(self) -> Run:
        archive, to = Listed(self.spark, str(self.path / "archive")), str(self.path / "tables")
        return Run(lambda: compact._make(self.spark, archive, to, TOPIC)[0])

    def whole(self, table: Path) -> bool:
        parts = [table / "part-a", table / "part-b"]
        return all(each.is_file() for each in parts) and len({each.read_text() for each in parts}) == 1

    def newest(self) -> tuple[int, Path] | None:
        """Return the table that a reader finds now, which is always a whole one."""
        markers = [
            each for each in self.directory.glob("_version-*.json") if re.fullmatch(r"_\S+-\d{8}\.json", each.name)
        ]
        if not markers:
            return None
        number = max(markers).stem.removeprefix("_version-")
        output = json.loads(max(markers).read_text())
        table = self.directory / output.get("table", f"version={number}")
        assert self.whole(table), f"{max(markers).name} names {table.name}, which is not whole"
        return int(number), table

    def check(self, runs: list[Run], version: int) -> None:
        """One of the runs that are over made the version and the others were refused, if they did not find it made."""
        found = self.newest()
        assert found is not None
        assert found[0] == version
        refusal = f"another run has made version {version} meanwhile"
        for run in runs:
            assert run.error is None or refusal in str(run.error), run.error
            assert run.made is None or Path(run.made.path) == found[1]
        assert any(run.made is not None for run in runs)

    def shown(self) -> list[str]:
        return sorted(each.name for each in self.directory.iterdir() if not each.name.startswith("."))

    def staged(self) -> list[Path]:
        return [each for each in (self.path / "tables" / STAGING).rglob("*") if each.name != self.directory.name]


@pytest.fixture
def made_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that stop at each call of the file system, and write small files where Spark would write tables."""
    make_steps(monkeypatch)
    monkeypatch.setattr(compact, "last_values", lambda _: None)
    monkeypatch.setattr(compact, "stage", write_two_parts)


def stops_of_a_run(spark: SparkSession, path: Path) -> int:
    run = Tables(spark, path).run()
    count = 0
    while run.step():
        count += 1
    assert run.error is None
    return count


@pytest.mark.usefixtures("made_quickly")
def test_two_runs_make_one_version_wherever_the_first_is_when_the_second_begins_and_stops(
    spark: SparkSession, tmp_path: Path
) -> None:
    stops = stops_of_a_run(spark, tmp_path / "alone")
    assert stops > 10
    # Each place of the second is met with every fifth of the first.
    pairs = itertools.product(range(stops + 1), range(1, stops + 2))
    for first, second in ((first, second) for first, second in pairs if (first + second) % 5 == 0):
        tables = Tables(spark, tmp_path / f"{first}-{second}")
        runs = [tables.run(), tables.run()]
        for run, steps in zip(runs, (first, second), strict=True):
            for _ in range(steps):
                run.step()
                tables.newest()
        for run in runs:
            run.finish()
            tables.newest()
        tables.check(runs, 1)
        found = tables.newest()
        assert found is not None
        assert tables.shown() == ["_version-00000001.json", found[1].name]
        assert tables.staged() == []


@pytest.mark.usefixtures("made_quickly")
def test_runs_in_any_order_of_which_some_are_killed_make_one_version_and_the_next_one_cleans_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    stops = stops_of_a_run(spark, tmp_path / "alone")
    for seed in range(60):
        drawn = random.Random(seed)
        tables = Tables(spark, tmp_path / str(seed))
        before = drawn.randrange(3)
        for _ in range(before):
            tables.run().finish()
            tables.archive_more()
        killed = tables.run()
        for _ in range(drawn.randrange(stops)):
            killed.step()
        killed.kill()
        runs = [tables.run() for _ in range(3)]
        going = list(runs)
        if drawn.random() < 0.3:
            runs.remove(killed_beside := runs[0])
            for _ in range(drawn.randrange(stops)):
                killed_beside.step()
            killed_beside.kill()
            going.remove(killed_beside)
        while going:
            run = drawn.choice(going)
            # Some steps at once: runs that take turns with each step meet too seldom at the rare places.
            if not all(run.step() for _ in range(drawn.randint(1, 6))):
                going.remove(run)
            tables.newest()
        tables.check(runs, before + 1)
        tables.archive_more()
        last = tables.run()
        last.finish()
        assert last.error is None, (seed, last.error)
        found = tables.newest()
        assert found is not None
        assert found[0] == before + 2
        markers = [f"_version-{number:08}.json" for number in (before + 1, before + 2)]
        assert [each for each in tables.shown() if each.startswith("_")] == markers, seed
        assert len(tables.shown()) == 4, (seed, tables.shown())
        assert tables.staged() == [], seed


@pytest.mark.usefixtures("made_quickly")
def test_a_run_that_was_overtaken_by_two_versions_is_told_so(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever the runs after it cleaned up of what it had, which cannot count any more."""
    for steps in range(stops_of_a_run(spark, tmp_path / "alone")):
        tables = Tables(spark, tmp_path / str(steps))
        slow = tables.run()
        for _ in range(steps):
            slow.step()
        for _ in range(2):
            tables.run().finish()
            tables.archive_more()
        slow.finish()
        found = tables.newest()
        assert found is not None
        refusal = r"another run has made version \d meanwhile"
        assert slow.error is None or re.search(refusal, str(slow.error)), (steps, slow.error)
        assert slow.error is None or isinstance(slow.error, JobError)
        tables.run().finish()
        tables.newest()
        assert tables.staged() == []


@pytest.mark.usefixtures("made_quickly")
def test_a_table_of_a_release_that_did_not_name_it_is_read_and_followed(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, tmp_path)
    before = tables.directory / "version=00000001"
    before.mkdir(parents=True)
    for part in "ab":
        (before / f"part-{part}").write_text("before")
    (tables.directory / "_version-00000001.json").write_text(json.dumps({"rows": 2, "made_of": "nothing"}))
    # A killed run of that release has left the table of the next version, and the file that was to name it.
    (tables.directory / "version=00000002").mkdir()
    (tables.directory / "__version-00000002.json.unfinished").write_text("{")
    assert compact._newest(open_directory(spark, str(tables.directory))) == Table(1, str(before), 2, "nothing")
    for version in (2, 3):
        run = tables.run()
        run.finish()
        assert run.made is not None, run.error
        assert tables.newest() == (version, Path(run.made.path))
        assert before.exists() == (version == 2)
        tables.archive_more()
    assert len(tables.shown()) == 4
