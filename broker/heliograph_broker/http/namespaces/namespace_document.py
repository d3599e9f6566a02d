"""Pulsar's document of a namespace (its class Policies): the body of its creation, and the answer to GET.

Its fields for policies come from :mod:`.policy_table`, and from :mod:`.kept_settings` those that have no effect here.
Fields that neither has are accepted with the value that Pulsar's clients send by default, and refused with any other.
"""

from __future__ import annotations

from types import GenericAlias
from typing import Any, Final, cast

import msgspec
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.policies.grants import AUTH_POLICIES, AuthPolicies, auth_policies
from heliograph_api.policies.policies import Policies

from heliograph_broker.http.base.bundles import MAX_BUNDLES, bundle_boundaries
from heliograph_broker.http.policies.kept_settings import (
    ALLOWED_CLUSTERS,
    KEPT,
    RESOURCE_GROUP,
    checked,
    keep,
    kept_value,
)
from heliograph_broker.http.policies.policy_description import NAMESPACE, Level
from heliograph_broker.http.policies.policy_documents import Count
from heliograph_broker.http.policies.policy_table import POLICIES
from heliograph_broker.http.policies.quota_rules import QuotaMap, check_quota, put_quota, quota_map
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.messaging.base.records import NamespaceRecord
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.security.authorization.grants import shown_policies

from .resource_groups import check_group

_KEPT: Final = tuple(setting for setting in KEPT if setting.in_document)
# Pulsar keeps the dispatch rate under its old name too.
_OLD_DISPATCH_RATE: Final = "clusterDispatchRate"
_DISPATCH_RATE: Final = "topicDispatchRate"
# Its own path shows 0 where nothing is set, this document shows nothing.
_HIDDEN: Final = "max_topics_per_namespace"


class BundlesDocument(msgspec.Struct, rename="camel", omit_defaults=True):
    """Pulsar's BundlesData; a namespace begins with bundles that cut the range evenly."""

    boundaries: list[str] | None = None
    num_bundles: Count = 0


#: Fields that have one value for every namespace: the type and the value of each.
_FIXED: Final[dict[str, tuple[Any, Any]]] = {
    "latency_stats_sample_rate": (dict[str, Count], {}),
    "deleted": (bool, False),
    "migrated": (bool, False),
}
#: Fields that Pulsar's document has as well: not shown, and refused.
_UNKNOWN: Final = ("entryFilters",)


def _fields() -> list[tuple[str, Any, Any]]:
    listed: list[tuple[str, Any]] = [
        (AUTH_POLICIES, AuthPolicies),
        ("replication_clusters", list[str]),
        (RESOURCE_GROUP, str),
        ("bundles", BundlesDocument),
        ("backlog_quota_map", QuotaMap),
        ("properties", dict[str, str]),
    ]
    for policy in POLICIES:
        by_cluster = GenericAlias(dict, (str, policy.document))
        listed.append((policy.key, by_cluster if policy.per_cluster else policy.document))
        if policy.key == _DISPATCH_RATE:
            listed.append((_OLD_DISPATCH_RATE, by_cluster))
    for setting in _KEPT:
        by_cluster = GenericAlias(dict, (str, setting.document))
        listed.append((setting.name, by_cluster if setting.per_cluster else setting.document))
    listed += [(name, kind) for name, (kind, _) in _FIXED.items()]
    listed += [(name, Any) for name in _UNKNOWN]
    return [(name, kind | None if kind is not Any else Any, None) for name, kind in listed]


NamespaceDocument: Final = msgspec.defstruct("NamespaceDocument", _fields(), omit_defaults=True)


def bundles_document(record: NamespaceRecord) -> BundlesDocument:
    boundaries = bundle_boundaries(record)
    return BundlesDocument(boundaries, len(boundaries) - 1)


