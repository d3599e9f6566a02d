"""Retention and backlog quota have to agree: what may wait to be acknowledged is not to exceed what is kept."""

from __future__ import annotations

from heliograph_broker.messaging.broker import Broker
from heliograph_broker.messaging.errors import PreconditionFailed
from heliograph_broker.resources.names import TopicName
from heliograph_broker.resources.policies import Policies, resolve


def quota_fits(policies: Policies) -> bool:
    """Whether retention holds at least as much and as long as the backlog quotas allow a backlog to be."""
    retention = policies.retention
    if retention is None:
        return True
    size, age = policies.backlog_quota_size, policies.backlog_quota_age
    if size is not None and 0 < retention.size_bytes < size.limit:
        return False
    return not (age is not None and 0 < retention.time_ms < age.limit)


def check_retention(broker: Broker, policies: Policies, name: TopicName | None = None) -> None:
    """Check a namespace's or, with ``name``, a topic's new ``policies``. Raises :class:`PreconditionFailed`."""
    if not quota_fits(_resolved(broker, policies, name)):
        reason = "Retention Quota must exceed configured backlog quota for"
        more = "topic. Please increase retention quota and retry" if name is not None else "namespace."
        raise PreconditionFailed(f"{reason} {more}")


def check_quota(broker: Broker, policies: Policies, name: TopicName | None = None) -> None:
    """The same for a new quota."""
    if not quota_fits(_resolved(broker, policies, name)):
        level = "topic" if name is not None else "namespace"
        raise PreconditionFailed(
            f"Backlog Quota exceeds configured retention quota for {level}. Please increase retention quota and retry"
        )


def _resolved(broker: Broker, policies: Policies, name: TopicName | None) -> Policies:
    """Return what would hold with ``policies``: what a level inherits has to agree with what it says too."""
    if name is None:
        return resolve(None, policies, broker.broker_policies)
    return resolve(policies, broker.namespace(name.namespace_name).policies, broker.broker_policies)
