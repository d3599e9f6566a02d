"""Creates the many partitions of a topic in turns, so that other clients go on meanwhile.

The topic's record says from which partition on they are created, until all are there: a broker that was killed
meanwhile goes on where it was. A partition that a client uses before its turn is created for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from heliograph_api.values.names import TopicName

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import BrokerError, Done, PersistenceError, TopicNotFound

if TYPE_CHECKING:
    from heliograph_broker.messaging.base.records import PartitionedRecord
    from heliograph_broker.messaging.log.record_set import BrokerRecords
    from heliograph_broker.messaging.topic.directory import AnyTopic, Directory

#: Partitions that are created in one turn, some milliseconds of work.
TURN: Final = 200


def _stops() -> PersistenceError:
    return PersistenceError("the broker stops; it goes on when it starts again")


class PartitionGrowth:
    """The partitioned topics that have partitions to come; the directory has which (``growing``)."""

    __slots__ = ("_add", "_directory", "_records", "_stopped", "_waiting")

    def __init__(self, directory: Directory, records: BrokerRecords, add: Callable[[TopicName], AnyTopic]) -> None:
        """``add`` creates a topic that is admitted."""
        self._directory = directory
        self._records = records
        self._add = add
        #: What waits for all partitions of a topic.
        self._waiting: dict[str, list[Done]] = {}
        self._stopped = False

    def begin(self, name: TopicName, indexes: range) -> None:
        """Create the partitions of a topic whose record names them: the first ones at once, the others in turns."""
        self._directory.growing[str(name)] = indexes
        self._go_on(name)

    def restore(self) -> None:
        """Go on with what was not complete when the broker ended."""
        for name, record in self._directory.partitioned.items():
            if record.grows_from is not None:
                self._directory.growing[name] = range(record.grows_from, record.partitions)

    def run(self) -> bool:
        """Create some partitions of one topic. Return whether there are more to create."""
        for name in self._directory.growing:
            self._go_on(TopicName.parse(name))
            break
        return bool(self._directory.growing)

    def finish(self, name: TopicName) -> None:
        """Create at once what is to come of a topic."""
        while str(name) in self._directory.growing:
            self._go_on(name)

    def completed(self, name: TopicName) -> list[TopicName]:
        """Create at once what is to come of a topic; return the names of all its partitions, else ``name`` itself."""
        self.finish(name)
        return self._directory.concrete_names(name)

    def when_complete(self, name: TopicName, done: Done) -> None:
        """Call ``done`` when all partitions are there, or with the error if the topic is deleted before."""
        if str(name) not in self._directory.growing:
            done(None)
        elif self._stopped:
            done(_stops())
        else:
            self._waiting.setdefault(str(name), []).append(done)

    def forget(self, name: TopicName) -> None:
        """The topic is deleted: create none of its partitions any more."""
        self._directory.growing.pop(str(name), None)
        self._ended(name, TopicNotFound(f"Topic {name} was deleted while its partitions were created"))

    def stop(self) -> None:
        """The broker stops; the next start goes on. Callers that wait get :class:`PersistenceError`, later ones too."""
        self._stopped = True
        for name in list(self._waiting):
            self._ended(TopicName.parse(name), _stops())

    def add_partition(self, name: TopicName) -> AnyTopic:
        """Create a partition before its turn."""
        return self._create(name, self.durable(name.base))

    def create(self, name: TopicName, indexes: Iterable[int]) -> None:
        """Create partitions at once, those of them that are missing."""
        durable = self.durable(name)
        for index in indexes:
            part = name.with_partition(index)
            if str(part) not in self._directory.topics:
                self._create(part, durable)

    def _go_on(self, name: TopicName) -> None:
        left = self._directory.growing[str(name)]
        self.create(name, left[:TURN])
        if left[TURN:]:
            self._directory.growing[str(name)] = left[TURN:]
            return
        del self._directory.growing[str(name)]
        record = self._directory.partitioned[str(name)]
        if record.grows_from is not None:
            self._records.when_durable(partial(self._grown, name, record, record.partitions))
        self._ended(name, None)

    def _grown(self, name: TopicName, record: PartitionedRecord, partitions: int, error: Exception | None) -> None:
        """Note that no more come once the partitions are durable: they may be in a later group than their topic."""
        is_this = self._directory.partitioned.get(str(name)) is record and record.partitions == partitions
        if error is None and is_this and record.grows_from is not None:
            record.grows_from = None
            self._records.put(records.PARTITIONED + str(name).encode(), records.encode(record))

    def _ended(self, name: TopicName, error: BrokerError | None) -> None:
        for done in self._waiting.pop(str(name), ()):
            done(error)

    def _create(self, name: TopicName, durable: Iterable[str]) -> AnyTopic:
        """Create a partition with the subscriptions of the others, which otherwise would miss messages."""
        topic = self._add(name)
        if topic.persistent:
            for subscription in durable:
                topic.create_subscription(subscription, "earliest")
        return topic

    def durable(self, name: TopicName) -> list[str]:
        """Return the durable subscriptions of the partitions that there are, in the order of their coming."""
        record = self._directory.partitioned[str(name)]
        # A subscription of a new partition is no reason for one on those that are as new.
        old = record.added_from if str(name) in self._directory.growing else record.partitions
        there = [self._directory.topics.get(f"{name}-partition-{index}") for index in range(old)]
        # Some may be on a few partitions only.
        found = (one for part in there if part is not None for one in part.subscriptions.values() if one.durable)
        return list(dict.fromkeys(one.name for one in found))
