"""Files on a real file system of Hadoop's: who has a name, if several want it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from heliograph_spark.plan.errors import JobError, MissingFileError
from heliograph_spark.run.files import Directory
from pyspark.sql import SparkSession


def shown(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if not each.name.startswith("."))


@pytest.mark.parametrize("links", [True, False])
def test_a_name_is_given_once_and_what_has_it_stays(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(Directory, "_link", lambda *_: False)
    directory = Directory(spark, str(tmp_path))
    assert directory.write_new("a", "first", aside="_1")
    assert not directory.write_new("a", "second", aside="_2")
    assert directory.read_text("a") == "first"
    assert shown(tmp_path) == ["a"]


def test_of_many_at_once_one_has_the_name(spark: SparkSession, tmp_path: Path) -> None:
    for each in range(20):
        directory = Directory(spark, str(tmp_path / str(each)))
        directory.make()

        def write(number: int, directory: Directory = directory) -> bool:
            return directory.write_new("a", f"by {number}", aside=f"_{number}")

        with ThreadPoolExecutor(4) as writers:
            (winner,) = [number for number, done in enumerate(writers.map(write, range(4))) if done]
        assert directory.read_text("a") == f"by {winner}"
        assert shown(tmp_path / str(each)) == ["a"]


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
    monkeypatch.setattr(Directory, "_link", lambda *_: False)
    directory = Directory(spark, str(tmp_path))
    directory._system = LosesAnswers(directory._system, directory._at("nowhere"))
    assert directory.write_new("a", "by this one", aside="_1")


def test_a_file_that_cannot_be_written_or_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    directory = Directory(spark, str(tmp_path))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(JobError, match="file/_1: "):
        directory.write_new("file/a", "text", aside="file/_1")
    with pytest.raises(MissingFileError, match=r"nothing: java\.io\.FileNotFoundException"):
        directory.read_text("nothing")
    assert directory.names("nothing") == []
