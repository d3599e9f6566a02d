"""Jobs that are killed at random moments and started again write every message once: a small scripts/reading-kills."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.support.clients import RunningBroker

from .kills.command import judge
from .kills.killed import JobFailed, Killed
from .kills.run import Finished, Plan, differences, run
from .kills.tally import Row, Tally, message
from .kills.targets import Archive, Sink

PLAN = Plan(messages=20_000, kills=3, seed=6)


@pytest.fixture(scope="module")
def finished(broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run(broker, tmp_path_factory.mktemp("kills"), PLAN, print)


@pytest.mark.timeout(3000)
def test_every_message_is_in_each_target_once_however_often_its_job_is_killed(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge(finished, PLAN) == 0, capsys.readouterr().out


@pytest.fixture
def file(finished: Finished) -> Iterator[Path]:
    """A file of the archive, which is as before afterwards."""
    archive = finished.targets["archive"]
    assert isinstance(archive, Archive)
    file = min(archive.path.glob("topic=*/date=*/*.parquet"))
    before = file.read_bytes()
    yield file
    file.with_name("again.parquet").unlink(missing_ok=True)
    file.write_bytes(before)


def test_rows_that_an_archive_has_twice_are_found(finished: Finished, file: Path) -> None:
    shutil.copy(file, file.with_name("again.parquet"))
    count, total, doubled, ids = differences(finished.targets["archive"], PLAN.messages)
    assert "messages instead of 20000" in count
    assert "instead of 199990000" in total
    assert "more often than once" in doubled
    assert "with the id of another" in ids


def test_rows_that_an_archive_lacks_are_found(finished: Finished, file: Path) -> None:
    file.unlink()
    count, total, lost = differences(finished.targets["archive"], PLAN.messages)
    assert "messages instead of 20000" in count
    assert "instead of 199990000" in total
    assert "lost" in lost


def test_a_message_that_was_sent_twice_is_found_and_named(
    finished: Finished, client: pulsar.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = finished.targets["sink"]
    assert isinstance(sink, Sink)
    key, value = message(7)
    producer = client.create_producer(sink.topic)
    producer.send(value, partition_key=key)
    producer.close()
    assert judge(finished, PLAN) == 1
    total = "the sum of the numbers is 199990007 instead of 199990000"
    assert f"sink: 20001 messages instead of 20000; {total}; 1 more often than once: 7 (" in capsys.readouterr().out


def _rows(count: int) -> list[Row]:
    return [Row(*message(number), ("t", 1, number // 4, number % 4)) for number in range(count)]


def _differences(rows: list[Row], count: int) -> list[str]:
    tally = Tally(count)
    tally.add(rows)
    return tally.differences()


def test_a_tally_names_what_is_lost_and_what_is_doubled() -> None:
    rows = _rows(100)
    assert _differences(rows, 100) == []
    del rows[10:17]
    assert _differences(rows, 100) == [
        "93 messages instead of 100",
        "the sum of the numbers is 4859 instead of 4950",
        "7 lost: 10, 11, 12, 13, 14, …",
    ]
    # As many as there should be, and the right sum.
    rows = _rows(100)
    rows[1:4:2] = [rows[2]._replace(id=rows[1].id), rows[2]._replace(id=rows[3].id)]
    assert _differences(rows, 100) == ["2 lost: 1, 3", "2 more often than once: 2, 2"]


def test_a_tally_names_what_has_another_key_value_or_id() -> None:
    rows = _rows(10)
    rows[3] = rows[3]._replace(key="k4")
    rows[5] = rows[5]._replace(value=b"5 00000000")
    rows[6] = rows[6]._replace(value=b"12")
    rows[8] = rows[8]._replace(id=rows[9].id)
    assert _differences(rows, 10) == [
        "the sum of the numbers is 31 instead of 45",
        "3 lost: 3, 5, 6",
        f"3 not as published: {rows[3].value!r}, b'5 00000000', b'12'",
        f"1 with the id of another: {rows[9].id}",
    ]


def test_a_job_that_fails_is_not_taken_for_one_that_had_ended(tmp_path: Path) -> None:
    failing = Killed(["sh", "-c", "echo broken >&2; exit 3"], tmp_path / "state", tmp_path / "log")
    with pytest.raises(JobFailed, match="ended with 3; the log ends:\nbroken"):
        failing.run_and_kill(1.5, 60)
    with pytest.raises(JobFailed, match="ended with 3"):
        failing.finish()
    assert Killed(["true"], tmp_path / "state", tmp_path / "log").run_and_kill(1.5, 60) is None
