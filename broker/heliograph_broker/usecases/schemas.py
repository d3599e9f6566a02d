"""Schemas that clients bring along when they open producers and consumers, or learn while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.schemas.schema_registry import schema_key

from .client_properties import check_client_properties

if TYPE_CHECKING:
    from heliograph_api.values.names import TopicName

    from heliograph_broker.messaging.base.records import SchemaRecord
    from heliograph_broker.messaging.broker.broker import Broker

    from .unconfirmed import Creation


def store_schema(
    broker: Broker, name: TopicName, record: SchemaRecord, creation: Creation | None, *, reads_only: bool = False
) -> int | None:
    """Store a client's schema for a request as the topic's policies allow; return its version, None if it needs none.

    One who ``reads_only`` may have another one that is compatible, also where clients may not add to the topic's
    schemas. Without ``creation`` it is only checked whether it could be. Raises :class:`IncompatibleSchema`, or
    :class:`NotAllowed` if its properties are too large.
    """
    check_client_properties(record.properties, "schema properties")
    policies = broker.policies.effective(name)
    key = schema_key(name)
    may_update = policies.auto_update_schema is not False
    if reads_only and not may_update and broker.schemas.latest(key) is not None:
        broker.schemas.check(key, record, policies.schema_compatibility)
        return None
    if creation is None:
        return broker.schemas.check_addition(key, record, policies.schema_compatibility, may_update=may_update)
    version = broker.schemas.claim(key, record, policies.schema_compatibility, may_update=may_update)
    creation.schema(key, version)
    return version
