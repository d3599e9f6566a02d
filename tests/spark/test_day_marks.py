"""Marks of complete days: the rule on virtual time, and what ``archive`` writes on the real broker."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pulsar
import pyarrow.dataset
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, ArchiveResult, archive
from heliograph_spark.jobs.day_marks import Asked, day_end_ms
from heliograph_spark.plan.positions import Position
from heliograph_spark.run.archived import read_archive
from heliograph_spark.run.days import MARK
from heliograph_spark.run.hadoop_files import HadoopDirectory
from heliograph_spark.run.session import Broker
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_partitions, publish

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def day_of(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()


#: Messages as (partition, publish time, time from publishing to being stored), in ms, over three days.
MESSAGES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3 * DAY_MS), st.integers(-2 * HOUR_MS, 2 * HOUR_MS)),
    max_size=40,
    unique=True,
)


@given(MESSAGES, st.integers(0, 2 * HOUR_MS), st.integers(0, 5 * DAY_MS), st.data())
# A run that ended before the last message it had asked for, long after the day.
@example([(0, 5, 5), (1, 6, 6)], HOUR_MS, 3 * DAY_MS, None)
# The grace period ends with the run's question, and a millisecond after it.
@example([(0, 5, 5)], HOUR_MS, DAY_MS + HOUR_MS, None)
@example([(0, 5, 5)], HOUR_MS, DAY_MS + HOUR_MS - 1, None)
def test_a_complete_day_misses_only_messages_that_were_stored_later_than_the_grace(
    messages: list[tuple[int, int, int]], grace_ms: int, asked_ms: int, data: Any
) -> None:
    stored = sorted((published + delay, published, partition) for partition, published, delay in messages)
    archived = 1 if data is None else data.draw(st.integers(0, len(stored)))
    place = {each: Position(1, number) for number, each in enumerate(stored)}
    ends = {f"p-{each[2]}": place[each] for each in stored if each[0] <= asked_ms}
    # The run may have read more than it asked for, or end early.
    read = {f"p-{each[2]}": place[each] for each in stored[:archived]}
    days = {day_of(published) for _, published, _ in stored}
    complete = Asked(asked_ms, ends).complete(days, read, grace_ms)
    missing = stored[archived:]
    for at, published, _ in missing:
        if at - published <= grace_ms:
            assert day_of(published) not in complete
    if all(at > asked_ms for at, _, _ in missing):
        ended = {day for day in days if (day_end_ms(day) or 0) + grace_ms <= asked_ms}
        assert complete == sorted(ended)
    assert Asked(asked_ms, ends).complete(days, read, -1) == []


def test_a_directory_that_is_no_day_is_never_complete() -> None:
    assert Asked(10**15).complete(["1970-01-01", "19700102", "+12345-01-01", "today"], {}, 0) == ["1970-01-01"]
    assert day_end_ms("1970-01-01") == DAY_MS


def run(spark: SparkSession, broker: BrokerProcess, path: Path, at_ms: int | None, **options: Any) -> ArchiveResult:
    reached = Broker(broker.service_url, broker.http_url, {})
    given_options = ArchiveOptions(broker=reached, path=str(path), **options)
    done = archive(spark, given_options) if at_ms is None else archive(spark, given_options, lambda: at_ms / 1000)
    assert done.error is None
    return done


def marks(path: Path) -> dict[str, Any]:
    found = sorted(path.glob(f"topic=*/date=*/{MARK}"))
    return {each.parent.name.partition("=")[2]: json.loads(each.read_text()) for each in found}


def complete_at(path: Path) -> int:
    """Return the time from which on all days of the archive are complete, an hour after the last one's end."""
    last = max(each.name.partition("=")[2] for each in path.glob("topic=*/date=*"))
    return (date.fromisoformat(last) - date(1970, 1, 1)).days * DAY_MS + DAY_MS + HOUR_MS


def total(path: Path) -> int:
    return sum(each["messages"] for each in marks(path).values())


