"""Writes record batches of messages into Parquet files, one for each UTC day of their publish times.

Arrow writes the columns as they are: no row is made of them. A file is written a row group at a time, so that few
megabytes wait in memory however large it gets.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark
from pyspark.sql.types import StructType

from heliograph_spark.plan.errors import JobError

from .places import Place
from .spark_versions import arrow_schema

#: The column by whose days the messages are divided.
TIME = "__publishTime"
#: What Spark writes into its files, and looks for in them.
_VERSION, _TYPES = "org.apache.spark.version", "org.apache.spark.sql.parquet.row.metadata"
#: The directory of messages whose publish time no timestamp can hold, as Spark calls it.
_NO_DAY = "__HIVE_DEFAULT_PARTITION__"
_DAY_US = 86_400_000_000
_CYCLE_DAYS = 146_097
#: The bytes that wait for more rows of their row group, of all files.
_MOST_BUFFERED_BYTES = 64 << 20
#: The files that are open at the same time: messages of many days would need a buffer for each in a store like S3.
_MOST_OPEN = 16
#: Columns that have a value of its own in nearly every row: a dictionary of them would be built and thrown away.
_DISTINCT = frozenset({"value", "__key", "__messageId", "__eventTime", "__sequenceId", "__entry"})


class MessageFile(NamedTuple):
    """A file by its path below the place, its day (``YYYY-MM-DD``), and its rows and bytes."""

    path: str
    day: str
    rows: int
    bytes: int


class DayFiles:
    """The files that one task writes below ``directory`` of a place, in ``<by>=<day>/``, with these columns.

    Spark reads them as files of its own: with the types of ``columns``, and times before 1900 as they are. Each method
    raises :class:`JobError`, naming the place, where the file system refuses. Incomplete files are left there.
    """

    def __init__(self, place: Place, directory: str, by: str, columns: StructType) -> None:
        with _refusals(place):
            self._files = place.filesystem()
        self._place = place
        self._root = place.path
        self._directory = directory
        self._by = by
        self._columns = arrow_schema(columns).with_metadata({_VERSION: pyspark.__version__, _TYPES: columns.json()})
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._bytes: dict[str, int] = {}
        #: By their days, the one that was written to last at the end.
        self._open: dict[str, _OpenFile] = {}
        self._written: list[MessageFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add messages whose columns are among those of the files, of types whose values these hold."""
        for day, rows in _by_day(batch) if batch.num_rows else ():
            fitted = _fitted(rows, self._columns)
            self._waiting.setdefault(day, []).append(fitted)
            self._bytes[day] = self._bytes.get(day, 0) + fitted.nbytes
        with _refusals(self._place):
            while sum(self._bytes.values()) >= _MOST_BUFFERED_BYTES:
                self._write(max(self._bytes, key=self._bytes.__getitem__))

    def close(self) -> list[MessageFile]:
        """Write what is left and return the files, which are complete."""
        with _refusals(self._place):
            for day in list(self._waiting):
                self._write(day)
            for day in list(self._open):
                self._finish(day)
        return self._written

    def _write(self, day: str) -> None:
        file = self._open.pop(day, None)
        if file is None:
            if len(self._open) >= _MOST_OPEN:
                self._finish(next(iter(self._open)))
            path = f"{self._directory}/{self._by}={day}"
            if self._place.s3 is None:
                # A bucket has no directories: Arrow would store an object for each, also where the keys do not reach.
                self._files.create_dir(f"{self._root}/{path}", recursive=True)
            file = _OpenFile(self._files, self._root, f"{path}/{uuid.uuid4().hex}.parquet", self._columns)
        self._open[day] = file
        del self._bytes[day]
        file.write(self._waiting.pop(day))

    def _finish(self, day: str) -> None:
        file = self._open.pop(day)
        self._written.append(MessageFile(file.path, day, file.rows, file.close()))


class _OpenFile:
    def __init__(self, files: pa.fs.FileSystem, root: str, path: str, columns: pa.Schema) -> None:
        self.path = path
        self.rows = 0
        self._sink = files.open_output_stream(f"{root}/{path}")
        self._writer = pq.ParquetWriter(
            self._sink,
            columns,
            # As Spark's files are compressed.
            compression="zstd",
            compression_level=1,
            # Hadoop's files of checksums are not beside these.
            write_page_checksum=True,
            use_dictionary=[name for name in _leaves(columns) if name not in _DISTINCT],
        )

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """Write a row group."""
        rows = sum(each.num_rows for each in batches)
        self._writer.write_table(pa.Table.from_batches(batches), row_group_size=rows)
        self.rows += rows

    def close(self) -> int:
        """Complete the file and return its bytes."""
        self._writer.close()
        size = int(self._sink.tell())
        self._sink.close()
        return size


@contextmanager
def _refusals(place: Place) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JobError(f"{place.path}: {error}") from error


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each day, which are in one part nearly always."""
    times = batch.column(TIME).cast(pa.int64())
    found = pc.min_max(times).as_py()
    first, last = found["min"], found["max"]
    if first is None:
        yield _NO_DAY, batch
    elif times.null_count == 0 and first // _DAY_US == last // _DAY_US:
        yield _day(first // _DAY_US), batch
    else:
        days = pc.divide(times, _DAY_US)
        for day in pc.unique(days):
            if day.is_valid:
                yield _day(day.as_py()), batch.filter(pc.equal(days, day))
        if times.null_count:
            yield _NO_DAY, batch.filter(pc.is_null(times))


def _day(number: int) -> str:
    """Return a day, given in days since 1970, as Spark writes it."""
    # Python's days end with the year 9999; they come again every 400 years.
    cycles, rest = divmod(number, _CYCLE_DAYS)
    day = date(1970, 1, 1) + timedelta(rest)
    year = day.year + 400 * cycles
    return f"{'+' if year > 9999 else ''}{year:04}-{day:%m-%d}"


def _fitted(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return the batch with these columns: what it lacks is null, and numbers become wider, also in records."""
    if batch.schema.equals(columns):
        return batch
    here = set(batch.schema.names)
    return pa.RecordBatch.from_arrays(
        [
            batch.column(each.name).cast(each.type) if each.name in here else pa.nulls(batch.num_rows, each.type)
            for each in columns
        ],
        schema=columns,
    )


def _leaves(columns: pa.Schema) -> list[str]:
    """Return the paths of the columns that a file has for these, without their names for what is in lists and maps."""
    return [path for each in columns for path in _leaves_of(each.name, each.type)]


def _leaves_of(path: str, kind: pa.DataType) -> list[str]:
    if pa.types.is_struct(kind):
        return [leaf for each in kind for leaf in _leaves_of(f"{path}.{each.name}", each.type)]
    if pa.types.is_map(kind):
        parts = {"key": kind.key_type, "value": kind.item_type}
        return [leaf for name, part in parts.items() for leaf in _leaves_of(f"{path}.key_value.{name}", part)]
    if pa.types.is_list(kind):
        return _leaves_of(f"{path}.list.element", kind.value_type)
    return [path]
