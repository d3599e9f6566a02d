"""Pulsar's documents of a namespace's policies, to and from the policies of the core (ms and bytes)."""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph_broker.messaging.errors import PreconditionFailed
from heliograph_broker.messaging.records import NamespaceRecord
from heliograph_broker.resources.policies import BacklogQuota, Policies, Retention

from .errors import ApiError

MINUTE_MS = 60_000
MB = 1024 * 1024
ACTIONS = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
SIZE_QUOTA = "destination_storage"
AGE_QUOTA = "message_age"
_MAX_SECONDS = 2**31 - 1


class RetentionDocument(msgspec.Struct):
    """Pulsar's RetentionPolicies; -1 without limit."""

    minutes: int = msgspec.field(name="retentionTimeInMinutes")
    megabytes: int = msgspec.field(name="retentionSizeInMB")


class QuotaDocument(msgspec.Struct, rename="camel"):
    """Pulsar's BacklogQuota; ``limit`` is the old name of ``limitSize`` (bytes), ``limitTime`` is in s."""

    policy: str
    limit: int | None = None
    limit_size: int | None = None
    limit_time: int | None = None


def retention_from(document: RetentionDocument) -> Retention:
    """Raises :class:`PreconditionFailed` for a pair that cannot mean anything."""
    minutes, megabytes = document.minutes, document.megabytes
    if megabytes < -1:
        raise PreconditionFailed("Invalid retention policy: size limit must be >= -1")
    if minutes < -1:
        raise PreconditionFailed("Invalid retention policy: time limit must be >= -1")
    if (minutes == 0) != (megabytes == 0):
        raise PreconditionFailed(
            "Invalid retention policy: only one of the limits is 0. Use -1 for a limit that should not "
            "count, or 0 for both to switch retention off"
        )
    return Retention(
        time_ms=minutes * MINUTE_MS if minutes > 0 else minutes,
        size_bytes=megabytes * MB if megabytes > 0 else megabytes,
    )


def retention_document(retention: Retention) -> dict[str, int]:
    """Return Pulsar's document, rounded up: what is kept for 90 s is not kept for 1 minute only."""
    return {
        "retentionTimeInMinutes": _up(retention.time_ms, MINUTE_MS),
        "retentionSizeInMB": _up(retention.size_bytes, MB),
    }


def _up(value: int, unit: int) -> int:
    return -(-value // unit) if value > 0 else value


def quota_from(kind: str, document: QuotaDocument) -> BacklogQuota:
    """Return a quota in bytes or ms. Raises :class:`ApiError` or :class:`PreconditionFailed`."""
    if document.policy not in ACTIONS:
        raise ApiError(400, f"policy '{document.policy}' is not one of {', '.join(ACTIONS)}")
    if kind == SIZE_QUOTA:
        limit = document.limit_size if document.limit_size is not None else document.limit
        if limit is None:
            raise PreconditionFailed("a destination_storage quota needs limitSize in bytes (-1 without limit)")
        if limit < -1:
            raise PreconditionFailed(f"limitSize must be >= -1, not {limit}")
        return BacklogQuota(limit=limit, policy=document.policy)
    seconds = document.limit_time
    if seconds is None:
        raise PreconditionFailed("a message_age quota needs limitTime in seconds (-1 without limit)")
    if seconds < -1:
        raise PreconditionFailed(f"limitTime must be >= -1, not {seconds}")
    return BacklogQuota(limit=seconds * 1000 if seconds > 0 else seconds, policy=document.policy)


def quota_map(policies: Policies) -> dict[str, dict[str, int | str]]:
    """Return Pulsar's backlogQuotaMap."""
    quotas: dict[str, dict[str, int | str]] = {}
    size, age = policies.backlog_quota_size, policies.backlog_quota_age
    if size is not None:
        quotas[SIZE_QUOTA] = {
            "limit": size.limit,
            "limitSize": size.limit,
            "limitTime": -1,
            "policy": size.policy,
        }
    if age is not None:
        quotas[AGE_QUOTA] = {
            "limit": 0,
            "limitSize": 0,
            "limitTime": _up(age.limit, 1000),
            "policy": age.policy,
        }
    return quotas


def quota_fits(policies: Policies) -> bool:
    """Whether retention holds at least as much and as long as the backlog quotas allow a backlog to be."""
    retention = policies.retention
    if retention is None:
        return True
    size, age = policies.backlog_quota_size, policies.backlog_quota_age
    if size is not None and 0 < retention.size_bytes < size.limit:
        return False
    return not (age is not None and 0 < retention.time_ms < age.limit)


def ttl_from(seconds: int) -> int:
    """Return a TTL in ms. Raises :class:`PreconditionFailed` for a negative or absurd one."""
    if not 0 <= seconds <= _MAX_SECONDS:
        raise PreconditionFailed(f"Invalid value for message TTL: 0 to {_MAX_SECONDS} seconds, not {seconds}")
    return seconds * 1000


def bundle_boundaries(bundles: int) -> list[str]:
    """Return the hash boundaries that cut the 32-bit range into ``bundles`` equal parts."""
    step = 0x1_0000_0000 // bundles
    return [f"0x{index * step:08x}" for index in range(bundles)] + ["0xffffffff"]


def policies_document(record: NamespaceRecord) -> dict[str, Any]:
    """Return Pulsar's Policies of a namespace."""
    policies = record.policies
    document: dict[str, Any] = {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "replication_clusters": record.replication_clusters,
        "allowed_clusters": [],
        "bundles": {"boundaries": bundle_boundaries(record.bundles), "numBundles": record.bundles},
        "backlog_quota_map": quota_map(policies),
        "clusterDispatchRate": {},
        "topicDispatchRate": {},
        "subscriptionDispatchRate": {},
        "replicatorDispatchRate": {},
        "clusterSubscribeRate": {},
        "publishMaxMessageRate": {},
        "latency_stats_sample_rate": {},
    }
    if policies.deduplication is not None:
        document["deduplicationEnabled"] = policies.deduplication
    if policies.message_ttl_ms is not None:
        document["message_ttl_in_seconds"] = _up(policies.message_ttl_ms, 1000)
    if policies.retention is not None:
        document["retention_policies"] = retention_document(policies.retention)
    document |= {
        "deleted": False,
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "is_allow_auto_update_schema": True,
        "schema_validation_enforced": False,
        "subscription_types_enabled": [],
        "properties": {},
        "migrated": False,
    }
    for name, value in (
        ("max_producers_per_topic", policies.max_producers),
        ("max_consumers_per_topic", policies.max_consumers),
        ("max_subscriptions_per_topic", policies.max_subscriptions),
    ):
        if value is not None:
            document[name] = value
    return document
