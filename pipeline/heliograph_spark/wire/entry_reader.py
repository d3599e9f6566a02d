"""Reads the entries of one partition in order, over whatever happens to the connection."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.ack_sets import remaining_of
from heliograph_api.protocol.frames import read_entry

from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.plan.positions import Position

from .brokers import FIRST_PAUSE_S, LONGEST_PAUSE_S, Brokers
from .failures import NoAnswer, Passing
from .link import Link
from .message_heads import MessageHead
from .permits import READ_AHEAD_BYTES, Permits
from .receiver import Receiver
from .stream import Address

_UINT64 = (1 << 64) - 1
_LARGEST_ID = (1 << 63) - 1

_T = TypeVar("_T")


class Entry(NamedTuple):
    """An entry as it is stored: ``payload`` is a message, a batch or a chunk, compressed as ``metadata`` says.

    ``ack_set`` is empty, or has the words of a set with a bit for each message of the batch that is to be read.
    """

    ledger: int
    entry: int
    metadata: wire.MessageMetadata
    payload: bytes | memoryview
    redelivery_count: int
    ack_set: tuple[int, ...]

    @property
    def messages(self) -> int:
        """The number of messages, those included that are not to be read; 1 for a chunk."""
        return self.metadata.num_messages_in_batch


class ReceivedEntry(Protocol):
    """An entry as it was delivered; ``payload`` is still compressed."""

    @property
    def ledger(self) -> int:
        """Id of the ledger."""

    @property
    def entry(self) -> int:
        """Id in the ledger."""

    @property
    def metadata(self) -> wire.MessageMetadata:
        """Metadata of the entry, which is that of its message unless it holds a batch."""

    @property
    def payload(self) -> bytes | memoryview:
        """Everything after the metadata; a view where a copy would take longer.

        A view keeps what was received with it: who keeps a payload beyond the next entries makes it bytes.
        """

    @property
    def redelivery_count(self) -> int:
        """Number of deliveries before this one."""

    @property
    def ack_set(self) -> Sequence[int]:
        """Words of the bits of a batch's unacknowledged messages; empty for all."""


class OpenedEntry(ReceivedEntry, Protocol):
    """An entry whose checksum is right; :class:`Entry` is one."""

    @property
    def messages(self) -> int:
        """The number of messages, those included that are not to be read; 1 for a chunk."""


def open_entry(head: MessageHead, data: bytes | memoryview) -> OpenedEntry:
    """Return the entry that came after a command. Raises :class:`EntryError` if it is damaged."""
    _, ledger, entry, redelivery_count, ack_set = head
    metadata, payload_at = read_entry(data)
    # Half the time of Entry(…): this is done for each entry.
    return tuple.__new__(Entry, (ledger, entry, metadata, data[payload_at:], redelivery_count, ack_set))


@dataclass(frozen=True, slots=True)
class Start:
    """The place to begin at: the first entry stored at a ledger and entry id or after it, or published at a time."""

    ledger: int
    entry: int
    published_ms: int | None = None

    @classmethod
    def at(cls, position: Position) -> Start:
        """With the entry of this position, or the next one if it is not stored any more."""
        return cls(position.ledger, max(0, position.entry))

    @classmethod
    def after(cls, position: Position) -> Start:
        """With what comes after this position; that is the rest of its batch if it names a message of one."""
        if position.entry < 0 and position.ledger <= 0:
            # Compacted messages whose ledgers are gone come to readers of the earliest position only.
            return EARLIEST
        return cls(position.ledger, position.entry + (position.batch < 0))

    @classmethod
    def published(cls, at_ms: int) -> Start:
        """With the first message that was published at this time (ms since 1970) or later."""
        return cls(-1, -1, at_ms)


EARLIEST = Start(-1, -1)
#: After everything that is stored when the reader is connected.
LATEST = Start(_LARGEST_ID, _LARGEST_ID)


class _Consumer(NamedTuple):
    """A reader's consumer in one broker."""

    link: Link
    id: int
    receiver: Receiver
    permits: Permits


def _arrives(consumer: _Consumer, until: float) -> bool:
    """Wait until there is something to take or the consumer is closed; False at the time ``until``."""
    receiver = consumer.receiver
    try:
        return consumer.link.wait(lambda: receiver.arrived or receiver.closed, until)
    except Passing:
        receiver.closed = True
        return True