def namespace_document(record: NamespaceRecord, config: BrokerConfig) -> msgspec.Struct:
    """Return the document of a namespace: its settings, under Pulsar's names."""
    policies = record.policies
    shown: dict[str, Any] = {name: value for name, (_, value) in _FIXED.items()}
    shown |= {
        AUTH_POLICIES: shown_policies(auth_policies(policies)),
        "replication_clusters": record.replication_clusters,
        RESOURCE_GROUP: kept_value(policies, RESOURCE_GROUP),
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
    for setting in _KEPT:
        value = kept_value(policies, setting.name)
        if setting.per_cluster:
            shown[setting.name] = {} if value is None else {config.cluster_name: value}
        elif value is not None or not setting.hidden:
            shown[setting.name] = setting.shown if value is None else value
    shown[_OLD_DISPATCH_RATE] = shown[_DISPATCH_RATE]
    return NamespaceDocument(**shown)


def namespace_record(broker: Broker, document: Any) -> NamespaceRecord:
    """Return the record for a ``NamespaceDocument``. Raises :class:`ApiError` or :class:`PreconditionFailed`."""
    # Go's library sends empty text for what is not set.
    given = {
        name: value
        for name in NamespaceDocument.__struct_fields__
        if (value := getattr(document, name)) not in (None, "")
    }
    config = broker.config
    record = NamespaceRecord(properties=given.get("properties", {}))
    if (bundles := cast("BundlesDocument | None", given.get("bundles"))) is not None and bundles.num_bundles != 0:
        record.bundles = bundles.num_bundles
        if not 0 < record.bundles <= MAX_BUNDLES:
            raise PreconditionFailed(f"Invalid number of bundles: 1 to {MAX_BUNDLES}, not {record.bundles}")
    for name in ("replication_clusters", ALLOWED_CLUSTERS):
        if any(cluster != config.cluster_name for cluster in given.get(name, ())):
            raise PreconditionFailed("Clusters do not exist")
    record.replication_clusters = given.get("replication_clusters", [])
    _check_fixed(given)
    if _OLD_DISPATCH_RATE in given and not given.get(_DISPATCH_RATE):
        given[_DISPATCH_RATE] = given[_OLD_DISPATCH_RATE]
    for policy in POLICIES:
        value = given.get(policy.key)
        if policy.per_cluster and value is not None:
            value = _of_cluster(policy.key, value, config)
        if value is not None and (policy.unset[0] is None or value != policy.unset[0]):
            policy.write(record.policies, value, Level(NAMESPACE, config))
    for kind, quota in given.get("backlog_quota_map", {}).items():
        put_quota(record.policies, kind, quota)
    check_quota(broker, record.policies)
    _keep_all(broker, record.policies, given)
    return record


def _of_cluster(name: str, values: dict[str, Any], config: BrokerConfig) -> Any:
    if any(cluster != config.cluster_name for cluster in values):
        raise PreconditionFailed(f"{name}: Clusters do not exist")
    return values.get(config.cluster_name)


def kept_names(document: Any, *, authorized: bool) -> list[str]:
    """Return the fields of a ``NamespaceDocument`` that are kept without effect; some have one with authorization."""
    unset: dict[str, Any] = {setting.name: setting.shown for setting in _KEPT if not setting.has_effect(authorized)}
    unset[RESOURCE_GROUP] = None
    if not authorized:
        unset[AUTH_POLICIES] = AuthPolicies()
    return [name for name, value in unset.items() if getattr(document, name) not in (None, value, {}, [])]


def _keep_all(broker: Broker, policies: Policies, given: dict[str, Any]) -> None:
    """Keep what has no effect. Raises :class:`ApiError` or :class:`PreconditionFailed`."""
    for setting in _KEPT:
        value = given.get(setting.name)
        if setting.per_cluster and value is not None:
            value = _of_cluster(setting.name, value, broker.config)
        if value is not None and value != setting.shown:
            keep(policies, setting.name, checked(setting, value, broker.config))
    permissions = given.get(AUTH_POLICIES)
    if permissions is not None and permissions != AuthPolicies():
        keep(policies, AUTH_POLICIES, permissions)
    group = given.get(RESOURCE_GROUP)
    if group:
        check_group(broker, group)
        keep(policies, RESOURCE_GROUP, group)


def _check_fixed(given: dict[str, Any]) -> None:
    for name, (_, value) in _FIXED.items():
        wanted = given.get(name)
        if wanted is not None and wanted != value:
            raise PreconditionFailed(f"{name} cannot be set here; valid: {msgspec.json.encode(value).decode()}")
    for name in _UNKNOWN:
        if name in given:
            raise PreconditionFailed(f"{name} cannot be set here; valid: leave it out")
