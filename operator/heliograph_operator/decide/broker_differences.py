"""Compares a broker's state with a resource, field by field, in the words of a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
from heliograph_api.policies import policy_kinds as kinds
from heliograph_api.policies.policy_field import camel, manifest_name
from heliograph_api.policies.policy_table import POLICY_FIELDS, Policies
from heliograph_api.resources.broker_state import BrokerState
from heliograph_api.resources.model import BrokerCluster, Namespace, Tenant, Topic
from heliograph_api.values.durations import format_duration
from heliograph_api.values.sizes import format_size

_NOT_SET: Final = "not set"
_MISSING: Final = "missing"
#: Parts of policies that are sizes.
_SIZES: Final = frozenset({"size_bytes", "bytes"})
_SIZE_KINDS: Final = (kinds.SIZE_LIMIT, kinds.THRESHOLD)


class Difference(NamedTuple):
    """A field, its value in the broker, and its value in the resource."""

    field: str
    was: str
    wanted: str
    #: Whether the resource does not name what the broker has.
    removes: bool = False

    def __str__(self) -> str:
        return f"{self.field} was {self.was}, is {self.wanted}"


def differences(resource: Tenant | Namespace | Topic, name: str, state: BrokerState) -> list[Difference]:
    """Return the differences between a resource and the object ``name`` in a broker's ``state``.

    Surplus partitions are not among them: they cannot be removed (:func:`surplus`).
    """
    if isinstance(resource, Tenant):
        return list(_of_tenant(resource, name, state))
    if isinstance(resource, Namespace):
        return list(_of_namespace(resource, name, state))
    return list(_of_topic(resource, name, state))


def default_differences(cluster: BrokerCluster, state: BrokerState) -> list[Difference]:
    """Return the differences between a BrokerCluster and the policies and limits of a whole broker."""
    spec = cluster.spec
    return [
        *_of_policies("brokerDefaults.", state.defaults, spec.broker_defaults.policies()),
        *_of_policies("limits.", state.limits, spec.limits.policies()),
    ]


def surplus(resource: Tenant | Namespace | Topic, name: str, state: BrokerState) -> tuple[int, int] | None:
    """Return (partitions there are, partitions wanted) if a topic cannot change to the number wanted, else None."""
    if not isinstance(resource, Topic) or (topic := state.topics.get(name)) is None:
        return None
    wanted = resource.spec.partitions
    # A topic without partitions cannot get any: its messages are in no partition.
    impossible = wanted < topic.partitions or (wanted > 0 and topic.partitions == 0)
    return (topic.partitions, wanted) if impossible else None


def exists(kind: str, name: str, state: BrokerState) -> bool:
    """Whether a broker has the object of a kind and full name."""
    objects: dict[str, Mapping[str, object]] = {
        "Tenant": state.tenants,
        "Namespace": state.namespaces,
        "Topic": state.topics,
    }
    return name in objects[kind]


def observed(kind: str, name: str, state: BrokerState) -> object:
    """Return a broker's state of an object without its statistics: a change of it requires a reconcile."""
    if kind == "Topic":
        if (topic := state.topics.get(name)) is None:
            return ()
        made = (topic.partitions, topic.missing_partitions, topic.subscriptions, topic.properties, topic.policies)
        return *made, topic.schemas, topic.size_exceeded, topic.age_exceeded
    if kind == "Namespace":
        namespace = state.namespaces.get(name)
        return (namespace.bundles, namespace.policies) if namespace is not None else ()
    if kind == "BrokerCluster":
        return state.version, state.defaults, state.limits
    tenant = state.tenants.get(name)
    return (tenant.admin_roles, tenant.allowed_clusters, tenant.limits) if tenant is not None else ()


def _of_tenant(resource: Tenant, name: str, state: BrokerState) -> Iterator[Difference]:
    tenant = state.tenants.get(name)
    if tenant is None:
        yield Difference(f"tenant {name}", _MISSING, "there")
        return
    spec = resource.spec
    yield from _list("adminRoles", tenant.admin_roles, spec.admin_roles)
    # By default, that is the broker's own cluster, whatever its name.
    if spec.allowed_clusters:
        yield from _list("allowedClusters", tenant.allowed_clusters, spec.allowed_clusters)
    yield from _of_policies("limits.", tenant.limits, spec.limits.policies())