class EntryReader:
    """Reads a partition from ``start``, without a trace in the broker once it is closed; for one thread at a time.

    ``settings`` are those of a reader (:attr:`ReadOptions.reader`). ``opens`` opens each entry that comes, as
    :func:`open_entry` does. It connects when it is first used. Wherever a
    broker or a connection goes, it looks the topic up again and continues after the last entry it gave, until
    ``lost_for_s`` seconds are over. Its methods raise :class:`PulsarSourceError`, naming the topic, for an error of
    the broker that does not pass or did not in that time; such a reader is of no more use.
    """

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        start: Start,
        settings: Mapping[str, Any] | None = None,
        *,
        lost_for_s: float = 120.0,
        opens: Callable[[MessageHead, bytes | memoryview], OpenedEntry] = open_entry,
    ) -> None:
        self._brokers = brokers
        self._topic = topic
        self._start = start
        self._settings = settings or {}
        self._lost_for_s = lost_for_s
        self._open = opens
        self._consumer: _Consumer | None = None
        #: The broker that was named by the one that closed the consumer.
        self._assigned = ""
        #: Since when there is no consumer (monotonic), and the pause before the next try.
        self._lost_at: float | None = None
        self._pause_s = FIRST_PAUSE_S

    def __enter__(self) -> EntryReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the broker forget the reader; it may be used again, and then continues."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.link.leave(consumer.id)

    @property
    def address(self) -> Address | None:
        """The address of the broker that it is connected to; None if it is not."""
        consumer = self._consumer
        return None if consumer is None or consumer.receiver.closed else consumer.link.address

    def seek(self, start: Start) -> None:
        """Continue from another place: the next entries come from there."""
        self.close()
        self._start = start
        self._lost_at = None

    def read(self, timeout_s: float) -> list[OpenedEntry]:
        """Return the next entries, as many as have come; none if none came in this time.

        While it connects it can take longer, by one question to a broker.
        """
        until = time.monotonic() + timeout_s
        while True:
            consumer = self._connected(until)
            if consumer is None:
                return []
            receiver = consumer.receiver
            if not receiver.arrived:
                if receiver.closed:
                    self._disconnected()
                    if time.monotonic() > until:
                        return []
                    continue
                if not _arrives(consumer, until):
                    return []
                continue
            entries = self._opened(consumer, *receiver.take())
            if entries:
                return entries

    def _opened(
        self, consumer: _Consumer, arrived: list[tuple[MessageHead, bytes | memoryview]], size: int
    ) -> list[OpenedEntry]:
        """Return what has arrived as entries, count it, and let the broker send as much again."""
        messages = 0
        entries = []
        opens = self._open
        for head, data in arrived:
            try:
                opened = opens(head, data)
                messages += (remaining_of(head[4]) or 0).bit_count() if head[4] else opened.messages
            except ValueError as error:
                place = f"{head[1]}:{head[2]}"
                raise PulsarSourceError(f"reading {self._topic}: the entry {place} is damaged: {error}") from error
            entries.append(opened)
        wanted = self._start.ledger, self._start.entry
        while entries and (entries[0].ledger, entries[0].entry) < wanted:
            del entries[0]
        if entries:
            self._start = Start(entries[-1].ledger, entries[-1].entry + 1)
        granted = consumer.permits.taken(messages, size)
        if granted and not consumer.receiver.closed:
            try:
                consumer.link.flow(consumer.id, granted)
            except Passing:
                consumer.receiver.closed = True
        return entries

    # The end of the topic

    def last_position(self) -> Position | None:
        """Return the last message that is stored, its batch index with it; None if there is none.

        The last entry of a message sent in chunks is one as any other, also if it is not the message's last.
        """
        return self._asked(self._last_position)

    def has_more(self, after: Position | None) -> bool:
        """Whether anything is stored after a position, or at all."""
        last = self.last_position()
        return last is not None and (after is None or last > after)

    def begins_at_end(self) -> bool:
        """Whether nothing is stored from where it begins on; to be asked before anything is read."""
        return self._asked(self._begins_at_end)

    def _begins_at_end(self, consumer: _Consumer) -> bool:
        answer = self._last_ids(consumer)
        last, before = answer.last_message_id, answer.consumer_mark_delete_position
        if last.entryId == _UINT64 or last.ledgerId == _UINT64:
            return True
        if not answer.HasField("consumer_mark_delete_position") or before.entryId == _UINT64:
            return False
        return (before.ledgerId, before.entryId) >= (last.ledgerId, last.entryId)

    def _last_position(self, consumer: _Consumer) -> Position | None:
        last = self._last_ids(consumer).last_message_id
        if last.entryId == _UINT64 or last.ledgerId == _UINT64:
            return None
        return Position(last.ledgerId, last.entryId, last.batch_index)

    def _last_ids(self, consumer: _Consumer) -> wire.CommandGetLastMessageIdResponse:
        body = wire.CommandGetLastMessageId(consumer_id=consumer.id)
        answer: wire.CommandGetLastMessageIdResponse = consumer.link.request(
            "getLastMessageId", body, f"asking for the end of {self._topic}", self._brokers.answered_within_s
        )
        return answer

    def _asked(self, ask: Callable[[_Consumer], _T]) -> _T:
        until = time.monotonic() + self._lost_for_s
        while True:
            consumer = self._connected(math.inf)
            assert consumer is not None
            try:
                if consumer.receiver.closed:
                    raise NoAnswer(f"{self._topic}: {consumer.link.address}: the broker closed the consumer")
                return ask(consumer)
            except Passing as error:
                if time.monotonic() > until:
                    raise PulsarSourceError(f"{error}; so it was for {self._lost_for_s:g} s (pollTimeoutMs)") from error
            self.close()

    # Its consumer

    def _connected(self, until: float) -> _Consumer | None:
        """Return the consumer, connected if it is not; None at the time ``until`` if that has not succeeded yet."""
        while self._consumer is None:
            try:
                self._consumer = self._subscribed()
                self._lost_at, self._pause_s, self._assigned = None, FIRST_PAUSE_S, ""
            except Passing as error:
                self._assigned = ""
                now = time.monotonic()
                self._lost_at = now if self._lost_at is None else self._lost_at
                if now - self._lost_at > self._lost_for_s:
                    raise PulsarSourceError(f"{error}; so it was for {self._lost_for_s:g} s (pollTimeoutMs)") from error
                if now + self._pause_s > until:
                    time.sleep(max(0.0, until - now))
                    return None
                time.sleep(self._pause_s)
                self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return self._consumer

    def _disconnected(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._assigned = consumer.receiver.assigned
            self._lost_at = time.monotonic()

    def _subscribed(self) -> _Consumer:
        """Return a consumer that gets the entries from where the reader is. Raises what passes as :class:`Passing`."""
        link = self._brokers.owner(self._topic, self._assigned)
        consumer = self._new_consumer(link, link.attach(receiver := Receiver(2 * READ_AHEAD_BYTES)), receiver)
        try:
            # By a new name each time: the broker may take the consumer of before for connected still.
            name = self._subscription_name()
            self._subscribe(consumer, name)
            if self._start.published_ms is not None:
                consumer = self._sought(consumer, name, self._start.published_ms)
            elif self._start == LATEST:
                self._start = self._found_latest(consumer)
            link.flow(consumer.id, consumer.permits.first())
        except BaseException:
            link.leave(consumer.id)
            raise
        return consumer

    def _new_consumer(self, link: Link, consumer_id: int, receiver: Receiver) -> _Consumer:
        return _Consumer(
            link, consumer_id, receiver, Permits(link.max_message_size, self._settings.get("receiver_queue_size"))
        )

    def _subscription_name(self) -> str:
        """Return a new name as the official clients give their readers: policies may ask for the prefix."""
        prefix = self._settings.get("subscription_role_prefix")
        return (f"{prefix}-" if prefix else "") + f"reader-{uuid.uuid4().hex[:10]}"

    def _subscribe(self, consumer: _Consumer, subscription: str) -> None:
        body = wire.CommandSubscribe(
            topic=self._topic,
            subscription=subscription,
            subType=wire.CommandSubscribe.Exclusive,
            consumer_id=consumer.id,
            consumer_name=self._settings.get("reader_name", ""),
            durable=False,
            read_compacted=bool(self._settings.get("is_read_compacted")),
            force_topic_creation=False,
        )
        body.start_message_id.ledgerId = self._start.ledger & _UINT64
        body.start_message_id.entryId = self._start.entry & _UINT64
        consumer.link.request("subscribe", body, f"reading {self._topic}", self._brokers.answered_within_s)

    def _sought(self, consumer: _Consumer, subscription: str, published_ms: int) -> _Consumer:
        """Return the consumer for entries from a time on.

        The broker closes the consumer whose subscription it moves, and keeps the subscription for its return.
        """
        link, within_s = consumer.link, self._brokers.answered_within_s
        body = wire.CommandSeek(consumer_id=consumer.id, message_publish_time=published_ms)
        link.request("seek", body, f"finding what was published from {published_ms} on in {self._topic}", within_s)
        if not link.wait(lambda: consumer.receiver.closed, time.monotonic() + within_s):
            raise NoAnswer(f"reading {self._topic}: {link.address}: the consumer was not closed for its seek")
        again = self._new_consumer(link, consumer.id, Receiver(consumer.receiver.limit))
        link.attach_again(again.id, again.receiver)
        self._subscribe(again, subscription)
        return again

    def _found_latest(self, consumer: _Consumer) -> Start:
        """Return the place of a new subscription to the latest: what comes now is read also if this link is lost."""
        answer = self._last_ids(consumer)
        place = answer.consumer_mark_delete_position if answer.HasField("consumer_mark_delete_position") else None
        place = answer.last_message_id if place is None else place
        if place.ledgerId == _UINT64:
            return EARLIEST
        return Start(place.ledgerId, 0 if place.entryId == _UINT64 else place.entryId + 1)
