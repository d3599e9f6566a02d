"""Topic compaction: the last value of each key in a ledger of its own, which outlives the originals.

A compaction covers a topic up to its *horizon*. What it keeps is found by :mod:`.latest_keys`, written by
:mod:`.compaction_run` and read by :mod:`.compacted_view`. The durable subscription ``__compaction`` stands behind the
horizon, so that nothing is trimmed before it was looked at. The topic's record says which ledger counts; one that is
being made is provisional until then, see :mod:`heliograph_broker.storage.base.tombstones`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.base.errors import BrokerError, Conflict
from heliograph_broker.messaging.base.log_host import LogHost
from heliograph_broker.messaging.base.names import COMPACTION
from heliograph_broker.messaging.base.records import CompactionRecord
from heliograph_broker.messaging.log.subscribed_topic import SubscribedTopic
from heliograph_broker.storage.base.tombstones import Tombstone

from .compacted_ledger import CompactedLedger
from .compaction_run import Cancelled, CompactionRun

if TYPE_CHECKING:
    from heliograph_api.policies.policies import Policies

    from heliograph_broker.messaging.log.subscribed_topic import LogSubscription

    from .compaction_run import CompactionQueue

log = structlog.get_logger(__name__)

#: After a failure, compaction by the threshold waits for this time (ms); it can be started manually at once.
RETRY_MS = 60_000


class CompactionHost(LogHost):
    """The services of the broker that a compacted log uses."""

    compactions: CompactionQueue


class CompactedTopic(SubscribedTopic):
    """A topic that can be compacted, as its compaction knows it."""

    __slots__ = ()

    host: CompactionHost

    def create_subscription(self, name: str, position: str = "latest") -> LogSubscription:
        """Create a subscription at ``latest`` or ``earliest``; it is written with the next group."""
        raise NotImplementedError

    @property
    def record_key(self) -> bytes:
        """The key of the topic's own record; it never changes."""
        raise NotImplementedError

    def encode_record(self, version: int) -> bytes:
        """Return the record of the topic itself."""
        raise NotImplementedError


