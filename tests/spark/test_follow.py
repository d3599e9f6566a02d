"""``archive --follow``: when topics have their turns, on virtual time, and what is archived, on the real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pulsar
import pyarrow.parquet as pq
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, ArchiveResult
from heliograph_spark.jobs.archiving.archive_metrics import ArchiveMetrics
from heliograph_spark.jobs.archiving.following import CHECKED_EACH_S, LONGEST_PAUSE_S, Ending, Follower
from heliograph_spark.jobs.archiving.options import Following, Tables
from heliograph_spark.jobs.archiving.topic_states import TopicStates
from heliograph_spark.jobs.follow import follow
from heliograph_spark.plan import subscription_hold as holding
from heliograph_spark.run.session import Broker
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import backlog, publish, rest
from tests.support.polling import eventually

from .conftest import COMMAND
from .kills.killed import end
from .test_archive import HELD, data_files, named
from .test_archive_tables import numbers, properties
from .test_day_marks import complete_at, marks

WITHIN_S = 240.0


class Virtual(Ending):
    """Time that passes only while somebody waits, up to ``until_s``."""

    def __init__(self, until_s: float) -> None:
        super().__init__()
        self.now_s = 0.0
        self._until_s = until_s
        self._woken = False

    def wake(self) -> None:
        self._woken = True

    def wait(self, seconds: float) -> None:
        if not self._woken:
            self.now_s += max(0.0, seconds)
        self._woken = False
        if self.now_s >= self._until_s:
            self.request()


class AtOnce(Executor):
    """Makes a visit while it is submitted."""

    def submit(self, visit: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(visit(*arguments, **named))
        return done


def turns(until_s: float, visit: Callable[[str], bool], find: Callable[[float], set[str] | None]) -> list[Any]:
    """Return the times at which topics were visited, one at a time, with an interval of 60 s."""
    time, visited = Virtual(until_s), []

    def visiting(topic: str) -> bool:
        visited.append((time.now_s, topic))
        return visit(topic)

    def found() -> set[str] | None:
        return find(time.now_s)

    follower = Follower(found, visiting, no_check, parallel=1, interval_s=60, ending=time, clock=lambda: time.now_s)
    follower.run(AtOnce())
    return visited


def no_check() -> None:
    """Visits can succeed."""


def test_each_topic_has_a_turn_in_each_interval_and_one_that_fails_waits_longer_each_time() -> None:
    visited = turns(3000, lambda topic: topic != "failing", lambda _: {"well", "failing"})
    assert [at for at, topic in visited if topic == "well"] == [60.0 * turn for turn in range(50)]
    failed = [at for at, topic in visited if topic == "failing"]
    pauses = [later - at for at, later in pairwise(failed)]
    assert pauses == [60, 120, 240, 480, *[LONGEST_PAUSE_S] * 3]


def test_a_topic_that_succeeds_again_is_visited_in_each_interval_again() -> None:
    answers = iter([False, False, True, True, True])
    visited = turns(360, lambda _: next(answers), lambda _: {"t"})
    assert [at for at, _ in visited] == [0, 60, 180, 240, 300]


def test_topics_that_are_found_later_join_and_those_that_are_not_found_any_more_leave() -> None:
    def find(now_s: float) -> set[str] | None:
        if now_s < 60:
            return {"early"}
        return {"early", "late"} if now_s < 120 else None if now_s < 180 else {"late"}

    assert turns(300, lambda _: True, find) == [
        *((0, "early"), (60, "early"), (60, "late"), (120, "early"), (120, "late")),
        *((180, "late"), (240, "late")),
    ]


def test_no_more_visits_than_asked_for_are_under_way_and_the_end_waits_for_them() -> None:
    ending, gate, lock = Ending(), threading.Event(), threading.Lock()
    most, under_way, done = 0, 0, []

    def visit(topic: str) -> bool:
        nonlocal most, under_way
        with lock:
            under_way += 1
            most = max(most, under_way)
            if most == 3:
                gate.set()
        assert gate.wait(WITHIN_S)
        with lock:
            under_way -= 1
            done.append(topic)
            if len(done) == 8:
                ending.request()
        return True

    topics = {f"t{each}" for each in range(8)}
    with ThreadPoolExecutor(8) as pool:
        Follower(lambda: topics, visit, no_check, parallel=3, interval_s=3600, ending=ending).run(pool)
    assert (most, under_way, sorted(done)) == (3, 0, sorted(topics))


def test_an_error_that_a_visit_does_not_handle_ends_the_job() -> None:
    def visit(_topic: str) -> bool:
        raise ZeroDivisionError

    ending = Ending()
    with ThreadPoolExecutor(2) as pool, pytest.raises(ZeroDivisionError):
        Follower(lambda: {"t"}, visit, no_check, parallel=2, interval_s=3600, ending=ending).run(pool)
    assert ending.requested()


def test_whether_visits_can_succeed_is_checked_however_long_the_interval_is() -> None:
    time = Virtual(100_000)
    checked, visited = [], []

    def check() -> None:
        checked.append(time.now_s)
        if len(checked) == 30:
            raise ZeroDivisionError

    def visit(topic: str) -> bool:
        visited.append((time.now_s, topic))
        return True

    follower = Follower(lambda: {"t"}, visit, check, parallel=1, interval_s=7200, ending=time, clock=lambda: time.now_s)
    with pytest.raises(ZeroDivisionError):
        follower.run(AtOnce())
    assert checked == [CHECKED_EACH_S * (1 + each) for each in range(30)]
    assert visited == [(0, "t"), (7200, "t")]
    assert time.requested()


class Followed:
    """A job that follows topics in a thread."""

    def __init__(self, work: Callable[[Ending, TopicStates], ArchiveResult]) -> None:
        self.ending = Ending()
        self.states = TopicStates()
        self.results: list[ArchiveResult] = []
        self._thread = threading.Thread(target=lambda: self.results.append(work(self.ending, self.states)), daemon=True)
        self._thread.start()

    def end(self) -> ArchiveResult:
        self.ending.request()
        self._thread.join(WITHIN_S)
        (result,) = self.results
        return result

    def metrics(self) -> dict[tuple[str, str], float]:
        """Return the samples by name and topic."""
        return {
            (sample.name.removeprefix("heliograph_spark_archive_"), sample.labels["topic"].rpartition("/")[2]): (
                sample.value
            )
            for family in ArchiveMetrics(self.states).collect()
            for sample in family.samples
        }


@contextmanager
def followed(spark: SparkSession, reached: Broker, now: Callable[[], float], **options: Any) -> Iterator[Followed]:
    given = ArchiveOptions(broker=reached, **options)
    pace = Following(parallel=2, interval_ms=200)
    job = Followed(lambda ending, states: follow(spark, given, pace, ending, states, now))
    try:
        yield job
    finally:
        job.ending.request()


@pytest.mark.long
def test_topics_join_fail_recover_and_go_while_the_others_are_archived(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holding, "_BUSY_FOR_S", 0.0)
    now_s = [1e9]
    first, busy, later = f"{topic}-first", f"{topic}-busy", f"{topic}-later"
    publish(client, first, [b"0", b"1"])
    publish(client, busy, [b"0"])
    other = client.subscribe(busy, HELD, initial_position=pulsar.InitialPosition.Earliest)

    def archived(name: str) -> list[int]:
        return sorted(value for file in tmp_path.glob(f"topic=*{name}/date=*/*.parquet") for value in values(file))

    def eventually_archived(name: str, count: int) -> None:
        eventually(lambda: archived(name) == list(range(count)), within_s=WITHIN_S, what=f"{name} archived")

    reached = Broker(broker.service_url, broker.http_url, {})
    with followed(spark, reached, lambda: now_s[0], path=str(tmp_path), pattern=f"{topic}-.*") as job:
        eventually_archived(first, 2)
        eventually(lambda: job.metrics().get(("failures_total", busy), 0) >= 1, within_s=WITHIN_S, what="a failure")
        publish(client, later, [b"0"])
        publish(client, first, [b"2"])
        eventually_archived(later, 1)
        eventually_archived(first, 3)
        eventually(lambda: ("lag_messages", first) in job.metrics(), within_s=WITHIN_S, what="a visit's end")
        found = job.metrics()
        assert found["last_success_timestamp_seconds", first] == 1e9
        assert ("last_success_timestamp_seconds", busy) not in found
        assert found["failures_total", first] == 0
        # It goes on by itself when the reason is gone.
        other.close()
        eventually_archived(busy, 1)
        eventually(lambda: job.metrics().get(("lag_messages", busy)) == 0, within_s=WITHIN_S, what="the recovery")
        assert marks(tmp_path) == {}
        # Days become complete while it runs.
        now_s[0] = complete_at(tmp_path) / 1000
        eventually(
            lambda: len(list(tmp_path.glob("topic=*/date=*/_SUCCESS"))) >= 3, within_s=WITHIN_S, what="the marks"
        )
        rest(broker, "DELETE", f"persistent/public/default/{later}?force=true")

        def gone() -> bool:
            return job.states.all()[named(later)].gone

        eventually(gone, within_s=WITHIN_S, what="the topic being missed")
        # As a visit that was under way.
        job.states.failed(named(later), 1)
        eventually(gone, within_s=WITHIN_S, what="the topic being missed again")
        assert ("lag_messages", later) not in job.metrics()
        publish(client, first, [b"3"])
        eventually_archived(first, 4)
        result = job.end()
    assert (result.rows, result.topics, result.lag, result.error) == (6, 3, 0, None)
    log = capsys.readouterr().err
    assert f"{named(busy)}: another consumer has the subscription {HELD}" in log
    # Once more if the topic was missed while a visit of it was really under way.
    assert log.count(f"{named(later)}: the topic was deleted; what is archived of it stays") in (2, 3)
    assert archived(later) == [0]
    # Nothing created the deleted topic again.
    assert named(later) not in rest(broker, "GET", "persistent/public/default")


def test_the_lag_of_a_topic_whose_broker_cannot_be_asked_is_not_said_to_be_nothing(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"0"])
    away = Broker("pulsar://127.0.0.1:1", broker.http_url, {"pulsar.client.operationTimeoutMs": "1000"})
    with followed(spark, away, lambda: 1e9, path=str(tmp_path), topics=(topic,)) as job:
        eventually(lambda: job.metrics().get(("failures_total", topic), 0) >= 1, within_s=WITHIN_S, what="a failure")
        assert set(job.metrics()) == {("failures_total", topic)}


@pytest.mark.usefixtures("planner")
def test_tables_of_several_topics_are_followed_one_of_them_without_messages(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    names = first, later, empty = f"{topic}-first", f"{topic}-later", f"{topic}-empty"
    for each in names:
        client.create_producer(each).close()
    publish(client, first, [b"0", b"1"])

    def eventually_archived(name: str, count: int) -> None:
        eventually(lambda: numbers(tmp_path, name) == list(range(count)), within_s=WITHIN_S, what=f"{name} archived")

    reached = Broker(broker.service_url, broker.http_url, {})
    tables, state = Tables("lake", properties(tmp_path)), str(tmp_path / "state")
    with followed(spark, reached, lambda: 1e9, tables=tables, checkpoint=state, topics=names) as job:
        visited = {("last_success_timestamp_seconds", each) for each in names}
        eventually(lambda: visited <= job.metrics().keys(), within_s=WITHIN_S, what="a visit of each")
        publish(client, later, [b"0"])
        publish(client, first, [b"2"])
        eventually_archived(later, 1)
        eventually_archived(first, 3)
        result = job.end()
    assert (result.rows, result.topics, result.lag, result.error) == (4, 3, 0, None)
    assert job.metrics()["failures_total", empty] == 0
    assert numbers(tmp_path, empty) == []


@pytest.mark.long
def test_the_command_ends_after_a_micro_batch_and_goes_on_without_loss_or_doubles(
    broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    total = 2000
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=10, block_if_queue_full=True)
    for number in range(total):
        producer.send_async(b"%d" % number, lambda _result, _id: None)
    producer.flush()
    given = {"HELIOGRAPH_SERVICE_URL": broker.service_url, "HELIOGRAPH_ADMIN_URL": broker.http_url}
    arguments = ("--topic", topic, "--path", str(tmp_path), "--follow", "--interval", "1s", "--parallel", "2")

    def start(batch_bytes: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            (*COMMAND, "archive", "--master", "local[2]", *arguments, "--option", f"maxBytesPerTrigger={batch_bytes}"),
            env=os.environ | given,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def commits() -> int:
        return len(list((tmp_path / "_checkpoint").glob("topic=*/commits/[0-9]*")))

    def after_commits(count: int, process: subprocess.Popen[bytes]) -> None:
        before = commits()
        eventually(
            lambda: commits() >= before + count or process.poll() is not None, within_s=WITHIN_S, what="micro-batches"
        )
        assert process.poll() is None

    with start(1000) as process:
        try:
            after_commits(2, process)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=WITHIN_S)
        finally:
            end(process)
    result = json.loads(output.splitlines()[-1])
    assert (process.returncode, result["error"]) == (0, None)
    archived = [value for file in data_files(tmp_path) for value in values(file)]
    # Between two micro-batches: more was to come, and all files are of whole ones.
    assert len(archived) == result["rows"] == total - result["lag"]
    assert result["lag"] > 0
    with start(1000) as process:
        after_commits(2, process)
        end(process)
    with start(1 << 20) as process:
        try:
            eventually(lambda: backlog(broker, topic, HELD) == 0, within_s=WITHIN_S, what="all being archived")
            publish(client, topic, [b"%d" % total])
            eventually(lambda: backlog(broker, topic, HELD) == 0, within_s=WITHIN_S, what="the last one, too")
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=WITHIN_S)
        finally:
            end(process)
    assert process.returncode == 0
    counts = Counter(value for file in data_files(tmp_path) for value in values(file))
    assert counts == Counter(range(total + 1))


def values(file: Path) -> list[int]:
    return [int(value) for value in pq.ParquetFile(file).read(columns=["value"]).column("value").to_pylist()]


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("--interval", "5m"), "'--interval': is for --follow only"),
        (("--parallel", "2"), "'--parallel': is for --follow only"),
        (("--follow", "--interval", "0"), "'0' is no time above zero; valid: 1s, 1m, 1h"),
        (("--follow", "--interval", "5"), "'5' is not a duration; valid:"),
    ],
)
def test_options_of_following_that_do_not_fit_are_wrong_usage(arguments: tuple[str, ...], output: str) -> None:
    refused = subprocess.run(
        (*COMMAND, "archive", "--path", "a", "--topic", "t", *arguments), capture_output=True, text=True, timeout=120
    )
    assert refused.returncode == 2, refused.stderr
    assert output in " ".join(refused.stderr.replace("│", " ").split())
