"""Reports of several runs for one directory: a page is there only with the tables that it is made of."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from heliograph_spark.jobs.publishing import aside, put_in_place
from heliograph_spark.plan.errors import JobError
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.files import STAGING
from pyspark.sql import SparkSession

from .stepping import Run, make_steps, stop_here

TABLES = ("parquet/a", "csv/a")


def run(spark: SparkSession, path: Path, number: int) -> Run:
    """A run that began at this millisecond and writes its number into all it makes."""

    def work() -> int:
        directory = open_directory(spark, str(path))
        with aside(directory, number) as own:
            for table in TABLES:
                stop_here()
                file = path / own / table / f"part-{number}"
                file.parent.mkdir(parents=True)
                file.write_text(str(number))
            put_in_place(directory, own, TABLES, "page", str(number))
        return number

    return Run(work)


def shown(path: Path) -> str | None:
    """The page, whose tables are its own."""
    if not (path / "page").exists():
        return None
    page = (path / "page").read_text()
    for table in TABLES:
        assert [each.name for each in (path / table).iterdir()] == [f"part-{page}"]
        assert (path / table / f"part-{page}").read_text() == page
    return page


@pytest.fixture
def stops(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of times that a run stops."""
    make_steps(monkeypatch)
    alone = run(spark, tmp_path / "alone", 1)
    count = 0
    while alone.step():
        count += 1
    assert (alone.made, shown(tmp_path / "alone")) == (1, "1")
    return count


def test_two_runs_leave_one_report_or_say_that_there_is_none(spark: SparkSession, tmp_path: Path, stops: int) -> None:
    for first, second in itertools.product(range(stops + 1), range(1, stops + 2, 5)):
        path = tmp_path / f"{first}-{second}"
        runs = [run(spark, path, 1), run(spark, path, 2)]
        for each, steps in zip(runs, (first, second), strict=True):
            for _ in range(steps):
                each.step()
        for each in runs:
            each.finish()
        page = shown(path)
        for each in runs:
            assert each.error is None or isinstance(each.error, JobError), (first, second, each.error)
            assert each.error is None or "another run" in str(each.error) or "a run that began later" in str(each.error)
        assert page is not None or any(each.error is not None for each in runs)
        assert page is None or runs[int(page) - 1].error is None, (first, second)
        last = run(spark, path, 3)
        last.finish()
        assert (last.made, shown(path)) == (3, "3")
        assert list((path / STAGING).iterdir()) == []


@pytest.mark.long
def test_what_a_killed_run_has_left_goes_with_one_that_began_later(
    spark: SparkSession, tmp_path: Path, stops: int
) -> None:
    for steps in range(stops):
        path = tmp_path / str(steps)
        before, killed, beside = run(spark, path, 1), run(spark, path, 2), run(spark, path, 4)
        before.finish()
        beside.step()
        for _ in range(steps):
            killed.step()
        killed.kill()
        assert shown(path) in (None, "1", "2")
        last = run(spark, path, 3)
        last.finish()
        assert (last.made, shown(path)) == (3, "3")
        # A run that began later may be using it.
        assert [each.name[:13] for each in (path / STAGING).iterdir()] == ["0000000000004"]
        beside.finish()
        assert (beside.made, shown(path)) == (4, "4")
