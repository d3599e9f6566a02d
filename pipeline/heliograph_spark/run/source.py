"""``format("pulsar")`` itself: what Spark calls, in its words."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from heliograph_spark.plan.errors import DataLossError, OptionError, PulsarSourceError
from heliograph_spark.plan.ledgers import Ledgers, within
from heliograph_spark.plan.missed import gone_topic
from heliograph_spark.plan.options import ReadOptions, read_options, write_options
from heliograph_spark.plan.positions import BEGINNING, Position, is_of_pulsar_spark, read_offsets, write_offsets
from heliograph_spark.plan.ranges import Range, cut, entries_of_part, within_bytes, within_entries
from heliograph_spark.plan.side_by_side import for_each
from heliograph_spark.plan.topics import check_named_topics, ledgers_of, topic_of
from heliograph_spark.wire.brokers import Brokers, shared
from heliograph_spark.wire.entry_reader import LATEST, EntryReader
from heliograph_spark.wire.partitions import end_of, find_partitions, first_position, start_of
from heliograph_spark.wire.subscription import HeldSubscription

from .dead_letters import DeadLetters, columns_with_bad, without_bad
from .decoding import check_columns, entry_columns
from .headers import columns_to_read, with_headers
from .pruning import Pruning
from .reading import read_range
from .schemas import RAW, TopicSchema, columns_of, common_schema, with_schema
from .sink import BatchSink, StreamSink
from .spark_versions import (
    LIMITS_MICRO_BATCHES,
    PUSHES_FILTERS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    refuse,
)
from .tasks import query_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

log = logging.getLogger(__name__)

#: Longest delay, in seconds, before a stream sees a topic or a partition that was added.
LOOKUP_INTERVAL_S = 5.0


class Split(InputPartition):
    """The messages that one task reads."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted.topic)
        self.range = wanted


class PulsarDataSource(DataSource):
    """The data source ``pulsar``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "pulsar"

    def schema(self) -> StructType:
        # Whether it is a stream is not known here; what is only for one of them is judged when its reader is made.
        endless = ("startingoffsets", "startingtime", "endingoffsets", "endingtime")
        options = read_options({k: v for k, v in self.options.items() if k.lower() not in endless}, streaming=True)
        schema, topics = _schema(options)
        return columns_of(schema, _named(topics), options.columns, keeps_bad=options.keeps_bad, headers=options.headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, streaming=False)
        if options.push_down and not PUSHES_FILTERS:
            raise refuse("pushDownFilters", "4.1")
        return (FilteredBatchReader if options.push_down else BatchReader)(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = read_options(self.options, streaming=True)
        return StreamReader(schema, options) if LIMITS_MICRO_BATCHES else UnlimitedStreamReader(schema, options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise PulsarSourceError("a topic cannot be overwritten: write with mode('append')")
        return BatchSink(schema, write_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamSink(schema, write_options(self.options))


def _schema(options: ReadOptions) -> tuple[TopicSchema, list[str]]:
    """Return the schema that the query's topics share, and their partitions."""
    brokers = shared(options.connection)
    topics = find_partitions(brokers, options)
    return (RAW if options.raw_values else common_schema(brokers, sorted({topic_of(each) for each in topics}))), topics


def _named(topics: Sequence[str]) -> str:
    """Return the name for some topics in errors."""
    return ", ".join(topics[:3]) or "no topic"


def _splits(ranges: Sequence[Range], known: Mapping[str, Ledgers], options: ReadOptions) -> list[InputPartition]:
    """Return the splits of some ranges, cut by their ledgers; those not yet ``known`` are looked up.

    Raises :class:`DataLossError` if messages after the start of one are gone and the options ask for it.
    """
    planned = []
    asked = _list_ledgers((each.topic for each in ranges if each.topic not in known), options)
    for each in ranges:
        ledgers = known.get(each.topic) or asked.get(each.topic)
        if ledgers is not None:
            _check_stored(each, ledgers, options)
            each = replace(each, ledgers=within(ledgers.stored, each.start, each.end))
        planned.append(each)
    most = options.max_entries
    if options.min_splits is not None:
        most = entries_of_part(planned, options.min_splits, most)
    return [Split(part) for each in planned for part in cut(each, most)]


def _list_ledgers(topics: Iterable[str], options: ReadOptions) -> dict[str, Ledgers]:
    """Return the ledgers of partitions; none without the REST API."""
    if options.connection.admin_url is None:
        return {}
    asked = list(topics)
    return dict(zip(asked, for_each(asked, partial(ledgers_of, options.connection)), strict=True))


