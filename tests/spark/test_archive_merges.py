"""Small files of a complete day become larger ones: what readers see at each step, and after a kill at each step."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, Tables
from heliograph_spark.jobs.archiving import merging, parquet
from heliograph_spark.jobs.archiving.merging import in_groups, merge_day
from heliograph_spark.jobs.archiving.parquet import ParquetTopic
from heliograph_spark.jobs.archiving.target import Batch
from heliograph_spark.plan.errors import JobError, OptionError
from heliograph_spark.plan.positions import Position
from heliograph_spark.run import archived, merges
from heliograph_spark.run.archived import (
    archived_files,
    keep_columns,
    mark_complete,
    name_below,
    read_archive,
    topic_directory,
)
from heliograph_spark.run.days import MARK
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.files import Directory, stage
from heliograph_spark.run.hadoop_files import HadoopDirectory
from heliograph_spark.run.merges import finish_merge
from heliograph_spark.run.session import Broker
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from .stepping import Killed

TOPIC = "persistent://public/default/merged"
DAY = "2026-01-01"
SIZE = 1 << 20
_LATE = "value BIGINT, `__file` STRING, __publishTime TIMESTAMP"
ENDS = {TOPIC: Position(1, 1)}


@given(st.lists(st.integers(1, 200), max_size=30), st.integers(1, 300))
def test_groups_have_neighbours_of_about_the_size_and_no_large_files(lengths: list[int], size: int) -> None:
    files = [(f"f{number:03}", length) for number, length in enumerate(lengths)]
    groups = in_groups(files, size)
    small = [name for name, length in files if length < size / 2]
    taken = [name for group in groups for name in group]
    assert sorted(taken) == taken
    assert set(taken) <= set(small)
    sizes = dict(files)
    for group in groups:
        assert len(group) > 1
        assert sum(sizes[name] for name in group) <= size
    # No file is in two groups.
    assert len(groups) <= len(small) / 2


@pytest.fixture
def small_files(spark: SparkSession, tmp_path: Path) -> Path:
    """An archive of six complete batches of a file each, the last one of another day, and a part of the next batch.

    A field may have a name like those of the columns by which merging keeps the order.
    """
    keep_columns(spark, str(tmp_path), TOPIC, StructType().add("value", "long").add("__file", "string"))
    topic = Path(topic_directory(str(tmp_path), TOPIC))
    for number in range(7):
        day = topic / f"date={DAY if number != 5 else '2026-01-02'}"
        day.mkdir(exist_ok=True)
        # Older files lack a column, and have a narrower one.
        value = pa.array([number], pa.int32() if number < 2 else pa.int64())
        columns = {"value": value} | ({"__file": pa.array(["new"])} if number > 2 else {})
        pq.write_table(pa.table(columns), day / f"query-{number:08}-00000.parquet")
    mark_complete(open_directory(spark, str(topic)), "query", 6, ENDS)
    (tmp_path / "_staging").mkdir()
    return tmp_path


def rows(spark: SparkSession, path: Path) -> list[tuple[int, str | None]]:
    return sorted((row.value, row["__file"]) for row in read_archive(spark, str(path), TOPIC).collect())


def topic_files(path: Path, pattern: str) -> list[Path]:
    return sorted(Path(topic_directory(str(path), TOPIC)).glob(f"date=*/{pattern}"))


ALL = [(0, None), (1, None), (2, None), (3, "new"), (4, "new"), (5, "new")]


def test_the_files_of_a_day_become_one_before_the_day_is_marked(spark: SparkSession, small_files: Path) -> None:
    topic = ParquetTopic(spark, str(small_files), TOPIC, SIZE)
    # A run that was killed while it merged has left it.
    (small_files / "_staging" / f"{name_below(TOPIC)}+killed").mkdir()

    def days() -> Iterator[str]:
        yield DAY
        # A run that is asked to end meanwhile names no more days, and merges none.
        assert topic_files(small_files, "merged-*")

    assert topic.mark_days(days(), ENDS, 0) == {DAY: 5}
    assert archived_files(spark, str(small_files), TOPIC) == [
        f"date={DAY}/merged-00000000-00000.parquet",
        "date=2026-01-02/query-00000005-00000.parquet",
    ]
    assert rows(spark, small_files) == ALL
    day = Path(topic_directory(str(small_files), TOPIC)) / f"date={DAY}"
    merged = pq.ParquetFile(day / "merged-00000000-00000.parquet").read()
    assert merged.column("value").to_pylist() == [0, 1, 2, 3, 4]
    # The file of the batch that is not complete is not the merging's.
    names = sorted(each.name for each in day.iterdir() if not each.name.startswith("."))
    assert names == [MARK, "merged-00000000-00000.parquet", "query-00000006-00000.parquet"]
    assert list((small_files / "_staging").iterdir()) == []
    # It is done; a late file is merged with it.
    assert merge_day(spark, str(small_files), TOPIC, DAY, SIZE, "own") is None
    mark_complete(open_directory(spark, topic_directory(str(small_files), TOPIC)), "query", 7, ENDS)
    assert merge_day(spark, str(small_files), TOPIC, DAY, SIZE, "own") == (2, 1)
    assert rows(spark, small_files) == [*ALL, (6, "new")]
    records = [each.name for each in day.parent.iterdir() if each.name.startswith("_mer")]
    assert records == ["_merged-00000001.json"]


def test_readers_have_every_row_once_at_each_step_and_after_a_kill_there(
    spark: SparkSession, small_files: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = {name: getattr(HadoopDirectory, name) for name in ("rename", "delete", "write_text")}
    steps = 0
    killed_at: int | None = None

    def step() -> None:
        nonlocal steps
        if steps == killed_at:
            raise Killed
        steps += 1

    def watched(name: str) -> Callable[..., None]:
        def call(self: HadoopDirectory, *arguments: str) -> None:
            step()
            calls[name](self, *arguments)

        return call

    for name in calls:
        monkeypatch.setattr(HadoopDirectory, name, watched(name))
    seen = 0
    while True:
        copy = tmp_path_factory.mktemp("copy") / "archive"
        shutil.copytree(small_files, copy)
        steps, killed_at = 0, seen
        try:
            merge_day(spark, str(copy), TOPIC, DAY, SIZE, "own")
            break
        except Killed:
            seen += 1
            killed_at = None
        files = archived_files(spark, str(copy), TOPIC)
        values = sorted(
            value
            for file in files
            for value in pq.ParquetFile(f"{topic_directory(str(copy), TOPIC)}/{file}")
            .read()
            .column("value")
            .to_pylist()
        )
        assert values == list(range(6))
        assert len(files) in (6, 2)
        finish_merge(open_directory(spark, topic_directory(str(copy), TOPIC)))
        assert archived_files(spark, str(copy), TOPIC) == files
        assert merge_day(spark, str(copy), TOPIC, DAY, SIZE, "other") == ((5, 1) if len(files) == 6 else None)
    # The rename into place, both records with their renames, five files and a record less, and the staging's end.
    assert seen >= 12
    assert rows(spark, copy) == ALL


def test_a_reader_that_lists_files_while_they_are_replaced_lists_them_again(
    spark: SparkSession, small_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = merges.merges
    reads: Iterator[int] = iter(range(100))

    def merged_meanwhile(directory: Directory) -> merges.Merges:
        # Between the reader's first question and its listing.
        answer = found(directory)
        if next(reads) == 0:
            monkeypatch.setattr(merges, "merges", found)
            merge_day(spark, str(small_files), TOPIC, DAY, SIZE, "own")
        return answer

    monkeypatch.setattr(merges, "merges", merged_meanwhile)
    assert rows(spark, small_files) == ALL


def test_a_merge_that_fails_keeps_no_space_and_the_next_one_succeeds(
    spark: SparkSession, small_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_self: HadoopDirectory, old: str, _new: str) -> None:
        raise JobError(f"{old}: No space left on device")

    with monkeypatch.context() as full:
        full.setattr(HadoopDirectory, "rename", refused)
        with pytest.raises(JobError, match="No space left"):
            merge_day(spark, str(small_files), TOPIC, DAY, SIZE, "own")
    assert list((small_files / "_staging").iterdir()) == []
    assert rows(spark, small_files) == ALL
    assert merge_day(spark, str(small_files), TOPIC, DAY, SIZE, "own") == (5, 1)
    assert rows(spark, small_files) == ALL


def test_a_reader_has_whole_batches_with_their_columns_whatever_ends_or_begins_while_it_lists_them(
    spark: SparkSession, small_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = open_directory(spark, topic_directory(str(small_files), TOPIC))
    asked = archived._complete

    def meanwhile(archive_goes_on: Callable[[], None], *, before: bool) -> None:
        """Let the archive go on at the reader's first question for complete batches, before or after the answer."""

        def answered(of: Directory) -> dict[str, int]:
            monkeypatch.setattr(archived, "_complete", asked)
            answer = {} if before else asked(of)
            archive_goes_on()
            return asked(of) if before else answer

        monkeypatch.setattr(archived, "_complete", answered)

    def ends() -> None:
        keep_columns(spark, str(small_files), TOPIC, StructType().add("later", "string"))
        mark_complete(directory, "query", 7, ENDS)

    meanwhile(ends, before=True)
    found = read_archive(spark, str(small_files), TOPIC)
    assert (found.count(), "later" in found.columns) == (7, True)

    def begins(query: str) -> None:
        mark_complete(directory, query, 0, {})
        (first,) = topic_files(small_files, "query-00000000-*")
        shutil.copy(first, first.with_name(f"{query}-00000000-00000.parquet"))

    meanwhile(lambda: begins("second"), before=False)
    assert read_archive(spark, str(small_files), TOPIC).count() == 7
    meanwhile(lambda: begins("third"), before=False)
    assert len(archived_files(spark, str(small_files), TOPIC)) == 7