class TopicCompaction:
    """The compaction of a topic, and the run under way. Counters are of this life of the broker, times in ms."""

    __slots__ = (
        "_error",
        "_outcome",
        "_retry_at_ms",
        "_run",
        "_started_ms",
        "_topic",
        "duration_ms",
        "failed_ms",
        "ledger",
        "read_bytes",
        "removed",
        "succeeded_ms",
        "written_bytes",
    )

    def __init__(self, topic: CompactedTopic, record: CompactionRecord | None) -> None:
        self._topic = topic
        #: The ledger of the last compaction, None if there was none.
        self.ledger = None if record is None else CompactedLedger(topic.host.store.reader, record)
        #: Under way, or waiting for its turn.
        self._run: CompactionRun | None = None
        self._outcome = "NOT_RUN"
        self._error = ""
        self._started_ms = 0
        #: When the last success and the last failure came, and how long the last run took.
        self.succeeded_ms = 0
        self.failed_ms = 0
        #: When the threshold may begin another one after a failure (monotonic).
        self._retry_at_ms = 0
        self.duration_ms = 0
        #: Messages the last run left out.
        self.removed = 0
        self.read_bytes = 0
        self.written_bytes = 0

    @property
    def record(self) -> CompactionRecord | None:
        """The compaction in the topic's record."""
        return None if self.ledger is None else self.ledger.record

    @property
    def horizon(self) -> int:
        """Offset of the last entry that is compacted, -1 if none is."""
        return -1 if self.ledger is None else self.ledger.horizon

    def status(self) -> tuple[str, str]:
        """Return NOT_RUN, RUNNING, SUCCESS or ERROR, and what went wrong."""
        return ("RUNNING", "") if self._run is not None else (self._outcome, self._error)

    # -- running -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to compact everything published so far. Raises :class:`Conflict` if that is under way."""
        if self._run is not None:
            raise Conflict("Compaction already in progress")
        topic = self._topic
        self._keep_originals()
        self._started_ms = topic.host.clock.now_ms()
        if topic.log.end_offset - 1 <= self.horizon:
            # Nothing came since. After a crash the cursor may still be behind.
            topic.subscriptions[COMPACTION].acks.acknowledge_up_to(self.horizon, None)
            self._succeeded()
            return
        self._run = run = CompactionRun(
            topic,
            self.ledger,
            retain_null_key=topic.host.config.compaction_retain_null_key,
            done=lambda result: self._ended(run, result),
        )
        topic.host.compactions.submit(run)

    def maybe_start(self, policies: Policies) -> None:
        """Begin if uncompacted entries have reached the policy's threshold (bytes). Cheap if there is nothing to do.

        From the first call on nothing is trimmed before it is compacted: call it before the topic is trimmed.
        """
        threshold = policies.compaction_threshold
        if not threshold or self._run is not None or self._topic.closed:
            return
        backlog = self._keep_originals()
        if backlog < threshold or self._topic.log.end_offset - 1 <= self.horizon:
            return
        if self.retry_ms(0) is not None:
            return
        self.start()

    def retry_ms(self, now_ms: int) -> int | None:
        """Return when :meth:`maybe_start` may begin again after a failure (wall-clock ms), None if it did not fail."""
        if self._outcome != "ERROR" or self._run is not None or not self._topic.effective.compaction_threshold:
            return None
        wait_ms = self._retry_at_ms - monotonic_ms(self._topic.host.clock)
        return now_ms + wait_ms if wait_ms > 0 else None

    def _keep_originals(self) -> int:
        """Make sure that nothing is trimmed before it is compacted; return the bytes still to compact."""
        subscription = self._topic.subscriptions.get(COMPACTION)
        if subscription is None:
            subscription = self._topic.create_subscription(COMPACTION, "earliest")
        return subscription.acks.backlog_bytes

    def _ended(self, run: CompactionRun, result: CompactionRecord | Exception) -> None:
        topic = self._topic
        self.read_bytes += run.read_bytes
        self.written_bytes += run.written_bytes
        if isinstance(result, Exception):
            self._conclude(run, result)
            topic.host.compactions.finished(run)
            return
        replaced = self.ledger
        self.removed = run.removed
        self.ledger = CompactedLedger(topic.host.store.reader, result)

        def recorded(error: Exception | None) -> None:
            if error is None and not topic.closed:
                subscription = topic.subscriptions.get(COMPACTION)
                if subscription is not None:
                    subscription.acks.acknowledge_up_to(result.horizon, lambda refusal: self._conclude(run, refusal))
                    topic.host.compactions.finished(run)
                    return
            self._conclude(run, error)
            topic.host.compactions.finished(run)

        # Until the record is durable a crash brings the previous ledger back, and entries it left out must be there.
        if result.ledger_id >= 0:
            topic.records.remove(Tombstone(result.ledger_id))
        if replaced is not None:
            self._discard(replaced)
        topic.records.commit(topic, recorded)

    def _discard(self, compacted: CompactedLedger) -> None:
        """Give up a ledger together with the topic's record that does not name it any more."""
        ledger_id = compacted.ledger_id
        if ledger_id >= 0:
            store = self._topic.host.store
            self._topic.records.changed(Tombstone(ledger_id), partial(store.ledgers.tombstone_durable, ledger_id))

    def _conclude(self, run: CompactionRun, error: Exception | BrokerError | None) -> None:
        if self._run is not run:
            return
        self._run = None
        if error is None:
            self._succeeded()
            return
        clock = self._topic.host.clock
        self.duration_ms = clock.now_ms() - self._started_ms
        self._outcome, self._error = "ERROR", str(error)
        self.failed_ms = clock.now_ms()
        self._retry_at_ms = monotonic_ms(clock) + RETRY_MS
        if not isinstance(error, Cancelled):
            log.error("compaction failed", topic=str(self._topic.name), error=str(error))

    def _succeeded(self) -> None:
        self._outcome, self._error = "SUCCESS", ""
        self.succeeded_ms = self._topic.host.clock.now_ms()
        self.duration_ms = self.succeeded_ms - self._started_ms

    def forget(self) -> None:
        """Drop the compacted ledger; ``__compaction`` was deleted, or the topic."""
        topic = self._topic
        run, self._run = self._run, None
        if run is not None:
            run.cancel()
        self._outcome, self._error = "NOT_RUN", ""
        dropped, self.ledger = self.ledger, None
        if dropped is None:
            return
        self._discard(dropped)
        topic.persist()

    def retained_ledgers(self) -> dict[int, int]:
        """Return ledger id -> first entry kept, for the store's clean-up at start."""
        return {} if self.ledger is None or self.ledger.ledger_id < 0 else {self.ledger.ledger_id: 0}

    # -- positions ---------------------------------------------------------------------------------------------

    def last_position(self) -> tuple[int, int, int] | None:
        """Return ledger id, entry id and batch index (-1: no batch) of the last message of the compacted view.

        None if the topic goes on behind the horizon, or nothing is compacted; all -1 if the view is empty.
        """
        ledger = self.ledger
        if ledger is None or self._topic.log.end_offset - 1 > ledger.horizon:
            return None
        record = ledger.record
        if record.last_offset < 0:
            return -1, -1, -1
        return *ledger.position(record.last_offset), record.last_batch_index

    def trimmed_from(self, ledger_id: int, entry_id: int) -> int:
        """Return the offset at which the view of an old position begins, -1 if its original is still there.

        ``ledger_id`` -1 is the topic's beginning.
        """
        if self.ledger is None:
            return -1
        return self._if_trimmed(0 if ledger_id < 0 else self.ledger.offset_at_or_after(ledger_id, entry_id))

    def trimmed_published_at_or_after(self, publish_ms: int) -> int:
        """As :meth:`trimmed_from`, by publish time (ms)."""
        if self.ledger is None:
            return -1
        return self._if_trimmed(self.ledger.offset_at(self.ledger.index_published_at_or_after(publish_ms)))

    def _if_trimmed(self, offset: int) -> int:
        return offset if offset < self._topic.log.first_offset else -1
