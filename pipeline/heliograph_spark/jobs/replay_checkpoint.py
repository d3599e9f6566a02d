"""The checkpoint of a replay: a directory with the state of the replay, and where it goes on in the target.

A broker that deduplicates names the last sequence id that it has stored under a producer's name. If it names none, the
partition itself is read from where it ended when the replay was begun: the replay was killed before it sent something
there, or the broker has forgotten the name.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from heliograph_spark.jobs.plan.begun_replay import BegunReplay, Given, Part, Snapshot
from heliograph_spark.plan.errors import JobError
from heliograph_spark.plan.ledgers import Ledgers
from heliograph_spark.plan.numbering import UNUSED
from heliograph_spark.plan.options import Connection
from heliograph_spark.plan.positions import BEGINNING, Position
from heliograph_spark.plan.side_by_side import for_each
from heliograph_spark.plan.topics import ledgers_of
from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.session import Broker

_FILE = "replay.json"
#: Why the replay cannot go on, where it cannot.
_GIVEN_UP = "given-up.txt"
_PRODUCER_OPTIONS = "pulsar.producer."


class ReplayCheckpoint:
    """A directory for the state of one replay; :attr:`begun` is None if no run has sent anything.

    Raises :class:`OptionError` if the replay was begun with other options than ``given``, and :class:`JobError` if it
    was given up.
    """

    def __init__(self, spark: SparkSession, path: str, given: Given) -> None:
        self._spark = spark
        self._given = given
        self._directory = open_directory(spark, path)
        self._where = f"{self._directory.path}/{_FILE}"
        self.begun: BegunReplay | None = None
        if _FILE in self._directory.names():
            self.begun = BegunReplay.from_json(self._directory.read_text(_FILE), self._where)
            self.begun.check_options(given, self._where)
            if _GIVEN_UP in self._directory.names():
                why = self._directory.read_text(_GIVEN_UP)
                raise JobError(f"{self._where}: {why}; another --checkpoint sends everything again")
        #: The name under which the replay sends to each partition.
        self.producer = f"replay-{uuid.uuid4().hex}" if self.begun is None else self.begun.producer

    @property
    def lasts(self) -> Mapping[str, Position] | None:
        """The last message of each original partition that is part of the replay; None if it is not begun."""
        return None if self.begun is None else {name: part.last for name, part in self.begun.parts.items()}

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot of a table with which the replay was begun; None if it is not begun, or reads files."""
        return None if self.begun is None else self.begun.snapshot

    def begin(
        self, parts: Mapping[str, Part], snapshot: Snapshot | None, connection: Connection, partitions: list[str]
    ) -> None:
        """Check that these are the messages that the replay was begun with, or record that it begins with them.

        ``snapshot`` is what they were read from, None for files. Raises :class:`JobError`.
        """
        if self.begun is not None:
            self.begun.check_parts(parts, self._where)
            return
        ends = for_each(partitions, lambda partition: _end(ledgers_of(connection, partition)))
        begun = BegunReplay(self.producer, self._given, parts, dict(zip(partitions, ends, strict=True)), snapshot)
        self._directory.make()
        aside = f"_{_FILE}.{uuid.uuid4().hex}"
        if not self._directory.write_new(_FILE, begun.to_json(), aside):
            raise JobError(f"{self._where}: another run has begun this replay at the same time")
        # Without it, a run after a loss of power would send everything under another name.
        self._directory.sync(_FILE, "")

    def give_up(self, why: str) -> None:
        """Keep other runs from going on: the broker would answer that it has stored a message that it has lost."""
        self._directory.write_text(_GIVEN_UP, why)

    def check_target(self, topic: str, partitions: list[str]) -> None:
        """Raise :class:`JobError` if the target has other partitions than when the replay was begun."""
        if self.begun is not None:
            self.begun.check_target(topic, partitions, self._where)

    def stored(self, broker: Broker, connection: Connection, lasts: Mapping[str, int]) -> dict[str, int]:
        """Return the last number that each partition has stored, -1 for none.

        ``lasts`` are the last sequence ids by the broker. Raises :class:`JobError` if it names none, and messages were
        deleted that may have been those of this replay.
        """
        if self.begun is None:
            return dict(lasts)
        unnamed = {name: self.begun.ends[name] for name, last in lasts.items() if last == UNUSED}
        return {**lasts, **{name: self._read(broker, connection, name, end) for name, end in unnamed.items()}}

    def _read(self, broker: Broker, connection: Connection, partition: str, end: Position) -> int:
        ledgers = ledgers_of(connection, partition)
        if lost := ledgers.lost_after(end):
            raise JobError(
                f"{self._where}: the broker does not know what was sent to {partition} under the name {self.producer},"
                f" and {lost.entries or 'some'} entries after {end} are deleted, so how far the replay came cannot be"
                " known; another --checkpoint begins again"
            )
        if not ledgers.stored_after(end):
            return UNUSED
        start = "earliest" if end == BEGINNING else str(Position(end.ledger, end.entry + 1))
        asked = {
            name: value for name, value in broker.options.items() if not name.lower().startswith(_PRODUCER_OPTIONS)
        }
        reader = Broker(broker.service_url, broker.admin_url, asked)
        given = reader.source_options(topic=partition, startingOffsets=json.dumps({partition: start}))
        rows = self._spark.read.format("pulsar").options(**given)
        own = rows.schema("__producer STRING, __sequenceId BIGINT").load().where(f.col("__producer") == self.producer)
        found = own.agg(f.max("__sequenceId")).collect()[0][0]
        return UNUSED if found is None else int(found)


def _end(ledgers: Ledgers) -> Position:
    """Return the last entry that was added, with the number of those that were."""
    if not ledgers.stored:
        return BEGINNING if ledgers.added is None else BEGINNING.at_count(ledgers.added)
    last = ledgers.stored[-1]
    return ledgers.counted(Position(last.id, last.end - 1))
