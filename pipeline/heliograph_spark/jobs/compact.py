"""``compact``: the last value of every key of an archived topic, as a table in files.

:mod:`.last_messages` says which message is a key's last one.

Each topic is one table, recreated from the whole archive: a later message can delete a key, or bring it back, and what
was deleted is in no table. If no file was added to the archive the table stays as it is. A table is a directory
``TO/topic=<name>/version=<number>-<id>`` that no two runs share. It counts from when ``_version-<number>.json``, which
is written last, names it: no reader that goes by this file (:func:`read_table`) sees half a table. The version before
the last is kept for those who are reading it.

Runs can be side by side. If several make the same version, one writes its file, and the others detect it
(:meth:`Directory.write_new` says on which file systems that is certain). A run deletes what it has made itself and what
is left of the versions before its own: a run that is still at work on one of these cannot have it count any more.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession

from heliograph_spark.plan.errors import JobError, MissingFileError, OptionError
from heliograph_spark.plan.options import full_name
from heliograph_spark.run.archived import topic_directory
from heliograph_spark.run.connect import FAILURES
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.files import STAGING, Directory, stage
from heliograph_spark.run.session import first_of, progress, reason

from .archived import Archive
from .archives import open_archive
from .archiving.options import Tables, check_archive
from .last_messages import last_values

_VERSION = re.compile(r"_version-(\d{8})\.json")
#: A table, or what an earlier release left of a file that was to name one.
_BESIDE = re.compile(r"(?:version=|__version-)(\d{8})\b.*")
_KEPT_VERSIONS = 2


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """The archive, the directory ``to`` of the tables of last values, and which topics; without any, all it has.

    The archive is in files at ``path`` or in ``archive_tables``; exactly one of these is given.
    """

    path: str | None
    to: str
    topics: tuple[str, ...] = ()
    archive_tables: Tables | None = None

    def check(self) -> None:
        """Raise :class:`OptionError` for values that are not valid, by themselves or together."""
        check_archive(self.path, self.archive_tables, "--path")
        if self.archive_tables is not None and self.archive_tables.last_values:
            raise OptionError("archive --upsert keeps the last values itself; valid: the tables of all messages")
        for topic in self.topics:
            full_name(topic)


@dataclass(frozen=True, slots=True)
class CompactResult:
    """The tables of one run: ``rows`` of all of them, and how many are ``unchanged`` since the last run.

    ``tables`` has for each topic the directory of its newest table.
    """

    job: str = "compact"
    rows: int = 0
    topics: int = 0
    unchanged: int = 0
    tables: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A version of a table, 0 where there is none; ``made_of`` stands for the archive's files that it was made from."""

    version: int
    path: str
    rows: int = 0
    made_of: str = ""


def compact(spark: SparkSession, options: CompactOptions) -> CompactResult:
    """Rebuild the table of every topic, one after the other.

    What one topic fails with, such as a damaged file, leaves its table as it was, does not stop the others, and is the
    result's ``error``. So is a table of the archive that cannot be read, unless the topics are named. Raises
    :class:`PulsarSourceError` for what is no archive or has not this topic.
    """
    options.check()
    with open_archive(spark, options.path, options.archive_tables) as archive:
        return _compact(spark, options, archive)


def _compact(spark: SparkSession, options: CompactOptions, archive: Archive) -> CompactResult:
    began = time.monotonic()
    there, unreadable = archive.topics()
    topics = list(dict.fromkeys(map(full_name, options.topics)))
    if missing := [each for each in topics if each not in there]:
        if unreadable:
            raise JobError(unreadable[0])
        raise JobError(f"{archive.name}: {missing[0]} is not archived there; there are {', '.join(there[:5])}")
    failed: list[str] = []
    if not topics:
        topics, failed = there, unreadable
        for each in failed:
            progress(each)
    # Before a task fails to write there, with a stack for each attempt.
    open_directory(spark, options.to).make()
    result = CompactResult(topics=len(topics))
    for topic in topics:
        try:
            table, changed = _make(spark, archive, options.to, topic)
        except FAILURES as error:
            failed.append(f"{topic}: {reason(error)}")
            progress(failed[-1])
            continue
        progress(f"{topic}: {table.rows} keys{'' if changed else ', unchanged'}")
        result = replace(
            result,
            rows=result.rows + table.rows,
            unchanged=result.unchanged + (not changed),
            tables=result.tables | {topic: table.path},
        )
    seconds = round(time.monotonic() - began, 3)
    return replace(result, seconds=seconds, error=first_of(failed, f"{len(topics)} topics"))


