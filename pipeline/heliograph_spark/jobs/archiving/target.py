"""The interface of ``archive`` to its targets: a directory of Parquet files, or tables.

A run reads a topic by a query, which numbers its micro-batches and repeats the last one after a crash, with the same
offsets. The target makes it exactly once: it records which batches of which query are in it,
together with the messages, so that a batch is never in it twice and never in part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from heliograph_spark.plan.positions import Position
from heliograph_spark.run.files_source import WantedFiles


class Complete(NamedTuple):
    """The batches of a query that a target has, 0 to ``batches - 1``, and the end of the last one in each partition."""

    batches: int
    ends: Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: of which query (the id that Spark keeps in its checkpoint), its number, and where it ends.

    ``starts`` is the end of the batch before it; a partition that is not in it begins with its first message.
    """

    query: str
    number: int
    starts: Mapping[str, Position]
    ends: Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class Written:
    """The output of one micro-batch."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    #: The complete days (``YYYY-MM-DD``) that have got late messages, and are not marked as complete any more.
    reopened: list[str] = field(default_factory=list)


class TopicTarget(Protocol):
    """The place of the messages of one topic. Its caller holds the topic's subscription, so it is the only one.

    What the target cannot do is raised as :class:`PulsarSourceError`, or as what Spark raises.
    """

    @property
    def path(self) -> str:
        """Its name in errors: a directory, or a table."""

    def is_empty(self) -> bool:
        """Whether no messages are in it, or were, of any query."""

    def keep_columns(self, columns: StructType) -> StructType:
        """Add columns, or widen those that are there, and return all of them: the next batches have these.

        Raises :class:`SchemaError`, naming the field, if no type has the values of both.
        """

    def sync(self) -> None:
        """Have on the disk what :meth:`complete` tells of: a run may have been killed before it did.

        Raises :class:`PulsarSourceError`.
        """

    def complete(self, query: str) -> Complete | None:
        """Return which batches of a query are in it; None if nothing is recorded of that query."""

    def files(self, columns: StructType, file_bytes: int) -> WantedFiles | None:
        """Return the files that tasks are to write for :meth:`write_files`; None if :meth:`write` is to be given rows.

        ``columns`` are those that :meth:`keep_columns` returned, ``file_bytes`` is a file's size.
        """

    def write_files(self, files: DataFrame, batch: Batch) -> Written:
        """As :meth:`write`, with the files that tasks write when the rows of ``files`` are asked for."""

    def write(self, rows: DataFrame, batch: Batch) -> Written:
        """Write the micro-batch that comes after the complete ones, and record it with its ends, at one moment.

        A killed run may have written a part of it, which no reader may have seen as complete and which does not stay.
        ``rows`` has the columns that :meth:`keep_columns` returned, in a partition for each file asked for.
        """

    def unmarked_days(self) -> list[str]:
        """Return the UTC days of publish times in it (``YYYY-MM-DD``) that are not marked as complete, sorted."""

    def mark_days(self, days: Iterable[str], up_to: Mapping[str, Position], stored_ms: int) -> dict[str, int]:
        """Mark days as complete and return the number of messages of each; a day without any gets no mark.

        The days are asked for one after the other, and end early if the run is asked to end. ``up_to`` is the last
        message of each partition; ``stored_ms`` (ms since 1970) is the time up to which all that was stored is in the
        target.
        """


@runtime_checkable
class RemovesDays(Protocol):
    """The place of the messages of one topic, from which old days can be removed. Its caller holds the subscription."""

    def marked_days(self) -> list[str]:
        """Return the UTC days of publish times in it (``YYYY-MM-DD``) that are marked as complete, sorted."""

    def remove_days(self, days: Iterable[str]) -> None:
        """Remove complete days with their marks, each at one moment for readers of the archive."""


class Target(Protocol):
    """An archive of many topics."""

    @property
    def checkpoint(self) -> str:
        """The directory below which the state of the queries is kept unless the options name another one."""

    def prepare(self) -> None:
        """Check, before anything is read, that it can be written. Raises :class:`PulsarSourceError`."""

    def topic(self, name: str) -> TopicTarget:
        """Return the place of a topic, by its whole name without the number of a partition."""
