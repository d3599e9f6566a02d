"""Queries of the data source, called as Spark calls it, with what it gives compared with the model."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any, TypeAlias

import pulsar
from heliograph_spark.plan.errors import DataLossError, PulsarSourceError
from heliograph_spark.plan.positions import Position, read_offsets
from heliograph_spark.plan.ranges import Range
from heliograph_spark.run.source import PulsarDataSource, Split, StreamReader
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from .model import Message, Partition, Place, Violation, check_loss, difference
from .topic import Topic

Reader: TypeAlias = DataSourceReader | DataSourceStreamReader
#: What happens between two calls of Spark.
Meanwhile = Callable[[], None]


class _Warnings(logging.Handler):
    """Keeps the warnings that the source logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Query:
    """A query with these options."""

    def __init__(self, topic: Topic, options: dict[str, str]) -> None:
        self.topic = topic
        self.options = options
        #: Entries that were gone before it began.
        self.excused: dict[str, frozenset[Place]] = {}

    @property
    def fails_on_loss(self) -> bool:
        return self.options["failOnDataLoss"] == "true" and not self.compacted

    @property
    def compacted(self) -> bool:
        return "pulsar.reader.readCompacted" in self.options

    @property
    def knows_ledgers(self) -> bool:
        return "admin.url" in self.options

    def source(self, **changed: str) -> PulsarDataSource:
        return PulsarDataSource(self.options | changed)

    def excuse(self) -> None:
        """Do not expect entries that are gone now."""
        self.excused = {name: frozenset(partition.gone) for name, partition in self.topic.partitions.items()}

    def read(
        self, reader: Reader, planned: Sequence[InputPartition], whole: Sequence[Range], meanwhile: Meanwhile
    ) -> dict[str, list[bytes]]:
        """Read the splits as tasks do, and return what each partition gave. Raises :class:`Violation`.

        Raises :class:`DataLossError` for a loss that is one.
        """
        self._check_splits(planned, whole)
        rows: dict[str, list[bytes]] = {each.topic: [] for each in whole}
        for split in planned:
            meanwhile()
            assert isinstance(split, Split)
            if split.range.topic:
                rows[split.range.topic] += self._read_split(reader, split)
        return rows

    def _check_splits(self, planned: Sequence[InputPartition], whole: Sequence[Range]) -> None:
        """The splits of a partition are together the whole, and none is larger than was asked for."""
        for each in whole:
            parts = [split.range for split in planned if isinstance(split, Split) and split.range.topic == each.topic]
            borders = [part.start for part in parts] + [part.end for part in parts[-1:]]
            if borders[:1] != [each.start] or borders[-1:] != [each.end] or borders != sorted(borders):
                raise Violation(f"{each} is planned as {parts}")
            if any(one.end != other.start for one, other in pairwise(parts)):
                raise Violation(f"splits that do not follow each other: {parts}")
            if not self.knows_ledgers:
                continue
            partition = self.topic.partitions[each.topic]
            for part in parts:
                held = [at for at in partition.stored() if part.start.entry_key < at <= part.end.entry_key]
                if len(held) > int(self.options["maxEntriesPerSplit"]):
                    raise Violation(f"a split of {len(held)} entries: {part}")

    def _read_split(self, reader: Reader, split: Split) -> list[bytes]:
        reader, split = pickle.loads(pickle.dumps((reader, split)))
        wanted = split.range
        partition = self.topic.partitions[wanted.topic]
        batches: Any
        try:
            batches = list(reader.read(split))
        except DataLossError as error:
            self.judge(error)
            raise
        except PulsarSourceError as error:
            raise Violation(f"reading after {wanted.start} up to {wanted.end}: {error}") from error
        values = [bytes(value) for batch in batches for value in batch["value"].to_pylist()]
        ids = [pulsar.MessageId.deserialize(at) for batch in batches for at in batch["__messageId"].to_pylist()]
        expected = self._expected(partition, wanted, values)
        if wrong := difference(expected, values):
            raise Violation(f"after {wanted.start} up to {wanted.end} of {wanted.topic}: {wrong}")
        for message, at in zip(expected, ids, strict=True):
            if Position.of_id(at.serialize()) != message.position:
                raise Violation(f"{message.text!r} has the id {at}, not {message.position}")
        if lost := self.lost(partition, wanted.start, wanted.end):
            raise Violation(f"after {wanted.start} up to {wanted.end} of {wanted.topic} nobody misses {sorted(lost)}")
        return values

    def _expected(self, partition: Partition, wanted: Range, values: Sequence[bytes]) -> list[Message]:
        between = partition.between(wanted.start, wanted.end)
        if not self.compacted:
            return [each for each in between if partition.has_all(each)]
        # From the beginning also what only the compacted view has; elsewhere that may come.
        given = set(values) if wanted.start.entry >= 0 else {each.text for each in partition.compacted.values()}
        return [
            each for each in between if partition.survives(each) and (partition.has_all(each) or each.text in given)
        ]

    def lost(self, partition: Partition, start: Position, end: Position) -> set[Place]:
        """Return the lost entries of a range that must end the query."""
        if not self.fails_on_loss or not self.knows_ledgers:
            return set()
        return set() if self.uncounted(partition, start) else self._missing(partition, start, end)

    def _missing(self, partition: Partition, start: Position, end: Position) -> set[Place]:
        excused = self.excused.get(partition.name, frozenset())
        broken = {at for each in partition.between(start, end) for at in each.entries if at in partition.gone}
        return (partition.lost_entries(start, end) | broken) - excused

    def uncounted(self, partition: Partition, start: Position) -> bool:
        """Whether nothing says how many messages followed a position."""
        return partition.of_former(start)

    def judge(self, error: DataLossError) -> None:
        """Raise :class:`Violation` unless a loss that was named is one."""
        text = str(error)
        if not self.fails_on_loss:
            raise Violation(f"a loss is named without being asked for: {text}")
        name = next((each for each in sorted(self.topic.partitions, key=len, reverse=True) if f"{each}:" in text), None)
        if name is None:
            raise Violation(f"a loss of no partition: {text}")
        check_loss(text, self.topic.partitions[name], self.excused.get(name, frozenset()))


