"""``archive``: topics into Parquet, every message once, and acknowledged when it is written.

Each topic is a streaming query with its own checkpoint, which runs up to the head and ends. A micro-batch is written
below ``_staging`` and its files are then renamed into their places, under names that carry the batch's number. That is
all it needs to be exactly once: Spark repeats the batch of a killed run with the offsets it had, what such a batch had
already put in its places is deleted by its number first, and no reader ever sees a message twice, whatever it reads
with. (Spark's own file sink leaves the files of killed tasks among the others, and keeps a list that only Spark
reads.) What reads through :mod:`heliograph_spark.run.archived` sees a batch whole or not at all.

The files of a micro-batch are as few as its bytes make of the file size asked for. Its splits are read side by side
all the same: where they are more than the files a shuffle brings neighbours together.

The durable subscription is made before the first read and is held, exclusively, as long as the job runs: a second
job finds it in use. It is acknowledged up to what Spark's commits say is written, and never beyond.

At its end a run marks the days that are complete (:mod:`.day_marks`), also those that a killed run has left without a
mark. A message that comes later removes its day's mark before its file is in its place.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from heliograph_spark.plan.connection import check_admin, connected
from heliograph_spark.plan.errors import JobError, PulsarSourceError
from heliograph_spark.plan.ledgers import within
from heliograph_spark.plan.options import ReadOptions, full_name, read_options
from heliograph_spark.plan.positions import BEGINNING, Position
from heliograph_spark.plan.ranges import Range, stored_bytes
from heliograph_spark.plan.side_by_side import for_each
from heliograph_spark.plan.subscription_hold import Hold, backlog
from heliograph_spark.plan.topics import find_topics, ledgers_of
from heliograph_spark.run.archived import (
    DATE,
    batch_name,
    complete_batches,
    complete_up_to,
    keep_columns,
    mark_complete,
    topic_directory,
)
from heliograph_spark.run.checkpoints import committed_offsets, offsets_of, query_id
from heliograph_spark.run.days import mark_days, unmark_day, unmarked_days
from heliograph_spark.run.files import STAGING, Directory, stage
from heliograph_spark.run.session import Broker, progress, reason
from heliograph_spark.wire.brokers import shared
from heliograph_spark.wire.partitions import find_partitions, last_position

from .day_marks import Asked

#: Spark gives a Python process ten seconds to begin, which are too few where there is little CPU. The checkpoint makes
#: it safe to start the query again.
_TOO_SLOW = "Python worker failed to connect back"
_ATTEMPTS = 4
#: A column that is in no file: the number of the file among those of its batch.
_FILE = "__file"
#: The UTC day of the publish time, whatever time zone the session has.
_DAY = "date_from_unix_date(CAST(unix_micros(__publishTime) div 86400000000 AS INT))"


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The topics to archive, and the target.

    Exactly one of ``topics`` and ``pattern`` is given; ``file_bytes`` is a file's size. A day is complete
    ``day_complete_after_ms`` after its end, and never if that is below zero.
    """

    broker: Broker
    path: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    subscription: str = "heliograph-archive"
    checkpoint: str | None = None
    file_bytes: int = 128 << 20
    day_complete_after_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """The output of one run; ``lag`` are the messages that were not archived when it ended, of all topics."""

    job: str = "archive"
    rows: int = 0
    files: int = 0
    bytes: int = 0
    topics: int = 0
    lag: int = 0
    seconds: float = 0.0
    error: str | None = None