def test_a_day_is_marked_an_hour_after_its_end_with_the_number_of_its_messages(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path, capsys: Any
) -> None:
    create_partitions(broker, topic, 3)
    last = publish(client, f"{topic}-partition-0", [b"0", b"1", b"2"])[-1]
    publish(client, f"{topic}-partition-1", [b"3"])
    # Today has not ended, and the third partition is empty.
    assert run(spark, broker, tmp_path, None, topics=(topic,)).rows == 4
    assert marks(tmp_path) == {}
    at_ms = complete_at(tmp_path)
    run(spark, broker, tmp_path, at_ms - 1, topics=(topic,))
    assert day_of(at_ms - DAY_MS) not in marks(tmp_path)
    run(spark, broker, tmp_path, at_ms, topics=(topic,), day_complete_after_ms=-1)
    assert day_of(at_ms - DAY_MS) not in marks(tmp_path)
    capsys.readouterr()
    run(spark, broker, tmp_path, at_ms, topics=(topic,))
    mark = marks(tmp_path)[day_of(at_ms - DAY_MS)]
    assert total(tmp_path) == 4
    assert mark["storedBefore"] == datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert mark["upTo"][f"persistent://public/default/{topic}-partition-0"] == str(
        Position(last.ledger_id(), last.entry_id())
    )
    assert f"{topic}: {day_of(at_ms - DAY_MS)} is complete, {mark['messages']} messages" in capsys.readouterr().err
    # Marks are no data, and nothing else is left beside the files.
    assert read_archive(spark, str(tmp_path), f"persistent://public/default/{topic}").count() == 4
    assert pyarrow.dataset.dataset(tmp_path, format="parquet", partitioning="hive").count_rows() == 4
    assert list(tmp_path.glob("topic=*/date=*/*.unfinished")) == []


def test_a_late_message_removes_the_mark_before_its_file_is_seen_and_the_next_one_counts_it(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(client, topic, [b"0", b"1"])
    run(spark, broker, tmp_path, None, topics=(topic,))
    at_ms = complete_at(tmp_path) + DAY_MS
    run(spark, broker, tmp_path, at_ms, topics=(topic,))
    assert total(tmp_path) == 2
    before = marks(tmp_path)
    publish(client, topic, [b"2"])
    seen = []
    rename = HadoopDirectory.rename

    def watched(self: HadoopDirectory, old: str, new: str) -> None:
        if new.endswith(".parquet"):
            seen.append((tmp_path / new).parent.joinpath(MARK).exists())
        rename(self, old, new)

    monkeypatch.setattr(HadoopDirectory, "rename", watched)
    capsys.readouterr()
    # As a run that is killed between its last commit and the marks.
    run(spark, broker, tmp_path, at_ms, topics=(topic,), day_complete_after_ms=-1)
    assert seen == [False]
    late = max(each.name.partition("=")[2] for each in tmp_path.glob("topic=*/date=*"))
    assert late not in marks(tmp_path)
    if late in before:
        assert f"{topic}: {late} was complete, and batch 1 has late messages of it" in capsys.readouterr().err
    run(spark, broker, tmp_path, at_ms, topics=(topic,))
    assert total(tmp_path) == 3
    # And in one run.
    publish(client, topic, [b"3"])
    run(spark, broker, tmp_path, at_ms, topics=(topic,))
    assert (seen, total(tmp_path)) == ([False, False], 4)


def test_a_mark_that_a_killed_run_did_not_write_is_written_by_the_next_one(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"0", b"1"])
    run(spark, broker, tmp_path, None, topics=(topic,))
    at_ms = complete_at(tmp_path)
    run(spark, broker, tmp_path, at_ms, topics=(topic,))
    whole = marks(tmp_path)
    for mark in tmp_path.glob(f"topic=*/date=*/{MARK}"):
        mark.with_name(f"{MARK}.unfinished").write_text(mark.read_text()[:5])
        mark.with_name(f".{MARK}.crc").unlink()
        mark.unlink()
    assert run(spark, broker, tmp_path, at_ms, topics=(topic,)).rows == 0
    assert marks(tmp_path) == whole
    assert total(tmp_path) == 2
