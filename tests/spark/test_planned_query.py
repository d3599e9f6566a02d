"""An archive whose micro-batches the job plans itself: on the checkpoint of Spark's engine, every message once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pulsar
import pyarrow.parquet as pq
import pytest
from heliograph_spark.jobs.archive import ArchiveResult, archive
from heliograph_spark.plan.errors import JobError
from heliograph_spark.plan.ledgers import Ledger
from heliograph_spark.plan.positions import BEGINNING, Position
from heliograph_spark.plan.ranges import Range
from heliograph_spark.run import checkpoints
from heliograph_spark.run.checkpoints import begin_query, write_commit, write_planned
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.planned_batch import PlannedBatch
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import backlog, create_partitions, publish

from .conftest import PIPELINE
from .planned_program import STEPS, archive_options
from .planners import PLANNERS, plan_by
from .test_archive import HELD
from .test_archive_tables import table_of

PROGRAM = Path(__file__).with_name("planned_program.py")
ROOT = Path(__file__).parents[2]


class Archived:
    """An archive in files or in a table of one topic, of two partitions."""

    def __init__(self, broker: BrokerProcess, topic: str, directory: Path, target: str) -> None:
        self.broker = broker
        self.topic = topic
        self.directory = directory
        self.target = target
        create_partitions(broker, topic, 2)

    def run(self, spark: SparkSession, **more: Any) -> ArchiveResult:
        urls = self.broker.service_url, self.broker.http_url
        return archive(spark, archive_options(*urls, self.topic, self.directory, self.target, **more))

    def killed_at(self, step: str, master: str) -> None:
        """Let a run of its own be killed there."""
        paths = os.pathsep.join([str(PIPELINE), str(ROOT), os.environ.get("PYTHONPATH", "")])
        urls = [self.broker.service_url, self.broker.http_url]
        arguments = [master, *urls, self.topic, str(self.directory), self.target, step]
        done = subprocess.run(
            [sys.executable, str(PROGRAM), *arguments],
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == -signal.SIGKILL, f"{step}: {done.stdout}{done.stderr[-3000:]}"

    @property
    def state(self) -> Path:
        (state,) = (self.directory / "state").glob("topic=*")
        return state

    def batches(self, log: str) -> set[int]:
        return {int(each.name) for each in (self.state / log).glob("[0-9]*")}

    def planned(self) -> dict[int, Any]:
        """Return the ends of the micro-batches."""
        return {
            batch: json.loads((self.state / "offsets" / str(batch)).read_text().splitlines()[2])
            for batch in self.batches("offsets")
        }

    def numbers(self) -> list[int]:
        if self.target == "tables":
            rows = table_of(self.directory, self.topic).scan().to_arrow().to_pylist()
        else:
            files = (self.directory / "files").glob("topic=*/date=*/*.parquet")
            rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
        return sorted(int(row["value"]) for row in rows)

    def backlog(self) -> int:
        return sum(backlog(self.broker, f"{self.topic}-partition-{number}", HELD) for number in range(2))


@pytest.fixture(params=STEPS)
def archived(request: pytest.FixtureRequest, broker: BrokerProcess, topic: str, tmp_path: Path) -> Archived:
    return Archived(broker, topic, tmp_path, str(request.param))


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_every_message_is_archived_once_whatever_is_done_when_the_job_is_killed(
    spark: SparkSession,
    connect_url: str,
    client: pulsar.Client,
    archived: Archived,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_by("planned", monkeypatch)
    published = 0
    for step in STEPS[archived.target]:
        publish(client, archived.topic, [b"%d" % number for number in range(published, published + 40)])
        published += 40
        archived.killed_at(step, connect_url)
        unfinished = archived.batches("offsets") - archived.batches("commits")
        assert len(unfinished) == (step != "committed"), step
    done = archived.run(spark)
    assert (done.lag, done.error) == (0, None)
    assert archived.numbers() == list(range(published))
    assert archived.backlog() == 0
    assert archived.batches("offsets") == archived.batches("commits")
    if archived.target == "files":
        assert list((archived.directory / "files" / "_staging").iterdir()) == []


@pytest.mark.parametrize("first", PLANNERS)
def test_an_archive_goes_on_with_the_checkpoint_whoever_plans_its_micro_batches(
    spark: SparkSession, client: pulsar.Client, archived: Archived, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    published = 0
    queries = set()
    for number, planner in enumerate((first, *(each for each in PLANNERS if each != first), first)):
        publish(client, archived.topic, [b"%d" % each for each in range(published, published + 30)])
        published += 30
        plan_by(planner, monkeypatch)
        before = archived.batches("offsets") if number else set()
        done = archived.run(spark)
        assert (done.rows, done.lag, done.error) == (30, 0, None)
        # Several of them, whose size is that of both.
        assert 2 <= len(archived.batches("offsets") - before) <= 8
        assert archived.batches("commits") == archived.batches("offsets")
        assert archived.run(spark).rows == 0
        assert archived.batches("commits") == archived.batches("offsets")
        queries.add((archived.state / "metadata").read_text())
    assert archived.numbers() == list(range(published))
    assert len(queries) == 1


@pytest.mark.parametrize("first", PLANNERS)
def test_a_micro_batch_that_one_has_planned_the_other_repeats_as_planned(
    spark: SparkSession, client: pulsar.Client, archived: Archived, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    (second,) = PLANNERS.keys() - {first}
    publish(client, archived.topic, [b"%d" % number for number in range(30)])
    plan_by(first, monkeypatch)
    assert archived.run(spark).error is None
    planned = archived.planned()
    # As a run leaves it that is killed before its last commit, which is in the target, and before it was.
    last = max(planned)
    for known in (True, False):
        for name in (str(last), f".{last}.crc"):
            (archived.state / "commits" / name).unlink(missing_ok=True)
        if not known:
            lose_last_batch(archived, last)
        publish(client, archived.topic, [b"30" if known else b"31"])
        before = len(archived.numbers())
        plan_by(second, monkeypatch)
        assert archived.run(spark).error is None
        after = archived.planned()
        assert {batch: after[batch] for batch in planned} == planned
        assert archived.batches("commits") == set(after)
        assert archived.numbers() == list(range(31 if known else 32))
        assert before < len(archived.numbers())
        # Messages that came later are in a batch of their own.
        assert max(after) == last + 1
        planned, last = after, max(after)
    assert archived.backlog() == 0


def lose_last_batch(archived: Archived, batch: int) -> None:
    """Take the last micro-batch out of the target, where a killed run has not recorded it."""
    if archived.target == "tables":
        table = table_of(archived.directory, archived.topic)
        (name,) = (each for each in table.properties if each.startswith("heliograph.batches."))
        recorded = json.loads(table.properties[name])
        earlier = json.loads((archived.state / "offsets" / str(batch - 1)).read_text().splitlines()[2])
        with table.transaction() as change:
            change.set_properties({name: json.dumps(recorded | {"batches": batch, "ends": earlier})})
        snapshots = [each for each in table.metadata.snapshots if each.parent_snapshot_id is not None]
        parent = snapshots[-1].parent_snapshot_id
        assert parent is not None
        table.manage_snapshots().rollback_to_snapshot(parent).commit()
        return
    (complete,) = archived.directory.glob(f"files/topic=*/_complete-*-{batch + 1:08}")
    complete.unlink()


def test_a_planned_batch_is_the_same_after_it_was_an_option() -> None:
    first = Ledger(7, 5, 100, 2)
    parts = (
        Range("t", BEGINNING, Position(7, 4, 2, added=3, since=7, lost=1), (first, Ledger(9, 1, 1)), begins=True),
        Range("u", Position(1, 2), Position(1, 2)),
    )
    planned = PlannedBatch("id", 3, parts)
    options = {name.lower(): value for name, value in planned.options().items()} | {"topic": "t"}
    found = PlannedBatch.of(options)
    assert found == planned
    assert [each.range for each in planned.splits] == list(parts)
    # Positions are the same whatever is known of their counts.
    assert found.parts[0].end.since == 7
    assert (found.parts[0].end.added, found.parts[0].end.lost) == (3, 1)
    assert options == {"topic": "t"}
    assert PlannedBatch.of(options) is None
    # Spark refuses a query of no splits.
    assert [each.range.topic for each in PlannedBatch("id", 0, ()).splits] == [""]


def test_a_micro_batch_that_another_run_has_planned_meanwhile_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = open_directory(spark, str(tmp_path / "state"))
    query = begin_query(checkpoint)
    assert begin_query(checkpoint) == query
    write_planned(checkpoint, 0, {"t": "1:0"})
    write_commit(checkpoint, 0)
    write_planned(checkpoint, 1, {"t": "1:1"})
    with pytest.raises(JobError, match="offsets/1: another run of the query has written it meanwhile"):
        write_planned(checkpoint, 1, {"t": "1:2"})
    assert checkpoints.kept_offsets(checkpoint, 1) == {"t": "1:1"}


@pytest.mark.long
def test_the_files_of_long_finished_micro_batches_go(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = open_directory(spark, str(tmp_path / "state"))
    begin_query(checkpoint)
    for batch in range(103):
        write_planned(checkpoint, batch, {"t": f"1:{batch}"})
        write_commit(checkpoint, batch)
    kept = set(map(str, range(3, 103)))
    assert set(checkpoint.names("offsets")) == set(checkpoint.names("commits")) == kept


def test_offsets_of_another_version_than_sparks_first_one_are_named(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = open_directory(spark, str(tmp_path / "state"))
    begin_query(checkpoint)
    write_planned(checkpoint, 0, {"t": "1:0"})
    text = checkpoint.read_text("offsets/0").replace("v1", "v2")
    checkpoint.write_text("offsets/0", text)
    with pytest.raises(JobError, match="offsets/0: it is of version v2, not v1"):
        write_planned(checkpoint, 1, {"t": "1:1"})
