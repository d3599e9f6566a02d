"""How an archive lies in its directory: where a topic's files are, their columns, and how they are read.

``PATH/topic=<name>/date=<day>/*.parquet``, with the topic's whole name percent-encoded and the UTC day of the publish
time; the last ``PATH/topic=<name>/_columns-<number>.json`` has the columns of all its files together. Names that begin
with an underscore or a dot are not data, for Spark as for pyarrow.
"""

from __future__ import annotations

import json
import re
from urllib.parse import quote, unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from .errors import JobError, SchemaError
from .files import Directory

TOPIC = "topic"
DATE = "date"
_COLUMNS = re.compile(r"_columns-(\d{6})\.json")


def topic_directory(path: str, topic: str) -> str:
    """Where a topic's files are; ``topic`` is its whole name, without the number of a partition."""
    return f"{path.rstrip('/')}/{TOPIC}={quote(topic, safe='')}"


def archived_topics(spark: SparkSession, path: str) -> list[str]:
    """The whole names of the topics in an archive, sorted. Raises :class:`JobError` if there is no archive."""
    directory = Directory(spark, path)
    if not directory.exists():
        raise JobError(f"{path}: there is no such directory")
    topics = [name.partition("=")[2] for name in directory.names() if name.startswith(f"{TOPIC}=")]
    if not topics:
        raise JobError(f"{path}: this is no archive: it has no directory {TOPIC}=…")
    return sorted(map(unquote, topics))


def read_archive(spark: SparkSession, path: str, topic: str) -> DataFrame:
    """The rows of one archived topic with the columns of all its files and ``date``; a file without one has null.

    Raises :class:`JobError` if the topic is not in the archive.
    """
    directory = topic_directory(path, topic)
    columns = archived_columns(spark, path, topic)
    if columns is None:
        raise JobError(f"{path}: {topic} is not archived there")
    frame: DataFrame = spark.read.schema(StructType([*columns.fields]).add(DATE, "date")).parquet(directory)
    return frame


def archived_columns(spark: SparkSession, path: str, topic: str) -> StructType | None:
    """The columns of a topic's files, those of metadata last; None if the topic is not archived there."""
    directory = Directory(spark, topic_directory(path, topic))
    kept = _kept(directory)
    if not kept:
        return None
    try:
        return StructType.fromJson(json.loads(directory.read_text(kept[-1]) or ""))
    except (ValueError, KeyError, TypeError) as error:
        raise SchemaError(f"{directory.path}/{kept[-1]}: the columns of an archive cannot be read: {error}") from error


def _kept(directory: Directory) -> list[str]:
    return [name for name in directory.names() if _COLUMNS.fullmatch(name)]


def keep_columns(spark: SparkSession, path: str, topic: str, columns: StructType) -> None:
    """Add ``columns`` to those of the topic's files.

    Raises :class:`SchemaError`, naming the field, if it is in the files with another type or is a directory's name.
    """
    for field in columns.fields:
        if field.name.lower() in (TOPIC, DATE):
            raise SchemaError(
                f"field {field.name!r} of {topic} is called as a directory of the archive is;"
                " allowDifferentTopicSchemas=true archives the bytes"
            )
    known = archived_columns(spark, path, topic)
    if known is None:
        merged = columns
    else:
        kinds = {field.name: field.dataType for field in known.fields}
        for field in columns.fields:
            if kinds.get(field.name, field.dataType) != field.dataType:
                raise SchemaError(
                    f"field {field.name!r} of {topic} is {kinds[field.name].simpleString()} in the archive and"
                    f" {field.dataType.simpleString()} in the topic now: archive it from here on under another path"
                )
        added = [field for field in columns.fields if field.name not in kinds]
        values = [field for field in known.fields if not field.name.startswith("__")]
        metadata = [field for field in known.fields if field.name.startswith("__")]
        merged = StructType([*values, *added, *metadata])
    if merged != known:
        directory = Directory(spark, topic_directory(path, topic))
        kept = _kept(directory)
        number = int(kept[-1].removeprefix("_columns-").removesuffix(".json")) + 1 if kept else 0
        directory.write_text(f"_columns-{number:06}.json", merged.json())
        for name in kept:
            directory.delete(name)
