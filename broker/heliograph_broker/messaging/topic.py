"""A persistent topic: its ledgers, what is published to it, and the subscriptions that read it.

Synchronous and free of I/O of its own: it submits entries and records to the store and is called back when they
are durable. Entries are addressed inside the core by *offset*, the dense index of an entry in its topic; clients
see (ledger id, entry id). :meth:`Topic.offset_of` and :meth:`Topic.position` map one to the other.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import structlog

from heliograph_broker.protocol import wire_pb2 as wire
from heliograph_broker.resources.names import TopicName
from heliograph_broker.resources.policies import DEFAULTS, Policies
from heliograph_broker.storage.entry import Entry, EntryHeader

from . import records
from .backlog_quota import QuotaState
from .batches import is_batch
from .cursor import Cursor
from .errors import BrokerError, Conflict, PersistenceError, PreconditionFailed, SubscriptionNotFound
from .expiry import InvalidMessageTtl, base_ms, ttl_of, ttls_in
from .figures import BrokerFigures, TopicFigures
from .key_selector import sticky_hash
from .names import check_name
from .producer import Producer, ProducerRegistry, Receipt
from .retention import releasable
from .subscription import Done, Subscription
from .tail_cache import TailCache, TopicTail
from .timed_entries import TimedEntries

if TYPE_CHECKING:
    from heliograph_broker.clock import Clock
    from heliograph_broker.config import BrokerConfig
    from heliograph_broker.storage.store import LedgerStore

    from .dead_letter import DeadLetters

log = structlog.get_logger(__name__)

#: offset, messages, bytes, cumulative messages, cumulative bytes
HeaderFacts = tuple[int, int, int, int, int]
_HEADERS_AT_ONCE = 10_000


class TopicHost(Protocol):
    """What a topic needs of the broker around it."""

    store: LedgerStore
    clock: Clock
    config: BrokerConfig
    tail_cache: TailCache
    figures: BrokerFigures
    dead_letters: DeadLetters

    def cursor_dirty(self, subscription: Subscription) -> None:
        """Persist the cursor soon, no receipt wanted."""

    def look_at(self, topic: Topic) -> None:
        """Something changed (a publish, an ack, a policy): see soon what expires, is evicted, or may be let go."""

    def delayed_candidate(self, topic: Topic) -> None:
        """The topic has delayed entries to watch."""


class LedgerInfo:
    """A ledger: entries ``base_offset .. base_offset + entries - 1`` of the topic."""

    __slots__ = ("base_offset", "created_ms", "entries", "ledger_id")

    def __init__(self, ledger_id: int, base_offset: int, created_ms: int, entries: int = 0) -> None:
        self.ledger_id = ledger_id
        self.base_offset = base_offset
        self.created_ms = created_ms
        #: Entries assigned, the ones not durable yet included.
        self.entries = entries


class Topic:
    """See the module. ``end_offset`` is one beyond the last durable entry, ``first_offset`` the first one kept."""

    __slots__ = (
        "_bases",
        "_by_id",
        "_in_flight",
        "_next_bytes",
        "_next_messages",
        "_next_offset",
        "bytes_in",
        "closed",
        "created_ms",
        "delayed_delivery",
        "effective",
        "end_offset",
        "figures",
        "first_offset",
        "fresh_from",
        "has_timed",
        "host",
        "last_publish_ms",
        "last_receive_ms",
        "ledgers",
        "may_expire",
        "msg_in",
        "name",
        "policies",
        "producer_registry",
        "properties",
        "quota",
        "subscriptions",
        "tail",
        "terminated",
        "timed",
        "total_bytes",
        "total_messages",
        "trimmed_bytes",
        "trimmed_messages",
        "ttl_ms",
    )

    persistent = True

    def __init__(self, host: TopicHost, name: TopicName, record: records.TopicRecord) -> None:
        self.host = host
        self.name = name
        self.created_ms = record.created_ms
        self.properties = record.properties
        self.policies: Policies | None = record.policies
        self.producer_registry = ProducerRegistry(record.epoch)
        self.subscriptions: dict[str, Subscription] = {}
        self.tail = TopicTail()
        self.effective = DEFAULTS
        self.delayed_delivery = True
        self.closed = False
        self.terminated = record.terminated
        #: The topic's TTL, -1 without; ``may_expire`` says whether any entry has to be looked at before delivery.
        self.ttl_ms = -1
        self.may_expire = False
        self.timed = TimedEntries()
        #: From here on entries became durable just now, which is when those with a TTL of 0 have their chance.
        self.fresh_from = sys.maxsize
        self.last_receive_ms = 0
        self.quota = QuotaState(self)
        #: None until the first entry is durable.
        self.figures: TopicFigures | None = None
        self.msg_in = 0
        self.bytes_in = 0
        self.last_publish_ms = 0
        self._in_flight: deque[tuple[Producer, int, int]] = deque()
        self.has_timed = record.timed
        self.first_offset = record.first_offset
        self.trimmed_messages = record.trimmed_messages
        self.trimmed_bytes = record.trimmed_bytes
        self.ledgers: list[LedgerInfo] = []
        base = record.base_offset
        for ledger in record.ledgers:
            self.ledgers.append(LedgerInfo(ledger.ledger_id, base, ledger.created_ms, ledger.entries))
            base += ledger.entries
        self._index_ledgers()
        self.total_messages = record.trimmed_messages
        self.total_bytes = record.trimmed_bytes
        self.end_offset = self.first_offset
        self._recover_end()
        self._next_offset = self.end_offset
        self._next_messages = self.total_messages
        self._next_bytes = self.total_bytes

    def _recover_end(self) -> None:
        """Find the last durable entry and correct the counts of ledgers that a crash cut short.

        A ledger's record may be durable although the last entries of the ledger before it never became so.
        """
        store = self.host.store
        for ledger in reversed(self.ledgers):
            bounds = store.bounds(ledger.ledger_id)
            if bounds is None or ledger.base_offset + bounds[1] < self.first_offset:
                continue
            header = store.header(ledger.ledger_id, bounds[1])
            if header is not None:
                self.end_offset = ledger.base_offset + bounds[1] + 1
                self.total_messages = header.total_messages
                self.total_bytes = header.total_bytes
                self.last_receive_ms = header.receive_ms
                break
        counts = [ledger.entries for ledger in self.ledgers[:-1]]
        self._fit_ledgers_to(self.end_offset)
        if counts != [ledger.entries for ledger in self.ledgers[:-1]]:
            # Durable before anything is published again: later ledgers would else be placed behind entries that
            # do not exist at the next start.
            self.persist()

    def _fit_ledgers_to(self, end_offset: int) -> None:
        """Make the ledgers hold exactly the entries below ``end_offset``."""
        base = self.ledgers[0].base_offset if self.ledgers else 0
        for ledger in self.ledgers:
            ledger.base_offset = base
            room = max(0, end_offset - base)
            ledger.entries = room if ledger is self.ledgers[-1] else min(ledger.entries, room)
            base += ledger.entries
        self._index_ledgers()

    def _index_ledgers(self) -> None:
        self._bases = [ledger.base_offset for ledger in self.ledgers]
        self._by_id = {ledger.ledger_id: ledger for ledger in self.ledgers}

    # -- figures ---------------------------------------------------------------------------------------------

    @property
    def producers(self) -> dict[str, Producer]:
        return self.producer_registry.connected

    @property
    def stored_messages(self) -> int:
        """Messages still kept: the backlog of the slowest subscription and what retention holds beyond it."""
        return self.total_messages - self.trimmed_messages

    @property
    def stored_bytes(self) -> int:
        return self.total_bytes - self.trimmed_bytes

    @property
    def dead_letter_topic(self) -> str | None:
        """Full name of the topic expired messages go to."""
        return self.effective.dead_letter_topic

    @property
    def submitted_bytes(self) -> int:
        """Bytes ever published, those on their way to the disk included."""
        return self._next_bytes

    def backlogged(self) -> list[Subscription]:
        """Return the durable subscriptions that have a backlog (the broker's own compaction is not asked)."""
        return [
            sub
            for sub in self.subscriptions.values()
            if sub.durable and sub.takes_part and sub.cursor.acked_messages < self.total_messages
        ]

    def backlog_size(self) -> int:
        """Bytes that the slowest durable subscription has not acknowledged."""
        return max((sub.backlog_bytes for sub in self.backlogged()), default=0)

    def slowest_acked_bytes(self) -> int | None:
        """Return how much of all bytes ever published the slowest durable subscription has acknowledged."""
        return min(
            (sub.cursor.acked_bytes for sub in self.subscriptions.values() if sub.durable and sub.takes_part),
            default=None,
        )

    def oldest_backlog(self) -> tuple[Subscription, int] | None:
        """Return the durable subscription with the oldest unacknowledged message, and that message's age in ms."""
        slowest: Subscription | None = None
        oldest = 0
        for subscription in self.backlogged():
            received = subscription.oldest_unacked_receive_ms()
            if received >= 0 and (slowest is None or received < oldest):
                slowest, oldest = subscription, received
        return None if slowest is None else (slowest, max(0, self.host.clock.now_ms() - oldest))

    # -- policies --------------------------------------------------------------------------------------------

    def configure(self, effective: Policies) -> None:
        """Take over what the levels of policies come to; it holds for what is stored, too."""
        self.effective = effective
        delayed_delivery = effective.delayed_delivery is not False
        if delayed_delivery != self.delayed_delivery:
            self.delayed_delivery = delayed_delivery
            if self.timed:
                self.find_timed()
        self.ttl_ms = effective.message_ttl_ms if effective.message_ttl_ms is not None else -1
        self.may_expire = self.ttl_ms >= 0 or bool(self.timed.own)
        self.quota.configure(effective)
        self.host.look_at(self)

    def find_timed(self) -> None:
        """Find the stored entries that expire by a rule of their own: at start, or when delays begin to count."""
        self.timed = TimedEntries()
        end = self.end_offset

        def find(offset: int) -> None:
            ledger = self._by_id[self.position(offset)[0]]
            first = offset - ledger.base_offset
            last = min(first + _HEADERS_AT_ONCE, ledger.entries) - 1

            def found(result: list[EntryHeader] | Exception) -> None:
                if isinstance(result, Exception):
                    log.error("delayed entries and TTLs were not read", topic=str(self.name), error=str(result))
                    return
                for header in result:
                    if header.ttl_ms >= 0 or header.deliver_at_ms > header.receive_ms:
                        self._note_timed(ledger.base_offset + header.entry_id, header)
                if ledger.base_offset + last + 1 < end:
                    find(ledger.base_offset + last + 1)
                else:
                    self.host.look_at(self)

            self.host.store.read_headers(ledger.ledger_id, first, last, found)

        if self.first_offset < end:
            find(self.first_offset)

    def _note_timed(self, offset: int, entry: Entry | EntryHeader) -> None:
        if entry.deliver_at_ms > entry.receive_ms:
            self.timed.add_delayed(offset, entry.deliver_at_ms)
        if entry.ttl_ms >= 0:
            self.timed.add_own(offset, base_ms(self, entry) + entry.ttl_ms)
            self.may_expire = True

    # -- positions -------------------------------------------------------------------------------------------

    def position(self, offset: int) -> tuple[int, int]:
        """Return (ledger id, entry id) of ``offset``; entry id -1 stands for "before the first of the ledger"."""
        if not self.ledgers:
            return -1, -1
        index = bisect_right(self._bases, offset) - 1
        if index < 0:
            return self.ledgers[0].ledger_id, -1
        ledger = self.ledgers[index]
        return ledger.ledger_id, offset - ledger.base_offset

    def offset_of(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the offset of a stored, durable entry; None if it is trimmed, unknown or not there yet."""
        ledger = self._by_id.get(ledger_id)
        if ledger is None:
            return None
        offset = ledger.base_offset + entry_id
        if not 0 <= entry_id < ledger.entries or not self.first_offset <= offset < self.end_offset:
            return None
        return offset

    def offset_at_or_after(self, ledger_id: int, entry_id: int) -> int:
        """Return the offset of the first kept entry at or after a position, whatever it names; the end if none is."""
        for ledger in self.ledgers:
            if ledger.ledger_id > ledger_id:
                return max(self.first_offset, ledger.base_offset)
            if ledger.ledger_id == ledger_id:
                within = min(max(entry_id, 0), ledger.entries)
                return min(max(self.first_offset, ledger.base_offset + within), self.end_offset)
        return self.end_offset

    # -- publishing ------------------------------------------------------------------------------------------

    def publish(
        self,
        producer: Producer,
        sequence_id: int,
        highest_sequence_id: int,
        messages: int,
        metadata: wire.MessageMetadata,
        frame: bytes,
    ) -> None:
        """Store an entry; the producer gets its receipt when it is durable, or a named error."""
        now = self.host.clock.now_ms()
        if now < self.last_receive_ms:
            # Receive times never go back along a topic: expiry and retention search by them.
            now = self.last_receive_ms
        size = len(frame)
        if self.terminated:
            producer.sink.send_publish_error(
                producer.producer_id, sequence_id, wire.TopicTerminatedError, f"topic {self.name} is terminated"
            )
            return
        ttl_ms = -1
        try:
            if metadata.properties:
                ttl_ms = ttl_of(metadata.properties)
            if self.effective.ttl_in_batches and is_batch(metadata):
                ttl_ms = min((ttl for ttl in ttls_in(metadata, frame) if ttl >= 0), default=-1)
        except InvalidMessageTtl as error:
            producer.sink.send_publish_error(producer.producer_id, sequence_id, error.server_error, str(error))
            return
        if self.quota.active and not self.quota.admits(producer, size, now):
            return
        self.last_receive_ms = now
        deliver_at_ms = metadata.deliver_at_time if metadata.HasField("deliver_at_time") else 0
        if (ttl_ms >= 0 or deliver_at_ms > now) and not self.has_timed:
            self.has_timed = True
            self.persist()
        ledgers = self.ledgers
        if not ledgers or self._must_roll(ledgers[-1], now):
            self._roll_ledger(now)
        ledger = ledgers[-1]
        self._next_messages += messages
        self._next_bytes += size
        entry = Entry(
            ledger.ledger_id,
            ledger.entries,
            now,
            metadata.publish_time,
            deliver_at_ms,
            ttl_ms,
            messages,
            sticky_hash(metadata),
            self._next_messages,
            self._next_bytes,
            frame,
        )
        entry.offset = self._next_offset
        entry.taken_at = self.host.clock.monotonic()
        self._next_offset += 1
        ledger.entries += 1
        self._in_flight.append((producer, sequence_id, highest_sequence_id))
        self.last_publish_ms = now
        self.host.store.append(self, entry)

    def _must_roll(self, ledger: LedgerInfo, now: int) -> bool:
        config = self.host.config
        too_old = now - ledger.created_ms >= config.ledger_max_age_ms
        return ledger.entries >= config.ledger_max_entries or (too_old and ledger.entries > 0)

    def _roll_ledger(self, now: int) -> None:
        """Close the open ledger and begin the next; its record is durable before the first receipt from it."""
        ledger = LedgerInfo(self.host.store.next_ledger_id(), self._next_offset, now)
        self.ledgers.append(ledger)
        self._index_ledgers()
        self.persist()

    def entries_durable(self, entries: list[Entry]) -> None:
        """A group is synced: send the receipts, then offer the entries to every subscription."""
        in_flight = self._in_flight
        cache = self.host.tail_cache
        tail = self.tail
        keep = bool(self.subscriptions)
        if self.figures is None:
            self.figures = TopicFigures()
        host = self.host
        self.figures.entries_durable(
            entries, host.clock.monotonic(), host.store.stats.commit_s, host.figures.publish_latency
        )
        receipts: dict[Producer, list[Receipt]] = {}
        for entry in entries:
            producer, sequence_id, highest = in_flight.popleft()
            size = len(entry.frame)
            producer.msg_in += entry.messages
            producer.bytes_in += size
            self.bytes_in += size
            self.msg_in += entry.messages
            receipt = (sequence_id, highest, entry.ledger_id, entry.entry_id)
            if producer in receipts:
                receipts[producer].append(receipt)
            else:
                receipts[producer] = [receipt]
            if keep:
                cache.add(tail, entry)
            if entry.ttl_ms >= 0 or entry.deliver_at_ms > entry.receive_ms:
                self._note_timed(entry.offset, entry)
        for producer, of_producer in receipts.items():
            producer.sink.send_receipts(producer, of_producer)
        last = entries[-1]
        self.end_offset = last.offset + 1
        self.total_messages = last.total_messages
        self.total_bytes = last.total_bytes
        if self.closed:
            return
        self.host.look_at(self)
        self.fresh_from = entries[0].offset
        for subscription in self.subscriptions.values():
            if subscription.dispatcher is not None:
                subscription.dispatcher.notify()
                if subscription.dispatcher.delayed:
                    self.host.delayed_candidate(self)
        self.fresh_from = sys.maxsize

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        """The store could not keep ``entries``; everything submitted after them fails too, so no gap arises."""
        for _ in entries:
            producer, sequence_id, _ = self._in_flight.popleft()
            producer.sink.send_publish_error(
                producer.producer_id, sequence_id, wire.PersistenceError, f"the entry could not be stored: {error}"
            )
        if not self._in_flight:
            self._next_offset = self.end_offset
            self._next_messages = self.total_messages
            self._next_bytes = self.total_bytes
            self._fit_ledgers_to(self.end_offset)
            self.persist()

    # -- reading ---------------------------------------------------------------------------------------------

    def read(
        self, offset: int, count: int, max_bytes: int, callback: Callable[[list[Entry] | Exception], None]
    ) -> None:
        """Read durable entries from ``offset`` on, of one ledger at most ``count`` of them or ``max_bytes``."""
        ledger = self._by_id[self.position(offset)[0]]
        first = offset - ledger.base_offset
        last = min(first + count, ledger.entries, self.end_offset - ledger.base_offset) - 1
        base = ledger.base_offset

        def with_offsets(result: list[Entry] | Exception) -> None:
            if not isinstance(result, Exception):
                for entry in result:
                    entry.offset = base + entry.entry_id
            callback(result)

        self.host.store.read(ledger.ledger_id, first, last, max_bytes, with_offsets)

    def remember(self, entries: list[Entry]) -> None:
        """Keep entries that were read in the tail cache."""
        for entry in entries:
            self.host.tail_cache.add(self.tail, entry)
        if self.figures is None:
            self.figures = TopicFigures()
        self.figures.cache_misses += len(entries)

    def header(self, offset: int) -> EntryHeader | None:
        """Return the header of a kept entry by a point read, None if there is none."""
        ledger_id, entry_id = self.position(offset)
        return self.host.store.header(ledger_id, entry_id) if entry_id >= 0 else None

    def read_headers(self, first: int, last: int, callback: Callable[[list[HeaderFacts] | Exception], None]) -> None:
        """Read the sizes of entries ``first..last``: of one ledger and a bounded number at a time, at least one."""
        ledger = self._by_id[self.position(first)[0]]
        base = ledger.base_offset
        end = min(last - base, ledger.entries - 1, first - base + _HEADERS_AT_ONCE)

        def facts(result: list[EntryHeader] | Exception) -> None:
            if isinstance(result, Exception):
                callback(result)
                return
            callback([(base + h.entry_id, h.messages, h.size, h.total_messages, h.total_bytes) for h in result])

        self.host.store.read_headers(ledger.ledger_id, first - base, end, facts)

    def totals_before(self, offset: int, callback: Callable[[tuple[int, int] | Exception], None]) -> None:
        """Call back with the cumulative messages and bytes of everything before ``offset``."""
        if offset <= self.first_offset:
            callback((self.trimmed_messages, self.trimmed_bytes))
            return
        if offset >= self.end_offset:
            callback((self.total_messages, self.total_bytes))
            return

        def found(result: list[HeaderFacts] | Exception) -> None:
            callback(result if isinstance(result, Exception) else (result[-1][3], result[-1][4]))

        self.read_headers(offset - 1, offset - 1, found)

    def first_published_at_or_after(self, publish_ms: int) -> int:
        """Return the offset of the first entry whose publish time is not before ``publish_ms`` (binary search)."""
        low, high = self.first_offset, self.end_offset
        while low < high:
            middle = (low + high) // 2
            header = self.header(middle)
            if header is None or header.publish_ms < publish_ms:
                low = middle + 1
            else:
                high = middle
        return low

    # -- subscriptions ---------------------------------------------------------------------------------------

    def create_subscription(
        self,
        name: str,
        position: str = "latest",
        *,
        durable: bool = True,
        start_offset: int | None = None,
        properties: dict[str, str] | None = None,
        done: Done | None = None,
    ) -> Subscription:
        """Create a subscription at ``latest``, ``earliest`` or an offset; ``done`` is called when it is durable.

        Raises :class:`Conflict` if the name is taken and :class:`PreconditionFailed` if it is not a name.
        """
        if name in self.subscriptions:
            raise Conflict("Subscription already exists for topic")
        check_name(name)
        if start_offset is None:
            start_offset = self.first_offset if position == "earliest" else self.end_offset
        start_offset = min(max(start_offset, self.first_offset), self.end_offset)
        if start_offset == self.end_offset:
            cursor = Cursor(start_offset - 1, self.total_messages, self.total_bytes)
        else:
            cursor = Cursor(self.first_offset - 1, self.trimmed_messages, self.trimmed_bytes)
        subscription = Subscription(
            self, name, cursor, durable=durable, properties=properties, created_ms=self.host.clock.now_ms()
        )
        self.subscriptions[name] = subscription
        self.quota.moved_back()
        if self.first_offset < start_offset < self.end_offset:
            subscription.acknowledge_up_to(start_offset - 1, done)
        else:
            self.cursor_moved(subscription, done)
        return subscription

    def restore_subscription(self, name: str, record: records.CursorRecord) -> None:
        """Put back a durable subscription at start-up."""
        cursor = Cursor.from_record(record)
        subscription = Subscription(self, name, cursor, properties=record.properties, created_ms=record.created_ms)
        self.subscriptions[name] = subscription

    def subscription(self, name: str) -> Subscription:
        """Raises :class:`SubscriptionNotFound`."""
        found = self.subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFound(f"Subscription {name} not found")
        return found

    def delete_subscription(self, name: str, force: bool = False, done: Done | None = None) -> None:
        """Delete a subscription and its cursor. Raises if it is unknown, or has consumers and not ``force``."""
        subscription = self.subscription(name)
        if subscription.consumers and not force:
            raise PreconditionFailed("Subscription has active connected consumers")
        subscription.disconnect_all()
        self.drop_subscription(subscription)
        if done is not None:
            self.host.store.after_commit(_durable(done))

    def drop_subscription(self, subscription: Subscription) -> None:
        """Forget a subscription that has no consumers."""
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
        subscription.closed = True
        if subscription.durable:
            self.host.store.delete(subscription.key())
        self.host.look_at(self)

    def cursor_moved(self, subscription: Subscription, done: Done | None) -> None:
        """A cursor changed: persist it with the next group if somebody waits for that, else soon."""
        self.host.look_at(self)
        if not subscription.durable:
            if done is not None:
                done(None)
        elif done is None:
            self.host.cursor_dirty(subscription)
        else:
            self.host.store.put_at_commit(subscription)
            self.host.store.after_commit(_durable(done))

    # -- trimming and persistence ----------------------------------------------------------------------------

    def trim(self, offset: int) -> int:
        """Let go everything below ``offset`` (at most what every durable cursor has passed); return entries freed."""
        offset = min(offset, self.end_offset)
        if offset <= self.first_offset:
            return 0
        header = self.header(offset - 1)
        if header is None:
            log.error("trim point has no entry", topic=str(self.name), offset=offset - 1)
            return 0
        freed = offset - self.first_offset
        dropped = [ledger for ledger in self.ledgers[:-1] if ledger.base_offset + ledger.entries <= offset]
        self.first_offset = offset
        self.trimmed_messages = header.total_messages
        self.trimmed_bytes = header.total_bytes
        if dropped:
            del self.ledgers[: len(dropped)]
            self._index_ledgers()
        self.persist()
        self.timed.trim(offset)
        tail = self.tail
        for gone in [cached for cached in tail if cached < offset]:
            del tail[gone]
        for subscription in self.subscriptions.values():
            cursor = subscription.cursor
            if cursor.mark_delete < offset - 1:
                # Only a cursor that is not durable can be behind: what it had not read is gone for it.
                subscription.acknowledge_trimmed(offset - 1, header.total_messages, header.total_bytes)
        first = self.ledgers[0]
        store = self.host.store

        def let_go(error: Exception | None) -> None:
            if error is None:
                for ledger in dropped:
                    store.drop_ledger(ledger.ledger_id)
                if offset > first.base_offset:
                    store.trim(first.ledger_id, offset - first.base_offset)

        store.after_commit(let_go)
        return freed

    def retain_in_store(self) -> dict[int, int]:
        """Return ledger id -> first entry kept, for the store's clean-up at start."""
        return {ledger.ledger_id: max(0, self.first_offset - ledger.base_offset) for ledger in self.ledgers}

    def key(self) -> bytes:
        return records.TOPIC + str(self.name).encode()

    def persist(self) -> None:
        """Queue the topic's record for the next group."""
        open_ledger = self.ledgers[-1] if self.ledgers else None
        record = records.TopicRecord(
            created_ms=self.created_ms,
            first_offset=self.first_offset,
            trimmed_messages=self.trimmed_messages,
            trimmed_bytes=self.trimmed_bytes,
            base_offset=self.ledgers[0].base_offset if self.ledgers else self.end_offset,
            ledgers=[
                records.LedgerRecord(
                    ledger.ledger_id, ledger.created_ms, 0 if ledger is open_ledger else ledger.entries
                )
                for ledger in self.ledgers
            ],
            epoch=self.producer_registry.topic_epoch,
            properties=self.properties,
            policies=self.policies,
            timed=self.has_timed,
            terminated=self.terminated,
        )
        self.host.store.put(self.key(), records.encode(record))

    def truncate(self, done: Done) -> None:
        """Acknowledge everything for every durable subscription and let all of it go, whatever retention keeps."""
        end = self.end_offset
        subscriptions = [sub for sub in self.subscriptions.values() if sub.durable]
        left = len(subscriptions)
        errors: list[BrokerError] = []

        def finish() -> None:
            if errors:
                done(errors[0])
                return
            self.trim(min(end, releasable(self)))
            self.host.store.after_commit(_durable(done))

        def cleared(error: BrokerError | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                errors.append(error)
            if left == 0:
                finish()

        if not subscriptions:
            finish()
        for subscription in subscriptions:
            subscription.clear_backlog(cleared)

    def terminate(self, done: Done) -> None:
        """Accept nothing more, for ever; readers and consumers that have read all are told of the end."""
        self.terminated = True
        self.persist()
        self.host.store.after_commit(_durable(done))
        for producer in [*self.producers.values(), *self.producer_registry.waiting]:
            producer.sink.send_close_producer(producer)
        self.producer_registry = ProducerRegistry(self.producer_registry.topic_epoch)
        for subscription in list(self.subscriptions.values()):
            subscription.tell_end()

    def last_position(self) -> tuple[int, int]:
        """Return (ledger id, entry id) of the last durable entry, entry id -1 if there never was one in its ledger."""
        return self.position(self.end_offset - 1)

    def close(self) -> None:
        """Disconnect everybody; the topic is going away."""
        self.closed = True
        self.disconnect_clients()

    def disconnect_clients(self) -> None:
        """Ask everybody to reconnect."""
        for producer in [*self.producers.values(), *self.producer_registry.waiting]:
            producer.sink.send_close_producer(producer)
        self.producer_registry = ProducerRegistry(self.producer_registry.topic_epoch)
        for subscription in list(self.subscriptions.values()):
            subscription.disconnect_all()

    def delete(self) -> None:
        """Remove everything the topic has in the store, after :meth:`close`."""
        store = self.host.store
        for subscription in list(self.subscriptions.values()):
            self.drop_subscription(subscription)
        store.delete(self.key())
        ledgers = [ledger.ledger_id for ledger in self.ledgers]

        def let_go(error: Exception | None) -> None:
            if error is None:
                for ledger_id in ledgers:
                    store.drop_ledger(ledger_id)

        store.after_commit(let_go)


def _durable(done: Done) -> Callable[[Exception | None], None]:
    def committed(error: Exception | None) -> None:
        refusal: BrokerError | None = None
        if error is not None:
            refusal = PersistenceError(f"not stored: {error}")
        done(refusal)

    return committed
