"""A data source of the micro-batches that a job plans itself, where Spark's engine of streams does not.

The job asks the stream's own reader for the ends and the parts of a micro-batch, as that engine does. A batch query
then reads exactly these parts, as the tasks of a stream do: nothing of it is planned again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakSet

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from heliograph_spark.plan.ledgers import Ledger
from heliograph_spark.plan.options import read_options
from heliograph_spark.plan.positions import BEGINNING, Position
from heliograph_spark.plan.ranges import Range

from .source import PulsarDataSource, Split, StreamReader

#: The option of the sources beside those of ``format("pulsar")``.
_PLANNED = "plannedBatch"
#: The sources that sessions know.
_registered: WeakSet[SparkSession] = WeakSet()


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A micro-batch: the id that its query has in the checkpoint, its number, and the parts, each for one split."""

    query: str
    number: int
    parts: tuple[Range, ...]

    def options(self) -> dict[str, str]:
        """Return it as an option of a source."""
        return {_PLANNED: json.dumps(asdict(self))}

    @classmethod
    def of(cls, options: MutableMapping[str, str]) -> PlannedBatch | None:
        """Take it out of a source's options, whose names are in lower case; None if they have none."""
        text = options.pop(_PLANNED.lower(), None)
        if text is None:
            return None
        given = json.loads(text)
        return cls(given["query"], given["number"], tuple(_range(each) for each in given["parts"]))

    @property
    def splits(self) -> list[Split]:
        """The splits of its parts; Spark refuses a query of none."""
        return [Split(each) for each in self.parts or (Range("", BEGINNING, BEGINNING),)]


def _range(given: Mapping[str, Any]) -> Range:
    return Range(
        given["topic"],
        Position(**given["start"]),
        Position(**given["end"]),
        tuple(Ledger(**each) for each in given["ledgers"]),
        given["begins"],
    )


class PlannedReader(DataSourceReader):
    """Reads the parts of a micro-batch as the tasks of a stream do."""

    def __init__(self, stream: StreamReader, partitions: Sequence[InputPartition]) -> None:
        self._stream = stream
        self._partitions = partitions

    def __getstate__(self) -> dict[str, object]:
        # A task gets its own part only.
        return {"_stream": self._stream, "_partitions": ()}

    def partitions(self) -> Sequence[InputPartition]:
        return self._partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._stream.read(partition)


class PlannedMessagesSource(PulsarDataSource):
    """The data source of messages as rows; see :func:`read_planned`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._planned = PlannedBatch.of(given)
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "heliograph-planned-messages"

    def reader(self, schema: StructType) -> DataSourceReader:
        assert self._planned is not None
        options = read_options(self.options, streaming=True)
        return PlannedReader(StreamReader(schema, options, self._planned.query), self._planned.splits)


def read_planned(
    spark: SparkSession, planned: PlannedBatch, messages: StructType, options: Mapping[str, str]
) -> DataFrame:
    """Return the messages of a micro-batch; the options are those of ``format("pulsar")``, which gave these columns."""
    register_once(spark, PlannedMessagesSource, _registered)
    reader = spark.read.format(PlannedMessagesSource.name()).schema(messages)
    return reader.options(**options).options(**planned.options()).load()


def register_once(spark: SparkSession, source: type[DataSource], known: WeakSet[SparkSession]) -> None:
    """Let a session know a source unless it is among those that do: Spark warns of one that it knows already."""
    if spark not in known:
        spark.dataSource.register(source)
        known.add(spark)
