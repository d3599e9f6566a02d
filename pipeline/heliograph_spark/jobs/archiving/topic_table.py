"""The Iceberg table of a topic's messages, partitioned by the UTC day of the publish time.

The tasks of a micro-batch write its data files into a directory of the run's own below the table's ``data``, and one
commit adds them. The same commit sets the table's property of the query, which says how many of its batches are in the
table and where the last one ends. A property outlives the snapshots that are expired, and a reader has a whole batch or
nothing of it.

Each commit expects the snapshot that the record was read with, and none is repeated on another one. So a run that has
lost its subscription cannot add its batch after the next run has. That one adds an empty snapshot before it deletes
what a killed run has left of the batch.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.types import StructType

from heliograph_spark.plan.errors import JobError, SchemaError
from heliograph_spark.plan.positions import Position, read_offsets, write_offsets
from heliograph_spark.run.archived import batch_name
from heliograph_spark.run.days import UTC_DAY, mark_text
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.files import COMPRESSED, Directory
from heliograph_spark.run.files_source import WantedFiles, batch_directory, written_files
from heliograph_spark.run.places import place_of
from heliograph_spark.run.spark_versions import arrow_schema
from heliograph_spark.run.widening import widened_record
from heliograph_spark.tables.adding import add_files
from heliograph_spark.tables.catalog import refusals
from heliograph_spark.tables.columns import in_spark, storable
from heliograph_spark.tables.locations import of_hadoop
from heliograph_spark.tables.manifests import check_list
from heliograph_spark.tables.metadata import sync_metadata
from heliograph_spark.tables.partitions import Partition, check_partitions

from .target import Batch, Complete, Written

#: Properties of a table: the topic, the complete batches of each query, and the mark of each complete day.
TOPIC = "heliograph.topic"
BATCHES = "heliograph.batches."
COMPLETE_DAY = "heliograph.complete-day."
#: The column by whose days the table is partitioned, and the name of the partitions.
TIME = "__publishTime"
_PARTITION = "__publishTime_day"
#: A column that is in no file: it divides the rows of a batch into the directories of their partitions.
_PLACE = "__place"
#: The property without which pyiceberg repeats a refused commit on the snapshot of another run.
_RETRIES = "commit.retry.num-retries"
_PROPERTIES = {
    _RETRIES: "0",
    # A table has a metadata file and a manifest for each micro-batch otherwise.
    "write.metadata.delete-after-commit.enabled": "true",
    "commit.manifest-merge.enabled": "true",
}


def check_owner(table: Table, topic: str, path: str, advice: str) -> None:
    """Raise :class:`JobError`, with advice, if the table of this path is not that of the topic, by its whole name."""
    owner = table.properties.get(TOPIC)
    if owner != topic:
        found = f"of the topic {owner}" if owner else f"no archive of a topic, as it has no property {TOPIC}"
        raise JobError(f"{path}: this table is {found}; {advice}")


class Merged(NamedTuple):
    """The rows that a commit writes, and those of whole files that it deletes."""

    rows: DataFrame
    replaced: BooleanExpression | None = None


class TopicTable:
    """The table of the messages of one topic."""

    #: The expression by which Spark divides rows into files, and the column, transform and name of the partitions.
    place = UTC_DAY
    partition: Partition = (TIME, DayTransform(), _PARTITION)
    #: Columns of the archive's own, which no field of a topic can be.
    own_columns: tuple[str, ...] = (_PLACE,)

    def __init__(
        self, spark: SparkSession, catalog: Catalog, identifier: tuple[str, ...], path: str, topic: str
    ) -> None:
        self._spark = spark
        self._catalog = catalog
        self._identifier = identifier
        self._topic = topic
        # A name of the run's own, so that no run takes the files of another one for its own.
        self._own = uuid.uuid4().hex
        #: Whether the last write went to its end, so that nothing of the next batch can be there.
        self._whole = False
        self._table: Table | None = None
        self.path = path

    def is_empty(self) -> bool:
        table = self._load()
        return table is None or not any(name.startswith(BATCHES) for name in table.properties)

    def keep_columns(self, columns: StructType) -> StructType:
        for name in columns.names:
            if name.lower() in self.own_columns:
                raise SchemaError(
                    f"field {name!r} of {self._topic} is called as a column of the archive's own is;"
                    " allowDifferentTopicSchemas=true archives the bytes"
                )
        table = self._load()
        wanted = self.columns_of(storable(columns))
        if table is None:
            self._create(wanted)
            self.sync()
            return in_spark(self._there().schema())
        known = in_spark(table.schema())
        merged = widened_record(known, wanted, "", self._topic)
        before = table.metadata_location
        with refusals(f"{self.path}: the columns of {self._topic}"), table.transaction() as change:
            if merged != known:
                with change.update_schema() as schema:
                    schema.union_by_name(arrow_schema(merged))
            if table.properties.get(_RETRIES) != _PROPERTIES[_RETRIES]:
                change.set_properties({_RETRIES: _PROPERTIES[_RETRIES]})
        if table.metadata_location != before:
            self.sync()
        return in_spark(table.schema())

    def columns_of(self, columns: StructType) -> StructType:
        """Return the columns of the table for those of the messages."""
        return columns

    @contextmanager
    def merged(self, rows: DataFrame, table: Table) -> Iterator[Merged]:
        """Give what a batch of these messages changes in the table, while it is written: it adds them all."""
        yield Merged(rows)

    def complete(self, query: str) -> Complete | None:
        table = self._load()
        return None if table is None else self._complete(table, query)

    def sync(self) -> None:
        with refusals(self.path):
            sync_metadata(self._spark, self._there())

    def _complete(self, table: Table, query: str) -> Complete | None:
        text = table.properties.get(f"{BATCHES}{query}")
        if text is None:
            return None
        try:
            recorded = json.loads(text)
            return Complete(int(recorded["batches"]), read_offsets(recorded["ends"]))
        except (ValueError, KeyError, TypeError) as error:
            raise JobError(f"{self.path}: its property {BATCHES}{query} cannot be read: {error}") from error

    def files(self, columns: StructType, file_bytes: int) -> WantedFiles | None:
        place = place_of(self._data(self._there()))
        return None if place is None else WantedFiles(place, _PLACE, columns, file_bytes, f"-{self._own}")

    def write_files(self, files: DataFrame, batch: Batch) -> Written:
        table = self._ready_for(batch)
        data = self._data(table)
        found = [each.path for each in written_files(files, data)]
        # Those of tasks that failed.
        for left in set(data.matching(f"{self._directory_of(batch)}/{_PLACE}=*/*.parquet")) - set(found):
            data.delete(left)
        return self._add(table, batch, found)

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        table = self._ready_for(batch)
        data, place = self._data(table), self._directory_of(batch)
        # It is the session of the streaming query alone or, with Spark Connect, that of the job.
        session = rows.sparkSession.conf
        session.set("spark.sql.maxConcurrentOutputFileWriters", "2")
        session.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        with self.merged(rows, table) as merged:
            staged = merged.rows.withColumn(_PLACE, expr(self.place)).write.partitionBy(_PLACE).options(**COMPRESSED)
            staged.parquet(f"{data.path}/{place}")
            found = data.matching(f"{place}/{_PLACE}=*/*.parquet")
            if not found and not merged.rows.isEmpty():
                # As executors do that write a local directory on machines of their own.
                raise JobError(f"{data.path}/{place}: rows were written there, and the driver finds no file of them")
        return self._add(table, batch, found, merged.replaced)

    def _data(self, table: Table) -> Directory:
        return open_directory(self._spark, f"{of_hadoop(table.location())}/data")

    def _directory_of(self, batch: Batch) -> str:
        return batch_directory(batch.query, batch.number, f"-{self._own}")

    def _ready_for(self, batch: Batch) -> Table:
        """Return the table, without anything that a killed run has left of this micro-batch."""
        table = self._there()
        complete = self._complete(table, batch.query)
        if (known := 0 if complete is None else complete.batches) != batch.number:
            raise JobError(
                f"{self.path}: it has {known} batches of the query whose checkpoint goes on with batch {batch.number}:"
                " it is not the table that the checkpoint belongs to, or an older state of it"
            )
        clean, self._whole = self._whole, False
        if not clean:
            self._delete_left(self._data(table), f"{batch_name(batch.query, batch.number)}-")
        return table

    def _add(
        self, table: Table, batch: Batch, found: Sequence[str], replaced: BooleanExpression | None = None
    ) -> Written:
        """Add files of a micro-batch, by their names in the directory of data, and record it."""
        days = sorted({file.split("/")[-2].partition("=")[2] for file in found})
        reopened = [day for day in days if f"{COMPLETE_DAY}{day}" in table.properties]
        record = {"batches": batch.number + 1, "ends": write_offsets(batch.ends)}
        data = self._data(self._there())
        data.sync(*found, *{above for file in found for above in (file.rpartition("/")[0], file.split("/")[0], "")})
        self._commit(
            [f"{table.location()}/data/{file}" for file in found],
            {"heliograph.query": batch.query, "heliograph.batch": str(batch.number)},
            {f"{BATCHES}{batch.query}": json.dumps(record)},
            [f"{COMPLETE_DAY}{day}" for day in reopened],
            replaced,
        )
        self._whole = True
        snapshot = self._there().current_snapshot()
        summary: Mapping[str, str] = {} if snapshot is None or snapshot.summary is None else snapshot.summary
        rows_added, bytes_added = (int(summary.get(f"added-{each}") or 0) for each in ("records", "files-size"))
        return Written(rows_added, len(found), bytes_added, reopened)

    def unmarked_days(self) -> list[str]:
        table = self._load()
        if table is None:
            return []
        return sorted(day for day in self._messages() if f"{COMPLETE_DAY}{day}" not in table.properties)

    def mark_days(self, days: Iterable[str], up_to: Mapping[str, Position], stored_ms: int) -> dict[str, int]:
        wanted = set(days)
        if not wanted:
            return {}
        found = {day: messages for day, messages in sorted(self._messages().items()) if day in wanted}
        marks = {f"{COMPLETE_DAY}{day}": mark_text(messages, up_to, stored_ms) for day, messages in found.items()}
        if marks:
            # With a snapshot: after another run's it is refused, and that run's after this one.
            self._commit([], {}, marks, [])
        return found

    def _messages(self) -> dict[str, int]:
        """Return the number of messages of each day, as the table's manifests have it."""
        table = self._there()
        if table.current_snapshot() is None:
            return {}
        with refusals(self.path):
            partitions = table.inspect.partitions().to_pylist()
        # Messages whose publish time is not known are of no day.
        days = ((each["partition"][_PARTITION], int(each["record_count"])) for each in partitions)
        return {day.isoformat(): messages for day, messages in days if day is not None}

    def _load(self) -> Table | None:
        """Return the table as it is now; None if there is none.

        Raises :class:`JobError` if it is another topic's, or if another engine has partitioned it in another way.
        """
        try:
            with refusals(self.path):
                table = self._catalog.load_table(self._identifier)
        except JobError as error:
            if isinstance(error.__cause__, NoSuchTableError):
                return None
            raise
        check_owner(table, self._topic, self.path, f"archive {self._topic} into another namespace")
        check_partitions(table, self.partition, self.path)
        self._table = table
        return table

    def _there(self) -> Table:
        """Return the table as it was when it was loaded last, or as this run's last commit has left it."""
        table = self._table or self._load()
        if table is None:
            raise JobError(f"{self.path}: there is no such table any more")
        return table

    def _create(self, columns: StructType) -> None:
        properties = {TOPIC: self._topic} | _PROPERTIES
        with (
            refusals(f"{self.path}: the columns of {self._topic}"),
            self._catalog.create_table_transaction(
                self._identifier, arrow_schema(columns), properties=properties
            ) as creation,
        ):
            location = creation.table_metadata.location
            if open_directory(self._spark, f"{of_hadoop(location)}/data").names():
                # They may be those of a table that has another name now, and no snapshot of this one would have them.
                raise JobError(
                    f"{self.path}: {location} has the files of a table that was renamed or dropped: move or delete"
                    f" them, or archive {self._topic} into another namespace"
                )
            with creation.update_spec() as spec:
                spec.add_field(*self.partition)

    def _delete_left(self, data: Directory, prefix: str) -> None:
        """Delete what a killed run has left of a batch that is not in the table."""
        left = [name for name in data.names() if name.startswith(prefix)]
        if not left:
            return
        # A run that is cut off from the broker may be about to commit them: after another snapshot it is refused.
        self._commit([], {}, {}, [])
        for name in left:
            data.delete(name)

    def _commit(
        self,
        files: list[str],
        summary: Mapping[str, str],
        properties: Mapping[str, str],
        removed: list[str],
        replaced: BooleanExpression | None = None,
    ) -> None:
        """Add a snapshot with these files and this summary to the one that was read, and change properties with it.

        ``replaced`` are rows of whole files, which go with it.
        """
        if (snapshot := self._there().current_snapshot()) is not None:
            check_list(self._there().io, snapshot, self.path)
        with refusals(self.path), self._there().transaction() as change:
            if replaced is not None:
                change.delete(replaced)
            if files:
                add_files(change, self._there().io, files, self.partition[0], summary)
            else:
                with change.update_snapshot(snapshot_properties=dict(summary)).fast_append():
                    pass
            if properties:
                change.set_properties(dict(properties))
            if removed:
                change.remove_properties(*removed)
        self.sync()
