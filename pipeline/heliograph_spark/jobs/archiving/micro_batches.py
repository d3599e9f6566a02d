"""The micro-batches of a topic up to its head, which Spark's engine of streams plans, or the job itself.

Both keep the same checkpoint, so a query goes on with either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from heliograph_spark.run.files import Directory
from heliograph_spark.run.files_source import WantedFiles


class MicroBatch(NamedTuple):
    """A micro-batch that is planned: its number, its messages or the files of them, and of how many splits it is."""

    number: int
    frame: DataFrame
    splits: Callable[[], int]


class Ended(Exception):
    """The query ends before a micro-batch that is not written.

    With ``job_ends`` the session is of no more use either.
    """

    def __init__(self, text: str, *, job_ends: bool) -> None:
        super().__init__(text)
        self.job_ends = job_ends


#: Writes a micro-batch as a whole; raises :class:`Ended` to end the query before it.
Write = Callable[[MicroBatch], None]


@dataclass(frozen=True, slots=True)
class Reading:
    """The messages that a query reads: the options of ``format("pulsar")``, and the columns that it has with them.

    Micro-batches have about ``file_bytes`` for each core, unless the options say otherwise. With ``files`` tasks write
    them.
    """

    spark: SparkSession
    options: Mapping[str, str]
    messages: StructType
    file_bytes: int
    cores: int
    files: WantedFiles | None
    checkpoint: Directory

    @property
    def limited(self) -> dict[str, str]:
        """The options with the limit of a micro-batch."""
        return {"maxBytesPerTrigger": str(self.file_bytes * self.cores), **self.options}


class Query(Protocol):
    """A query with its checkpoint, which may be run again after it failed."""

    def run(self, write: Write) -> None:
        """Write each micro-batch up to where the topic ends now, first the one that a killed run has left.

        A batch is done when ``write`` has returned. What it raises ends the query, as itself or as an error of Spark's
        that quotes it; :class:`Ended` is no error.
        """


class QueryKind(Protocol):
    """Makes a query."""

    def __call__(self, reading: Reading) -> Query: ...
