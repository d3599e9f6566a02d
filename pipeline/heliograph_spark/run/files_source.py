"""A data source of streams for ``archive``: its tasks write the messages that they read into files themselves.

Spark would make a row of every message, and columns of the rows again, which takes much longer than reading them. It
plans, repeats and counts the micro-batches as it does for ``format("pulsar")``, of which this is a part, or the job
does (:mod:`.planned_batch`). Spark gets a row for each file that a task has written. Files of tasks that failed are in
none of these rows.

A task reads its splits one after the other, so there are as many tasks as cores, although each writes a file of its
own (:func:`task_count`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from weakref import WeakSet

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import DataStreamReader
from pyspark.sql.types import LongType, StringType, StructType

from heliograph_spark.plan.errors import JobError, MissingFileError
from heliograph_spark.plan.options import ReadOptions, read_options
from heliograph_spark.plan.ranges import stored_bytes

from .archived import batch_name
from .day_files import DayFiles, MessageFile
from .files import Directory
from .places import Place
from .planned_batch import PlannedBatch, PlannedReader, register_once
from .source import PulsarDataSource, Split, StreamReader, UnlimitedStreamReader
from .spark_versions import LIMITS_MICRO_BATCHES, arrow_schema
from .tasks import micro_batch

#: The options of this source beside those of ``format("pulsar")``. Spark shows no option that is called a secret.
_WANTED, _S3, _CORES = "messageFiles", "messageFilesSecret", "messageFilesCores"
#: A task of fewer stored bytes is not worth its file: it is read within tenths of a second.
_LEAST_TASK_BYTES = 4 << 20
_FILE = StructType().add("path", StringType()).add("day", StringType()).add("rows", LongType()).add("bytes", LongType())
#: The sessions that know the source.
_registered: WeakSet[SparkSession] = WeakSet()


@dataclass(frozen=True, slots=True)
class WantedFiles:
    """The files that tasks write: below ``place``, with these columns, in directories ``<by>=<day>``.

    The columns are those of the messages, or wider, and may be more. A micro-batch has a directory of its own there
    (:func:`batch_directory`), whose name ``suffix`` ends. Its messages are in a file for each task
    (:func:`task_count`), of about ``file_bytes`` at most, if they are of one day.
    """

    place: Place
    by: str
    columns: StructType
    file_bytes: int
    suffix: str = ""

    def options(self, messages: StructType) -> dict[str, str]:
        """Return them as options of the source, with the columns of the messages."""
        wanted = {
            "messages": messages.jsonValue(),
            "path": self.place.path,
            "by": self.by,
            "columns": self.columns.jsonValue(),
            "fileBytes": self.file_bytes,
            "suffix": self.suffix,
        }
        return {_WANTED: json.dumps(wanted), _S3: json.dumps(self.place.s3)}

    @classmethod
    def of(cls, options: MutableMapping[str, str]) -> tuple[WantedFiles, StructType]:
        """Take them out of the source's options, with the columns of the messages."""
        wanted = json.loads(options.pop(_WANTED.lower()))
        place = Place(wanted["path"], json.loads(options.pop(_S3.lower())))
        messages, columns = (StructType.fromJson(wanted[each]) for each in ("messages", "columns"))
        return cls(place, wanted["by"], columns, wanted["fileBytes"], wanted["suffix"]), messages


def batch_directory(query: str, batch: int, suffix: str) -> str:
    """Return the directory of a micro-batch below the place of its files."""
    return batch_name(query, batch) + suffix


def read_into_files(spark: SparkSession, wanted: WantedFiles, messages: StructType, cores: int) -> DataStreamReader:
    """Return a reader to which the options of ``format("pulsar")`` are to be given, which gave these columns."""
    register_once(spark, MessageFilesSource, _registered)
    return spark.readStream.format(MessageFilesSource.name()).options(
        **wanted.options(messages), **{_CORES: str(cores)}
    )


