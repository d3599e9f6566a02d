"""The broker's core: tenants, namespaces and topics, loaded from the store and kept durable in it.

Changes take effect in memory at once and are queued for the store's next group; who has to know that they are
durable asks ``store.writer.after_commit``. Nothing here awaits, sleeps, or reads a clock other than the injected one.
"""

from __future__ import annotations

import random

import msgspec
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.resources.role_state import RoleSettings
from heliograph_api.values.names import TopicName

from heliograph_broker.clock import Clock, SteadyClock
from heliograph_broker.messaging.acknowledgment.stored_topic import StoredTopic
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.containment import Containment
from heliograph_broker.messaging.base.errors import Done, or_persistence_error
from heliograph_broker.messaging.base.histograms import BrokerMetrics
from heliograph_broker.messaging.base.names import ProducerNames
from heliograph_broker.messaging.base.records import (
    BrokerPoliciesRecord,
    NamespaceRecord,
    PartitionedRecord,
    TenantRecord,
)
from heliograph_broker.messaging.base.tail_cache import TailCache
from heliograph_broker.messaging.clients.client_topic import ClientTopic
from heliograph_broker.messaging.clients.disk_waits import DiskWaits
from heliograph_broker.messaging.compaction.compaction_run import CompactionQueue
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.log import invariants
from heliograph_broker.messaging.log.record_set import BrokerRecords, RecordWriter
from heliograph_broker.messaging.log.sound_records import SoundRecords
from heliograph_broker.messaging.policies import time_index
from heliograph_broker.messaging.policies.dead_letter import DeadLetters
from heliograph_broker.messaging.policies.delayed_topics import DelayedTopics
from heliograph_broker.messaging.schemas.schema_registry import SchemaRegistry
from heliograph_broker.messaging.topic.directory import AnyTopic, Directory
from heliograph_broker.messaging.topic.housekeeping import Housekeeping
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.store import LedgerStore

from .applied_policies import AppliedPolicies
from .deduplication_snapshots import Snapshots
from .inactivity import InactivityWatch
from .namespaces import Namespaces, Tenants
from .partitioned_topics import PartitionedTopics
from .parts import BrokerParts
from .policy_levels import PolicyLevels
from .roles import Roles
from .ticks import Ticks
from .topic_list import TopicWatches
from .topics import Topics