def archive(spark: SparkSession, options: ArchiveOptions, now: Callable[[], float] = time.time) -> ArchiveResult:
    """Archive every topic up to where it ends now, one after the other. ``now`` (s since 1970) decides on the days.

    What one topic fails with does not stop the others; it is the result's ``error``. Raises :class:`OptionError` for
    options that cannot be understood, and :class:`PulsarSourceError` for what concerns all topics: a broker that
    cannot be reached, a topic that is not there, a directory that cannot be written.
    """
    began = time.monotonic()
    first = options.topics[0] if options.topics else None
    asked = _read_options(options.broker, {"topic": first, "topicsPattern": options.pattern})
    # The option `topics` is a list that commas divide, and a comma may be in a topic's name.
    if options.topics:
        asked = replace(asked, topics=tuple(dict.fromkeys(full_name(topic.strip()) for topic in options.topics)))
    check_admin(asked.connection)
    topics = find_topics(asked)
    if not topics:
        raise JobError(f"no topic fits the pattern {options.pattern!r}")
    Directory(spark, options.path).make(STAGING)
    total = ArchiveResult(topics=len(topics))
    failed: list[str] = []
    for topic in topics:
        run = _TopicRun(spark, options, topic, now)
        failures = []
        # The remaining backlog is measured after a failure, too, and cannot hide it.
        for step in (run.go, run.measure):
            try:
                step()
            except (PulsarSourceError, PySparkException, Py4JError) as error:
                failures.append(f"{topic}: {reason(error)}" if topic not in reason(error) else reason(error))
                progress(failures[-1])
        failed += failures[:1]
        total = replace(
            total,
            rows=total.rows + run.rows,
            files=total.files + run.files,
            bytes=total.bytes + run.bytes,
            lag=total.lag + run.lag,
        )
    more = f" (and {len(failed) - 1} more of {len(topics)} topics)" if len(failed) > 1 else ""
    return replace(total, seconds=round(time.monotonic() - began, 3), error=failed[0] + more if failed else None)


def _read_options(broker: Broker, more: Mapping[str, str | None]) -> ReadOptions:
    given = broker.source_options(**more)
    return read_options({"startingOffsets": "earliest"} | given, streaming=True)


def in_files(rows: DataFrame, files: int) -> DataFrame:
    """Return the rows in at most ``files`` partitions, each of neighbouring ones, which are read by a task each.

    Where there are more of them than files the rows pass once through the executors' disks.
    """
    splits = rows.rdd.getNumPartitions()
    if splits <= files:
        return rows
    file = expr(f"CAST(spark_partition_id() * {files}L div {splits} AS INT)")
    return rows.withColumn(_FILE, file).repartitionById(files, _FILE).drop(_FILE)


