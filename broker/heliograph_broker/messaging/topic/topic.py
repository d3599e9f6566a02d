"""A persistent topic: publishes, subscriptions, trimming, and its own record.

Synchronous and free of I/O of its own: it submits entries and records to the store and is called back when they
are durable. The place of each entry is known to its :class:`~heliograph_broker.messaging.log.entry_log.EntryLog`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import structlog
from heliograph_api.policies.policies import Policies, expires_messages
from heliograph_api.values.names import TopicName

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.acknowledgment.stored_topic import StoredTopic, StoredTopicHost
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import (
    BrokerError,
    ChecksumFailed,
    Conflict,
    Done,
    PersistenceError,
    TopicTerminated,
    or_persistence_error,
)
from heliograph_broker.messaging.base.names import COMPACTION, check_name, check_properties
from heliograph_broker.messaging.base.timed_entries import TopicTiming
from heliograph_broker.messaging.clients.pending_answers import PendingAnswers
from heliograph_broker.messaging.clients.producer import Producer, Receipt
from heliograph_broker.messaging.compaction.compaction import TopicCompaction
from heliograph_broker.messaging.delivery.compacted_view import CompactedView
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.log import invariants
from heliograph_broker.messaging.log.cursor import Cursor
from heliograph_broker.messaging.log.damaged import totals_up_to
from heliograph_broker.messaging.log.entry_log import EntryLog
from heliograph_broker.messaging.log.record_set import RecordSet
from heliograph_broker.messaging.messages.batches import is_batch
from heliograph_broker.messaging.messages.key_hash import sticky_hash
from heliograph_broker.messaging.messages.message_ttl import InvalidMessageTtl, may_hold_ttls, ttl_of, ttls_in
from heliograph_broker.messaging.policies import time_index
from heliograph_broker.messaging.policies.backlog_quota import QuotaState
from heliograph_broker.storage.base.entry import Entry

from .base_topic import BaseTopic
from .topic_statistics import LogStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from heliograph_api.protocol import wire_pb2 as wire

    from heliograph_broker.messaging.clients.disk_waits import DiskWaits
    from heliograph_broker.messaging.log.record_set import RecordWriter
    from heliograph_broker.messaging.log.subscribed_topic import LogSubscription
    from heliograph_broker.messaging.policies.deduplication import Deduplication
    from heliograph_broker.storage.commit.group import Durable, RecordSource

log = structlog.get_logger(__name__)


class TopicHost(StoredTopicHost):
    """The services of the broker that a topic uses."""

    record_writer: RecordWriter

    @property
    def disk_waits(self) -> DiskWaits:
        """The producers that wait until the disk has room."""
        raise NotImplementedError

    def subscription_added(self, topic: Topic, subscription: Subscription) -> None:
        """A subscription was created or restored: see what its topic's policies say."""
        raise NotImplementedError

    def check_soon(self, topic: Topic) -> None:
        """Check soon which entries expire, are evicted, or may be deleted: a publish, ack or policy changed that."""
        raise NotImplementedError

    def watch_inactivity(self, topic: Topic) -> None:
        """A subscription of the topic may end if nobody uses it: see when."""
        raise NotImplementedError


