"""Pulsar's document of a namespace (its class Policies): the body of its creation, and the answer to GET.

Its fields for policies come from :mod:`.policy_table`. Among the others, what a broker without bookies, offloading and
other clusters cannot hold is taken as Pulsar's clients send it when nobody set it, and refused with any other value.
"""

from __future__ import annotations

from types import GenericAlias
from typing import Any, Final, cast

import msgspec
from heliograph_api.broker_config import BrokerConfig

from heliograph_broker.http.base.bundles import bundle_boundaries
from heliograph_broker.http.policies.policy_description import NAMESPACE, Level
from heliograph_broker.http.policies.policy_documents import Count, LongLimit
from heliograph_broker.http.policies.policy_table import POLICIES
from heliograph_broker.http.policies.quota_rules import QuotaMap, check_quota, put_quota, quota_map
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.messaging.base.records import NamespaceRecord
from heliograph_broker.messaging.broker.broker import Broker

_MAX_BUNDLES: Final = 4096
# Pulsar keeps the dispatch rate under its old name too.
_OLD_DISPATCH_RATE: Final = "clusterDispatchRate"
_DISPATCH_RATE: Final = "topicDispatchRate"
# Its own path shows 0 where nothing is set, this document shows nothing.
_HIDDEN: Final = "max_topics_per_namespace"


class BundlesDocument(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Pulsar's BundlesData; boundaries always cut the range evenly here."""

    boundaries: list[str] | None = None
    num_bundles: Count = 0


#: Fields that have one value for every namespace: the type and the value of each.
_FIXED: Final[dict[str, tuple[Any, Any]]] = {
    "auth_policies": (
        dict[str, dict[str, Any]],
        {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    ),
    "replicatorDispatchRate": (dict[str, Any], {}),
    "latency_stats_sample_rate": (dict[str, Count], {}),
    "deleted": (bool, False),
    "subscription_auth_mode": (str, "None"),
    "offload_threshold": (LongLimit, -1),
    "offload_threshold_in_seconds": (LongLimit, -1),
    "migrated": (bool, False),
}
#: what Pulsar's document has as well; not shown, and refused
_UNKNOWN: Final = (
    "allowed_topic_property_keys_for_metrics",
    "deduplicationSnapshotIntervalSeconds",
    "dispatcherPauseOnAckStatePersistentEnabled",
    "entryFilters",
    "offload_deletion_lag_ms",
    "offload_policies",
    "persistence",
    "resource_group_name",
    "schema_auto_update_compatibility_strategy",
)


def _fields() -> list[tuple[str, Any, Any]]:
    listed: list[tuple[str, Any]] = [
        ("replication_clusters", list[str]),
        ("allowed_clusters", list[str]),
        ("bundles", BundlesDocument),
        ("backlog_quota_map", QuotaMap),
        ("properties", dict[str, str]),
    ]
    for policy in POLICIES:
        by_cluster = GenericAlias(dict, (str, policy.document))
        listed.append((policy.key, by_cluster if policy.per_cluster else policy.document))
        if policy.key == _DISPATCH_RATE:
            listed.append((_OLD_DISPATCH_RATE, by_cluster))
    listed += [(name, kind) for name, (kind, _) in _FIXED.items()]
    listed += [(name, Any) for name in _UNKNOWN]
    return [(name, kind | None if kind is not Any else Any, None) for name, kind in listed]


NamespaceDocument: Final = msgspec.defstruct(
    "NamespaceDocument", _fields(), forbid_unknown_fields=True, omit_defaults=True
)


def bundles_document(record: NamespaceRecord) -> BundlesDocument:
    return BundlesDocument(bundle_boundaries(record.bundles), record.bundles)


def namespace_document(record: NamespaceRecord, config: BrokerConfig) -> msgspec.Struct:
    """Return the document of a namespace: its settings, under Pulsar's names."""
    policies = record.policies
    shown: dict[str, Any] = {name: value for name, (_, value) in _FIXED.items()}
    shown |= {
        "replication_clusters": record.replication_clusters,
        "allowed_clusters": [],
        "bundles": bundles_document(record),
        "backlog_quota_map": quota_map(policies),
        "properties": record.properties,
    }
    for policy in POLICIES:
        document = policy.read(policies)
        if policy.per_cluster:
            shown[policy.key] = {} if document is None else {config.cluster_name: document}
        elif document is not None:
            shown[policy.key] = document
        elif policy.unset[0] is not None and policy.key != _HIDDEN:
            shown[policy.key] = policy.unset[0]
    shown[_OLD_DISPATCH_RATE] = shown[_DISPATCH_RATE]
    return NamespaceDocument(**shown)


def namespace_record(broker: Broker, document: Any) -> NamespaceRecord:
    """Return the record for a ``NamespaceDocument``. Raises :class:`ApiError` or :class:`PreconditionFailed`."""
    given = {
        name: value for name in NamespaceDocument.__struct_fields__ if (value := getattr(document, name)) is not None
    }
    config = broker.config
    record = NamespaceRecord(properties=given.get("properties", {}))
    if (bundles := cast("BundlesDocument | None", given.get("bundles"))) is not None and bundles.num_bundles != 0:
        record.bundles = bundles.num_bundles
        if not 0 < record.bundles <= _MAX_BUNDLES:
            raise PreconditionFailed(f"Invalid number of bundles: 1 to {_MAX_BUNDLES}, not {record.bundles}")
    for name in ("replication_clusters", "allowed_clusters"):
        if any(cluster != config.cluster_name for cluster in given.get(name, ())):
            raise PreconditionFailed("Clusters do not exist")
    record.replication_clusters = given.get("replication_clusters", [])
    _check_fixed(given)
    if _OLD_DISPATCH_RATE in given and not given.get(_DISPATCH_RATE):
        given[_DISPATCH_RATE] = given[_OLD_DISPATCH_RATE]
    for policy in POLICIES:
        value = given.get(policy.key)
        if policy.per_cluster and value is not None:
            if any(cluster != config.cluster_name for cluster in value):
                raise PreconditionFailed(f"{policy.key}: Clusters do not exist")
            value = value.get(config.cluster_name)
        if value is not None and (policy.unset[0] is None or value != policy.unset[0]):
            policy.write(record.policies, value, Level(NAMESPACE, config))
    for kind, quota in given.get("backlog_quota_map", {}).items():
        put_quota(record.policies, kind, quota)
    check_quota(broker, record.policies)
    return record


def _check_fixed(given: dict[str, Any]) -> None:
    for name, (_, value) in _FIXED.items():
        # Permissions: any map of empty maps says as little.
        wanted = given.get(name)
        if wanted is not None and wanted != value and (not isinstance(wanted, dict) or any(wanted.values())):
            raise PreconditionFailed(f"{name} cannot be set here; valid: {msgspec.json.encode(value).decode()}")
    for name in _UNKNOWN:
        if name in given:
            raise PreconditionFailed(f"{name} cannot be set here; valid: leave it out")
