"""Compares a broker's state with a resource, field by field, in the words of a manifest."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
from heliograph_api.policies import policy_kinds as kinds
from heliograph_api.policies.grants import (
    Actions,
    IsOthers,
    actions_on_topic,
    auth_policies,
    with_namespace_grants,
    with_stated,
)
from heliograph_api.policies.policy_field import camel, manifest_name
from heliograph_api.policies.policy_table import POLICY_FIELDS, Policies
from heliograph_api.resources.broker_state import BrokerState, SubscriptionState
from heliograph_api.resources.model import BrokerCluster, Namespace, OfBroker, Subscription, Tenant, Topic
from heliograph_api.resources.permission_spec import namespace_grants, topic_actions
from heliograph_api.values.durations import format_duration
from heliograph_api.values.names import SubscriptionName, TopicName
from heliograph_api.values.sizes import format_size

from heliograph_operator.objects.kinds import CLUSTER_KINDS

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


def _nobody(_: str) -> bool:
    return False


def differences(
    resource: OfBroker,
    name: str,
    state: BrokerState,
    others: Collection[str] = (),
    is_users: IsOthers = _nobody,
) -> list[Difference]:
    """Return the differences between a resource and the object ``name`` in a broker's ``state``.

    Surplus partitions are not among them: they cannot be removed (:func:`surplus`). Nor are ``others``, the
    subscriptions of a topic that are not the resource's, and the grants of roles that Users have (``is_users``).
    """
    if isinstance(resource, Tenant):
        return list(_of_tenant(resource, name, state))
    if isinstance(resource, Namespace):
        return [*_of_namespace(resource, name, state), *_of_grants(resource, name, state, is_users)]
    if isinstance(resource, Subscription):
        return list(_of_subscription(resource, SubscriptionName.parse(name), state))
    return [*_of_topic(resource, name, state, others), *_of_grants(resource, name, state, is_users)]


def default_differences(cluster: BrokerCluster, state: BrokerState) -> list[Difference]:
    """Return the differences between a BrokerCluster and the policies and limits of a whole broker."""
    spec = cluster.spec
    return [
        *_of_policies("brokerDefaults.", state.defaults, spec.broker_defaults.policies()),
        *_of_policies("limits.", state.limits, spec.limits.policies()),
    ]


def surplus(resource: OfBroker, name: str, state: BrokerState) -> tuple[int, int] | None:
    """Return (partitions there are, partitions wanted) if a topic cannot change to the number wanted, else None."""
    if not isinstance(resource, Topic) or (topic := state.topics.get(name)) is None:
        return None
    wanted = resource.spec.partitions
    # A topic without partitions cannot get any: its messages are in no partition.
    impossible = wanted < topic.partitions or (wanted > 0 and topic.partitions == 0)
    return (topic.partitions, wanted) if impossible else None


def exists(kind: str, name: str, state: BrokerState) -> bool:
    """Whether a broker has the object of a kind and full name; a subscription on any partition."""
    if kind == "Subscription":
        return _subscription_state(SubscriptionName.parse(name), state) is not None
    objects: dict[str, Mapping[str, object]] = {
        "Tenant": state.tenants,
        "Namespace": state.namespaces,
        "Topic": state.topics,
    }
    return name in objects[kind]


def is_empty(kind: str, name: str, state: BrokerState) -> bool:
    """Whether there is nothing in a tenant or namespace of a broker."""
    inside = state.namespaces if kind == "Tenant" else (topic.partition("://")[2] for topic in state.topics)
    return not any(each.startswith(f"{name}/") for each in inside)


def observed(kind: str, name: str, state: BrokerState) -> object:
    """Return a broker's state of an object without its statistics: a change of it requires a reconcile."""
    if kind == "Topic":
        if (topic := state.topics.get(name)) is None:
            return ()
        made = (topic.partitions, topic.missing_partitions, topic.subscriptions, topic.properties, topic.policies)
        return *made, topic.schemas, topic.size_exceeded, topic.age_exceeded, _topic_grants(name, state)
    if kind == "Subscription":
        subscription = SubscriptionName.parse(name)
        if (found := _subscription_state(subscription, state)) is None:
            return ()
        return _on_all_partitions(subscription, state), found.properties, own_policies(subscription, state)
    if kind == "Namespace":
        namespace = state.namespaces.get(name)
        return (namespace.bundles, namespace.policies) if namespace is not None else ()
    if kind in CLUSTER_KINDS:
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
    # Some brokers split bundles by themselves, and do not say how many were asked for.
    if namespace.bundles and namespace.bundles != resource.spec.bundles:
        # The API server fills in the default, so that it looks like a stated number.
        by_default = resource.spec.bundles == type(resource.spec).model_fields["bundles"].default
        yield Difference("bundles", str(namespace.bundles), str(resource.spec.bundles), by_default)
    yield from _of_policies("", namespace.policies, resource.spec.policies())


