"""A topic's properties: free text its owners attach, to a partitioned topic or to one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from heliograph_api.values.names import TopicName

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.names import check_properties

if TYPE_CHECKING:
    from .parts import BrokerParts


def topic_properties(broker: BrokerParts, name: TopicName) -> dict[str, str]:
    """Return the properties of a topic or partitioned topic. Raises :class:`TopicNotFound`."""
    record = broker.directory.partitioned.get(str(name))
    return record.properties if record is not None else broker.directory.get_topic(name).properties


def set_topic_properties(broker: BrokerParts, name: TopicName, properties: dict[str, str]) -> None:
    """Replace them; durable with the next group. Raises :class:`TopicNotFound` or :class:`PreconditionFailed`."""
    check_properties(properties)
    record = broker.directory.partitioned.get(str(name))
    if record is not None:
        changed = msgspec.structs.replace(record, properties=properties)
        broker.records.put(records.PARTITIONED + str(name).encode(), records.encode(changed))
        record.properties = properties
        return
    topic = broker.directory.get_topic(name)
    topic.properties = properties
    topic.persist()
