"""Directories on real file systems, by each client of jobs: who has a name, if several want it, and what is seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from heliograph_spark.plan.errors import JobError, MissingFileError
from heliograph_spark.run.bucket_files import BucketDirectory
from heliograph_spark.run.files import Directory
from heliograph_spark.run.hadoop_files import HadoopDirectory
from heliograph_spark.run.local_files import LocalDirectory
from heliograph_spark.run.places import Place, place_of
from pyspark.sql import SparkSession

from tests.support.s3_server import Bucket

#: Opens a directory by its name below the root of all.
Opener = Callable[[str], Directory]


def reached(bucket: Bucket) -> dict[str, str]:
    """Return the settings of a session that reaches a bucket."""
    given = {
        "access.key": bucket.access_key,
        "secret.key": bucket.secret_key,
        "endpoint": bucket.endpoint,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
    }
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in given.items()}


@pytest.fixture(params=["hadoop", "local", "bucket"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    if request.param == "local":
        return lambda name: LocalDirectory(str(tmp_path / name))
    if request.param == "hadoop":
        spark = request.getfixturevalue("spark")
        return lambda name: HadoopDirectory(spark, str(tmp_path / name))
    bucket: Bucket = request.getfixturevalue("bucket")
    return lambda name: BucketDirectory(f"s3a://{bucket.name}/below/{name}", reached(bucket))


def shown(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if not each.name.startswith("."))


def test_a_name_is_given_once_and_what_has_it_stays(opener: Opener) -> None:
    directory = opener("once")
    assert directory.write_new("a", "first", aside="_1")
    assert not directory.write_new("a", "second", aside="_2")
    assert directory.read_text("a") == "first"
    assert directory.names() == ["a"]


def test_a_name_is_given_once_without_hard_links(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HadoopDirectory, "_link", lambda *_: False)
    directory = HadoopDirectory(spark, str(tmp_path))
    assert directory.write_new("a", "first", aside="_1")
    assert not directory.write_new("a", "second", aside="_2")
    assert directory.read_text("a") == "first"
    assert shown(tmp_path) == ["a"]


def test_of_many_at_once_one_has_the_name(opener: Opener) -> None:
    for each in range(20):
        directory = opener(str(each))
        directory.make()

        def write(number: int, directory: Directory = directory) -> bool:
            return directory.write_new("a", f"by {number}", aside=f"_{number}")

        with ThreadPoolExecutor(4) as writers:
            (winner,) = [number for number, done in enumerate(writers.map(write, range(4))) if done]
        assert directory.read_text("a") == f"by {winner}"
        assert directory.names() == ["a"]


def directory_of(kind: type[Directory], spark: SparkSession, path: Path) -> Directory:
    return HadoopDirectory(spark, str(path)) if kind is HadoopDirectory else LocalDirectory(str(path))


@pytest.mark.parametrize("kind", [HadoopDirectory, LocalDirectory])
@pytest.mark.parametrize("taken", [True, False])
def test_a_file_that_another_run_deletes_before_it_has_its_name_has_none(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Directory], taken: bool
) -> None:
    directory = directory_of(kind, spark, tmp_path)
    if taken:
        directory.write_text("a", "by another run")
    sync = kind.sync

    def deleted_before(self: Directory, *names: str) -> None:
        self.delete(names[0])
        sync(self, *names)

    monkeypatch.setattr(kind, "sync", deleted_before)
    # As if the other one had not had the name yet when this run looked.
    monkeypatch.setattr(kind, "exists", lambda *_: False)
    if taken:
        assert not directory.write_new("a", "by this one", aside="_1")
        assert directory.read_text("a") == "by another run"
    else:
        with pytest.raises(JobError):
            directory.write_new("a", "by this one", aside="_1")
        assert directory.names() == []


class LosesAnswers:
    """A file system that renames a file and then says that it failed."""

    def __init__(self, system: Any, nowhere: Any) -> None:
        self._system = system
        self._nowhere = nowhere

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def rename(self, old: Any, new: Any) -> None:
        assert self._system.rename(old, new)
        self._system.open(self._nowhere)


def test_a_file_whose_writer_had_no_answer_is_its_own(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HadoopDirectory, "_link", lambda *_: False)
    directory = HadoopDirectory(spark, str(tmp_path))
    directory._system = LosesAnswers(directory._system, directory._at("nowhere"))
    assert directory.write_new("a", "by this one", aside="_1")


def test_a_file_that_is_not_there_is_named_and_has_no_content(opener: Opener) -> None:
    directory = opener("files")
    directory.make()
    for ask in (directory.read_text, directory.size):
        with pytest.raises(MissingFileError, match=f"^{directory.path}/nothing: "):
            ask("nothing")
    with pytest.raises(MissingFileError, match=f"^{directory.path}/nothing: "):
        directory.rename("nothing", "other")
    assert not directory.exists("nothing")
    assert directory.names("nothing") == []
    assert directory.matching("no*/thing*") == []
    directory.delete("nothing")


@pytest.mark.parametrize("kind", [HadoopDirectory, LocalDirectory])
def test_a_file_that_cannot_be_written_is_named(spark: SparkSession, tmp_path: Path, kind: type[Directory]) -> None:
    directory = directory_of(kind, spark, tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(JobError, match="file/_1: "):
        directory.write_new("file/a", "text", aside="file/_1")


def test_files_are_listed_measured_found_and_changed(opener: Opener) -> None:
    directory = opener("topic=persistent%3A%2F%2Fa b=é")
    written = ["date=2024-01-01/a-1.parquet", "date=2024-01-01/b-1.parquet", "date=2024-01-02/a-2.parquet"]
    for name in written:
        directory.write_text(name, "first")
        directory.write_text(name, "vier€")
    directory.write_whole("_x.json", "second")
    assert directory.names() == ["_x.json", "date=2024-01-01", "date=2024-01-02"]
    assert directory.names("date=2024-01-01") == ["a-1.parquet", "b-1.parquet"]
    assert directory.matching("date=*/a-*") == ["date=2024-01-01/a-1.parquet", "date=2024-01-02/a-2.parquet"]
    assert directory.matching("date=2024-01-01/*.parquet") == written[:2]
    assert directory.matching("date=*") == ["date=2024-01-01", "date=2024-01-02"]
    assert (directory.size("date=2024-01-01/a-1.parquet"), directory.read_text("_x.json")) == (7, "second")
    assert directory.read_text("date=2024-01-01/a-1.parquet") == "vier€"
    assert [directory.exists(name) for name in ("", "date=2024-01-01", "_x.json", "date=2024")] == [True] * 3 + [False]
    now_ms = int(time.time() * 1000)
    assert directory.files_before(now_ms - 3_600_000) == []
    assert directory.files_before(now_ms + 3_600_000) == ["_x.json", *written]
    directory.sync("_x.json", "")
    with pytest.raises(JobError, match=r"a-1\.parquet: it cannot be renamed to date=2024-01-02/a-2\.parquet"):
        directory.rename(written[0], written[2])
    # A directory as a whole, and a file.
    directory.rename("date=2024-01-01", "date=2025-01-01")
    directory.rename("date=2024-01-02/a-2.parquet", "date=2025-01-01/c-2.parquet")
    assert directory.matching("date=*/*") == [f"date=2025-01-01/{name}.parquet" for name in ("a-1", "b-1", "c-2")]
    directory.delete("date=2025-01-01/c-2.parquet")
    directory.delete("date=2025-01-01")
    directory.delete("_x.json")
    assert (directory.exists("date=2025-01-01"), directory.files_before(now_ms + 3_600_000)) == (False, [])


def test_files_that_hadoop_and_this_process_write_are_read_by_the_other(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop's checksums of an older content would keep it from reading a file."""
    hadoop, local = HadoopDirectory(spark, str(tmp_path)), LocalDirectory(str(tmp_path))
    hadoop.write_text("a", "by Hadoop")
    local.write_text("a", "by this process")
    assert hadoop.read_text("a") == "by this process"
    hadoop.write_text("b", "of Hadoop")
    local.rename("b", "c")
    assert hadoop.read_text("c") == local.read_text("c") == "of Hadoop"
    local.delete("c")
    local.write_text("d", "without checksums")
    local.rename("d", "c")
    assert hadoop.read_text("c") == "without checksums"
    local.delete("c")
    assert local.names() == hadoop.names() == ["a"]
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_what_another_process_writes_while_its_directory_is_deleted_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tasks of a client that was killed do, which Spark Connect's server goes on with."""
    directory = LocalDirectory(str(tmp_path))
    for name in ("left/a/one", "left/b/two"):
        directory.write_text(name, "by a task")
    deleted = Path.unlink

    def delete_and_write(path: Path, missing_ok: bool = False) -> None:
        deleted(path, missing_ok)
        if path.name == "one":
            (path.parent / "three").touch()

    monkeypatch.setattr(Path, "unlink", delete_and_write)
    directory.delete("left")
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["a", "left", "three"]
    directory.delete("left")
    assert shown(tmp_path) == []


