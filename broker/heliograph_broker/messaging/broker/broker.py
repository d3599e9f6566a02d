"""The broker's core: tenants, namespaces and topics, loaded from the store and kept durable in it.

Changes take effect in memory at once and are queued for the store's next group; who has to know that they are
durable asks ``store.after_commit``. Nothing here awaits, sleeps, or reads a clock other than the injected one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial

import msgspec
import structlog
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.policies.policies import DEFAULTS, MAX_PARTITIONS, Policies, resolve
from heliograph_api.values.names import TopicName

from heliograph_broker.clock import Clock, SteadyClock, monotonic_ms
from heliograph_broker.messaging.acknowledgment.stored_topic import StoredTopic
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.containment import Containment
from heliograph_broker.messaging.base.errors import (
    Conflict,
    Done,
    FewerPartitions,
    NamespaceNotFound,
    NotAllowed,
    PreconditionFailed,
    TenantNotFound,
    TopicNotFound,
    or_persistence_error,
)
from heliograph_broker.messaging.base.histograms import BrokerMetrics
from heliograph_broker.messaging.base.names import check_new_name, check_properties
from heliograph_broker.messaging.base.records import (
    BrokerPoliciesRecord,
    NamespaceRecord,
    PartitionedRecord,
    TenantRecord,
)
from heliograph_broker.messaging.base.tail_cache import TailCache
from heliograph_broker.messaging.clients.consumer import ConsumedTopic
from heliograph_broker.messaging.clients.producer import PublishTarget
from heliograph_broker.messaging.compaction.compaction_run import CompactionQueue
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.log import invariants
from heliograph_broker.messaging.log.record_set import BrokerRecords, RecordWriter
from heliograph_broker.messaging.log.sound_records import SoundRecords
from heliograph_broker.messaging.policies import timing
from heliograph_broker.messaging.policies.dead_letter import DeadLetters
from heliograph_broker.messaging.policies.delayed_topics import DelayedTopics
from heliograph_broker.messaging.policies.rate_limits import ThrottledSubscriptions
from heliograph_broker.messaging.schemas.schema_registry import SchemaRegistry
from heliograph_broker.messaging.topic.directory import AnyTopic, Directory
from heliograph_broker.messaging.topic.housekeeping import Housekeeping
from heliograph_broker.messaging.topic.non_persistent import NonPersistentTopic
from heliograph_broker.messaging.topic.topic import Topic, TopicHost
from heliograph_broker.storage.store import LedgerStore

from . import policy_wiring as gates
from .admission import auto_topic_creation, check_new_topics
from .deduplication_snapshots import Snapshots
from .inactivity import InactivityWatch
from .topic_list import TopicWatches

log = structlog.get_logger(__name__)

#: Interval at which the store is asked to give back disk space.
MAINTAIN_MS = 500
#: Topics that a change of policies reaches in one go; the others follow with the next ticks.
CONFIGURED_AT_ONCE = 50


class Broker(Directory, TopicHost):
    """See the module. ``topics`` holds every concrete topic by full name, ``partitioned`` the partitioned ones."""

    def __init__(self, store: LedgerStore, clock: Clock, config: BrokerConfig, rng: random.Random) -> None:
        self.store = store
        clock = self._steady = SteadyClock(clock)
        self.clock: Clock = clock
        self.config = config
        self.rng = rng
        self.tail_cache = TailCache(config.tail_cache_bytes)
        self.metrics = BrokerMetrics(clock)
        self.containment = Containment(clock)
        self.tenants: dict[str, TenantRecord] = {}
        self.namespaces: dict[str, NamespaceRecord] = {}
        self.partitioned: dict[str, PartitionedRecord] = {}
        self.topics: dict[str, AnyTopic] = {}
        self.topics_by_namespace: dict[str, dict[str, AnyTopic]] = {}
        #: Topics and subscriptions that no client knows of yet, see ``usecases.unconfirmed``.
        self.unconfirmed: set[object] = set()
        self.record_writer = RecordWriter(store, clock, self.containment)
        #: The durable state that belongs to no topic.
        self.records = BrokerRecords(self.record_writer)
        self.schemas = SchemaRegistry(self.records.put, self.records.delete)
        self.watches = TopicWatches()
        #: The policies that apply where no level sets any, and those that cap all levels.
        self.default_policies = Policies()
        self.broker_policies = DEFAULTS
        self.broker_limits = Policies()
        self.dead_letters = DeadLetters(self)
        self.compactions = CompactionQueue()
        self.housekeeping = Housekeeping(self.containment)
        self.snapshots = Snapshots(self)
        self.throttled = ThrottledSubscriptions(clock)
        self.inactivity = InactivityWatch(self)
        #: namespace -> what holds for its topics that have no policies of their own
        self._namespace_effective: dict[str, Policies] = {}
        #: Topics that are still to be notified of changed policies: thousands of them at once would hold up traffic.
        self._to_configure: dict[AnyTopic, None] = {}
        self._delayed_topics = DelayedTopics(self.containment)
        self._producer_serial = rng.getrandbits(32)
        #: When the last tick ended (monotonic, s): readiness asks for its age.
        self.ticked_at = clock.monotonic()
        #: When the store is maintained next, monotonic.
        self._next_maintain_ms = 0

    # -- start-up --------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read everything from the metadata store; create the defaults ``public`` and ``public/default``."""
        sound = SoundRecords(self.store, self.records, self.metrics, self.clock.now_ms())
        decode = msgspec.msgpack.decode
        self.tenants.update(sound.decoded(records.TENANT, TenantRecord))
        self.namespaces.update(sound.decoded(records.NAMESPACE, NamespaceRecord))
        self.partitioned.update(sound.decoded(records.PARTITIONED, PartitionedRecord))
        stored = sound.get(records.BROKER_SET)
        if stored is not None:
            self.records.version = decode(stored, type=records.BrokerSetRecord).version
        stored = sound.get(records.BROKER_POLICIES)
        if stored is not None:
            record = decode(stored, type=BrokerPoliciesRecord)
            self.default_policies, self.broker_limits = record.defaults, record.limits
            self.broker_policies = resolve(record.defaults, None, DEFAULTS)
        for name, versions in sound.decoded(records.SCHEMA, list[records.SchemaRecord]):
            self.schemas.restore(name, versions)
        self.snapshots.load(sound)
        self._load_topics(sound)
        if sound.complete:
            self.snapshots.loaded()
        if "public" not in self.tenants:
            self.create_tenant("public", TenantRecord(allowed_clusters=[self.config.cluster_name]))
        if "public/default" not in self.namespaces:
            self.create_namespace("public/default", NamespaceRecord())

    def _load_topics(self, sound: SoundRecords) -> None:
        topic_decoder = msgspec.msgpack.Decoder(records.TopicRecord)
        cursor_decoder = msgspec.msgpack.Decoder(records.CursorRecord)
        kept: dict[int, int] = {}
        for key, value in sound.scan(records.TOPIC):
            name = TopicName.parse(key[len(records.TOPIC) :].decode())
            topic = Topic(self, name, topic_decoder.decode(value))
            invariants.heal_totals(topic)
            kept.update(topic.retain_in_store() | topic.compaction.retained_ledgers())
            self._register(topic)
        for key, value in sound.scan(records.DAMAGED):
            found = self.topics.get(key[len(records.DAMAGED) :].decode())
            if isinstance(found, Topic):
                found.damaged.restore(value)
            else:
                self.records.delete(key)
        for key, value in sound.scan(records.CURSOR):
            full_name, _, subscription = key[len(records.CURSOR) :].decode().partition("\0")
            found = self.topics.get(full_name)
            if isinstance(found, Topic):
                found.restore_subscription(subscription, cursor_decoder.decode(value))
            else:
                # A topic of that name that comes later is another one.
                invariants.note(self.metrics, invariants.OWNER, topic=full_name, subscription=subscription)
                self.records.delete(key)
        self.store.retain_ledgers(kept, keep_unknown=not sound.complete)
        for restored in self.topics.values():
            if isinstance(restored, Topic) and restored.has_timed:
                timing.find(restored)

    def _register(self, topic: AnyTopic) -> None:
        full_name = str(topic.name)
        self.topics[full_name] = topic
        self.topics_by_namespace.setdefault(topic.name.namespace_name, {})[full_name] = topic
        self._configure(topic)

    def _configure(self, topic: AnyTopic) -> None:
        topic.configure(self.effective_policies(topic.name))
        gates.configure(self, topic, self.throttled, self.snapshots)
        self.inactivity.configured(topic)

    # -- host of topics --------------------------------------------------------------------------------------

    def check_soon(self, topic: Topic) -> None:
        self.housekeeping.changed(topic)

    def subscription_added(self, topic: Topic, subscription: Subscription) -> None:
        gates.configure_subscription(self, topic, subscription, self.throttled)

    def watch_inactivity(self, topic: Topic) -> None:
        self.inactivity.configured(topic)

    def wake_delayed(self, topic: StoredTopic, due_ms: int) -> None:
        self._delayed_topics.wake(topic, due_ms)

    def tick(self) -> bool:
        """Do what time brings: flush cursors, deliver delayed entries, apply policies. Call it every ~50 ms.

        Returns whether more is due at once; traffic should have its turn before the next call.
        """
        attempt = self.containment.attempt
        moved_ms = self._steady.follow()
        if moved_ms:
            self._clock_moved(moved_ms)
        now = self.clock.now_ms()
        attempt("records", "flush", self.record_writer.run)
        attempt("delayed delivery", "run", partial(self._delayed_topics.run, now))
        attempt("store", "maintain", self._maintain_when_due)
        attempt("topic watchers", "tell", self.watches.run)
        attempt("containment", "retry", self.containment.run)
        attempt("dispatch rates", "resume", self.throttled.run)
        attempt("inactivity", "delete", self.inactivity.run)
        attempt("deduplication", "forget", self.snapshots.run)
        began = self.clock.monotonic()
        more = self._configure_some()
        more = bool(attempt("housekeeping", "run", partial(self.housekeeping.run, now))) or more
        self.ticked_at = self.clock.monotonic()
        self.metrics.policy_checks.observe(self.ticked_at - began)
        return more

    def _clock_moved(self, ms: int) -> None:
        """The machine's clock was set and has kept its new time: stored entries keep their ages by the new time."""
        log.warning("the wall clock was set and the broker follows it", by_ms=ms)
        topics = [topic for topic in self.topics.values() if isinstance(topic, Topic)]
        for topic in topics:
            self.containment.attempt(topic, "clock", partial(topic.clock_moved, ms))
        self.housekeeping.clock_moved(topics)

    def _maintain_when_due(self) -> None:
        now_ms = monotonic_ms(self.clock)
        if now_ms >= self._next_maintain_ms:
            self._next_maintain_ms = now_ms + MAINTAIN_MS
            self.store.maintain()

    def when_durable(self, topic: PublishTarget | ConsumedTopic | None, done: Done) -> None:
        """Call ``done`` once the broker's and the topic's records are durable, or with a :class:`PersistenceError`."""
        rests_on = (self.records, topic.records) if isinstance(topic, Topic) else (self.records,)
        self.store.after_commit(or_persistence_error(done), rests_on)

    def flush_records(self) -> None:
        """Write every record that changed with the next group."""
        self.record_writer.flush()

    # -- tenants and namespaces ------------------------------------------------------------------------------

    def create_tenant(self, name: str, record: TenantRecord) -> None:
        if name in self.tenants:
            raise Conflict("Tenant already exist")
        self._check_tenant(record)
        check_new_name("tenant", name)
        self.records.put(records.TENANT + name.encode(), records.encode(record))
        self.tenants[name] = record

    def update_tenant(self, name: str, record: TenantRecord) -> None:
        if name not in self.tenants:
            raise TenantNotFound("Tenant does not exist")
        self._check_tenant(record)
        self.records.put(records.TENANT + name.encode(), records.encode(record))
        self.tenants[name] = record
        self._policies_changed(lambda topic: topic.name.tenant == name)

    def _check_tenant(self, record: TenantRecord) -> None:
        if any(cluster != self.config.cluster_name for cluster in record.allowed_clusters):
            raise PreconditionFailed("Clusters do not exist")

    def delete_tenant(self, name: str) -> None:
        if name not in self.tenants:
            raise TenantNotFound("Tenant does not exist")
        if any(namespace.startswith(f"{name}/") for namespace in self.namespaces):
            raise NotAllowed("The tenant still has active namespaces")
        del self.tenants[name]
        self.records.delete(records.TENANT + name.encode())

    def create_namespace(self, name: str, record: NamespaceRecord) -> None:
        tenant = name.partition("/")[0]
        if tenant not in self.tenants:
            raise TenantNotFound("Tenant does not exist")
        if name in self.namespaces:
            raise Conflict("Namespace already exists")
        check_new_name("namespace", name)
        check_properties(record.properties)
        if not record.replication_clusters:
            record.replication_clusters = [self.config.cluster_name]
        self.records.put(records.NAMESPACE + name.encode(), records.encode(record))
        self.namespaces[name] = record
        self._namespace_effective.pop(name, None)

    def namespace(self, name: str) -> NamespaceRecord:
        """Raises :class:`NamespaceNotFound`."""
        record = self.namespaces.get(name)
        if record is None:
            raise NamespaceNotFound("Namespace does not exist")
        return record

    def delete_namespace(self, name: str, force: bool = False) -> None:
        self.namespace(name)
        topics = self.topics_by_namespace.get(name, {})
        partitioned = [base for base in self.partitioned if TopicName.parse(base).namespace_name == name]
        if (topics or partitioned) and not force:
            raise NotAllowed("Cannot delete non empty namespace")
        for base in partitioned:
            self.delete_partitioned_topic(TopicName.parse(base), force=True)
        for topic in list(topics.values()):
            self.delete_topic(topic.name, force=True)
        self.schemas.delete_namespace(name)
        del self.namespaces[name]
        self._namespace_effective.pop(name, None)
        self.topics_by_namespace.pop(name, None)
        self.records.delete(records.NAMESPACE + name.encode())

    def _change_namespace(self, name: str, record: NamespaceRecord) -> None:
        self.records.put(records.NAMESPACE + name.encode(), records.encode(record))
        self.namespaces[name] = record

    def set_namespace_policies(self, name: str, policies: Policies) -> None:
        self._change_namespace(name, msgspec.structs.replace(self.namespace(name), policies=policies))
        self._policies_changed(lambda topic: topic.name.namespace_name == name)

    def set_namespace_bundles(self, name: str, bundles: int) -> None:
        """Cut its topics' hashes into another number of equal parts."""
        self._change_namespace(name, msgspec.structs.replace(self.namespace(name), bundles=bundles))

    def set_namespace_properties(self, name: str, properties: dict[str, str]) -> None:
        check_properties(properties)
        self._change_namespace(name, msgspec.structs.replace(self.namespace(name), properties=properties))

    def set_broker_policies(self, defaults: Policies, limits: Policies) -> None:
        """Set what holds where no level says anything, and what caps all levels."""
        self.default_policies = defaults
        self.broker_policies = resolve(defaults, None, DEFAULTS)
        self.broker_limits = limits
        self.records.put(records.BROKER_POLICIES, records.encode(BrokerPoliciesRecord(defaults, limits)))
        self._policies_changed(lambda topic: True)

    def _policies_changed(self, concerned: Callable[[AnyTopic], bool]) -> None:
        self._namespace_effective.clear()
        for topic in self.topics.values():
            if concerned(topic):
                self._to_configure[topic] = None
        self._configure_some()

    def _configure_some(self) -> bool:
        """Tell some of the topics that wait for it what their policies are now; return whether more wait."""
        waiting = self._to_configure
        for _ in range(min(CONFIGURED_AT_ONCE, len(waiting))):
            self.configure_waiting(next(iter(waiting)))
        return bool(waiting)

    def configure_waiting(self, topic: AnyTopic) -> None:
        waiting = self._to_configure
        if topic not in waiting:
            return
        del waiting[topic]
        if not topic.closed:
            self.containment.attempt(
                topic, "configure", partial(self._configure, topic), partial(waiting.setdefault, topic)
            )

    # -- topics ----------------------------------------------------------------------------------------------

    def may_auto_create(self, name: TopicName) -> bool:
        """Whether a client that names a missing topic gets it: by the switch, and never an odd partition."""
        if name.partition >= 0:
            return name.partition < self.partitions_of(name.base)
        return str(name) not in self.partitioned and auto_topic_creation(self, name).allow

    def get_or_create_topic(self, name: TopicName, *, create: bool = True) -> AnyTopic:
        """Return a topic, created if the rules of automatic creation allow it.

        Raises :class:`NamespaceNotFound`, :class:`TopicNotFound`, or :class:`NotAllowed` for a partitioned name.
        """
        topic = self.topics.get(str(name))
        if topic is not None:
            return topic
        self.namespace(name.namespace_name)
        if str(name) in self.partitioned:
            raise NotAllowed(f"Topic {name} is partitioned: use its partitions {name.with_partition(0)} and on")
        if name.partition >= 0 and name.partition >= self.partitions_of(name.base):
            raise TopicNotFound(f"Topic {name} not found: {name.base} has {self.partitions_of(name.base)} partitions")
        if not create or not self.may_auto_create(name):
            raise TopicNotFound(f"Topic {name} not found")
        if name.partition < 0:
            check_new_topics(self, name, 1, partitioned=False)
        return self._create(name, {})

    def create_topic(self, name: TopicName, properties: dict[str, str] | None = None) -> AnyTopic:
        """Create a topic that is not partitioned. Raises :class:`Conflict` or :class:`NamespaceNotFound`."""
        self.namespace(name.namespace_name)
        if self.exists(name):
            self.redeclared(name)
            raise Conflict("This topic already exists")
        if name.partition >= 0 and name.partition >= self.partitions_of(name.base):
            raise PreconditionFailed(
                f"'{name.local}' is the name of a partition: create '{name.base}' with partitions instead"
            )
        check_new_topics(self, name, 1, partitioned=False)
        return self._create(name, properties or {})

    def _create(self, name: TopicName, properties: dict[str, str]) -> AnyTopic:
        check_properties(properties)
        topic: AnyTopic
        if name.is_persistent:
            record = records.TopicRecord(created_ms=self.clock.now_ms(), properties=properties, chunked=False)
            persistent = topic = Topic(self, name, record)
            persistent.records.commit(persistent)
        else:
            topic = NonPersistentTopic(self, name)
            topic.properties = properties
        self._register(topic)
        if topic.persistent:
            self.watches.created(name.namespace_name, str(name))
        return topic

    def create_partitioned_topic(
        self, name: TopicName, partitions: int, properties: dict[str, str] | None = None
    ) -> None:
        """Create a partitioned topic and its partitions."""
        self.namespace(name.namespace_name)
        if name.partition >= 0:
            raise PreconditionFailed("Partitioned Topic Name should not contain '-partition-'")
        if self.exists(name):
            self.redeclared(name)
            raise Conflict("This topic already exists")
        if not 0 < partitions <= MAX_PARTITIONS:
            raise PreconditionFailed(f"Number of partitions should be between 1 and {MAX_PARTITIONS}, not {partitions}")
        check_new_topics(self, name, partitions, partitioned=True)
        check_properties(properties or {})
        record = PartitionedRecord(partitions, properties or {})
        self.records.put(records.PARTITIONED + str(name).encode(), records.encode(record))
        self.partitioned[str(name)] = record
        self._create_partitions(name, range(partitions))

    def update_partitions(self, name: TopicName, partitions: int) -> None:
        """Add partitions, with the subscriptions of the others; they can never be fewer."""
        record = self.partitioned.get(str(name))
        if record is None:
            raise TopicNotFound(f"Topic {name} not found or not partitioned")
        if partitions < record.partitions:
            raise FewerPartitions(
                f"Desired partitions {partitions} can't be less than the current partitions {record.partitions}."
            )
        if partitions > MAX_PARTITIONS:
            raise PreconditionFailed(f"Number of partitions should be at most {MAX_PARTITIONS}, not {partitions}")
        added = range(record.partitions, partitions)
        check_new_topics(self, name, len(added), partitioned=True)
        record.partitions = partitions
        self.records.put(records.PARTITIONED + str(name).encode(), records.encode(record))
        self._create_partitions(name, added)

    def create_missed_partitions(self, name: TopicName) -> None:
        """Create again the partitions that were deleted one by one. Raises :class:`TopicNotFound`."""
        if str(name) not in self.partitioned:
            raise TopicNotFound(f"Topic {name} does not exist")
        self._create_partitions(name, self.missing_partitions(name))

    def _create_partitions(self, name: TopicName, indexes: Iterable[int]) -> None:
        """Create partitions, with the subscriptions of the others: or what comes before a consumer is lost to it."""
        there = (self.topics.get(str(name.with_partition(index))) for index in range(self.partitions_of(name)))
        first = next((part for part in there if isinstance(part, Topic)), None)
        durable = [one.name for one in first.subscriptions.values() if one.durable] if first is not None else []
        for index in indexes:
            if str(name.with_partition(index)) in self.topics:
                continue
            topic = self._create(name.with_partition(index), {})
            if isinstance(topic, Topic):
                for subscription in durable:
                    topic.create_subscription(subscription, "earliest")

    def redeclared(self, name: TopicName) -> None:
        """Somebody declared a topic that exists: the time after which it counts as unused begins again."""
        base = name.base
        names = [base.with_partition(index) for index in range(self.partitions_of(base))] or [name]
        for one in names:
            topic = self.topics.get(str(one))
            if topic is not None:
                topic.used()

    def unload_topic(self, name: TopicName) -> None:
        """Ask every client of a topic to reconnect; what they acknowledged is written with the next group."""
        topic = self.get_topic(name)
        self.flush_records()
        topic.disconnect_clients()

    def delete_topic(self, name: TopicName, force: bool = False) -> None:
        """Delete a topic with its data and subscriptions.

        One with connected clients is refused unless ``force``, which disconnects them.
        """
        topic = self.get_topic(name)
        if not force:
            _check_no_clients(topic)
        if topic.publish_limit is not None:
            topic.publish_limit.release()
        topic.close()
        topic.delete()
        self.inactivity.forget(topic)
        del self.topics[str(name)]
        self.topics_by_namespace[name.namespace_name].pop(str(name), None)
        if isinstance(topic, Topic):
            self.housekeeping.forget(topic)
            self._delayed_topics.forget(topic)
        if name.partition < 0:
            self.schemas.delete(self.schema_key(name))
        self.watches.deleted(name.namespace_name, str(name))

    def delete_partitioned_topic(self, name: TopicName, force: bool = False) -> None:
        """Delete a partitioned topic and all its partitions, or nothing."""
        record = self.partitioned.get(str(name))
        if record is None:
            raise TopicNotFound(f"Topic {name} not found or not partitioned")
        parts = [self.topics.get(str(name.with_partition(index))) for index in range(record.partitions)]
        if not force:
            for part in parts:
                if part is not None:
                    _check_no_clients(part)
        for part in parts:
            if part is not None:
                self.delete_topic(part.name, force=True)
        del self.partitioned[str(name)]
        self.records.delete(records.PARTITIONED + str(name).encode())
        self.schemas.delete(self.schema_key(name))

    # -- policies --------------------------------------------------------------------------------------------

    def topic_policies(self, name: TopicName) -> Policies | None:
        """Return what is set at the topic itself (for a partition: at its partitioned topic)."""
        record = self.partitioned.get(str(name.base))
        if record is not None:
            return record.policies
        topic = self.topics.get(str(name))
        return topic.policies if topic is not None else None

    def set_topic_policies(self, name: TopicName, policies: Policies) -> None:
        record = self.partitioned.get(str(name.base))
        if record is not None:
            record.policies = policies
            self.records.put(records.PARTITIONED + str(name.base).encode(), records.encode(record))
        else:
            topic = self.get_topic(name)
            topic.policies = policies
            if isinstance(topic, Topic):
                topic.records.commit(topic)
        base = str(name.base)
        self._policies_changed(lambda topic: str(topic.name.base) == base)

    def effective_policies(self, name: TopicName) -> Policies:
        """Return what holds for a topic: topic, else namespace, else broker, capped by tenant and broker.

        The answer is shared by the namespace's topics: not to be changed.
        """
        own = self.topic_policies(name)
        if own is not None:
            return self._resolve(own, name.namespace_name)
        effective = self._namespace_effective.get(name.namespace_name)
        if effective is None:
            effective = self._namespace_effective[name.namespace_name] = self._resolve(None, name.namespace_name)
        return effective

    def _resolve(self, own: Policies | None, namespace: str) -> Policies:
        record = self.namespaces.get(namespace)
        tenant = self.tenants.get(namespace.partition("/")[0])
        return resolve(
            own,
            record.policies if record is not None else None,
            self.broker_policies,
            [tenant.limits, self.broker_limits] if tenant is not None else [self.broker_limits],
        )

    # -- names -----------------------------------------------------------------------------------------------

    def schema_key(self, name: TopicName) -> str:
        """Return the name a topic's schemas are kept under; partitions share their topic's."""
        return str(name.base)

    def generate_producer_name(self) -> str:
        """Return a producer name that no producer has."""
        self._producer_serial += 1
        return f"{self.config.cluster_name}-{self.rng.getrandbits(24):x}-{self._producer_serial}"


def _check_no_clients(topic: AnyTopic) -> None:
    """Raises :class:`PreconditionFailed` while clients are connected to ``topic``."""
    if topic.producers:
        raise PreconditionFailed(f"Topic {topic.name} has {len(topic.producers)} connected producers")
    if any(subscription.consumers for subscription in topic.subscriptions.values()):
        raise PreconditionFailed(f"Topic {topic.name} has active subscriptions with connected consumers")