class Batch(Query):
    """A batch query, planned and read once."""

    def run(self, meanwhile: Meanwhile) -> str:
        """Return how it ended. Raises :class:`Violation`."""
        source = self.source()
        self.excuse()
        there = {name: list(partition.messages) for name, partition in self.topic.partitions.items()}
        try:
            reader = source.reader(source.schema())
            planned = reader.partitions()
            whole = self._whole(planned)
            rows = self.read(reader, planned, whole, meanwhile)
        except DataLossError as error:
            self.judge(error)
            return f"named: {error}"
        except PulsarSourceError as error:
            raise Violation(f"planning: {error}") from error
        self._check_reach(whole, there)
        return f"{sum(map(len, rows.values()))} messages"

    def _whole(self, planned: Sequence[InputPartition]) -> list[Range]:
        whole: dict[str, Range] = {}
        for split in planned:
            assert isinstance(split, Split)
            part = split.range
            if part.topic:
                whole[part.topic] = Range(part.topic, whole.get(part.topic, part).start, part.end)
        return list(whole.values())

    def _check_reach(self, whole: Sequence[Range], there: Mapping[str, Sequence[Message]]) -> None:
        """All that was stored is between the beginning and the end, unless the options have others."""
        read = {each.topic: each for each in whole}
        starts = self._places("startingOffsets")
        ends = self._places("endingOffsets")
        excused = self.excused
        for name, messages in there.items():
            partition = self.topic.partitions[name]
            for message in messages:
                at = message.position
                if not starts.get(name, at) <= at <= ends.get(name, at):
                    continue
                if self.compacted:
                    viewed = partition.compacted.get(message.key) is message
                    needed = viewed or (message.entries[-1] > max(partition.horizon, *excused[name], (0, 0)))
                else:
                    needed = excused[name].isdisjoint(message.entries)
                if needed and not (name in read and read[name].start < message.position <= read[name].end):
                    raise Violation(f"{message.text!r} at {message.position} is outside of {read.get(name)}")

    def _places(self, option: str) -> dict[str, Position]:
        found = json.loads(self.options.get(option, "{}"))
        return {name: Position.parse(text) for name, text in found.items()}


