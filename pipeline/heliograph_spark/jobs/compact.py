"""``compact``: the last value of every key of an archived topic, as a table.

The last message is the one with the highest position in the topic, as the broker's own compaction sees it; a message
with a null or an empty value deletes its key, and messages without a key are left out. Where a key is in several
partitions, since their number has changed, :mod:`.order` says which message is the last.

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

import hashlib
import json
import re
import time
import uuid
from dataclasses import dataclass, field, replace

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StringType, StructType

from heliograph_spark.plan.errors import JobError, MissingFileError, PulsarSourceError
from heliograph_spark.plan.options import full_name
from heliograph_spark.run.archived import DATE, archived_files, archived_topics, read_archive, topic_directory
from heliograph_spark.run.files import STAGING, Directory, stage
from heliograph_spark.run.schemas import METADATA, VALUE
from heliograph_spark.run.session import progress, reason

from .order import number_of, place

_VERSION = re.compile(r"_version-(\d{8})\.json")
#: A table, or what an earlier release left of a file that was to name one.
_BESIDE = re.compile(r"(?:version=|__version-)(\d{8})\b.*")
_KEPT_VERSIONS = 2


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """The archive at ``path``, the directory ``to`` of the tables, and which topics; without any, all it has."""

    path: str
    to: str
    topics: tuple[str, ...] = ()


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
    result's ``error``. Raises :class:`PulsarSourceError` for a directory that is no archive or has not this topic.
    """
    began = time.monotonic()
    there = archived_topics(spark, options.path)
    topics = list(dict.fromkeys(map(full_name, options.topics))) or there
    if missing := [each for each in topics if each not in there]:
        raise JobError(f"{options.path}: {missing[0]} is not archived there")
    result = CompactResult(topics=len(topics))
    for topic in topics:
        try:
            table, changed = _make(spark, options, topic)
        except (PulsarSourceError, PySparkException, Py4JError) as error:
            progress(f"{topic}: {reason(error)}")
            result = replace(result, error=result.error or f"{topic}: {reason(error)}")
            continue
        progress(f"{topic}: {table.rows} keys{'' if changed else ', unchanged'}")
        result = replace(
            result,
            rows=result.rows + table.rows,
            unchanged=result.unchanged + (not changed),
            tables=result.tables | {topic: table.path},
        )
    return replace(result, seconds=round(time.monotonic() - began, 3))


def read_table(spark: SparkSession, to: str, topic: str) -> DataFrame:
    """Return the newest table of a topic, by its whole name. Raises :class:`JobError` if there is none."""
    newest = _newest(Directory(spark, topic_directory(to, topic)))
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


def _make(spark: SparkSession, options: CompactOptions, topic: str) -> tuple[Table, bool]:
    """Return the newest table of a topic and whether it was made now."""
    # An archive changes no file: what it adds, merges or removes shows in their names.
    files = archived_files(spark, options.path, topic)
    made_of = hashlib.sha256("\n".join(files).encode()).hexdigest()
    directory = Directory(spark, topic_directory(options.to, topic))
    newest = _newest(directory)
    if newest.version and newest.made_of == made_of:
        return newest, False
    version = newest.version + 1
    overtaken = f"{directory.path}: another run has made version {version} meanwhile"
    root = Directory(spark, options.to)
    encoded = directory.path.rsplit("/", 1)[-1]
    own = f"{version:08}-{uuid.uuid4().hex}"
    table = f"version={own}"
    try:
        rows = stage(root, f"{encoded}/{own}", last_values(read_archive(spark, options.path, topic)))
        directory.make()
        root.rename(f"{STAGING}/{encoded}/{own}", f"{encoded}/{table}")
    except (PulsarSourceError, PySparkException, Py4JError) as error:
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


def last_values(rows: DataFrame) -> DataFrame:
    """Return the last row of each key, from rows with the columns of messages, without the keys that it deletes."""
    return last_messages(rows).where(has_value(rows))


def last_messages(rows: DataFrame) -> DataFrame:
    """Return the last row of each key, from rows with the columns of messages, also where it deletes its key."""
    columns = [name for name in rows.columns if name != DATE]
    message = f.struct(*[f.col(f"`{name}`") for name in columns])
    keyed = rows.where("__key IS NOT NULL").select(
        "__key", "__topic", "__publishTime", message.alias("message"), place(f.col("__messageId")).alias("place")
    )
    each = keyed.groupBy("__key", "__topic").agg(
        f.max_by("message", "place").alias("message"), f.max("__publishTime").alias("published")
    )
    latest = f.struct("published", number_of(f.col("__topic")))
    return each.groupBy("__key").agg(f.max_by("message", latest).alias("message")).select("message.*")


def has_value(rows: DataFrame) -> Column:
    """Whether a message is more than its key: a value that is not empty, or a record with a field that is not null.

    With a key-value schema the value counts.
    """
    condition = f.lit(False)
    for column in rows.schema.fields:
        if column.name not in METADATA.names and column.name != DATE:
            there, kind = f.col(f"`{column.name}`"), column.dataType
            if column.name == VALUE and isinstance(kind, StructType) and kind.names == ["key", VALUE]:
                there = there[VALUE]
            plain = column.name == VALUE and isinstance(kind, BinaryType | StringType)
            condition = condition | (f.coalesce(f.length(there), f.lit(0)) > 0 if plain else there.isNotNull())
    return condition
