"""The one way in which the core's state becomes durable: a versioned set of records, written as a whole.

A topic's set has these *parts*: the topic itself (trim point, ledgers, policies, compaction), each durable
subscription's cursor, the snapshot of deduplication, the list of damaged entries. What belongs to no topic is in the
broker's own set. Whenever any part of a set is written, all parts that changed are, in one transaction and with a
higher version. So no record on the disk is ahead of another of its set: a trim point is never durable without the
acknowledgments it rests on.

Records are taken when a group is sealed, as they are then. What a group could not write the store keeps and writes with
the next one; see :mod:`heliograph_broker.storage.commit.group_commit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.containment import TopicLike
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.commit.group import Durable, EntrySink, check_record

if TYPE_CHECKING:
    from heliograph_broker.clock import Clock
    from heliograph_broker.messaging.base.containment import Containment
    from heliograph_broker.storage.commit.group_commit import GroupCommit

#: Records that no client waits for, of acks and of trimming, are written at the latest this much later.
FLUSH_MS = 100
#: So many sets are not kept waiting: all at once they would make a group, and those who publish in it, slow.
RECORDS_PER_FLUSH = 100
#: The duty of a topic, or of the broker itself, that is suspended while its set cannot be encoded.
_TASK = "records"
_BROKER = "broker"


class RecordOwner(TopicLike, EntrySink, Protocol):
    """A topic, as its records know it."""


class Part(Protocol):
    """Something that is kept as one record."""

    @property
    def record_key(self) -> bytes:
        """The record's key; it never changes."""

    def encode_record(self, version: int) -> bytes:
        """Return the record as it is now, with the set's version in it."""


class RecordSet:
    """See the module. ``version`` is that of the last records taken."""

    __slots__ = ("_changed", "_durable", "_head", "_refused", "_waiting", "_writer", "closed", "topic", "version")

    def __init__(self, writer: RecordWriter, head: Part, version: int = 0, topic: RecordOwner | None = None) -> None:
        """``head`` is the part that keeps the version when another one is removed; ``topic`` is whose set it is."""
        self._writer = writer
        self._head = head
        self.topic = topic
        #: Why it could not be encoded when that was last tried.
        self._refused: Exception | None = None
        self.version = version
        #: Whether all of it was removed: nothing is written any more.
        self.closed = False
        self._changed: dict[bytes, Part | None] = {}
        self._durable: list[Durable] = []
        self._waiting = False

    @property
    def sink(self) -> EntrySink | None:
        """The topic: an entry in a ledger that no durable record names would be lost with the next start."""
        return self.topic

    def changed(self, part: Part, durable: Durable | None = None) -> None:
        """Write ``part`` within :data:`FLUSH_MS`; ``durable`` is called back when it is durable, never if it fails."""
        if self.closed:
            return
        self._changed[part.record_key] = part
        if durable is not None:
            self._durable.append(durable)
        if not self._waiting:
            self._waiting = True
            self._writer.changed(self)

    def commit(self, part: Part, done: Completion[None] | None = None) -> None:
        """Write ``part`` with the next group; ``done`` gets None when it is durable, or the error."""
        if not self.closed:
            self._changed[part.record_key] = part
            self._writer.group_commit.submit(self)
        if done is not None:
            self.when_durable(done)

    def when_durable(self, done: Completion[None]) -> None:
        """Call ``done`` with None once all of the set that changed so far is durable, or with the error."""
        self._writer.group_commit.after_commit(done, (self,))

    def remove(self, part: Part) -> None:
        """Delete the record of ``part`` with the next group."""
        if self.closed:
            return
        self._changed[part.record_key] = None
        if part is not self._head:
            self._changed[self._head.record_key] = self._head
        self._writer.group_commit.submit(self)

    def close(self) -> None:
        """Delete the head's record too, and write nothing that changes from now on."""
        self.remove(self._head)
        self.closed = True

    def flush(self) -> None:
        """Write what changed with the next group."""
        self._waiting = False
        self._writer.group_commit.submit(self)

    def seal(self, metadata: dict[bytes, bytes | None], durable: list[Durable]) -> None:
        """Add all changed records, with the next version, as a :class:`RecordSource`.

        A set that cannot be encoded suspends its topic's records, with all that rests on them; see :mod:`.containment`.
        """
        if self._refused is not None and not self.closed and self._writer.pauses(self):
            raise self._refused
        if self._changed:
            version = self.version + 1
            try:
                encoded = {
                    key: None if part is None else part.encode_record(version) for key, part in self._changed.items()
                }
                for key, value in encoded.items():
                    check_record(key, value)
            except Exception as error:
                self._refused = error
                self._writer.refused(self, error)
                raise
            self.version = version
            self._changed.clear()
            metadata.update(encoded)
        if self._refused is not None:
            self._refused = None
            self._writer.taken(self)
        if self._durable:
            durable += self._durable
            self._durable.clear()


