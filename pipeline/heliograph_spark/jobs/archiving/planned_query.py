"""Micro-batches that this process plans itself, in place of Spark's engine of streams.

With Spark Connect that engine is in the server, and calls functions in processes of the server: there nobody has this
job's subscription. So the job asks the stream's own reader for the end of each micro-batch, and reads it by a batch
query. The checkpoint is that of Spark's engine (:mod:`heliograph_spark.run.checkpoints`): the end of a micro-batch is
in it before anything is read, and that it is done when it is written. The one of a killed run is repeated as planned.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame

from heliograph_spark.plan.options import read_options
from heliograph_spark.run.checkpoints import (
    begin_query,
    kept_offsets,
    last_commit,
    last_planned,
    write_commit,
    write_planned,
)
from heliograph_spark.run.files_source import planned_into_files
from heliograph_spark.run.planned_batch import PlannedBatch, read_planned
from heliograph_spark.run.source import Split, StreamReader

from .micro_batches import Ended, MicroBatch, Reading, Write


class PlannedQuery:
    """A query whose micro-batches are batch queries, one after the other, up to the head."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._checkpoint = reading.checkpoint

    def run(self, write: Write) -> None:
        query = begin_query(self._checkpoint)
        stream = StreamReader(self._reading.messages, read_options(self._reading.limited, streaming=True))
        try:
            stream.prepareForTriggerAvailableNow()
            number, end = self._unfinished()
            start = kept_offsets(self._checkpoint, number - 1) if number else stream.initialOffset()
            while (end := end or self._plan(stream, number, start)) is not None:
                splits = stream.partitions(start, end)
                parts = tuple(each.range for each in splits if isinstance(each, Split))
                write(MicroBatch(number, self._frame(PlannedBatch(query, number, parts)), partial(len, parts)))
                write_commit(self._checkpoint, number)
                number, start, end = number + 1, end, None
        except Ended:
            return
        finally:
            stream.stop()

    def _unfinished(self) -> tuple[int, dict[str, str] | None]:
        """Return the number of the first micro-batch to write, and its end if it is planned already."""
        planned = last_planned(self._checkpoint)
        if planned is None:
            return 0, None
        if planned == last_commit(self._checkpoint):
            return planned + 1, None
        return planned, kept_offsets(self._checkpoint, planned)

    def _plan(self, stream: StreamReader, number: int, start: dict[str, str]) -> dict[str, str] | None:
        """Return where a micro-batch ends from now on; None if nothing is left. A query has a first one in any case."""
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        if number and end == start:
            return None
        write_planned(self._checkpoint, number, end)
        return end

    def _frame(self, planned: PlannedBatch) -> DataFrame:
        reading = self._reading
        if reading.files is None:
            return read_planned(reading.spark, planned, reading.messages, reading.options)
        files, messages = reading.files, reading.messages
        return planned_into_files(reading.spark, planned, files, messages, reading.cores, reading.options)
