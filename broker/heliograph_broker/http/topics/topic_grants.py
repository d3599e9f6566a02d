"""The grants of a topic that an administrator deletes end with it, as in Pulsar."""

from __future__ import annotations

import msgspec
from heliograph_api.policies.grants import WILDCARD, auth_policies, keep_grants
from heliograph_api.values.names import TopicName

from heliograph_broker.messaging.broker.broker import Broker


def forget_grants(broker: Broker, name: TopicName) -> None:
    """Remove the grants of a topic of which nothing is left; else they would be those of the next one of this name.

    A name that ends with a ``*`` is that of many topics, whose grants stay.
    """
    topic = str(name.base)
    if topic.endswith(WILDCARD) or broker.directory.exists(name.base) or broker.directory.partitions_of(name.base):
        return
    policies = msgspec.structs.replace(broker.directory.namespace(name.namespace_name).policies)
    grants = auth_policies(policies)
    if grants.destination_auth.pop(topic, None) is not None:
        keep_grants(policies, grants)
        broker.namespaces.set_policies(name.namespace_name, policies)