def _check_stored(wanted: Range, ledgers: Ledgers, options: ReadOptions) -> None:
    """Raise :class:`DataLossError` if entries after the range's start are gone and the options ask for it.

    Otherwise the log names them, and so it does if it cannot be known whether there were any.
    """
    loss = ledgers.lost_after(wanted.start) if options.notices_loss else None
    if loss is None:
        return
    if loss.entries is not None and options.looks_for_loss:
        raise DataLossError(f"{wanted.topic}: {loss}")
    log.warning("%s: %s", wanted.topic, loss)


def _read(
    split: Split, columns: StructType, schema: TopicSchema, options: ReadOptions, query: str
) -> Iterator[pa.RecordBatch]:
    """Yield what a task reads; ``query`` is in the names of its dead letters' producers."""
    if split.range.start < split.range.end:
        brokers = shared(options.connection)
        asked = columns_to_read(columns, options)
        if options.dead_letters is None:
            wanted = entry_columns(brokers, split.range.topic, asked, schema)
            yield from with_headers(read_range(brokers, split.range, options, wanted), columns, options)
            return
        wanted = entry_columns(brokers, split.range.topic, columns_with_bad(asked), schema)
        with DeadLetters(options, split.range, query) as letters:
            readable = without_bad(read_range(brokers, split.range, options, wanted), asked.names, letters)
            yield from with_headers(readable, columns, options)


