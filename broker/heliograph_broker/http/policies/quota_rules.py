"""Backlog quotas of one level as documents, and the rule that retention is not below the quota."""

from __future__ import annotations

from typing import Final

from heliograph_api.policies.policies import Policies, resolve
from heliograph_api.values.names import TopicName

from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.messaging.broker.broker import Broker

from .policy_documents import AGE_QUOTA, SIZE_QUOTA, QuotaDocument, quota_document, quota_from

QUOTA_FIELDS: Final = {SIZE_QUOTA: "backlog_quota_size", AGE_QUOTA: "backlog_quota_age"}

QuotaMap = dict[str, QuotaDocument]


def quota_map(policies: Policies) -> QuotaMap:
    """Return Pulsar's backlogQuotaMap of one level."""
    quotas = {}
    for kind, field in QUOTA_FIELDS.items():
        quota = getattr(policies, field)
        if quota is not None:
            quotas[kind] = quota_document(kind, quota)
    return quotas


def put_quota(policies: Policies, kind: str, document: QuotaDocument) -> None:
    """Set one quota. Raises :class:`ApiError` or :class:`PreconditionFailed`."""
    setattr(policies, QUOTA_FIELDS[check_kind(kind)], quota_from(kind, document))


def check_kind(kind: str) -> str:
    """Return ``kind``. Raises :class:`ApiError` 400 if there is no such quota."""
    if kind not in QUOTA_FIELDS:
        raise ApiError(400, f"backlogQuotaType should be {SIZE_QUOTA} or {AGE_QUOTA}, not '{kind}'")
    return kind


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
    """Check a new quota likewise."""
    if not quota_fits(_resolved(broker, policies, name)):
        level = "topic" if name is not None else "namespace"
        raise PreconditionFailed(
            f"Backlog Quota exceeds configured retention quota for {level}. Please increase retention quota and retry"
        )


def _resolved(broker: Broker, policies: Policies, name: TopicName | None) -> Policies:
    """Return the result of ``policies``: the inherited policies of a level have to agree with its own ones."""
    if name is None:
        return resolve(None, policies, broker.policies.defaults)
    return resolve(policies, broker.directory.namespace(name.namespace_name).policies, broker.policies.defaults)