def _of_topic(resource: Topic, name: str, state: BrokerState, others: Collection[str]) -> Iterator[Difference]:
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
        if subscription not in topic.subscriptions and subscription not in others:
            yield Difference(f"subscriptions: {subscription}", _MISSING, "there")
    yield from _of_properties(topic.properties, spec.properties)
    if spec.schema_ is not None and spec.schema_.digest not in topic.schemas:
        yield Difference("schema", topic.schemas[-1] if topic.schemas else _NOT_SET, spec.schema_.digest)
    yield from _of_policies("", _without(topic.policies, others), _without(spec.policies(), others))


def _of_subscription(resource: Subscription, name: SubscriptionName, state: BrokerState) -> Iterator[Difference]:
    found = _subscription_state(name, state)
    if found is None:
        yield Difference(f"subscription {name}", _MISSING, "there")
        return
    if not _on_all_partitions(name, state):
        yield Difference(f"subscription {name}", "missing on some partitions", "there")
    yield from _of_properties(found.properties, resource.spec.properties)
    yield from _of_policies("", own_policies(name, state), resource.spec.policies(), of_subscription=True)


def _topic_grants(name: str, state: BrokerState) -> Actions:
    namespace = state.namespaces.get(TopicName.parse(name).namespace_name)
    return actions_on_topic(namespace.policies, name) if namespace is not None else {}


def _of_grants(resource: Namespace | Topic, name: str, state: BrokerState, is_users: IsOthers) -> Iterator[Difference]:
    """Yield the grants that differ, if the object exists and the resource states any."""
    if resource.spec.permissions is None or not exists(resource.kind, name, state):
        return
    if isinstance(resource, Topic):
        there = _topic_grants(name, state)
        yield from _of_actions(
            "permissions", there, with_stated(there, topic_actions(resource.spec.permissions), is_users)
        )
        return
    was = auth_policies(state.namespaces[name].policies)
    now = with_namespace_grants(was, namespace_grants(resource.spec.permissions, name), is_users)
    yield from _of_actions("permissions", was.namespace_auth, now.namespace_auth)
    for topic in sorted(was.destination_auth.keys() | now.destination_auth.keys()):
        field = f"permissions on {topic.rpartition('/')[2]}"
        yield from _of_actions(field, was.destination_auth.get(topic, {}), now.destination_auth.get(topic, {}))
    before, after = was.subscription_auth_roles, now.subscription_auth_roles
    for each in sorted(before.keys() | after.keys()):
        yield from _list(f"permissions: roles of subscription {each}", before.get(each, []), after.get(each, []))


def _of_actions(field: str, was: Actions, wanted: Actions) -> Iterator[Difference]:
    for role in sorted(was.keys() | wanted.keys()):
        yield from _list(f"{field}[{role}]", was.get(role, []), wanted.get(role, []))


def _subscription_state(name: SubscriptionName, state: BrokerState) -> SubscriptionState | None:
    """Return the state of a subscription; None if no partition has it, or one only while a reader is connected."""
    topic = state.topics.get(str(name.topic))
    found = topic.subscription(name.local) if topic is not None else None
    return found if found is not None and found.durable else None


def _on_all_partitions(name: SubscriptionName, state: BrokerState) -> bool:
    return name.local in state.topics[str(name.topic)].subscriptions


def own_policies(name: SubscriptionName, state: BrokerState) -> Policies:
    """Return the policies of a subscription, of a topic that exists; they may stay when the subscription is gone."""
    return (state.topics[str(name.topic)].policies.subscription_policies or {}).get(name.local, Policies())


def _without(policies: Policies, others: Collection[str]) -> Policies:
    """Return a topic's policies without those of some subscriptions."""
    by_name = {name: own for name, own in (policies.subscription_policies or {}).items() if name not in others}
    return msgspec.structs.replace(policies, subscription_policies=by_name or None)


def _of_properties(actual: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[Difference]:
    for key in sorted(actual.keys() | wanted.keys()):
        was, now = actual.get(key), wanted.get(key)
        if was != now:
            yield Difference(f"properties.{key}", described(key, was), described(key, now), now is None)


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