class BatchReader(DataSourceReader):
    """Reads from where the query starts to where it ends, both found once, before the first task runs."""

    def __init__(self, columns: StructType, options: ReadOptions) -> None:
        self._columns = columns
        self._options = options
        self._pruning = Pruning()
        #: Another query that reads the same publishes its own dead letters.
        self._own = uuid.uuid4().hex
        self._schema, topics = _schema(options)
        check_columns(columns, self._schema, _named(topics), options)

    def partitions(self) -> Sequence[InputPartition]:
        brokers = shared(self._options.connection)
        topics = find_partitions(brokers, self._options)
        check_named_topics(self._options, topics)
        found = for_each(filter(self._pruning.reads, topics), lambda topic: self._range(brokers, topic))
        # Spark refuses a query of no partitions.
        return _splits([each for each in found if each is not None], {}, self._options) or [
            Split(Range("", BEGINNING, BEGINNING))
        ]

    def _range(self, brokers: Brokers, topic: str) -> Range | None:
        """Return what the query reads of a partition; None if there is nothing."""
        end = end_of(brokers, topic, self._options)
        if end is None or (start := start_of(brokers, topic, self._options, "earliest")) >= end:
            return None
        wanted = self._pruned(brokers, Range(topic, start, end))
        return wanted if wanted.start < wanted.end else None

    def _pruned(self, brokers: Brokers, whole: Range) -> Range:
        """Return the range without messages published too early or too late, as the broker finds it by time."""
        start, end, skew_ms = whole.start, whole.end, self._options.skew_ms
        if self._pruning.earliest_ms is not None:
            at = max(0, self._pruning.earliest_ms - skew_ms)
            start = max(start, first_position(brokers, whole.topic, at) or end)
        if self._pruning.latest_ms is not None:
            end = min(end, first_position(brokers, whole.topic, self._pruning.latest_ms + skew_ms + 1) or end)
        return Range(whole.topic, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return _read(partition, self._columns, self._schema, self._options, self._own)


class FilteredBatchReader(BatchReader):
    """Leaves out the topics and times that the query's filters do not want; Spark applies the filters all the same."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._pruning = Pruning.of(filters)
        return filters


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Its offsets are the last message read of each partition; what a task reads follows from two of them alone.

    ``query`` is the id of the query for tasks to which Spark does not say it.
    """

    def __init__(self, columns: StructType, options: ReadOptions, query: str | None = None) -> None:
        self._columns = columns
        self._options = options
        self._schema, topics = _schema(options)
        check_columns(columns, self._schema, _named(topics), options)
        self._brokers = shared(options.connection)
        self._own = query or uuid.uuid4().hex
        self._tails: dict[str, EntryReader] = {}
        self._found: tuple[float, list[str]] | None = None
        self._target: dict[str, Position] | None = None
        #: The topics that have the query's schema, and the partitions that its subscription holds, with what is read.
        self._checked = {topic_of(each) for each in topics}
        self._held: dict[str, Position] = {}
        #: The ledgers by which the last offset was chosen.
        self._listed: dict[str, Ledgers] = {}
        #: What Spark's progress says of each partition's end, beside the offsets.
        self._reported: dict[str, dict[str, str | int]] = {}
        #: Entries that a repeated batch lost and its offset, which was written before, does not have.
        self._lost_since: dict[str, int] = {}

    def __getstate__(self) -> dict[str, object]:
        # To the tasks goes what they read with, not the driver's connections.
        drivers = ("_brokers", "_tails", "_found", "_target", "_listed", "_reported", "_lost_since")
        return {name: value for name, value in self.__dict__.items() if name not in drivers}

    def _partitions(self) -> list[str]:
        """Return the partitions to read, looked up every few seconds: Spark asks for new data many times a second.

        Raises :class:`SchemaError` if a topic that was found since has another schema than the query.
        """
        if self._found is None or time.monotonic() - self._found[0] > LOOKUP_INTERVAL_S:
            partitions = find_partitions(self._brokers, self._options)
            if not self._options.raw_values:
                new = {topic_of(each) for each in partitions} - self._checked
                self._checked |= with_schema(self._brokers, sorted(new), self._schema)
            self._found = time.monotonic(), partitions
        return self._found[1]

    def initialOffset(self) -> dict[str, str]:
        topics = self._partitions()
        check_named_topics(self._options, topics)
        starts = dict(zip(topics, for_each(topics, self._start), strict=True))
        # The rest of an entry that is to be read in part must stay.
        self._hold({topic: Position(at.ledger, at.entry - (at.batch >= 0)) for topic, at in starts.items()})
        return write_offsets(starts)

    def _start(self, topic: str) -> Position:
        at = start_of(self._brokers, topic, self._options, "latest")
        if self._options.connection.admin_url is None:
            return at
        return ledgers_of(self._options.connection, topic).counted_beginning(at)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable() if self._options.max_offsets is None else ReadMaxRows(self._options.max_offsets)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        read = read_offsets(start)
        ends = dict(self._ends() if self._target is None else self._target)
        # Partitions that were added have to stay from now on, and not only when the batch that begins them is done.
        self._hold(dict.fromkeys(ends.keys() - read.keys() - self._held.keys(), BEGINNING))
        for topic in read.keys() - ends.keys():
            # Messages added since a target was set are there, but not part of it.
            if self._options.fail_on_data_loss and topic not in self._partitions():
                raise DataLossError(gone_topic(topic, str(read[topic])))
            ends[topic] = read[topic]
        ranges = [
            # Where both are the same, the one that was read has its count.
            Range(topic, read.get(topic, BEGINNING), max(read.get(topic, end), end))
            for topic, end in ends.items()
        ]
        self._listed = _list_ledgers((each.topic for each in ranges if each.start < each.end), self._options)
        new = {each.topic: each.end for each in ranges}
        if isinstance(limit, (ReadMaxBytes, ReadMaxRows)):
            stored = {topic: ledgers.stored for topic, ledgers in self._listed.items()}
            known = [replace(each, ledgers=within(stored.get(each.topic, ()), each.start, each.end)) for each in ranges]
            if isinstance(limit, ReadMaxBytes):
                new = within_bytes(known, limit.max_bytes)
            else:
                new = within_entries(known, limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            limits = "maxBytesPerTrigger and maxOffsetsPerTrigger"
            raise PulsarSourceError(f"{type(limit).__name__}: messages are limited by {limits} only")
        for topic, end in new.items():
            new[topic] = self._with_counts(topic, read.get(topic, BEGINNING), end)
        empty = [topic for topic in new.keys() - read.keys() if new[topic] == BEGINNING]
        for topic, ledgers in _list_ledgers(empty, self._options).items():
            # From now on, all that is added to it is the query's.
            new[topic] = ledgers.counted_beginning(BEGINNING)
        self._reported = {topic: self._report(topic, read.get(topic, BEGINNING), end) for topic, end in ends.items()}
        return write_offsets(new)

    def _with_counts(self, topic: str, start: Position, end: Position) -> Position:
        """Return the end of a range with the numbers of the entries that were added, and that were lost, up to it."""
        ledgers = self._listed.get(topic)
        if ledgers is None:
            return end.with_lost(start.lost)
        lost = start.lost + self._lost_since.pop(topic, 0)
        if self._options.notices_loss:
            lost += ledgers.lost_up_to(start, end)
        return ledgers.counted(end).with_lost(lost)

    def _report(self, topic: str, read: Position, last: Position) -> dict[str, str | int]:
        found: dict[str, str | int] = {"last": str(last)}
        if self._options.connection.admin_url is not None:
            ledgers = self._listed.get(topic)
            found["lag"] = 0 if ledgers is None else ledgers.stored_after(read)
        return found

    def reportLatestOffset(self) -> dict[str, dict[str, str | int]]:
        # Spark asks for it right after the latest offset, and only shows it.
        return self._reported

    def _ends(self) -> dict[str, Position]:
        """Return the last message of every partition: one question to its broker for each."""
        topics = self._partitions()
        for topic in topics:
            if topic not in self._tails:
                self._tails[topic] = EntryReader(self._brokers, topic, LATEST, self._options.one_by_one)
        ends = for_each(topics, lambda topic: self._tails[topic].last_position() or BEGINNING)
        return dict(zip(topics, ends, strict=True))

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        if is_of_pulsar_spark(end) and not is_of_pulsar_spark(start):
            raise OptionError(
                "the checkpoint is of pulsar-spark, and its first micro-batch was not finished, whose beginning is not"
                " known here: let pulsar-spark finish it, or start with a new checkpoint and startingOffsets"
            )
        before = read_offsets(start)
        ranges = [Range(topic, before.get(topic, BEGINNING), last) for topic, last in read_offsets(end).items()]
        ranges = [each for each in ranges if each.start < each.end]
        known, self._listed = self._listed, {}
        ranges = self._still_there(ranges, known)
        if not known:
            # A batch that is repeated after a restart was planned by another driver.
            known = _list_ledgers((each.topic for each in ranges), self._options)
            for each in filter(lambda each: each.topic in known and self._options.notices_loss, ranges):
                lost = known[each.topic].lost_up_to(each.start, each.end) - (each.end.lost - each.start.lost)
                self._lost_since[each.topic] = max(0, lost)
        return _splits(ranges, known, self._options)

    def _still_there(self, ranges: list[Range], known: Mapping[str, Ledgers]) -> list[Range]:
        """Return the ranges of partitions that are not gone since the batch was planned; the log names the others.

        Those of which the ledgers are ``known`` are there. Raises :class:`DataLossError` if one is gone and the options
        do not go on without it.
        """
        unknown = {each.topic for each in ranges} - known.keys()
        if not unknown:
            return ranges
        gone = unknown.difference(self._partitions())
        for each in ranges:
            if each.topic in gone:
                text = gone_topic(each.topic, str(each.start))
                if self._options.fail_on_data_loss:
                    raise DataLossError(text)
                log.warning("%s", text)
        return [each for each in ranges if each.topic not in gone]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return _read(partition, self._columns, self._schema, self._options, query_of(self._own))

    def commit(self, end: dict[str, str]) -> None:
        self._hold(read_offsets(end))

    def _hold(self, read: dict[str, Position]) -> None:
        """Tell the subscription of the query's own, if it has one, what was read: the rest stays stored."""
        subscription = self._options.subscription
        if subscription is None or not self._options.acknowledges:
            return
        # A partition of which nothing more was read has been acknowledged up to there.
        new = {topic: place for topic, place in read.items() if self._held.get(topic) != place}
        for_each(new.items(), lambda each: self._acknowledge(subscription, *each))
        self._held |= new

    def _acknowledge(self, subscription: str, topic: str, read: Position) -> None:
        tail = self._tails.get(topic)
        address = None if tail is None else tail.address
        # Between two batches other consumers may have it, such as those of a restarted query.
        with HeldSubscription(self._brokers, topic, subscription, address=address) as held:
            held.acknowledge(Position(read.ledger, read.entry))

    def stop(self) -> None:
        for reader in self._tails.values():
            reader.close()
        self._tails.clear()


class UnlimitedStreamReader(StreamReader):
    """Reads all there is in each micro-batch, for Spark before 4.2, which hands over neither a start nor a limit.

    The start is the end of the batch before. After a restart it is not known before the first batch is planned, which
    is therefore checked by its partitions.
    """

    def __init__(self, columns: StructType, options: ReadOptions, query: str | None = None) -> None:
        for option, given in (("maxBytesPerTrigger", options.max_bytes), ("maxOffsetsPerTrigger", options.max_offsets)):
            if given is not None:
                raise refuse(option, "4.2")
        super().__init__(columns, options, query)
        self._planned: dict[str, str] = {}

    def initialOffset(self) -> dict[str, str]:
        self._planned = super().initialOffset()
        return self._planned

    def latestOffset(self) -> dict[str, str]:  # type: ignore[override]
        return super().latestOffset(self._planned, ReadAllAvailable())

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        self._planned = end
        gone = sorted(start.keys() - end.keys())
        if gone and self._options.fail_on_data_loss:
            raise DataLossError(gone_topic(gone[0], start[gone[0]]))
        return super().partitions(start, end)
