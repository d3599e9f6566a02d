"""The layout of an archive in its directory: the files of a topic, their columns, and reading them.

``PATH/topic=<name>/date=<day>/<query>-<batch>-<file>.parquet``, with the topic's whole name percent-encoded and the UTC
day of the publish time; the last ``PATH/topic=<name>/_columns-<number>.json`` has the columns of all its files
together. Names that begin with an underscore or a dot are not data, for Spark as for pyarrow.

The files of a batch come into their places one by one. ``_complete-<query>-<number>`` says of how many batches all are
there; what is read here leaves out the files of later ones. :mod:`.merges` says how files are replaced by larger ones.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar
from urllib.parse import quote, unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from heliograph_spark.plan.errors import JobError, MissingFileError, SchemaError
from heliograph_spark.plan.positions import Position, read_offsets, write_offsets

from .directories import open_directory
from .files import Directory
from .merges import Merges, consistently
from .widening import widened_record

TOPIC = "topic"
DATE = "date"
_COLUMNS = re.compile(r"_columns-(\d{6})\.json")
_COMPLETE = re.compile(r"_complete-(.+)-(\d{8})")
_T = TypeVar("_T")


def topic_directory(path: str, topic: str) -> str:
    """Return the directory of a topic's files; ``topic`` is its whole name, without the number of a partition."""
    return f"{path.rstrip('/')}/{TOPIC}={quote(topic, safe='')}"


def archived_topics(spark: SparkSession, path: str) -> list[str]:
    """Return the whole names of the topics in an archive, sorted. Raises :class:`JobError` if there is no archive."""
    directory = open_directory(spark, path)
    if not directory.exists():
        raise JobError(f"{path}: there is no such directory")
    topics = [name.partition("=")[2] for name in directory.names() if name.startswith(f"{TOPIC}=")]
    if not topics:
        raise JobError(f"{path}: this is no archive: it has no directory {TOPIC}=…")
    return sorted(map(unquote, topics))


def read_archive(spark: SparkSession, path: str, topic: str) -> DataFrame:
    """Return the rows of one archived topic with the columns of all its files and ``date``.

    What a file lacks is null, and its narrower numbers are as wide as the column. Raises :class:`JobError` if the topic
    is not in the archive.
    """
    directory = open_directory(spark, topic_directory(path, topic))

    def rows(complete: Mapping[str, int], merged: Merges) -> DataFrame:
        # An archive writes the columns before a file that has them can be read: what was to be read before is known.
        columns = archived_columns(spark, path, topic)
        if columns is None:
            raise JobError(f"{path}: {topic} is not archived there")
        listed = StructType([*columns.fields]).add(DATE, "date")
        frame: DataFrame = spark.read.schema(listed).parquet(directory.path)
        file = frame.metadataColumn("_metadata")["file_name"]
        if merged.coming is not None:
            frame = frame.where(~file.startswith(merged.coming))
        if merged.replaced:
            frame = frame.where(~file.isin(sorted(merged.replaced)))
        for query, batches in complete.items():
            frame = frame.where(~(file.startswith(f"{query}-") & (file >= batch_name(query, batches))))
        return frame

    return _listed(directory, rows)


def name_below(topic: str) -> str:
    """Return the name of a topic's directory below that of the archive."""
    return topic_directory("", topic).removeprefix("/")


def archived_files(spark: SparkSession, path: str, topic: str, day: str = "*") -> list[str]:
    """Return the files of a topic that :func:`read_archive` reads, by their names below the topic's directory.

    They are those of one day (``YYYY-MM-DD``), or of all.
    """
    directory = open_directory(spark, topic_directory(path, topic))

    def files(complete: Mapping[str, int], merged: Merges) -> list[str]:
        later = {f"{query}-": batch_name(query, batches) for query, batches in complete.items()}
        return [
            each
            for each in directory.matching(f"{DATE}={day}/*.parquet")
            if not merged.hides(each)
            and not any(
                each.split("/")[1].startswith(query) and each.split("/")[1] >= name for query, name in later.items()
            )
        ]

    return _listed(directory, files)


def _listed(directory: Directory, listed: Callable[[Mapping[str, int], Merges], _T]) -> _T:
    """Return what ``listed`` makes of a listing of the directory, by the batches that were complete before it.

    Those of a batch that ends meanwhile may not all be among the files, and neither may those of a query's first batch
    if the query began meanwhile: then the files are listed again.
    """
    while True:
        complete = _complete(directory)
        found = consistently(directory, partial(listed, complete))
        if _complete(directory).keys() == complete.keys():
            return found


