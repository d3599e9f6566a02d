"""``compact``: the last value of every key of an archived topic, as a table.

What is last goes by the position in the topic, as the broker's own compaction sees it; a message with a null or an
empty value deletes its key, and messages without a key are left out. Where a key is in several partitions, since their
number has changed, the latest publish time of their last messages decides.

Each topic is one table, made anew from the whole archive: a later message can delete a key, or bring it back, and what
was deleted is in no table. If no file was added to the archive the table stays as it is. A table is a directory
``TO/topic=<name>/version=<number>``, which counts from when the file ``_version-<number>.json`` beside it is there, the
last thing to be written: no reader that goes by it (:func:`read_table`) sees half a table. The version before the
last is kept for those who are reading it. Of runs side by side the first one's version counts.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import time
import uuid
from dataclasses import dataclass, field, replace

import pandas as pd
import pulsar
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StringType

from heliograph_spark.archived import DATE, archived_topics, read_archive, topic_directory
from heliograph_spark.errors import JobError, PulsarSourceError
from heliograph_spark.files import STAGING, Directory, stage
from heliograph_spark.options import full_name
from heliograph_spark.positions import Position
from heliograph_spark.schemas import METADATA, VALUE
from heliograph_spark.session import progress, reason

_VERSION = re.compile(r"_version-(\d{8})\.json")
_KEPT_VERSIONS = 2


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """The archive at ``path``, the directory ``to`` of the tables, and which topics; without any, all it has."""

    path: str
    to: str
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What one run made: ``rows`` of all its tables, and how many of these are ``unchanged`` since the last run.

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
    """One version of a table; ``made_of`` stands for the archive's files that it was made from."""

    path: str
    rows: int
    made_of: str


def compact(spark: SparkSession, options: CompactOptions) -> CompactResult:
    """Make the table of every topic anew, one after the other.

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
    """The newest table of a topic, by its whole name. Raises :class:`JobError` if there is none."""
    versions = _versions(Directory(spark, topic_directory(to, topic)))
    if not versions:
        raise JobError(f"{to}: there is no table of {topic}")
    return spark.read.parquet(versions[max(versions)].path)


def _versions(directory: Directory) -> dict[int, Table]:
    found = {}
    for name in directory.names():
        if number := _VERSION.fullmatch(name):
            path = f"{directory.path}/version={number[1]}"
            try:
                said = json.loads(directory.read_text(name))
                found[int(number[1])] = Table(path, said["rows"], said["made_of"])
            except (ValueError, KeyError, TypeError) as error:
                raise JobError(f"{directory.path}/{name}: what is said of a table cannot be read: {error}") from error
    return found


def _make(spark: SparkSession, options: CompactOptions, topic: str) -> tuple[Table, bool]:
    """The newest table of a topic and whether it was made now."""
    # The archive only ever adds files, each under a name of its own.
    files = Directory(spark, topic_directory(options.path, topic)).matching(f"{DATE}=*/*.parquet")
    made_of = hashlib.sha256("\n".join(files).encode()).hexdigest()
    directory = Directory(spark, topic_directory(options.to, topic))
    versions = _versions(directory)
    newest = max(versions, default=0)
    if versions and versions[newest].made_of == made_of:
        return versions[newest], False
    root = Directory(spark, options.to)
    encoded = directory.path.rsplit("/", 1)[-1]
    for left in root.names(f"{STAGING}/{encoded}"):
        # Of a run that was killed. Of a version that does not count yet it may be one that runs beside this.
        if int(left.partition("-")[0]) <= newest:
            root.delete(f"{STAGING}/{encoded}/{left}")
    number = f"{newest + 1:08}"
    staged = f"{encoded}/{number}-{uuid.uuid4().hex}"
    try:
        rows = stage(root, staged, last_values(read_archive(spark, options.path, topic)))
        if newest + 1 in _versions(directory):
            raise JobError(f"{directory.path}: another run has made version {newest + 1} meanwhile")
        # A run that was killed before its version counted has left this.
        directory.delete(f"version={number}")
        directory.make()
        root.rename(f"{STAGING}/{staged}", f"{encoded}/version={number}")
    finally:
        root.delete(f"{STAGING}/{staged}")
    directory.write_text(f"_version-{number}.json", json.dumps({"rows": rows, "made_of": made_of}))
    for old in sorted(versions)[: -(_KEPT_VERSIONS - 1)]:
        directory.delete(f"_version-{old:08}.json")
        directory.delete(f"version={old:08}")
    return Table(f"{directory.path}/version={number}", rows, made_of), True


def last_values(rows: DataFrame) -> DataFrame:
    """Of rows with the columns of messages the last of each key, without the keys that it deletes."""
    columns = [name for name in rows.columns if name != DATE]
    place = f.pandas_udf(_places, BinaryType())  # type: ignore[call-overload, unused-ignore]
    message = f.struct(*[f.col(f"`{name}`") for name in columns])
    keyed = rows.where("__key IS NOT NULL").select(
        "__key", "__topic", message.alias("message"), place("__messageId").alias("place")
    )
    each = keyed.groupBy("__key", "__topic").agg(f.max_by("message", "place").alias("message"))
    latest = f.struct("message.__publishTime", "message.__topic")
    whole = each.groupBy("__key").agg(f.max_by("message", latest).alias("message")).select("message.*")
    return whole.where(_has_value(rows))


def _places(ids: pd.Series) -> pd.Series:
    """Message ids as bytes that are ordered as the messages of a partition are."""
    return ids.map(_place)


def _place(message_id: bytes) -> bytes:
    at = Position.of(pulsar.MessageId.deserialize(bytes(message_id)))
    return struct.pack(">QQI", at.ledger, at.entry, at.batch + 1)


def _has_value(rows: DataFrame) -> Column:
    """Whether a message is more than its key: a value that is not empty, or a record with a field that is not null."""

    condition = f.lit(False)
    for column in rows.schema.fields:
        if column.name not in METADATA.names and column.name != DATE:
            there = f.col(f"`{column.name}`")
            plain = column.name == VALUE and isinstance(column.dataType, BinaryType | StringType)
            condition = condition | (f.coalesce(f.length(there), f.lit(0)) > 0 if plain else there.isNotNull())
    return condition