class Broker(BrokerParts):
    """The parts of a broker, which know each other by their owner."""

    def __init__(self, store: LedgerStore, clock: Clock, config: BrokerConfig, rng: random.Random) -> None:
        self.store = store
        steady = SteadyClock(clock)
        self.clock = steady
        self.config = config
        self.tail_cache = TailCache(config.tail_cache_bytes)
        self.metrics = BrokerMetrics(steady)
        self.containment = Containment(steady)
        self.record_writer = RecordWriter(store.writer, steady, self.containment)
        self.records = BrokerRecords(self.record_writer)
        self.schemas = SchemaRegistry(self.records.put, self.records.delete)
        self.watches = TopicWatches()
        self.compactions = CompactionQueue()
        self.housekeeping = Housekeeping(self.containment, DiskWaits(store.space, steady))
        self.delayed_topics = DelayedTopics(self.containment)
        self.directory = Directory()
        self.policies = PolicyLevels(self.directory, self.records, config)
        self.roles = Roles(self.records, self.directory, steady)
        snapshots = Snapshots(self.directory, self.records, self.containment)
        self.applied = AppliedPolicies(self.policies, self.directory, snapshots, config, steady, self.containment)
        self.inactivity = InactivityWatch(self.directory, self.applied, steady, self.containment, self._delete_unused)
        self.topics = Topics(self)
        self.partitioned = PartitionedTopics(self, self.topics)
        self.namespaces = Namespaces(self, self.topics, self.partitioned)
        self.tenants = Tenants(self)
        letters = f"{config.cluster_name}-dead-letters-{rng.getrandbits(32):08x}"
        self.dead_letters = DeadLetters(letters, self.directory, self.topics.create)
        self.producer_names = ProducerNames(config.cluster_name, rng)
        self.ticks = Ticks(self, self.topics.growth, steady)

    # -- start-up --------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read everything from the metadata store; create the defaults ``public`` and ``public/default``."""
        sound = SoundRecords(self.store.metadata, self.records, self.metrics, self.clock.now_ms())
        decode = msgspec.msgpack.decode
        self.directory.tenants.update(sound.decoded(records.TENANT, TenantRecord))
        self.directory.namespaces.update(sound.decoded(records.NAMESPACE, NamespaceRecord))
        self.directory.partitioned.update(sound.decoded(records.PARTITIONED, PartitionedRecord))
        stored = sound.get(records.BROKER_SET)
        if stored is not None:
            self.records.version = decode(stored, type=records.BrokerSetRecord).version
        stored = sound.get(records.BROKER_POLICIES)
        if stored is not None:
            self.policies.restore(decode(stored, type=BrokerPoliciesRecord))
        for role, settings in sound.decoded(records.ROLE, RoleSettings):
            self.roles.restore(role, settings)
        for name, versions in sound.decoded(records.SCHEMA, list[records.SchemaRecord]):
            self.schemas.restore(name, versions)
        stored = sound.get(records.BROKER_SETTINGS)
        if stored is not None:
            self.policies.restore_settings(decode(stored, type=records.BrokerSettingsRecord))
        self.applied.snapshots.load(sound)
        self._load_topics(sound)
        self.topics.growth.restore()
        if sound.complete:
            self.applied.snapshots.loaded()
        if "public" not in self.directory.tenants:
            self.tenants.create("public", TenantRecord(allowed_clusters=[self.config.cluster_name]))
        if "public/default" not in self.directory.namespaces:
            self.namespaces.create("public/default", NamespaceRecord())

    def _load_topics(self, sound: SoundRecords) -> None:
        topic_decoder = msgspec.msgpack.Decoder(records.TopicRecord)
        cursor_decoder = msgspec.msgpack.Decoder(records.CursorRecord)
        kept: dict[int, int] = {}
        for key, value in sound.scan(records.TOPIC):
            name = TopicName.parse(key[len(records.TOPIC) :].decode())
            topic = Topic(self, name, topic_decoder.decode(value))
            invariants.heal_totals(topic.log)
            kept.update(topic.log.retain_in_store() | topic.compaction.retained_ledgers())
            self.directory.add(topic)
            self.applied.configure(topic)
        for key, value in sound.scan(records.DAMAGED):
            found = self.directory.topics.get(key[len(records.DAMAGED) :].decode())
            if found is not None and found.persistent:
                found.log.damaged.restore(value)
            else:
                self.records.delete(key)
        for key, value in sound.scan(records.CURSOR):
            full_name, _, subscription = key[len(records.CURSOR) :].decode().partition("\0")
            found = self.directory.topics.get(full_name)
            if found is not None and found.persistent:
                found.restore_subscription(subscription, cursor_decoder.decode(value))
            else:
                # A topic of that name that comes later is another one.
                invariants.note(self.metrics, invariants.OWNER, topic=full_name, subscription=subscription)
                self.records.delete(key)
        self.store.ledgers.retain(kept, keep_unknown=not sound.complete)
        for restored in self.directory.topics.values():
            if restored.persistent and restored.timing.has_timed:
                time_index.find(restored)

    def when_durable(self, topic: ClientTopic | None, done: Done) -> None:
        """Call ``done`` once the broker's and the topic's records are durable, or with a :class:`PersistenceError`."""
        rests_on = (self.records, *(topic.record_sources if topic is not None else ()))
        self.store.writer.after_commit(or_persistence_error(done), rests_on)

    def _delete_unused(self, topic: AnyTopic) -> None:
        """Delete a topic, a partition with its whole partitioned topic."""
        base = topic.name.base
        if self.directory.partitions_of(base):
            self.partitioned.delete(base, force=True)
        else:
            self.topics.delete(topic.name, force=True)

    # -- host of topics --------------------------------------------------------------------------------------

    @property
    def disk_waits(self) -> DiskWaits:
        return self.housekeeping.disk_waits

    def check_soon(self, topic: Topic) -> None:
        self.housekeeping.changed(topic)

    def subscription_added(self, topic: Topic, subscription: Subscription) -> None:
        self.applied.configure_subscription(topic, subscription)

    def watch_inactivity(self, topic: Topic) -> None:
        self.inactivity.configured(topic)

    def wake_delayed(self, topic: StoredTopic, due_ms: int) -> None:
        self.delayed_topics.wake(topic, due_ms)