def batch_name(query: str, batch: int) -> str:
    """Return how the names of the files of a batch begin; they are ordered as the batches are."""
    return f"{query}-{batch:08}"


def complete_batches(directory: Directory, query: str) -> int:
    """Return of how many batches of a query all files are in their places; 0 also if nothing is recorded."""
    return _complete(directory).get(query, 0)


def has_batches(directory: Directory) -> bool:
    """Whether batches of any query are recorded as complete, also if the days of all their messages were removed."""
    return any(_complete(directory).values())


def complete_up_to(directory: Directory, query: str, batches: int) -> dict[str, Position]:
    """Return the end in each partition of so many complete batches, as :func:`mark_complete` recorded it."""
    name = _marker(query, batches)
    try:
        return read_offsets(json.loads(directory.read_text(name)))
    except ValueError as error:
        raise JobError(f"{directory.path}/{name}: the ends of an archive's batches cannot be read: {error}") from error


def mark_complete(directory: Directory, query: str, batches: int, ends: Mapping[str, Position]) -> None:
    """Record that all files of so many batches of a query are in their places, and the ends of the last one.

    Nothing changes if that, or more, is recorded already.
    """
    recorded = _complete(directory).get(query)
    if recorded is not None and recorded >= batches:
        return
    name = _marker(query, batches)
    directory.write_whole(name, json.dumps(write_offsets(ends)))
    if recorded is None:
        return
    # The one before stays: who lists the directory meanwhile may not see this one yet.
    for left in directory.names():
        found = _COMPLETE.fullmatch(left)
        if found and found[1] == query and int(found[2]) < recorded:
            directory.delete(left)


def _marker(query: str, batches: int) -> str:
    return f"_complete-{batch_name(query, batches)}"


def _complete(directory: Directory) -> dict[str, int]:
    """Return of how many batches of each query all files are in their places."""
    found: dict[str, int] = {}
    for each in map(_COMPLETE.fullmatch, directory.names()):
        if each:
            found[each[1]] = max(int(each[2]), found.get(each[1], 0))
    return found


def archived_columns(spark: SparkSession, path: str, topic: str) -> StructType | None:
    """Return the columns of a topic's files, those of metadata last; None if the topic is not archived there."""
    return _columns(open_directory(spark, topic_directory(path, topic)))[1]


def _columns(directory: Directory) -> tuple[str, StructType | None]:
    """Return the name of the last file of columns and what it says; empty and None if there is none."""
    missing = ""
    while kept := _kept(directory):
        try:
            return kept[-1], StructType.fromJson(json.loads(directory.read_text(kept[-1])))
        except MissingFileError:
            if kept[-1] == missing:
                raise
            # An archive has written the next one and deleted this one since the names were read.
            missing = kept[-1]
        except (ValueError, KeyError, TypeError) as error:
            raise SchemaError(
                f"{directory.path}/{kept[-1]}: the columns of an archive cannot be read: {error}"
            ) from error
    return "", None


def _kept(directory: Directory) -> list[str]:
    return [name for name in directory.names() if _COLUMNS.fullmatch(name)]


def keep_columns(spark: SparkSession, path: str, topic: str, columns: StructType) -> StructType:
    """Add ``columns`` to those of the topic's files, which become wider where that is needed, and return the result.

    Raises :class:`SchemaError`, naming the field, if no type has its values in the files and in the topic or if its
    name is a directory's, and :class:`JobError` if another archive has added columns meanwhile: one at a time holds the
    topic's subscription.
    """
    for field in columns.fields:
        if field.name.lower() in (TOPIC, DATE):
            raise SchemaError(
                f"field {field.name!r} of {topic} is called as a directory of the archive is;"
                " allowDifferentTopicSchemas=true archives the bytes"
            )
    directory = open_directory(spark, topic_directory(path, topic))
    last, known = _columns(directory)
    if known is None:
        merged = columns
    else:
        fields = widened_record(known, columns, "", topic).fields
        values = [field for field in fields if not field.name.startswith("__")]
        metadata = [field for field in fields if field.name.startswith("__")]
        merged = StructType([*values, *metadata])
    if merged != known:
        number = int(found[1]) + 1 if (found := _COLUMNS.fullmatch(last)) else 0
        name = f"_columns-{number:06}.json"
        if not directory.write_new(name, merged.json(), aside=f"_{name}.{uuid.uuid4().hex}.unfinished"):
            raise JobError(f"{directory.path}/{name}: another archive has written this file meanwhile")
        directory.sync(name)
        for left in directory.names():
            # Files that existed before, and those that killed archives have left.
            if (_COLUMNS.fullmatch(left) and left < name) or left.startswith("__columns-"):
                directory.delete(left)
    return merged