def _of_namespace(resource: Namespace, name: str, state: BrokerState) -> Iterator[Difference]:
    namespace = state.namespaces.get(name)
    if namespace is None:
        yield Difference(f"namespace {name}", _MISSING, "there")
        return
    if namespace.bundles != resource.spec.bundles:
        # The API server fills in the default, so that it looks like a stated number.
        by_default = resource.spec.bundles == type(resource.spec).model_fields["bundles"].default
        yield Difference("bundles", str(namespace.bundles), str(resource.spec.bundles), by_default)
    yield from _of_policies("", namespace.policies, resource.spec.policies())


def _of_topic(resource: Topic, name: str, state: BrokerState) -> Iterator[Difference]:
    topic = state.topics.get(name)
    if topic is None:
        yield Difference(f"topic {name}", _MISSING, "there")
        return
    spec = resource.spec
    if 0 < topic.partitions < spec.partitions:
        yield Difference("partitions", str(topic.partitions), str(spec.partitions))
    if topic.missing_partitions:
        lost = ", ".join(map(str, topic.missing_partitions))
        yield Difference(f"partitions: {lost}", _MISSING, "there")
    for subscription in spec.all_subscriptions:
        if subscription not in topic.subscriptions:
            yield Difference(f"subscriptions: {subscription}", _MISSING, "there")
    for key in sorted(topic.properties.keys() | spec.properties.keys()):
        was, wanted = topic.properties.get(key), spec.properties.get(key)
        if was != wanted:
            yield Difference(f"properties.{key}", described(key, was), described(key, wanted), wanted is None)
    if spec.schema_ is not None and spec.schema_.digest not in topic.schemas:
        yield Difference("schema", topic.schemas[-1] if topic.schemas else _NOT_SET, spec.schema_.digest)
    yield from _of_policies("", topic.policies, spec.policies())


def _of_policies(
    prefix: str, actual: Policies, wanted: Policies, *, of_subscription: bool = False
) -> Iterator[Difference]:
    for field, row in POLICY_FIELDS.items():
        was, now = getattr(actual, field), getattr(wanted, field)
        # Manifests leave alone what a broker only keeps.
        if was == now or row.kind is kinds.KEPT:
            continue
        name = manifest_name(field, row, of_subscription=of_subscription)
        if field == "subscription_policies":
            yield from _of_subscriptions(f"{prefix}{name}", was or {}, now or {})
        else:
            yield Difference(f"{prefix}{name}", described(field, was), described(field, now), now is None)


def _of_subscriptions(name: str, actual: dict[str, Policies], wanted: dict[str, Policies]) -> Iterator[Difference]:
    nothing = Policies()
    for subscription in sorted(actual.keys() | wanted.keys()):
        was, now = actual.get(subscription, nothing), wanted.get(subscription, nothing)
        yield from _of_policies(f"{name}[{subscription}].", was, now, of_subscription=True)


def _list(field: str, was: list[str], wanted: list[str]) -> Iterator[Difference]:
    if sorted(was) != sorted(wanted):
        yield Difference(field, ", ".join(was) or "none", ", ".join(wanted) or "none", not wanted)


def field_name(field: str) -> str:
    """Return a policy's name in manifests, or that of a part of one: ``maxProducers`` for ``max_producers``."""
    row = POLICY_FIELDS.get(field)
    return camel(field) if row is None else manifest_name(field, row)


def _is_size(field: str) -> bool:
    row = POLICY_FIELDS.get(field)
    return field in _SIZES if row is None else row.kind in _SIZE_KINDS


def described(field: str, value: object) -> str:
    """Return a policy's value as a manifest would write it, on one line."""
    if value is None:
        return _NOT_SET
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if field.endswith("_ms"):
            return format_duration(value)
        return format_size(value) if _is_size(field) else str(value)
    if isinstance(value, msgspec.Struct):
        parts = []
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            if name == "limit":
                shown = format_duration(inner) if field == "backlog_quota_age" else format_size(inner)
            else:
                shown = described(name, inner)
            parts.append(f"{field_name(name).removesuffix('Bytes')}: {shown}")
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "any"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {described(key, inner)}" for key, inner in value.items()) + "}"
    return str(value) or "none"
