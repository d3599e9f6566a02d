"""The layout of an archive in its directory: the files of a topic, their columns, and reading them.

``PATH/topic=<name>/date=<day>/*.parquet``, with the topic's whole name percent-encoded and the UTC day of the publish
time; the last ``PATH/topic=<name>/_columns-<number>.json`` has the columns of all its files together. Names that begin
with an underscore or a dot are not data, for Spark as for pyarrow.
"""

from __future__ import annotations

import json
import re
import uuid
from urllib.parse import quote, unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from heliograph_spark.plan.errors import JobError, MissingFileError, SchemaError

from .files import Directory
from .widening import widened_record

TOPIC = "topic"
DATE = "date"
_COLUMNS = re.compile(r"_columns-(\d{6})\.json")


def topic_directory(path: str, topic: str) -> str:
    """Return the directory of a topic's files; ``topic`` is its whole name, without the number of a partition."""
    return f"{path.rstrip('/')}/{TOPIC}={quote(topic, safe='')}"


def archived_topics(spark: SparkSession, path: str) -> list[str]:
    """Return the whole names of the topics in an archive, sorted. Raises :class:`JobError` if there is no archive."""
    directory = Directory(spark, path)
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
    directory = topic_directory(path, topic)
    columns = archived_columns(spark, path, topic)
    if columns is None:
        raise JobError(f"{path}: {topic} is not archived there")
    frame: DataFrame = spark.read.schema(StructType([*columns.fields]).add(DATE, "date")).parquet(directory)
    return frame


def archived_columns(spark: SparkSession, path: str, topic: str) -> StructType | None:
    """Return the columns of a topic's files, those of metadata last; None if the topic is not archived there."""
    return _columns(Directory(spark, topic_directory(path, topic)))[1]


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
    directory = Directory(spark, topic_directory(path, topic))
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
        for left in directory.names():
            # Files that existed before, and those that killed archives have left.
            if (_COLUMNS.fullmatch(left) and left < name) or left.startswith("__columns-"):
                directory.delete(left)
    return merged