class Topic(BaseTopic[Subscription], StoredTopic):
    """See the module."""

    __slots__ = (
        "chunks_below",
        "compaction",
        "deduplication",
        "log",
        "pending_answers",
        "quota",
        "records",
        "terminated",
        "timing",
    )

    persistent: Literal[True] = True
    host: TopicHost
    subscriptions: dict[str, Subscription]

    def __init__(self, host: TopicHost, name: TopicName, record: records.TopicRecord) -> None:
        self.host = host
        self.quota = QuotaState(self)
        super().__init__(
            name,
            record.created_ms,
            LogStatistics(self, self.quota, host.disk_waits),
            properties=record.properties,
            policies=record.policies,
            epoch=record.epoch,
        )
        self.terminated = record.terminated
        self.deduplication: Deduplication | None = None
        self.timing = TopicTiming(has_timed=record.timed)
        self.pending_answers = PendingAnswers()
        self.compaction = TopicCompaction(self, record.compaction)
        #: All that is durable of it, its cursors and deduplication included.
        self.records = RecordSet(host.record_writer, self, record.version, self)
        self.log = EntryLog(host, name, record, self.records, self)
        self.chunks_below = self.log.end_offset if record.chunked else 0

    @property
    def record_key(self) -> bytes:
        return records.TOPIC + str(self.name).encode()

    # -- what happens to it ------------------------------------------------------------------------------------

    def check_soon(self) -> None:
        self.host.check_soon(self)

    def watch_inactivity(self) -> None:
        self.host.watch_inactivity(self)

    # -- policies --------------------------------------------------------------------------------------------

    def configure(self, effective: Policies) -> None:
        """Take over the effective policies; they apply to stored messages, too."""
        super().configure(effective)
        timing = self.timing
        delayed_delivery = effective.delayed_delivery is not False
        ttl_from_delivery = delayed_delivery and not effective.ttl_counts_delay
        if (delayed_delivery, ttl_from_delivery) != (timing.delayed_delivery, timing.ttl_from_delivery):
            timing.delayed_delivery = delayed_delivery
            timing.ttl_from_delivery = ttl_from_delivery
            self.host.wake_delayed(self, self.host.clock.now_ms())
            if timing.timed or not timing.time_index_ready:
                # Own TTLs are in the index by when they end.
                time_index.find(self)
        timing.ttl_ms = effective.message_ttl_ms if effective.message_ttl_ms is not None else -1
        for subscription in self.subscriptions.values():
            subscription.expiry.restart()
            subscription.expiry.policies_changed()
        timing.may_expire = expires_messages(effective) or bool(timing.timed.own) or not timing.time_index_ready
        self.quota.configure(effective)
        self.host.check_soon(self)

    def moved_back(self) -> None:
        self.quota.moved_back()

    def expiry_ended(self, subscription: LogSubscription) -> None:
        self.quota.expired(subscription, self.host.clock.now_ms())

    def clock_moved(self, ms: int) -> None:
        """The broker's clock was moved by ``ms``: received messages keep their age."""
        self.log.clock_moved(ms)
        for subscription in self.subscriptions.values():
            subscription.clock_moved(ms)
        self.quota.moved_back()
        if self.timing.timed or not self.timing.time_index_ready:
            time_index.find(self)
        self.host.check_soon(self)

    # -- publishing ------------------------------------------------------------------------------------------

    def publish(
        self,
        producer: Producer,
        sequence_id: int,
        highest_sequence_id: int,
        metadata: wire.MessageMetadata,
        frame: bytes,
    ) -> None:
        """Store an entry; the producer gets its receipt when it is durable, or a named error."""
        host = self.host
        entry_log = self.log
        now = host.clock.now_ms()
        if now < entry_log.last_receive_ms:
            # Receive times never go back along a topic: expiry and retention search by them.
            now = entry_log.last_receive_ms
        size = len(frame)
        messages = metadata.num_messages_in_batch
        if self.terminated:
            self.refuse(producer, sequence_id, TopicTerminated(f"topic {self.name} is terminated"))
            return
        ttl_ms = -1
        try:
            if metadata.properties:
                ttl_ms = ttl_of(metadata.properties)
            if is_batch(metadata):
                of_messages = self.effective.ttl_in_batches is not False and may_hold_ttls(metadata, frame)
                if ttl_ms >= 0 or of_messages:
                    # With a TTL of its own a batch is opened when that ends: an invalid one is refused now.
                    inner = [ttl for ttl in ttls_in(metadata, frame) if ttl >= 0]
                    if of_messages:
                        ttl_ms = min(inner, default=-1)
        except InvalidMessageTtl as error:
            self.refuse(producer, sequence_id, error)
            return
        key_hash = sticky_hash(metadata)
        if self.quota.active and not self.quota.admits(producer, size, now):
            return
        if self.deduplication is not None and not self.deduplication.admits(
            producer, sequence_id, highest_sequence_id, metadata
        ):
            return
        # 0 if it is not set: asking for that first would take three times as long.
        deliver_at_ms = metadata.deliver_at_time
        if (ttl_ms >= 0 or deliver_at_ms > now) and not self.timing.has_timed:
            self.timing.has_timed = True
            self.persist()
        if metadata.num_chunks_from_msg > 1:
            self._chunk_arrived()
        taken_at = host.clock.monotonic()
        ledger = entry_log.open_ledger(now, taken_at * 1000)
        next_messages = entry_log.next_messages + messages
        next_bytes = entry_log.next_bytes + size
        entry = Entry(
            ledger.ledger_id,
            ledger.entries,
            now,
            metadata.publish_time,
            deliver_at_ms,
            ttl_ms,
            messages,
            key_hash,
            next_messages,
            next_bytes,
            frame,
        )
        entry.offset = offset = entry_log.next_offset
        entry.taken_at = taken_at
        # Counters and the producer's sequence id advance once the store has taken the entry.
        host.store.writer.append(self, entry)
        if self.deduplication is not None:
            self.deduplication.submitted(producer.name, offset)
        entry_log.next_messages = next_messages
        entry_log.next_bytes = next_bytes
        entry_log.next_offset = offset + 1
        ledger.entries += 1
        self.pending_answers.in_flight.append((producer, sequence_id, highest_sequence_id))
        entry_log.last_receive_ms = self.statistics.last_publish_ms = now
        if self.limits.publish_limit is not None:
            self.limits.publish_limit.published(messages, size)

    def last_sequence_id(self, producer_name: str) -> int:
        return -1 if self.deduplication is None else self.deduplication.last_sequence_id(producer_name)

    def _chunk_arrived(self) -> None:
        known = self.chunks_below > self.log.first_offset
        self.chunks_below = self.log.next_offset + 1
        if not known:
            self.persist()

    def never_fits(self, size: int) -> str | None:
        if not self.quota.never_admits(size):
            return None
        return (
            f"an entry of {size} bytes does not fit the backlog quota of {self.quota.size_limit} bytes of {self.name}"
        )

    def wait_for_room(self, waiter: object, resume: Callable[[], None], size: int) -> None:
        self.quota.hold_letters(waiter, resume, size)

    def refuse(self, producer: Producer, sequence_id: int, error: BrokerError) -> None:
        """Tell a producer that an entry is not stored, after the receipts of what came before it."""
        if self.deduplication is not None and isinstance(error, ChecksumFailed):
            self.deduplication.damaged(producer.name, sequence_id)
        answers = self.pending_answers
        answers.refuse(self.log.next_offset, producer, sequence_id, error)
        if not answers.in_flight:
            answers.send_refusals(self.log.next_offset, self._send_error)

    def entries_durable(self, entries: list[Entry]) -> None:
        """A group is synced: send the receipts, then offer the entries to every subscription."""
        answers = self.pending_answers
        while first := answers.before(entries):
            self.entries_durable(first)
            entries = entries[len(first) :]
        host = self.host
        cache = host.tail_cache
        tail = self.log.tail
        keep = bool(self.subscriptions)
        receipts: dict[Producer, list[Receipt]] = {}
        msg_in = bytes_in = 0
        for entry, (producer, sequence_id, highest) in zip(entries, answers.take(len(entries)), strict=True):
            size = len(entry.frame)
            producer.msg_in += entry.messages
            producer.bytes_in += size
            bytes_in += size
            msg_in += entry.messages
            receipt = (sequence_id, highest, entry.ledger_id, entry.entry_id)
            if producer in receipts:
                receipts[producer].append(receipt)
            else:
                receipts[producer] = [receipt]
            if keep:
                cache.add(tail, entry)
            if entry.ttl_ms >= 0 or entry.deliver_at_ms > entry.receive_ms:
                time_index.note(self, entry.offset, entry)
        self.statistics.msg_in += msg_in
        self.statistics.bytes_in += bytes_in
        # The topic's own state first: even if notifying others raises, it stays right.
        self.log.entries_durable(entries)
        end_offset = self.log.end_offset
        if self.deduplication is not None:
            self.deduplication.entries_durable(end_offset, receipts)
        for producer, of_producer in receipts.items():
            try:
                producer.sink.send_receipts(producer, of_producer)
            except Exception as error:
                host.containment.noted(self, "send receipts", error)
        answers.send_refusals(end_offset, self._send_error)
        if self.closed:
            return
        host.check_soon(self)
        self.timing.first_fresh_offset = entries[0].offset
        for subscription in self.subscriptions.values():
            if subscription.dispatcher is not None:
                subscription.dispatcher.notify()
        self.timing.first_fresh_offset = sys.maxsize

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        """The store could not keep ``entries``; everything submitted after them fails too, so no gap arises."""
        answers = self.pending_answers
        failed = answers.take(len(entries))
        # The topic's own state first, as when they are durable.
        if not answers.in_flight:
            self.log.submitted_lost()
        refusal = PersistenceError(f"the entry could not be stored: {error}")
        for producer, sequence_id, _ in failed:
            self._send_error(producer, sequence_id, refusal)
        answers.send_refusals(entries[-1].offset + 1, self._send_error)
        if not answers.in_flight and self.deduplication is not None:
            self.deduplication.entries_failed()
        self.disconnect({producer: None for producer, _, _ in failed})

    def disconnect(self, producers: Iterable[Producer]) -> None:
        """Let producers of which an entry is not stored come back: later ones, sent already, must not overtake it."""
        for producer in producers:
            registry = self.producer_registry
            # The producer of dead letters never registers. One that was replaced is not connected any more.
            if not registry.may_publish(producer):
                continue
            try:
                registry.disconnect(producer)
            except Exception as error:
                self.host.containment.noted(self, "close producers", error)

    def _send_error(self, producer: Producer, sequence_id: int, refusal: BrokerError) -> None:
        """Tell a producer that an entry is not stored; if that raises, the others are notified, too."""
        try:
            producer.sink.send_publish_error(producer.producer_id, sequence_id, refusal)
        except Exception as error:
            self.host.containment.noted(self, "send errors", error)

    # -- subscriptions ---------------------------------------------------------------------------------------

    def create_subscription(
        self,
        name: str,
        position: str = "latest",
        *,
        durable: bool = True,
        start_offset: int | None = None,
        properties: dict[str, str] | None = None,
    ) -> Subscription:
        """Create a subscription at ``latest``, ``earliest`` or an offset; it is written with the next group.

        Raises :class:`Conflict` if the name is taken, :class:`PreconditionFailed` if it is not a name or the
        properties are too large, and :class:`PersistenceError` if its place cannot be read.
        """
        if name in self.subscriptions:
            raise Conflict("Subscription already exists for topic")
        check_name(name)
        check_properties(properties or {})
        first_offset, end_offset = self.log.first_offset, self.log.end_offset
        if start_offset is None:
            start_offset = first_offset if position == "earliest" else end_offset
        start_offset = min(max(start_offset, first_offset), end_offset)
        subscription = Subscription(
            self,
            name,
            _cursor_before(self.log, start_offset),
            durable=durable,
            properties=properties,
            created_ms=self.host.clock.now_ms(),
        )
        self.subscriptions[name] = subscription
        self.subscriptions_changed_ms = monotonic_ms(self.host.clock)
        self.host.subscription_added(self, subscription)
        self.quota.moved_back()
        self.host.check_soon(self)
        if durable:
            # Not with the flush of what changed: a new subscriber gets its answer after the next group.
            self.records.commit(subscription)
        return subscription

    def restore_subscription(self, name: str, record: records.CursorRecord) -> None:
        """Put back a durable subscription at start-up."""
        cursor = Cursor.from_record(record)
        healed = invariants.heal_cursor(self.log, name, cursor)
        subscription = Subscription(self, name, cursor, properties=record.properties, created_ms=record.created_ms)
        if record.owed_from >= 0:
            subscription.view = CompactedView(subscription, record.owed_from)
        self.subscriptions[name] = subscription
        self.records.version = max(self.records.version, record.version)
        if healed:
            self.records.commit(subscription)
        self.host.subscription_added(self, subscription)

    def delete_subscription(self, name: str, force: bool = False, done: Done | None = None) -> None:
        subscription = self.subscription(name)
        self.disconnect_consumers(subscription, force=force)
        self.drop_subscription(subscription)
        if done is not None:
            self.records.when_durable(or_persistence_error(done))

    def drop_subscription(self, subscription: LogSubscription) -> None:
        """Forget a subscription that has no consumers."""
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            self.subscriptions_changed_ms = monotonic_ms(self.host.clock)
            if subscription.name == COMPACTION:
                self.compaction.forget()
        subscription.close()
        self.host.containment.forget(subscription)
        if subscription.durable:
            self.records.remove(subscription)
        self.host.check_soon(self)

    def cursor_moved(self, subscription: LogSubscription, done: Done | None) -> None:
        """A cursor changed: persist it with the next group if somebody waits for that, else soon."""
        self.host.check_soon(self)
        if not subscription.durable or subscription.closed:
            if done is not None:
                done(None)
        elif done is None:
            self.records.changed(subscription)
        else:
            self.records.commit(subscription, or_persistence_error(done))

    # -- trimming and persistence ----------------------------------------------------------------------------

    @property
    def record_sources(self) -> tuple[RecordSource, ...]:
        return (self.records,)

    def persist(self, durable: Durable | None = None) -> None:
        if durable is not None:
            self.records.changed(self, durable)
        self.records.commit(self)

    def trim(self, offset: int) -> int:
        """Delete all entries below ``offset`` (at most what every durable cursor has passed); return entries freed."""
        entry_log = self.log
        before = entry_log.first_offset
        offset = entry_log.trimmable(offset)
        if offset <= before:
            return 0
        if self.deduplication is not None:
            self.deduplication.trimming(offset)
        dropped = entry_log.trim(offset)
        time_index.trimmed(self)
        for subscription in self.subscriptions.values():
            acks = subscription.acks
            if acks.cursor.mark_delete < offset - 1:
                # Only a cursor that is not durable can be behind: entries that it had not read are gone for it.
                acks.acknowledge_trimmed(offset - 1, entry_log.trimmed_messages, entry_log.trimmed_bytes)
            if subscription.durable and acks.recorded_mark < offset - 1:
                # Acknowledgments may be written only later, once all entries of an acknowledgment are looked up.
                self.records.changed(subscription)
        # With the trim go the cursors it was derived from, and the snapshot of the trimmed entries.
        entry_log.release(dropped)
        return offset - before

    def encode_record(self, version: int) -> bytes:
        """Return the record of the topic itself."""
        entry_log = self.log
        record = records.TopicRecord(
            created_ms=self.created_ms,
            first_offset=entry_log.first_offset,
            trimmed_messages=entry_log.trimmed_messages,
            trimmed_bytes=entry_log.trimmed_bytes,
            base_offset=entry_log.base_offset,
            ledgers=entry_log.ledger_records(),
            epoch=self.producer_registry.topic_epoch,
            properties=self.properties,
            policies=self.policies,
            timed=self.timing.has_timed,
            chunked=self.chunks_below > entry_log.first_offset,
            terminated=self.terminated,
            compaction=self.compaction.record,
            version=version,
        )
        return records.encode(record)

    def terminate(self, done: Done) -> None:
        """Accept no more messages, permanently; consumers that have read everything are notified of the end."""
        self.terminated = True
        self.records.commit(self, or_persistence_error(done))
        self.close_producers()
        for subscription in list(self.subscriptions.values()):
            subscription.notify_end()

    def delete(self) -> None:
        """Remove everything the topic has in the store, after :meth:`close`."""
        if self.deduplication is not None:
            self.deduplication.close()
        for subscription in list(self.subscriptions.values()):
            self.drop_subscription(subscription)
        self.compaction.forget()
        self.log.delete()
        self.records.close()


def _cursor_before(entry_log: EntryLog, offset: int) -> Cursor:
    """Return a cursor that has acknowledged all entries below ``offset``, and counts none of them as its own."""
    if offset == entry_log.end_offset:
        return Cursor(offset - 1, entry_log.total_messages, entry_log.total_bytes)
    if offset == entry_log.first_offset:
        return Cursor(offset - 1, entry_log.trimmed_messages, entry_log.trimmed_bytes)
    return Cursor(offset - 1, *totals_up_to(entry_log, offset - 1))