def test_a_local_directory_is_absolute_for_a_server_elsewhere_and_a_uri_is_taken_as_hadoop_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert LocalDirectory("shop/").path == f"{tmp_path}/shop"
    uri = LocalDirectory(f"file://{tmp_path}/a%3Ab")
    uri.make()
    assert (uri.path, shown(tmp_path)) == (f"file://{tmp_path}/a%3Ab", ["a%3Ab"])
    with pytest.raises(JobError, match=r"would take \* in it for a pattern"):
        LocalDirectory("a*")


def test_what_spark_has_written_elsewhere_is_named(tmp_path: Path) -> None:
    directory = LocalDirectory(str(tmp_path))
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "part").touch()
    directory.check_written("there")
    with pytest.raises(JobError, match=f"^{tmp_path}/gone: Spark has written files there, and they are not seen here"):
        directory.check_written("gone")


def test_tasks_write_no_files_that_hadoop_is_asked_to_encrypt(tmp_path: Path) -> None:
    assert place_of(LocalDirectory(str(tmp_path))) == Place(str(tmp_path))
    assert place_of(LocalDirectory(str(tmp_path), {"spark.hadoop.parquet.crypto.factory.class": "Some"})) is None


def test_the_keys_of_a_bucket_stay_in_the_client(bucket: Bucket) -> None:
    assert place_of(BucketDirectory(f"s3a://{bucket.name}/a", reached(bucket))) is None