def task_count(splits: int, stored: int, file_bytes: int, cores: int) -> int:
    """Return how many tasks read a micro-batch of so many splits and stored bytes, each into a file of its own.

    They are as many as the bytes make files, and at least one for each core, so that splits are read side by side. A
    small batch has fewer: more tasks than the bytes make files are worth these only if each has 4 MiB. There are no
    more tasks than splits.
    """
    files = max(1, -(-stored // file_bytes))
    return min(splits, max(files, min(cores, stored // _LEAST_TASK_BYTES)))


def planned_into_files(
    spark: SparkSession,
    planned: PlannedBatch,
    wanted: WantedFiles,
    messages: StructType,
    cores: int,
    options: Mapping[str, str],
) -> DataFrame:
    """Return the files of a micro-batch, which tasks write when its rows are asked for.

    The options are those of ``format("pulsar")``, which gave these columns.
    """
    register_once(spark, MessageFilesSource, _registered)
    reader = spark.read.format(MessageFilesSource.name()).options(**wanted.options(messages), **{_CORES: str(cores)})
    return reader.options(**options).options(**planned.options()).load()


def written_files(rows: DataFrame, root: Directory) -> list[MessageFile]:
    """Let the tasks of a micro-batch write their files below ``root``, and return these, in the order of the messages.

    Raises :class:`JobError` if the driver does not find one as it was written, and what Spark raises.
    """
    files = [MessageFile(*row) for row in rows.collect()]
    size: int | None
    for each in files:
        try:
            size = root.size(each.path)
        except MissingFileError:
            # Executors may have written a directory of machines of their own.
            size = None
        if size != each.bytes:
            found = "is not there" if size is None else f"has {size} bytes"
            raise JobError(
                f"{root.path}/{each.path}: {each.rows} rows were written there, in {each.bytes} bytes, and for the"
                f" driver the file {found}"
            )
    return files


class _Splits(InputPartition):
    """The messages that one task writes."""

    def __init__(self, splits: Sequence[InputPartition]) -> None:
        super().__init__(None)
        self.splits = splits


class MessageFilesSource(PulsarDataSource):
    """The data source; see :func:`read_into_files` and :func:`planned_into_files`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._wanted, self._messages = WantedFiles.of(given)
        self._cores = int(given.pop(_CORES.lower()))
        self._planned = PlannedBatch.of(given)
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "heliograph-message-files"

    def schema(self) -> StructType:
        return _FILE

    def reader(self, schema: StructType) -> DataSourceReader:
        planned = self._planned
        assert planned is not None
        options = read_options(self.options, streaming=True)
        stream = MessageFilesReader(self._messages, options, self._wanted, self._cores, planned)
        return PlannedReader(stream, stream.of_files(planned.splits))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = read_options(self.options, streaming=True)
        reader = MessageFilesReader if LIMITS_MICRO_BATCHES else UnlimitedMessageFilesReader
        return reader(self._messages, options, self._wanted, self._cores)


class MessageFilesReader(StreamReader):
    """Reads as a stream does, by tasks for so many cores, and yields the files instead of the messages.

    ``planned`` is the micro-batch where Spark does not say to a task which one it is part of.
    """

    def __init__(
        self,
        columns: StructType,
        options: ReadOptions,
        wanted: WantedFiles,
        cores: int,
        planned: PlannedBatch | None = None,
    ) -> None:
        super().__init__(columns, options, None if planned is None else planned.query)
        self._wanted = wanted
        self._cores = cores
        self._part_of = None if planned is None else (planned.query, planned.number)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        return self.of_files(super().partitions(start, end))

    def of_files(self, splits: Sequence[InputPartition]) -> Sequence[InputPartition]:
        """Return the splits in groups of neighbours, each of which one task writes."""
        stored = stored_bytes(each.range for each in splits if isinstance(each, Split))
        tasks = task_count(len(splits), stored, self._wanted.file_bytes, self._cores)
        borders = [len(splits) * at // tasks for at in range(tasks + 1)] if tasks else []
        return [_Splits(splits[first:last]) for first, last in pairwise(borders)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Splits)
        part_of = self._part_of or micro_batch()
        assert part_of is not None
        query, batch = part_of
        wanted = self._wanted
        directory = batch_directory(query, batch, wanted.suffix)
        files = DayFiles(wanted.place, directory, wanted.by, wanted.columns)
        for split in partition.splits:
            for messages in super().read(split):
                files.add(messages)
        written = files.close()
        columns = zip(*written, strict=True) if written else [[]] * len(_FILE)
        yield pa.RecordBatch.from_arrays(
            [pa.array(list(column), field.type) for column, field in zip(columns, arrow_schema(_FILE), strict=True)],
            schema=arrow_schema(_FILE),
        )


class UnlimitedMessageFilesReader(MessageFilesReader, UnlimitedStreamReader):
    """The same for Spark before 4.2."""