class Stream(Query):
    """A stream query with its checkpoint: the offsets that were planned, and the rows of each batch that was done."""

    def __init__(self, topic: Topic, options: dict[str, str]) -> None:
        super().__init__(topic, options)
        self._reader: StreamReader | None = None
        self.planned: list[dict[str, str]] = []
        self.rows: dict[int, dict[str, list[bytes]]] = {}
        #: Entries that were gone when the next batch was planned; None if its plan is of a driver that was killed.
        self._gone: dict[str, frozenset[Place]] | None = None
        #: The life of its topic in which a partition was last held.
        self._held: dict[str, int] = {}

    @property
    def subscription(self) -> str | None:
        return self.options.get("predefinedSubscription")

    @property
    def read_up_to(self) -> dict[str, Position]:
        """Positions before the first batch that is not done."""
        return read_offsets(self.planned[len(self.rows)]) if self.planned else {}

    def uncounted(self, partition: Partition, start: Position) -> bool:
        # Its offsets have counts; they are compared with those of the broker.
        return partition.uncounted(start)

    def stop(self) -> None:
        """The driver is gone; a new one goes on from the checkpoint."""
        if self._reader is not None:
            self._reader.stop()
        self._reader, self._gone = None, None

    def _started(self, **changed: str) -> StreamReader:
        if self._reader is None:
            source = self.source(**changed)
            reader = source.streamReader(source.schema())
            assert isinstance(reader, StreamReader)
            self._reader = reader
        if not self.planned:
            self.excuse()
            self.planned = [_stored(self._reader.initialOffset())]
            self._hold(self.planned[0])
        return self._reader

    def step(self, draw: Random, meanwhile: Meanwhile) -> str:
        """Do a micro-batch, or a part of one before the driver is killed; return how it ended."""
        killed_after = draw.choice(["", "", "", "the plan", "the read"])
        try:
            reader = self._started()
            if len(self.planned) == len(self.rows) + 1:
                stored = {name: partition.stored() for name, partition in self.topic.partitions.items()}
                if draw.random() < 0.2:
                    reader.prepareForTriggerAvailableNow()
                    meanwhile()
                before = self.planned[-1]
                latest = _stored(reader.latestOffset(before, reader.getDefaultReadLimit()))
                self._gone = {name: frozenset(partition.gone) for name, partition in self.topic.partitions.items()}
                for name in latest.keys() - before.keys():
                    # Nor of a partition before the query has found it.
                    self._excuse_in(name, Position(1 << 62, 0))
                reader._target = None
                self._hold(latest.keys() - before.keys())
                self._check_plan(read_offsets(before), read_offsets(latest), stored)
                if latest == before:
                    return "nothing new"
                self.planned.append(latest)
        except PulsarSourceError as error:
            raise Violation(f"planning: {error}") from error
        if killed_after == "the plan":
            self.stop()
            return "killed after the plan"
        meanwhile()
        ended = self._batch(reader, meanwhile, done=killed_after != "the read")
        if killed_after == "the read":
            self.stop()
            return f"killed after: {ended}"
        return ended

    def _batch(self, reader: StreamReader, meanwhile: Meanwhile, *, done: bool) -> str:
        number = len(self.rows)
        start, end = self.planned[number], self.planned[number + 1]
        ended = ""
        try:
            rows = self._attempt(reader, start, end, meanwhile)
        except DataLossError as error:
            ended = f"named: {error}; "
            # The people who look after it let it go on.
            self.stop()
            kept, self.options = self.options, self.options | {"failOnDataLoss": "false"}
            reader = self._started()
            rows = self._attempt(reader, start, end, lambda: None)
            self.options = kept
            self.stop()
            reader = self._started()
        if done:
            self.rows[number] = rows
            reader.commit(_stored(end))
            self._hold(name for name in end if end[name] != start.get(name))
        return f"{ended}{sum(map(len, rows.values()))} messages, up to {end}"

    def _attempt(
        self, reader: StreamReader, start: dict[str, str], end: dict[str, str], meanwhile: Meanwhile
    ) -> dict[str, list[bytes]]:
        before, last = read_offsets(start), read_offsets(end)
        warnings = _Warnings()
        log = logging.getLogger("heliograph_spark.run.source")
        log.addHandler(warnings)
        for name in last.keys() - before.keys():
            # Nothing is missed of the first range of a partition before a task reads it.
            self._excuse_in(name, last[name])
        try:
            planned = reader.partitions(_stored(start), _stored(end))
            # A loss that is named when the batch is planned ends the query then.
            whole = [Range(name, before.get(name, Position(0, -1)), at) for name, at in last.items()]
            whole = [each for each in whole if each.start < each.end]
            self._check_warned(whole, warnings.texts)
            return self.read(reader, planned, whole, meanwhile)
        except DataLossError as error:
            self.judge(error)
            raise
        finally:
            log.removeHandler(warnings)

    def _excuse_in(self, name: str, end: Position) -> None:
        """Do not expect the entries of a partition up to a position that are gone now."""
        gone = (place for place in self.topic.partitions[name].gone if place <= end.entry_key)
        self.excused[name] = self.excused.get(name, frozenset()).union(gone)

    def _check_warned(self, whole: Sequence[Range], texts: Sequence[str]) -> None:
        """A loss that the broker leaves open is at least warned of."""
        if not self.fails_on_loss or not self.knows_ledgers:
            return
        for each in whole:
            partition = self.topic.partitions[each.topic]
            # Chunks from before the range are looked for when it is read.
            lost = self._missing(partition, each.start, each.end) & partition.lost_entries(each.start, each.end)
            if self._gone is not None:
                # The driver asks for the ledgers once. What goes after that, the tasks miss when they read.
                lost &= self._gone[each.topic]
            warned = any(each.topic in text and str(each.start) in text for text in texts)
            if lost and each.start.entry >= 0 and not warned and not partition.unnoticed(each.start):
                raise Violation(f"after {each.start} of {each.topic} nobody misses {sorted(lost)}")

    def _check_plan(
        self, start: Mapping[str, Position], end: Mapping[str, Position], there: Mapping[str, Sequence[Place]]
    ) -> None:
        if back := [name for name in start if end[name] < start[name]]:
            raise Violation(f"{back} go back from {start} to {end}")
        for name, stored in there.items():
            if not stored:
                continue
            if name not in end:
                raise Violation(f"{name} is not read")
            if "maxBytesPerTrigger" not in self.options and end[name].entry_key < stored[-1]:
                raise Violation(f"{name} is read up to {end[name]}, and {stored[-1]} is stored")
            if start == end and start[name].entry_key < stored[-1]:
                raise Violation(f"nothing is read of {name} after {start[name]}, and {stored[-1]} is stored")

    def _hold(self, names: Iterable[str]) -> None:
        self._held |= {name: self.topic.partitions[name].life for name in names}

    def check_held(self, gone: Mapping[str, set[Place]]) -> None:
        """Raise :class:`Violation` if entries went that the query's subscription should have kept.

        It keeps nothing of a topic that was created again before the query has read from that.
        """
        for name, at in self.read_up_to.items():
            moved = self.topic.partitions[name].moved
            if self._held.get(name) != self.topic.partitions[name].life:
                continue
            if unread := {place for place in gone.get(name, ()) if place > max(at.entry_key, moved)}:
                raise Violation(f"{name} has lost {sorted(unread)} that {self.subscription} holds after {at}")

    def finish(self) -> str:
        """Read to the end; then every message was read once, or was missed. Raises :class:`Violation`."""
        for _ in range(1000):
            if self.step(Undisturbed(), lambda: None) == "nothing new":
                break
        else:
            raise Violation("the stream never reaches the end")
        begin = read_offsets(self.planned[0])
        count = 0
        for name, partition in self.topic.partitions.items():
            got = [text for batch in sorted(self.rows) for text in self.rows[batch].get(name, ())]
            if len(set(got)) != len(got):
                raise Violation(f"{name} gave messages twice: {got}")
            for message in partition.messages:
                known = message.text in got or message.position <= begin.get(name, Position(0, -1))
                if not known and not self.compacted and partition.gone.isdisjoint(message.entries):
                    raise Violation(f"{message.text!r} at {message.position} was never read")
            count += len(got)
        return f"{count} messages in {len(self.rows)} batches"


class Undisturbed(Random):
    """Draws what ends nothing."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def random(self) -> float:
        return 1.0


def _stored(offsets: Mapping[str, str]) -> dict[str, str]:
    """Return offsets as they come back from a checkpoint."""
    found: dict[str, str] = json.loads(json.dumps(offsets))
    return found
