"""The parts of Spark's interface for data sources that are newer than the oldest Spark that is supported.

Where Spark does not have one, a class of the same name stands in, which Spark does not know. Importing this module
raises :class:`PulsarSourceError` with a Spark that is too old.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyspark

from heliograph_spark.plan.errors import OptionError, PulsarSourceError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

#: The first version whose data sources can be written in Python.
OLDEST = (4, 0)
#: The versions that docs/pipeline.md names.
SUPPORTED = "4.0 to 4.3"


def release_of(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version such as ``4.2.0.dev1``."""
    match = re.match(r"(\d+)\.(\d+)", version)
    assert match is not None, version
    return int(match[1]), int(match[2])


#: The release of the Spark that is here.
RELEASE = release_of(pyspark.__version__)

if RELEASE < OLDEST:
    raise PulsarSourceError(
        f"Spark {pyspark.__version__} has no data sources in Python; valid: Spark {SUPPORTED}; for older versions there"
        " is the connector pulsar-spark"
    )

#: Whether a batch query's filters are pushed down to a source in Python.
PUSHES_FILTERS = RELEASE >= (4, 1)
#: Whether a source in Python limits the micro-batches of a stream, and ends a stream with ``availableNow`` by itself.
LIMITS_MICRO_BATCHES = RELEASE >= (4, 2)

# After the check: an older Spark has none of it.
from pyspark.sql import datasource  # noqa: E402
from pyspark.sql import functions as f  # noqa: E402
from pyspark.sql.pandas.types import to_arrow_schema  # noqa: E402

if RELEASE >= (4, 1):
    DataSourceStreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(  # type: ignore[no-redef]
        datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter
    ):
        """A stream's writer that gets record batches: Spark 4.0 hands them to every ``DataSourceArrowWriter``."""


if LIMITS_MICRO_BATCHES:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in; Spark ends the stream after one micro-batch."""

    class ReadLimit:  # type: ignore[no-redef]
        """Stands in; Spark gets none."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """Stands in."""

    @dataclass(frozen=True)
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """Stands in, where a job plans the micro-batches itself."""

        max_bytes: int

    @dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """Stands in, where a job plans the micro-batches itself."""

        max_rows: int


__all__ = [
    "LIMITS_MICRO_BATCHES",
    "PUSHES_FILTERS",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "by_number",
    "refuse",
]


def refuse(option: str, since: str) -> OptionError:
    """Return the error for an option for which this Spark is too old."""
    return OptionError(f"{option} needs Spark {since} or later, and this is Spark {pyspark.__version__}: leave it out")


def arrow_schema(columns: StructType) -> pa.Schema:
    """Return the columns as Arrow's, with times in UTC."""
    if RELEASE < (4, 2):
        return to_arrow_schema(columns)
    return to_arrow_schema(columns, timezone="UTC")


def by_number(rows: DataFrame, partitions: int, number: Column) -> DataFrame:
    """Return the rows in so many partitions, each in the one of its ``number``, from 0."""
    if hasattr(rows, "repartitionById"):
        numbered: DataFrame = rows.repartitionById(partitions, number)
        return numbered
    # Spark 4.0 goes by a hash only: for each partition a value whose hash leads there. More of them are drawn than any
    # partition can do without.
    hashes = rows.sparkSession.range(64 * partitions).selectExpr("id", f"pmod(hash(id), {partitions}) AS number")
    values = {row["number"]: row["id"] for row in hashes.collect()}
    found = f.array(*(f.lit(values[each]).cast("bigint") for each in range(partitions)))
    return rows.repartition(partitions, f.element_at(found, number.cast("int") + 1))
