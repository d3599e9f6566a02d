"""The policies that are set at the broker, namespaces and topics, and the effective ones of a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph_api.policies.policies import DEFAULTS, Policies, resolve

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.records import BrokerPoliciesRecord, BrokerSettingsRecord

from .broker_settings import BrokerSettings
from .dynamic_policies import EFFECTIVE, check_dynamic, dynamic_policies

if TYPE_CHECKING:
    from heliograph_api.broker_config import BrokerConfig
    from heliograph_api.values.names import TopicName

    from heliograph_broker.messaging.log.record_set import BrokerRecords
    from heliograph_broker.messaging.topic.directory import AnyTopic, Directory

#: Says whether a topic is concerned.
Concerned = Callable[["AnyTopic"], bool]


def _ignore(_: Concerned) -> None:
    """Nobody observes the levels."""


class PolicyLevels:
    """See the module. A change is stored at once; ``observer`` applies it to the topics that it concerns."""

    __slots__ = (
        "_config",
        "_directory",
        "_of_namespaces",
        "_records",
        "broker_defaults",
        "defaults",
        "limits",
        "observer",
        "settings",
    )

    def __init__(self, directory: Directory, broker_records: BrokerRecords, config: BrokerConfig) -> None:
        self._directory = directory
        self._records = broker_records
        self._config = config
        #: The policies that apply where no level sets any: as they are set, and with Pulsar's defaults for the rest.
        self.broker_defaults = Policies()
        self.defaults = DEFAULTS
        #: The policies that cap all levels.
        self.limits = Policies()
        #: What administrators set at run time.
        self.settings = BrokerSettings(broker_records)
        #: namespace -> the policies of its topics that have none of their own
        self._of_namespaces: dict[str, Policies] = {}
        #: Called with the topics that a change concerns.
        self.observer: Callable[[Concerned], None] = _ignore

    def restore(self, record: BrokerPoliciesRecord) -> None:
        self.broker_defaults, self.limits = record.defaults, record.limits
        self._resolve_defaults()

    def restore_settings(self, record: BrokerSettingsRecord) -> None:
        self.settings.restore(record)
        self._resolve_defaults()

    def _resolve_defaults(self) -> None:
        dynamic = dynamic_policies(self.settings.dynamic, self._config)
        self.defaults = resolve(dynamic, self.broker_defaults, DEFAULTS)

    def set_dynamic(self, name: str, value: str | None) -> None:
        """Set a dynamic setting by Pulsar's name, or with None revert it.

        Raises :class:`PreconditionFailed` if it has an effect and the value has no meaning.
        """
        if value is not None and name in EFFECTIVE:
            check_dynamic(name, value)
        self.settings.set_dynamic(name, value)
        if name in EFFECTIVE:
            self._resolve_defaults()
            self.changed(lambda topic: True)

    def of_topic(self, name: TopicName) -> Policies | None:
        """Return the policies set at the topic itself (for a partition: at its partitioned topic)."""
        record = self._directory.partitioned.get(str(name.base))
        if record is not None:
            return record.policies
        topic = self._directory.topics.get(str(name))
        return topic.policies if topic is not None else None

    def effective(self, name: TopicName) -> Policies:
        """Return what holds for a topic: topic, else namespace, else broker, capped by tenant and broker.

        The answer is shared by the namespace's topics: not to be changed.
        """
        own = self.of_topic(name)
        if own is not None:
            return self._resolve(own, name.namespace_name)
        effective = self._of_namespaces.get(name.namespace_name)
        if effective is None:
            effective = self._of_namespaces[name.namespace_name] = self._resolve(None, name.namespace_name)
        return effective

    def _resolve(self, own: Policies | None, namespace: str) -> Policies:
        record = self._directory.namespaces.get(namespace)
        tenant = self._directory.tenants.get(namespace.partition("/")[0])
        return resolve(
            own,
            record.policies if record is not None else None,
            self.defaults,
            [tenant.limits, self.limits] if tenant is not None else [self.limits],
        )

    def set_broker(self, defaults: Policies, limits: Policies) -> None:
        """Set the policies that apply where no level sets any, and those that cap all levels."""
        self.broker_defaults = defaults
        self._resolve_defaults()
        self.limits = limits
        self._records.put(records.BROKER_POLICIES, records.encode(BrokerPoliciesRecord(defaults, limits)))
        self.changed(lambda topic: True)

    def set_topic(self, name: TopicName, policies: Policies) -> None:
        """Set a topic's own, for a partition those of its partitioned topic. Raises :class:`TopicNotFound`."""
        record = self._directory.partitioned.get(str(name.base))
        if record is not None:
            record.policies = policies
            self._records.put(records.PARTITIONED + str(name.base).encode(), records.encode(record))
        else:
            topic = self._directory.get_topic(name)
            topic.policies = policies
            topic.persist()
        base = str(name.base)
        self.changed(lambda topic: str(topic.name.base) == base)

    def changed(self, concerned: Concerned) -> None:
        """The policies of a level above some topics have changed."""
        self._of_namespaces.clear()
        self.observer(concerned)

    def forget_namespace(self, name: str) -> None:
        """The namespace is new or deleted."""
        self._of_namespaces.pop(name, None)