def test_a_bucket_that_is_not_there_or_refuses_the_keys_says_what_to_do(bucket: Bucket) -> None:
    with pytest.raises(JobError, match=r"no-such-bucket/a: NoSuchBucket.*make the bucket first"):
        BucketDirectory("s3a://no-such-bucket/a", reached(bucket)).make()
    wrong = {"spark.hadoop.fs.s3a.secret.key": "another"}
    with pytest.raises(JobError, match=r"SignatureDoesNotMatch.*spark\.hadoop\.fs\.s3a\.secret\.key"):
        BucketDirectory(f"s3a://{bucket.name}/a", reached(bucket) | wrong).make()
    # A setting of the bucket's own goes first.
    own = {f"spark.hadoop.fs.s3a.bucket.{bucket.name}.secret.key": bucket.secret_key}
    BucketDirectory(f"s3a://{bucket.name}/a", reached(bucket) | wrong | own).make()


def test_a_bucket_is_reached_by_the_environment_without_settings(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    directory = BucketDirectory(f"s3a://{bucket.name}", {})
    directory.write_text("a/b", "text")
    assert (directory.names(), directory.names("a")) == (["a"], ["b"])
    # Without the condition one of two that come one after the other has the name.
    without = BucketDirectory(f"s3a://{bucket.name}", {"spark.hadoop.fs.s3a.create.conditional.enabled": "false"})
    assert [without.write_new("name", text, aside="_") for text in ("one", "two")] == [True, False]
