"""Reads a table in Spark by a plan of pyiceberg's, whose client of the storage is that of the tasks, too.

So the properties of the catalog, or the credentials that it hands out, say how a bucket is reached. A task reads a row
group at a time: a merged file may need more memory than a task has.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind, translate_column_names
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import expression_to_pyarrow, pyarrow_to_schema
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan
from pyiceberg.table.name_mapping import NameMapping
from pyspark.sql import DataFrame, SparkSession

from heliograph_spark.plan.errors import JobError
from heliograph_spark.run.connect import cores
from heliograph_spark.run.spark_versions import arrow_schema

from .catalog import refusals
from .columns import REWRITE, in_spark
from .manifests import check_manifests
from .projection import names_of, projected

#: The newest version of Iceberg's format whose tables are read: later ones have defaults, and deletes in other files.
_NEWEST_FORMAT = 2
#: The bytes of data files that a task reads, unless there would be fewer tasks than cores; opening a file counts, too.
_TASK_BYTES = 128 << 20
_OPENING_BYTES = 4 << 20
#: As many rows as Spark has in a batch.
_BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a plan by its location, with the files that name positions of rows which are deleted.

    ``rows`` has those, too.
    """

    path: str
    bytes: int
    rows: int
    deletes: tuple[str, ...] = ()


def planned_files(scan: DataScan, name: str) -> list[DataFile]:
    """Return the data files that a scan of the table ``name`` plans, in no certain order.

    Raises :class:`JobError` for what is not read here: another version of the format, files that are not Parquet, and
    deletes by values, and for a damaged manifest.
    """
    if scan.table_metadata.format_version > _NEWEST_FORMAT:
        version = scan.table_metadata.format_version
        raise JobError(f"{name}: it is of version {version} of Iceberg's format; valid: 1 to {_NEWEST_FORMAT}")
    with refusals(name):
        snapshot = scan.snapshot()
    if snapshot is not None:
        check_manifests(scan.io, [snapshot], name)
    with refusals(name):
        try:
            tasks = list(scan.plan_files())
        except (ValueError, NotImplementedError) as error:
            if "equality deletes" not in str(error):
                raise
            raise JobError(
                f"{name}: another engine has deleted rows by their values (equality deletes), with which it is not read"
                f" here: {REWRITE}"
            ) from error
    for task in tasks:
        for each in (task.file, *task.delete_files):
            if each.file_format != FileFormat.PARQUET:
                raise JobError(f"{name}: {each.file_path} is {each.file_format.value}; valid: Parquet: {REWRITE}")
    return [
        DataFile(
            task.file.file_path,
            task.file.file_size_in_bytes,
            task.file.record_count,
            tuple(sorted(each.file_path for each in task.delete_files)),
        )
        for task in tasks
    ]


def read_scan(spark: SparkSession, scan: DataScan, name: str) -> DataFrame:
    """Return the rows of a scan of the table ``name``, with the columns of the scan's snapshot.

    Whole files and row groups are left out by the scan's filter; the other rows are there, and the caller filters them.
    Raises :class:`JobError` for what :func:`planned_files` does not read.
    """
    files = planned_files(scan, name)
    with refusals(name):
        wanted = scan.projection()
        columns = in_spark(wanted)
        condition = bind(scan.table_metadata.schema(), scan.row_filter, case_sensitive=True)
    if not files:
        return spark.createDataFrame([], columns)
    groups = in_tasks(files, cores(spark))
    mapping = scan.table_metadata.name_mapping()
    reader = FileReader(scan.io, wanted, arrow_schema(columns), mapping, condition)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for file in groups[number]:
                    yield from reader.rows(file)

    # A partition for each group, in which a number is the row.
    found: DataFrame = spark.range(0, len(groups), 1, len(groups)).mapInArrow(read, columns)
    return found


def in_tasks(files: Iterable[DataFile], cores: int) -> list[list[DataFile]]:
    """Return the files in groups of about the same bytes, one for each task."""
    given = sorted(files, key=lambda each: (-each.bytes, each.path))
    cost = sum(each.bytes + _OPENING_BYTES for each in given)
    count = min(len(given), max(cores, -(-cost // _TASK_BYTES)))
    groups: list[list[DataFile]] = [[] for _ in range(count)]
    filled = [(0, number) for number in range(count)]
    for each in given:
        # The largest one comes first, and each into the group that has least.
        size, number = filled[0]
        groups[number].append(each)
        heapq.heapreplace(filled, (size + each.bytes + _OPENING_BYTES, number))
    return groups


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads data files as rows of the ``wanted`` fields; ``columns`` are their types in Arrow.

    ``mapping`` has the ids of fields in files without them, and ``condition`` leaves out row groups.
    """

    io: FileIO
    wanted: Schema
    columns: pa.Schema
    mapping: NameMapping | None
    condition: BooleanExpression

    def rows(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, without those that are deleted. Raises :class:`JobError`, naming the file."""
        with refusals(file.path):
            deleted = self._deleted(file)
            with closing(self.io.new_input(file.path).open()) as opened:
                fragment = ds.ParquetFileFormat().make_fragment(opened)
                in_file = pyarrow_to_schema(fragment.physical_schema, self.mapping, downcast_ns_timestamp_to_us=True)
                names = names_of(in_file, self.wanted)
                # Requests to a bucket are few and large, and those of one row group at a time.
                whole = pq.ParquetFile(
                    opened, metadata=fragment.metadata, pre_buffer=True, page_checksum_verification=True
                )
                firsts = _first_rows(fragment.metadata)
                for number in self._row_groups(fragment, in_file):
                    at = firsts[number]
                    for batch in whole.iter_batches(_BATCH_ROWS, row_groups=[number], columns=names):
                        kept = batch if deleted is None else _without(batch, at, deleted)
                        at += batch.num_rows
                        yield projected(kept, in_file, self.wanted, self.columns)

    def _row_groups(self, fragment: Any, in_file: Schema) -> list[int]:
        found = fragment
        if self.condition != AlwaysTrue():
            named = translate_column_names(self.condition, in_file, case_sensitive=True)
            found = fragment.subset(expression_to_pyarrow(bind(in_file, named, case_sensitive=True), in_file))
        return [each.id for each in found.row_groups]

    def _deleted(self, file: DataFile) -> pa.Array | None:
        """Return the positions of the deleted rows of a file; None if there are none."""
        if not file.deletes:
            return None
        found: list[pa.Array] = []
        for path in file.deletes:
            with closing(self.io.new_input(path).open()) as opened:
                deletes = pq.read_table(opened, columns=["pos"], filters=[("file_path", "=", file.path)])
            found += deletes["pos"].chunks
        return pa.chunked_array(found, pa.int64()).combine_chunks()


def _first_rows(footer: pq.FileMetaData) -> list[int]:
    """Return the position in the file of the first row of each row group."""
    firsts = [0]
    for number in range(footer.num_row_groups):
        firsts.append(firsts[-1] + footer.row_group(number).num_rows)
    return firsts


def _without(batch: pa.RecordBatch, first: int, deleted: pa.Array) -> pa.RecordBatch:
    positions = pa.array(range(first, first + batch.num_rows), pa.int64())
    return batch.filter(pc.invert(pc.is_in(positions, value_set=deleted)))
