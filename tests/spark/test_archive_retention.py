"""Retention of an archive: the days it removes, the rows that readers have meanwhile, and the answer of a replay."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, archive, checkpoint_of, target_of
from heliograph_spark.jobs.archiving.parquet import ParquetTopic
from heliograph_spark.jobs.archiving.topic_run import TopicRun
from heliograph_spark.jobs.day_marks import older_days
from heliograph_spark.jobs.replay import ReplayOptions, replay
from heliograph_spark.plan.errors import JobError
from heliograph_spark.run.archived import archived_files, mark_complete, read_archive, topic_directory
from heliograph_spark.run.days import MARK, unmark_day
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.hadoop_files import HadoopDirectory
from heliograph_spark.run.retention import remove_days, removed_days
from heliograph_spark.run.session import Broker
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import publish
from tests.support.entries import make_entry
from tests.support.wire_client import WireClient

from .stepping import Killed
from .test_archive import named
from .test_archive_merges import DAY, ENDS, TOPIC, small_files, topic_files
from .test_day_marks import DAY_MS, complete_at, marks

__all__ = ["small_files"]


def test_a_day_is_older_than_a_time_at_which_it_had_ended() -> None:
    days = ["1970-01-02", "1970-01-01", "today"]
    assert older_days(days, DAY_MS - 1) == []
    assert older_days(days, DAY_MS) == ["1970-01-01"]
    assert older_days(days, 2 * DAY_MS) == ["1970-01-01", "1970-01-02"]


def test_readers_have_a_day_whole_or_not_at_all_while_it_is_removed_and_after_a_kill(
    spark: SparkSession, small_files: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A complete day has no files of a batch that is not complete.
    (half,) = topic_files(small_files, "query-00000006-*")
    half.unlink()
    ParquetTopic(spark, str(small_files), TOPIC).mark_days([DAY], ENDS, 0)
    calls = {name: getattr(HadoopDirectory, name) for name in ("rename", "delete", "write_text")}
    left: list[int] = []

    def watched(name: str) -> Callable[..., None]:
        def call(self: HadoopDirectory, *arguments: str) -> None:
            if left and not left.pop():
                raise Killed
            calls[name](self, *arguments)

        return call

    for name in calls:
        monkeypatch.setattr(HadoopDirectory, name, watched(name))
    seen = set()
    for step in range(100):
        copy = tmp_path_factory.mktemp("copy") / "archive"
        shutil.copytree(small_files, copy)
        # Each call takes one; the last of them is a kill.
        left[:] = [0, *[1] * step]
        try:
            remove_days(spark, str(copy), TOPIC, [DAY])
            break
        except Killed:
            left.clear()
        files = archived_files(spark, str(copy), TOPIC)
        seen.add(len(files))
        assert len(files) in (6, 1)
        # A reader of any kind that reads only days with their mark has them whole.
        if topic_files(copy, MARK):
            assert len(topic_files(copy, "*.parquet")) == 6
        # The next run removes what is left.
        topic = open_directory(spark, topic_directory(str(copy), TOPIC))
        target = ParquetTopic(spark, str(copy), TOPIC)
        late = f"date={DAY}/query-00000007-00000.parquet"
        if step % 2:
            # After a late message, which stays.
            unmark_day(topic, DAY)
            (file,) = topic_files(small_files, "query-00000000-*")
            Path(topic.path, late).parent.mkdir(exist_ok=True)
            shutil.copy(file, Path(topic.path, late))
            mark_complete(topic, "query", 8, ENDS)
        target.mark_days([day for day in target.unmarked_days() if day == DAY], ENDS, 0)
        if step % 2:
            assert late in archived_files(spark, str(copy), TOPIC)
            assert topic_files(copy, MARK)
            continue
        target.remove_days(target.marked_days())
        assert (topic.exists(f"date={DAY}"), removed_days(spark, str(copy), TOPIC)) == (False, [DAY])
    assert seen == {6, 1}
    left.clear()
    assert [row.value for row in read_archive(spark, str(copy), TOPIC).collect()] == [5]


def test_only_complete_days_are_removed_and_a_replay_names_them(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path, capsys: Any
) -> None:
    publish(client, topic, [b"0", b"1"])
    reached = Broker(broker.service_url, broker.http_url, {})
    options = ArchiveOptions(broker=reached, path=str(tmp_path), topics=(topic,), keep_ms=2 * DAY_MS)

    def run(at_ms: int) -> None:
        assert archive(spark, options, lambda: at_ms / 1000).error is None

    run(0)
    days = sorted(each.name.partition("=")[2] for each in tmp_path.glob("topic=*/date=*"))
    complete_ms = complete_at(tmp_path)
    # They have ended long ago, by the clock, but not within a run that could say that they are complete.
    run(complete_ms)
    assert sorted(marks(tmp_path)) == days
    capsys.readouterr()
    run(complete_ms + 3 * DAY_MS)
    assert list(tmp_path.glob("topic=*/date=*")) == []
    assert f"{named(topic)}: {days[-1]} is removed from the archive, it is older than --keep" in capsys.readouterr().err
    wanted = ReplayOptions(broker=reached, path=str(tmp_path), topic=topic, to=topic)
    assert replay(spark, wanted).rows == 0
    assert f"complete days of {named(topic)} were removed by the archive's --keep: {days[0]}" in capsys.readouterr().err
    with pytest.raises(JobError, match=f"removed by the archive's --keep: {days[0]}"):
        replay(spark, ReplayOptions(broker=reached, path=str(tmp_path), topic=topic, to=topic, from_ms=0))
    # A checkpoint that knows nothing of them would archive them again.
    other = replace(options, checkpoint=str(tmp_path / "_other"))
    assert "does not know of them: every message would be written again" in str(archive(spark, other).error)
    # Later messages are archived as before.
    publish(client, topic, [b"2"])
    run(complete_ms)
    assert read_archive(spark, str(tmp_path), named(topic)).count() == 1


def test_a_run_that_is_asked_to_end_leaves_the_next_days_to_the_next_run(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    with WireClient(broker.service_url) as wired:
        producer = wired.producer(topic)
        for day in range(3):
            wired.publish(producer, make_entry(b"%d" % day, publish_time=day * DAY_MS), sequence_id=day)
    reached = Broker(broker.service_url, broker.http_url, {})
    options = ArchiveOptions(broker=reached, path=str(tmp_path), topics=(topic,), keep_ms=DAY_MS)
    target = target_of(spark, options)
    checkpoint = checkpoint_of(spark, options, target, named(topic))

    def days(pattern: str) -> int:
        return len(list(tmp_path.glob(f"topic=*/{pattern}")))

    def go(ending: Callable[[], bool]) -> None:
        TopicRun(spark, options, named(topic), target.topic(named(topic)), checkpoint, lambda: 1e9, ending).go()

    go(lambda: days("_removed/*.json") > 0)
    assert (days("_removed/*.json"), days(f"date=*/{MARK}")) == (1, 2)
    go(lambda: False)
    assert (days("_removed/*.json"), days("date=*")) == (3, 0)