def read_table(spark: SparkSession, to: str, topic: str) -> DataFrame:
    """Return the newest table of a topic, by its whole name. Raises :class:`JobError` if there is none."""
    newest = _newest(open_directory(spark, topic_directory(to, topic)))
    if not newest.version:
        raise JobError(f"{to}: there is no table of {topic}")
    return spark.read.parquet(newest.path)


def _versions(directory: Directory) -> list[int]:
    return [int(found[1]) for found in map(_VERSION.fullmatch, directory.names()) if found]


def _newest(directory: Directory) -> Table:
    missing = 0
    while version := max(_versions(directory), default=0):
        try:
            return _table(directory, version)
        except MissingFileError:
            if version == missing:
                raise
            # Two newer ones were made since the names were read.
            missing = version
    return Table(0, "")


def _table(directory: Directory, version: int) -> Table:
    name = _file_of(version)
    try:
        document = json.loads(directory.read_text(name))
        # Before tables had names of their own a version was the name.
        table = document.get("table", f"version={version:08}")
        return Table(version, f"{directory.path}/{table}", document["rows"], document["made_of"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobError(f"{directory.path}/{name}: the description of a table cannot be read: {error}") from error


def _file_of(version: int) -> str:
    return f"_version-{version:08}.json"


def _make(spark: SparkSession, archive: Archive, to: str, topic: str) -> tuple[Table, bool]:
    """Return the newest table of a topic and whether it was made now."""
    messages, made_of = archive.read(topic)
    directory = open_directory(spark, topic_directory(to, topic))
    newest = _newest(directory)
    if newest.version and newest.made_of == made_of:
        return newest, False
    version = newest.version + 1
    overtaken = f"{directory.path}: another run has made version {version} meanwhile"
    root = open_directory(spark, to)
    encoded = directory.path.rsplit("/", 1)[-1]
    own = f"{version:08}-{uuid.uuid4().hex}"
    table = f"version={own}"
    try:
        rows = stage(root, f"{encoded}/{own}", last_values(messages))
        directory.make()
        root.rename(f"{STAGING}/{encoded}/{own}", f"{encoded}/{table}")
    except FAILURES as error:
        directory.delete(table)
        if max(_versions(directory), default=0) >= version:
            # It may have failed only because its files were deleted with what was left of its version.
            raise JobError(overtaken) from error
        raise
    finally:
        root.delete(f"{STAGING}/{encoded}/{own}")
    document = json.dumps({"table": table, "rows": rows, "made_of": made_of})
    # If this raises nobody knows whether the version counts, and the table has to stay.
    if not directory.write_new(_file_of(version), document, aside=f"{table}/{_file_of(version)}"):
        directory.delete(table)
        raise JobError(overtaken)
    if _clean_up(root, directory, encoded) >= version + _KEPT_VERSIONS:
        # The version was taken, and its file deleted, before this run wrote another one.
        raise JobError(overtaken)
    return Table(version, f"{directory.path}/{table}", rows, made_of), True


def _clean_up(root: Directory, directory: Directory, encoded: str) -> int:
    """Delete the tables before those that are kept, and what runs have left that cannot count any more.

    Returns the newest version.
    """
    versions = _versions(directory)
    newest = max(versions)
    kept = range(newest - _KEPT_VERSIONS + 1, newest + 1)
    for version in versions:
        if version not in kept:
            directory.delete(_file_of(version))
    try:
        named = {_table(directory, version).path for version in versions if version in kept}
    except MissingFileError:
        # A run has made a newer version since, and cleans up after this one, too.
        return newest
    for name in directory.names():
        left = _BESIDE.fullmatch(name)
        if left and int(left[1]) < newest and f"{directory.path}/{name}" not in named:
            directory.delete(name)
    for name in root.names(f"{STAGING}/{encoded}"):
        if int(name.partition("-")[0]) < newest:
            root.delete(f"{STAGING}/{encoded}/{name}")
    return newest
