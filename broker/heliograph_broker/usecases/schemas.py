"""Schemas that clients bring along or learn while they run, and those that resources have."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from heliograph_broker.messaging.base.records import SchemaRecord
from heliograph_broker.messaging.schemas.schema_registry import schema_key
from heliograph_broker.messaging.schemas.schema_types import STORED_TYPES

from .client_properties import check_client_properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from heliograph_api.resources.schema_spec import SchemaSpec
    from heliograph_api.values.names import TopicName

    from heliograph_broker.messaging.broker.broker import Broker

    from .unconfirmed import Creation


def store_schema(
    broker: Broker, name: TopicName, record: SchemaRecord, creation: Creation | None, *, reads_only: bool = False
) -> int | None:
    """Store a client's schema for a request as the topic's policies allow; return its version, None if it needs none.

    One who ``reads_only`` adds none to a topic that has some, and need only be able to read it. Without ``creation``
    it is only checked whether it could be stored. Raises :class:`IncompatibleSchema`, or :class:`NotAllowed` if its
    properties are too large.
    """
    check_client_properties(record.properties, "schema properties")
    policies = broker.policies.effective(name)
    key = schema_key(name)
    may_update = policies.auto_update_schema is not False
    if reads_only and broker.schemas.latest(key) is not None:
        broker.schemas.check_reader(key, record, policies.schema_compatibility)
        return None
    if creation is None:
        return broker.schemas.check_addition(key, record, policies.schema_compatibility, may_update=may_update)
    version = broker.schemas.claim(key, record, policies.schema_compatibility, may_update=may_update)
    creation.schema(key, version)
    return version


def schema_change(
    broker: Broker, name: TopicName, spec: SchemaSpec | None, strategy: str | None
) -> list[Callable[[], object]]:
    """Return the change that stores the schema of a resource for its topic, if it has one that is not there.

    A manifest may add one where clients may not (``auto_update_schema``). Raises :class:`IncompatibleSchema` by the
    ``strategy``, or :class:`NotAllowed` if its properties are too large; storing it then cannot fail.
    """
    if spec is None:
        return []
    definition = (spec.definition or "").encode()
    record = SchemaRecord(name.local, STORED_TYPES[spec.type], definition, spec.properties, broker.clock.now_ms())
    check_client_properties(record.properties, "schema properties")
    key = schema_key(name)
    if broker.schemas.check_addition(key, record, strategy, may_update=True) is not None:
        return []
    return [partial(broker.schemas.add, key, record, strategy)]