class RecordWriter:
    """Paces records that no client waits for: a separate sync for each change would double the syncs."""

    __slots__ = ("_clock", "_containment", "_next_flush_ms", "_waiting", "group_commit")

    def __init__(self, group_commit: GroupCommit, clock: Clock, containment: Containment) -> None:
        self.group_commit = group_commit
        self._clock = clock
        self._containment = containment
        self._waiting: dict[RecordSet, None] = {}
        #: Monotonic.
        self._next_flush_ms = 0

    def changed(self, changed: RecordSet) -> None:
        """Write ``changed`` soon: at once if nothing was written of late and nobody would wait for it."""
        self._waiting[changed] = None
        if self.group_commit.idle and monotonic_ms(self._clock) >= self._next_flush_ms:
            self.flush()

    def refused(self, refused: RecordSet, error: Exception) -> None:
        """Pause a set whose records could not be taken, even if somebody asks earlier."""
        self._containment.failed(refused.topic or _BROKER, _TASK, error, refused.flush)

    def pauses(self, refused: RecordSet) -> bool:
        """Whether it is too early to try again to take the records of a set."""
        return self._containment.holds(refused.topic or _BROKER, _TASK)

    def taken(self, taken: RecordSet) -> None:
        """End the pause of a set whose records were taken at last."""
        self._containment.succeeded(taken.topic or _BROKER, _TASK)

    def run(self) -> None:
        """Write records that have waited long enough. Call it every ~50 ms."""
        if self._waiting and (
            len(self._waiting) >= RECORDS_PER_FLUSH or monotonic_ms(self._clock) >= self._next_flush_ms
        ):
            self.flush()

    def flush(self) -> None:
        """Write everything that waits with the next group."""
        self._next_flush_ms = monotonic_ms(self._clock) + FLUSH_MS
        for waiting in self._waiting:
            waiting.flush()
        self._waiting.clear()


class _Value:
    """A part that is a value already."""

    __slots__ = ("_value", "record_key")

    def __init__(self, key: bytes, value: bytes) -> None:
        self.record_key = key
        self._value = value

    def encode_record(self, version: int) -> bytes:
        return self._value


class _BrokerHead:
    """Holds the version of the broker's own set."""

    __slots__ = ()

    record_key = records.BROKER_SET

    def encode_record(self, version: int) -> bytes:
        return records.encode(records.BrokerSetRecord(version))


class BrokerRecords(RecordSet):
    """The broker's own state: tenants, namespaces, partitioned topics, schemas, roles, the broker's policies."""

    __slots__ = ()

    def __init__(self, writer: RecordWriter) -> None:
        super().__init__(writer, _BrokerHead())

    def put(self, key: bytes, value: bytes) -> None:
        """Write a record with the next group. Raises :class:`PreconditionFailed` if the store takes no such record."""
        try:
            check_record(key, value)
        except ValueError as error:
            raise PreconditionFailed(f"not stored: {error}") from error
        self.commit(_Value(key, value))
        self.commit(self._head)

    def delete(self, key: bytes) -> None:
        """Delete a record with the next group."""
        self.remove(_Value(key, b""))
