"""One topic in one run of ``archive``: a query with its own checkpoint that runs up to the head and ends.

Where nothing was stored since the last run no query is started. A query has the columns of the schema with which it
begins; if the topic has got another one when a micro-batch is planned, another query goes on. A run that is asked to
end does so between two micro-batches: the next one, whose offsets are planned already, is not written, and the next
run repeats it.

The durable subscription is made before the first read and is held, exclusively, as long as the topic is archived: a
second job finds it in use. It is acknowledged up to what the query's commits say is written, and never beyond.

The micro-batch of a killed run is repeated with the offsets it had. What the target has of it already is not written
again, and a target that has more than the checkpoint knows of is refused.

Tasks write the messages that they read into files, a task for each core unless the micro-batch is small
(:mod:`heliograph_spark.run.files_source`). Where the target has to be given rows, the files are as few as the batch's
bytes make of the file size asked for: its splits are read side by side, and where they are more than the files a
shuffle brings neighbours together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import partial
from itertools import takewhile

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from heliograph_spark.jobs.day_marks import Asked, older_days
from heliograph_spark.plan.connection import connected
from heliograph_spark.plan.errors import DataLossError, JobError
from heliograph_spark.plan.ledgers import within
from heliograph_spark.plan.positions import BEGINNING, Position
from heliograph_spark.plan.ranges import Range, stored_bytes
from heliograph_spark.plan.side_by_side import for_each
from heliograph_spark.plan.subscription_hold import Hold, backlog
from heliograph_spark.plan.topics import ledgers_of
from heliograph_spark.run.checkpoints import committed_offsets, is_unfinished, offsets_of, query_id, sync_planned
from heliograph_spark.run.connect import cores, is_connect
from heliograph_spark.run.files import Directory
from heliograph_spark.run.session import progress, reason
from heliograph_spark.run.source import PulsarDataSource
from heliograph_spark.wire.brokers import shared
from heliograph_spark.wire.partitions import find_partitions, last_position

from .micro_batches import Ended, MicroBatch, QueryKind, Reading
from .options import ArchiveOptions
from .partitioning import divided
from .planned_query import PlannedQuery
from .streaming_query import StreamingQuery
from .target import Batch, RemovesDays, TopicTarget, Written

#: Spark gives a Python process ten seconds to begin, which are too few where there is little CPU. The checkpoint makes
#: it safe to start the query again.
_TOO_SLOW = "Python worker failed to connect back"
_ATTEMPTS = 4
#: A file beside Spark's in the checkpoint.
_ENTRIES_PER_SPLIT = "entries-per-split"

#: A way in which a target takes a micro-batch.
_Store = Callable[[MicroBatch, Batch], Written]


def query_kind(spark: SparkSession) -> QueryKind:
    """Return what plans the micro-batches in a session."""
    return PlannedQuery if is_connect(spark) else StreamingQuery


class TopicRun:
    """One topic in one run: its query, its subscription, and what it wrote."""

    def __init__(
        self,
        spark: SparkSession,
        options: ArchiveOptions,
        topic: str,
        target: TopicTarget,
        checkpoint: Directory,
        now: Callable[[], float],
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._spark = spark
        self._options = options
        self._topic = topic
        self._target = target
        self._checkpoint = checkpoint
        self._now = now
        self._ending = ending
        #: Whether the query ended because it was asked to.
        self.ended = False
        #: Whether it ended because the topic has got another schema.
        self._outdated = False
        self._asked = options.read_options(topic=topic)
        #: The partitions, None until they are known.
        self._held: list[str] | None = None
        #: Those of which something is archived, and that are not there any more.
        self._gone: Set[str] = frozenset()
        self._began = time.monotonic()
        self.rows = 0
        self.files = 0
        self.bytes = 0
        #: The messages that are not archived, None until they are known.
        self.lag: int | None = None

    def go(self) -> None:
        """Archive up to the topic's end, or until it is asked to end, and acknowledge what is archived."""
        with connected(self._asked.connection) as client:
            # After a failure it is the client's end that lets the subscription go.
            hold = Hold(client, self._options.subscription)
            # Before the partitions and their ends are asked for: all that is stored by then is among what is read.
            at_ms = int(self._now() * 1000)
            partitions = find_partitions(shared(self._asked.connection), self._asked)
            asked = Asked(at_ms, self._ends(partitions))
            self._held = partitions
            hold.hold(partitions)
            self._check_checkpoint()
            read = committed_offsets(self._checkpoint)
            self._gone = read.keys() - set(partitions)
            hold.acknowledge(self._there(read))
            self._check_lost(asked, read)
            # The first query also writes the columns of a topic that has no messages.
            if not (self._checkpoint.exists("metadata") and asked.covered_by(read)):
                self._archive(partitions, hold)
                read = committed_offsets(self._checkpoint)
                hold.acknowledge(self._there(read))
            # As long as the subscription is held, nobody adds a message.
            self._mark(asked, read)
            self._held = hold.close()

    def _there(self, read: Mapping[str, Position]) -> dict[str, Position]:
        """Return the positions of the partitions that are there.

        To subscribe to another one would create it, or fail. The query reports that it is gone.
        """
        return {topic: position for topic, position in read.items() if topic not in self._gone}

    def _check_lost(self, asked: Asked, read: Mapping[str, Position]) -> None:
        """Raise :class:`DataLossError` if nothing is stored in a partition, and there was after what is archived.

        A query sees that only when something is stored again. Until then the days would look complete.
        """
        if not self._asked.looks_for_loss:
            return
        empty = sorted(self._there(read).keys() - asked.ends.keys())
        for topic, ledgers in zip(empty, for_each(empty, partial(ledgers_of, self._asked.connection)), strict=True):
            loss = ledgers.lost_after(read[topic])
            if loss is not None and loss.entries is not None:
                raise DataLossError(f"{topic}: {loss}")

    def _ends(self, partitions: list[str]) -> dict[str, Position]:
        brokers = shared(self._asked.connection)
        ends = for_each(partitions, lambda topic: last_position(brokers, topic, self._asked))
        return {topic: end for topic, end in zip(partitions, ends, strict=True) if end is not None}

    def _mark(self, asked: Asked, read: Mapping[str, Position]) -> None:
        days = asked.complete(self._target.unmarked_days(), read, self._options.day_complete_after_ms)
        for day, messages in self._target.mark_days(self._until_ending(days), read, asked.at_ms).items():
            progress(f"{self._topic}: {day} is complete, {messages} messages")
        if self._options.keep_ms is not None and isinstance(self._target, RemovesDays):
            for day in self._until_ending(older_days(self._target.marked_days(), asked.at_ms - self._options.keep_ms)):
                self._target.remove_days([day])
                progress(f"{self._topic}: {day} is removed from the archive, it is older than --keep")

    def _until_ending(self, days: Iterable[str]) -> Iterator[str]:
        """Return the days up to where the run is asked to end: many of them can take hours to merge."""
        return takewhile(lambda _: not self._ending(), days)

    def measure(self) -> None:
        """See what is left to archive, unless the run failed before it knew the partitions."""
        if self._held is not None:
            self.lag = backlog(self._asked.connection, self._held, self._options.subscription)

    def _check_checkpoint(self) -> None:
        if not self._checkpoint.exists("metadata") and not self._target.is_empty():
            raise JobError(
                f"{self._target.path} has messages, and {self._checkpoint.path} does not know of them: every message"
                " would be written again; name the checkpoint that goes with them, or another path"
            )

    def _archive(self, partitions: list[str], hold: Hold) -> None:
        """Archive up to the topic's end by a query, or by several if the topic gets another schema meanwhile."""
        self._query(partitions, hold)
        while self._outdated:
            progress(f"{self._topic}: it has got another schema, with which the archive goes on")
            self._query(partitions, hold)

    def _query(self, partitions: list[str], hold: Hold) -> None:
        options = self._options
        given = {
            "startingOffsets": "earliest",
            "maxEntriesPerSplit": str(self._entries_per_split(partitions)),
        } | options.broker.source_options(
            topic=self._topic,
            predefinedSubscription=options.subscription,
            acknowledgePredefinedSubscription="false",
        )
        self._outdated = False
        messages = PulsarDataSource(given).schema()
        columns = self._target.keep_columns(messages)
        wanted = self._target.files(columns, options.file_bytes)
        parallel = cores(self._spark)
        store: _Store = partial(self._write_rows, columns, parallel)
        if wanted is not None:
            # Spark refuses here what it could not read in the files, such as names that differ only in their case.
            _ = self._spark.createDataFrame([], messages).to(columns).schema
            store = self._write_files

        def write(planned: MicroBatch) -> None:
            if self._ending():
                self.ended = True
                raise Ended(f"{self._topic}: asked to end before batch {planned.number}", job_ends=True)
            # Messages that were stored when the batch was planned have the schema that is the newest one now, or an
            # older one: another one than the query's may have fields that this query leaves out.
            if PulsarDataSource(given).schema() != messages:
                self._outdated = True
                changed = "another schema than when the query began, before batch"
                raise Ended(f"{self._topic}: {changed} {planned.number}", job_ends=False)
            hold.acknowledge(self._there(committed_offsets(self._checkpoint)))
            self._write(planned, store)

        spark = self._spark
        query = query_kind(spark)(
            Reading(spark, given, messages, options.file_bytes, parallel, wanted, self._checkpoint)
        )
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                query.run(write)
                return
            except PySparkException as error:
                if _TOO_SLOW not in str(error) or attempts_left == 0:
                    raise
                progress(f"{self._topic}: {reason(error)}; tried again")

    def _write_rows(self, columns: StructType, parallel: int, planned: MicroBatch, batch: Batch) -> Written:
        rows = planned.frame.to(columns)
        return self._target.write(divided(rows, planned.splits(), self._files_of(batch), parallel), batch)

    def _write_files(self, planned: MicroBatch, batch: Batch) -> Written:
        return self._target.write_files(planned.frame, batch)

    def _entries_per_split(self, partitions: list[str]) -> int:
        """Return how many entries have about the bytes of a file, so that there are as many splits as files.

        The producers of dead letters are named by the splits: the micro-batch of a killed run is cut as it was,
        whatever was stored since, or its letters would be stored again.
        """
        kept = self._asked.dead_letters is not None
        if kept and is_unfinished(self._checkpoint) and self._checkpoint.exists(_ENTRIES_PER_SPLIT):
            return int(self._checkpoint.read_text(_ENTRIES_PER_SPLIT))
        ledgers = [each for topic in partitions for each in ledgers_of(self._asked.connection, topic).stored]
        entry_bytes = max(1, sum(each.size for each in ledgers) // max(1, sum(each.entries for each in ledgers)))
        # Rounded up: where there is one partition, there are no more splits than files.
        found = -(-self._options.file_bytes // entry_bytes)
        if kept:
            self._checkpoint.write_text(_ENTRIES_PER_SPLIT, str(found))
        return found

    def _write(self, planned: MicroBatch, store: _Store) -> None:
        """Write one micro-batch by ``store``, unless a killed run has."""
        query, number = query_id(self._checkpoint), planned.number
        sync_planned(self._checkpoint, number)
        batch = Batch(query, number, offsets_of(self._checkpoint, number - 1), offsets_of(self._checkpoint, number))
        complete = self._target.complete(query)
        if complete is not None and complete.batches > number:
            # Readers may have them open.
            if complete.batches > number + 1 or complete.ends != batch.ends:
                raise JobError(
                    f"{self._checkpoint.path}: it is older than {self._target.path}, in which the batches of this query"
                    f" up to {complete.batches - 1} are complete, and goes on with batch {number}: name the newest"
                    " checkpoint, or another path and another subscription to archive everything again"
                )
            self._target.sync()
            progress(f"{self._topic}: batch {number}: a run before this one has written it")
            return
        written = store(planned, batch)
        self.rows += written.rows
        self.files += written.files
        self.bytes += written.bytes
        for day in written.reopened:
            progress(f"{self._topic}: {day} was complete, and batch {number} has late messages of it")
        progress(
            f"{self._topic}: batch {number}: {written.rows} rows in {written.files} files; {self.rows} rows,"
            f" {time.monotonic() - self._began:.1f} s"
        )

    def _files_of(self, batch: Batch) -> int:
        """Return of how many files a micro-batch is, by the bytes that the broker stores of it."""
        size = stored_bytes(
            Range(topic, start, end, within(ledgers_of(self._asked.connection, topic).stored, start, end))
            for topic, end in self._there(batch.ends).items()
            if (start := batch.starts.get(topic, BEGINNING)) < end
        )
        return max(1, -(-size // self._options.file_bytes))