def test_a_run_that_lost_its_subscription_changes_nothing_that_the_next_run_has_done(
    spark: SparkSession, small_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(small_files)
    batch = Batch("query", 6, ENDS, ENDS)
    late = spark.createDataFrame([(6, "new", datetime.fromisoformat(f"{DAY}T12:00:00Z"))], _LATE)
    behind, staged = ParquetTopic(spark, path, TOPIC), stage

    def written_meanwhile(*arguments: Any) -> int:
        monkeypatch.setattr(parquet, "stage", staged)
        ParquetTopic(spark, path, TOPIC).write(late, batch)
        return staged(*arguments)

    monkeypatch.setattr(parquet, "stage", written_meanwhile)
    with pytest.raises(JobError, match="another run has written batch 6 meanwhile"):
        behind.write(late, batch)
    assert rows(spark, small_files) == [*ALL, (6, "new")]

    def merged_meanwhile(*arguments: Any) -> int:
        monkeypatch.setattr(merging, "stage", staged)
        count = staged(*arguments)
        merge_day(spark, path, TOPIC, DAY, SIZE, "ahead")
        return count

    monkeypatch.setattr(merging, "stage", merged_meanwhile)
    with pytest.raises(JobError, match=f"another run has merged files of {DAY} meanwhile"):
        merge_day(spark, path, TOPIC, DAY, SIZE, "behind")
    assert rows(spark, small_files) == [*ALL, (6, "new")]


def test_merging_needs_complete_days_and_files(tmp_path: Path) -> None:
    options = ArchiveOptions(broker=Broker("pulsar://127.0.0.1:1"), path=str(tmp_path), topics=("t",), merge_bytes=SIZE)
    with pytest.raises(OptionError, match="--merge-to is for complete days, and --day-complete-after infinite makes"):
        replace(options, day_complete_after_ms=-1).check()
    with pytest.raises(OptionError, match="--merge-to is for archives in files"):
        replace(options, tables=Tables("c")).check()
