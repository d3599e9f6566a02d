"""``maintain --keep``: complete days leave the tables, each whole and in one commit, and a replay names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, Tables, archive
from heliograph_spark.jobs.maintain import MaintainOptions, MaintainResult, maintain
from heliograph_spark.jobs.replay import ReplayOptions, replay
from heliograph_spark.plan.errors import JobError
from heliograph_spark.run.session import Broker
from heliograph_spark.tables.retention import remove_day, removed_days
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.entries import make_entry
from tests.support.wire_client import WireClient

from .lakes import lake
from .test_day_marks import DAY_MS
from .test_maintain import loaded

MARK = "heliograph.complete-day."
#: A time (s) at which all days of the tests have ended long ago.
LATER_S = 1e9
NEVER_MS = 10_000 * DAY_MS


class Archive:
    """The tables of a topic whose messages were published on the days after 1970-01-01."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, topic: str, path: Path) -> None:
        self.tables: Tables = lake(path)
        self.path = path
        self.broker = broker
        self.reached = Broker(broker.service_url, broker.http_url)
        self.topic = topic
        self._spark = spark
        self._number = 0

    def publish(self, *days: int) -> None:
        with WireClient(self.broker.service_url) as wired:
            producer = wired.producer(self.topic)
            for day in days:
                entry = make_entry(b"%d" % day, publish_time=day * DAY_MS)
                wired.publish(producer, entry, sequence_id=self._number)
                self._number += 1

    def archive(self, at_s: float = LATER_S) -> None:
        state = str(self.path / "state")
        options = ArchiveOptions(self.reached, topics=(self.topic,), tables=self.tables, checkpoint=state)
        assert archive(self._spark, options, lambda: at_s).error is None

    def maintain(self, keep_days: int, at_day: float) -> MaintainResult:
        # Only what this option removes.
        options = MaintainOptions(
            self.tables, keep_ms=keep_days * DAY_MS, keep_snapshots_ms=NEVER_MS, keep_unused_ms=NEVER_MS
        )
        return maintain(self._spark, options, lambda: at_day * DAY_MS / 1000)

    def replay(self, **more: Any) -> int:
        options = ReplayOptions(self.reached, None, self.topic, self.topic, tables=self.tables, **more)
        return replay(self._spark, options).rows

    @property
    def table(self) -> Table:
        return loaded(self.path)

    @property
    def rows(self) -> list[int]:
        return sorted(int(row["value"]) for row in self.table.scan().to_arrow().to_pylist())


@pytest.fixture
def archived(spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path) -> Archive:
    """Three days, two messages on the second one; all are marked as complete."""
    found = Archive(spark, broker, topic, tmp_path)
    found.publish(0, 1, 1, 2)
    found.archive()
    assert len([name for name in found.table.properties if name.startswith(MARK)]) == 3
    return found


def test_complete_days_that_are_old_are_removed_and_a_replay_names_them(archived: Archive, capsys: Any) -> None:
    assert archived.maintain(keep_days=1, at_day=2.9).removed == 1
    assert archived.rows == [1, 1, 2]
    before = archived.table.current_snapshot()
    done = archived.maintain(keep_days=1, at_day=3)
    assert (done.removed, done.error) == (1, None)
    assert archived.rows == [2]
    table = archived.table
    assert [name for name in table.properties if name.startswith(MARK)] == [f"{MARK}1970-01-03"]
    assert removed_days(table.properties) == ["1970-01-01", "1970-01-02"]
    # A reader that has planned goes on with its snapshot.
    assert before is not None
    assert len(table.scan(snapshot_id=before.snapshot_id).to_arrow()) == 3

    assert archived.replay() == 1
    text = "were removed by the archive's --keep: 1970-01-01 to 1970-01-02, 2 days"
    assert text in capsys.readouterr().err
    with pytest.raises(JobError, match=text):
        archived.replay(from_ms=0)
    assert archived.replay(from_ms=2 * DAY_MS) == 1


def test_a_late_message_of_a_removed_day_is_archived_and_removed_with_its_next_mark(archived: Archive) -> None:
    archived.maintain(keep_days=1, at_day=3)
    archived.publish(0)
    # By the clock of this run nothing is complete.
    archived.archive(at_s=0)
    assert archived.maintain(keep_days=1, at_day=3).removed == 0
    assert archived.rows == [0, 2]
    archived.archive()
    assert archived.maintain(keep_days=1, at_day=3).removed == 1
    assert archived.rows == [2]
    assert removed_days(archived.table.properties) == ["1970-01-01", "1970-01-02"]


def test_a_day_stays_if_a_message_comes_when_it_is_to_be_removed(archived: Archive) -> None:
    table = archived.table
    archived.publish(0)
    archived.archive(at_s=0)
    assert remove_day(table, "__publishTime", "1970-01-01", f"{MARK}1970-01-01") is False
    assert archived.rows == [0, 0, 1, 1, 2]
    assert removed_days(archived.table.properties) == []


def test_without_the_option_nothing_is_removed(spark: SparkSession, archived: Archive) -> None:
    done = maintain(spark, MaintainOptions(archived.tables), lambda: LATER_S)
    assert (done.removed, done.error) == (0, None)
    assert archived.rows == [0, 1, 1, 2]
    assert json.loads(archived.table.properties[f"{MARK}1970-01-02"])["messages"] == 2