class _TopicRun:
    """One topic in one run: its query, its subscription, and what it wrote."""

    def __init__(self, spark: SparkSession, options: ArchiveOptions, topic: str, now: Callable[[], float]) -> None:
        self._now = now
        self._spark = spark
        self._options = options
        self._topic = topic
        self._asked = _read_options(options.broker, {"topic": topic})
        self._held: list[str] = []
        encoded = topic_directory("", topic).removeprefix("/")
        self._files = Directory(spark, topic_directory(options.path, topic))
        self._archive = Directory(spark, options.path)
        # A name of the run's own: what one writes that was cut off from the broker is never taken for another's.
        self._own = f"{encoded}+{uuid.uuid4().hex}"
        self._checkpoint = Directory(
            spark, f"{options.checkpoint or options.path.rstrip('/') + '/_checkpoint'}/{encoded}"
        )
        self._directory = encoded
        self._first = True
        self._began = time.monotonic()
        self.rows = 0
        self.files = 0
        self.bytes = 0
        self.lag = 0

    def go(self) -> None:
        """Archive up to the topic's end and acknowledge it."""
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
            hold.acknowledge(committed_offsets(self._checkpoint))
            self._query(self._asked, partitions, hold)
            read = committed_offsets(self._checkpoint)
            hold.acknowledge(read)
            # As long as the subscription is held, nobody adds a file.
            self._mark(asked, read)
            self._held = hold.close()

    def _ends(self, partitions: list[str]) -> dict[str, Position]:
        if self._options.day_complete_after_ms < 0:
            return {}
        brokers = shared(self._asked.connection)
        ends = for_each(partitions, lambda topic: last_position(brokers, topic, self._asked))
        return {topic: end for topic, end in zip(partitions, ends, strict=True) if end is not None}

    def _mark(self, asked: Asked, read: Mapping[str, Position]) -> None:
        days = asked.complete(unmarked_days(self._files), read, self._options.day_complete_after_ms)
        marked = mark_days(self._spark, self._options.path, self._topic, days, read, asked.at_ms)
        for day, messages in marked.items():
            progress(f"{self._topic}: {day} is complete, {messages} messages")

    def measure(self) -> None:
        """See what is left to archive."""
        self.lag = backlog(self._asked.connection, self._held, self._options.subscription)

    def _check_checkpoint(self) -> None:
        if not self._checkpoint.exists("metadata") and self._files.matching(f"{DATE}=*/*.parquet"):
            raise JobError(
                f"{self._files.path} has files, and {self._checkpoint.path} does not know of them: every message would"
                " be written again; name the checkpoint that goes with them, or another path"
            )

    def _query(self, asked: ReadOptions, partitions: list[str], hold: Hold) -> None:
        options = self._options
        parallel = self._spark.sparkContext.defaultParallelism
        ledgers = [each for topic in partitions for each in ledgers_of(asked.connection, topic).stored]
        entry_bytes = max(1, sum(each.size for each in ledgers) // max(1, sum(each.entries for each in ledgers)))
        given = {
            "startingOffsets": "earliest",
            "maxBytesPerTrigger": str(options.file_bytes * parallel),
            "maxEntriesPerSplit": str(max(1, options.file_bytes // entry_bytes)),
        } | options.broker.source_options(
            topic=self._topic,
            predefinedSubscription=options.subscription,
            acknowledgePredefinedSubscription="false",
        )
        frame = self._spark.readStream.format("pulsar").options(**given).load()
        columns = keep_columns(self._spark, options.path, self._topic, frame.schema)

        def write(batch: DataFrame, number: int) -> None:
            hold.acknowledge(committed_offsets(self._checkpoint))
            self._write(batch.to(columns), number, asked)

        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", self._checkpoint.path)
        for attempts_left in reversed(range(_ATTEMPTS)):
            query = writer.trigger(availableNow=True).start()
            try:
                query.awaitTermination()
                return
            except PySparkException as error:
                if _TOO_SLOW not in str(error) or attempts_left == 0:
                    raise
                progress(f"{self._topic}: {reason(error)}; tried again")
                self._first = True
            finally:
                query.stop()

    def _write(self, batch: DataFrame, number: int, asked: ReadOptions) -> None:
        """Write one micro-batch into its places, or again if a killed run did it in part."""
        query = query_id(self._checkpoint)
        before, ends = offsets_of(self._checkpoint, number - 1), offsets_of(self._checkpoint, number)
        if (complete := complete_batches(self._files, query)) > number:
            # Readers may have the files open.
            if complete > number + 1 or complete_up_to(self._files, query, complete) != ends:
                raise JobError(
                    f"{self._checkpoint.path}: it is older than {self._files.path}, in which the batches of this query"
                    f" up to {complete - 1} are complete, and goes on with batch {number}"
                )
            progress(f"{self._topic}: batch {number}: a run before this one has written it")
            return
        size = stored_bytes(
            Range(topic, start, end, within(ledgers_of(asked.connection, topic).stored, start, end))
            for topic, end in ends.items()
            if (start := before.get(topic, BEGINNING)) < end
        )
        frame = in_files(batch.withColumn(DATE, expr(_DAY)), max(1, -(-size // self._options.file_bytes)))
        name = batch_name(query, number)
        if self._first:
            # A run that was killed left it: this one has the subscription.
            for left in self._archive.names(STAGING):
                if left.partition("+")[0] == self._directory:
                    self._archive.delete(f"{STAGING}/{left}")
        staging = f"{STAGING}/{self._own}"
        rows = stage(self._archive, self._own, frame, DATE)
        # From here on it takes a moment, and a killed run's part of it is undone first.
        if self._first:
            mark_complete(self._files, query, number, before)
            for left in self._files.matching(f"{DATE}=*/{name}-*"):
                self._files.delete(left)
            self._first = False
        found = self._archive.matching(f"{staging}/{DATE}=*/*.parquet")
        if rows and not found:
            raise JobError(f"{self._archive.path}/{staging}: {rows} rows were written there, and no file is there")
        for day in sorted({file.split("/")[-2].partition("=")[2] for file in found}):
            if unmark_day(self._files, day):
                progress(f"{self._topic}: {day} was complete, and batch {number} has late messages of it")
        for place, file in enumerate(found):
            day = file.split("/")[-2]
            self._files.make(day)
            self.bytes += self._archive.size(file)
            self._archive.rename(file, f"{self._directory}/{day}/{name}-{place:05}.parquet")
        mark_complete(self._files, query, number + 1, ends)
        self._archive.delete(staging)
        self.rows += rows
        self.files += len(found)
        progress(
            f"{self._topic}: batch {number}: {rows} rows in {len(found)} files; {self.rows} rows,"
            f" {time.monotonic() - self._began:.1f} s"
        )
