"""The broker, as its own parts know it that work with several others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.topic.topic import TopicHost

if TYPE_CHECKING:
    from heliograph_broker.messaging.log.record_set import BrokerRecords
    from heliograph_broker.messaging.policies.delayed_topics import DelayedTopics
    from heliograph_broker.messaging.schemas.schema_registry import SchemaRegistry
    from heliograph_broker.messaging.topic.directory import Directory
    from heliograph_broker.messaging.topic.housekeeping import Housekeeping

    from .applied_policies import AppliedPolicies
    from .inactivity import InactivityWatch
    from .policy_levels import PolicyLevels
    from .topic_list import TopicWatches


class BrokerParts(TopicHost):
    """See the module."""

    #: The durable state that belongs to no topic.
    records: BrokerRecords
    directory: Directory
    policies: PolicyLevels
    applied: AppliedPolicies
    inactivity: InactivityWatch
    housekeeping: Housekeeping
    delayed_topics: DelayedTopics
    schemas: SchemaRegistry
    watches: TopicWatches
