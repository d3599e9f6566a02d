"""Resolves a resource to its object in a broker: Subscription, Topic, Namespace, Tenant each name the next one up.

A Tenant names its brokers: a BrokerCluster, or a BrokerConnection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from heliograph_api.values.names import (
    COMPACTION,
    InvalidName,
    NamespaceName,
    SubscriptionName,
    TopicName,
    check_part,
    check_subscription,
)
from heliograph_api.values.quoting import quoted

from .conditions import READY, Reason, condition
from .kinds import (
    BROKER_CLUSTER,
    BROKER_CONNECTION,
    Body,
    Key,
    annotation,
    cluster_key,
    full_name,
    is_deleted,
    key_of,
    owned,
    shown,
)
from .ownership import Claim

#: The field in which a kind names its parent, and the parent's kind.
PARENTS: Final = {
    "Subscription": ("topicRef", "Topic"),
    "Topic": ("namespaceRef", "Namespace"),
    "Namespace": ("tenantRef", "Tenant"),
}
_DEFAULT: Final = "default"
#: Begins the addresses of BrokerConnections.
CONNECTION: Final = "connection://"
_UNWATCHED: Final = ", or the operator does not watch that"


class Bodies(Protocol):
    """The resources that are known."""

    def get(self, key: Key) -> Body | None:
        """Return a body, None if it is not known."""

    def keys(self, kind: str = "", namespace: str | None = None) -> Iterable[Key]:
        """Return the keys of a kind in a Kubernetes namespace."""


@dataclass(frozen=True, slots=True)
class Target:
    """The object a resource stands for: its full ``name``, and the full name of its ``parent`` ("" for a tenant)."""

    cluster: Key
    kind: str
    name: str
    parent: str

    @property
    def claim(self) -> Claim:
        """The claim on the object, of which only one resource can be the owner."""
        return Claim(self.cluster, self.kind, self.name)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a resource cannot be resolved yet; it is requeued when that changes."""

    reason: Reason
    message: str


def http_url(cluster: Body) -> str:
    """Return the HTTP URL a BrokerCluster has published, or an empty text if it has not yet."""
    return endpoint(cluster, "http")


def endpoint(cluster: Body, name: str) -> str:
    """Return one of the URLs a BrokerCluster has published in its status, or an empty text if it has not yet."""
    return str(((cluster.get("status") or {}).get("endpoints") or {}).get(name) or "")


def broker_address(cluster: Body) -> str:
    """Return the address that sessions with the brokers of a BrokerCluster or BrokerConnection are known by.

    Empty: there is none yet. That of a connection tells it from another one with the same URL and other credentials.
    """
    if cluster["kind"] == BROKER_CONNECTION.name:
        key = key_of(cluster)
        return f"{CONNECTION}{key.namespace}/{key.name}"
    return http_url(cluster)


def no_address(key: Key, cluster: Body, namespace: str) -> Waiting:
    """Return why there is no session with the brokers of a resource in a Kubernetes namespace."""
    if key.kind != BROKER_CONNECTION.name:
        message = f"{shown(key, namespace)} has not published a broker address yet"
        return Waiting(Reason.CLUSTER_NOT_READY, message)
    why = condition(cluster.get("status") or {}, READY)
    problem = why.get("message") if why.get("status") in ("False", "Unknown") else ""
    if problem and why.get("reason") == Reason.BROKERS_CHANGED:
        return Waiting(Reason.BROKERS_CHANGED, f"{shown(key, namespace)}: {problem}")
    message = f"{shown(key, namespace)} has not reached its broker{f': {problem}' if problem else ' yet'}"
    return Waiting(Reason.CLUSTER_NOT_READY, message)


def parent_of(body: Body) -> Key | None:
    """Return the key of the Topic of a Subscription, the Namespace of a Topic, or the Tenant of a Namespace."""
    if body["kind"] not in PARENTS:
        return None
    field, kind = PARENTS[body["kind"]]
    return _referred(body, field, kind)


def other_clusters(body: Body) -> set[Key]:
    """Return what a resource is on by its spec or its annotation, where that is in another Kubernetes namespace."""
    stated, note = _stated_cluster(body), annotation(body, "cluster")
    named = {stated} if stated.name else set()
    if note:
        named.add(cluster_key(body, note))
    return {key for key in named if key.namespace != body["metadata"].get("namespace", "")}


def recorded_claim(body: Body) -> Claim | None:
    """Return the object that was recorded for a resource; None if there is none, or nothing can have such a name.

    The annotation may have been written by hand: a short name is a claim on the topic that the broker takes it for,
    the name of a partition one on its topic. Only one that :func:`is_established` may delete it.
    """
    cluster, text = owned(body)
    name = _recorded_name(body["kind"], text)
    return Claim(cluster_key(body, cluster), body["kind"], name) if name else None


def is_established(body: Body) -> bool:
    """Whether an object was recorded for a resource by its full name, as the operator does."""
    name = owned(body)[1]
    return bool(name) and _recorded_name(body["kind"], name) == name


def claim_of(bodies: Bodies, body: Body) -> Claim | None:
    """Return the object that a resource stands for, whatever else becomes of it; None if that is not known yet.

    The object recorded for it comes before the one that its spec names now.
    """
    recorded = recorded_claim(body)
    if recorded is not None:
        return recorded
    found = target_of(bodies, body, through_deleted=True)
    return found.claim if isinstance(found, Target) else None


def target_of(
    bodies: Bodies, body: Body, *, through_deleted: bool = False, recorded_below: Key | None = None
) -> Target | Waiting:
    """Follow the references; the answer names the resource that is missing or being deleted.

    With ``through_deleted``, a parent that is being deleted is one like any other. ``recorded_below`` is the
    BrokerCluster recorded for a resource that refers to this one: it counts where none is recorded for this one.
    """
    kind, name = body["kind"], _own_name(body)
    parent = parent_of(body)
    note = annotation(body, "cluster")
    recorded = cluster_key(body, note) if note else recorded_below
    try:
        if parent is None:
            cluster = _cluster(bodies, body, recorded)
            if isinstance(cluster, Waiting):
                return cluster
            check_part("tenant", name)
            return Target(cluster, kind, _addressable(name), "")
        above = _above(bodies, body, parent, through_deleted, recorded)
        if isinstance(above, Waiting):
            return above
        stated = _stated_cluster(body)
        if stated.name and stated != above.cluster:
            own, there = stated.namespace, above.cluster
            valid = there.name if there.namespace == own else f"{there.name} in Kubernetes namespace {there.namespace}"
            if stated.kind != there.kind:
                valid = f"{there.kind} {valid}"
            return Waiting(
                Reason.INVALID,
                f"spec.clusterRef.name: {stated.name} is not the {stated.kind} of its {parent.kind} {parent.name};"
                f" valid: {valid}, or leave it out",
            )
        if kind == "Subscription" and not TopicName.parse(above.name).is_persistent:
            message = f"spec.topicRef.name: {above.name} stores no messages; valid: a persistent topic"
            return Waiting(Reason.INVALID, message)
        return Target(above.cluster, kind, _addressable(_full_name(kind, above.name, name, body)), above.name)
    except InvalidName as error:
        return Waiting(Reason.INVALID, f"spec.name: {error}")


def _recorded_name(kind: str, text: str) -> str:
    """Return the full name of what the broker takes a text for, of a topic and not its partition; empty if nothing."""
    try:
        if kind == "Topic":
            topic = TopicName.parse(text)
            while topic.partition >= 0:
                topic = topic.base
            return _addressable(str(topic))
        if kind == "Namespace":
            return _addressable(str(NamespaceName.parse(text)))
        if kind == "Subscription":
            subscription = SubscriptionName.parse(text)
            return _subscription(_recorded_name("Topic", str(subscription.topic)), subscription.local)
        check_part("tenant", text)
        return _addressable(text)
    except InvalidName:
        return ""


def _addressable(name: str) -> str:
    """Return a full name. Raises :class:`InvalidName` if a part of it is a step in a path of the admin API."""
    if {".", ".."} & set((name.partition("://")[2] or name).split("/", 2)):
        raise InvalidName(f"{quoted(name)} has a part . or .., which no URL can have; valid: another name")
    return name


def _subscription(topic: str, name: str) -> str:
    """Return the full name of a topic's subscription. Raises :class:`InvalidName` if no resource can stand for it."""
    check_subscription(name)
    if name in (".", "..", COMPACTION):
        raise InvalidName(f"{quoted(name)} is the broker's own, or no URL can have it; valid: another name")
    return str(SubscriptionName(TopicName.parse(topic), name))


def _above(bodies: Bodies, child: Body, parent: Key, through_deleted: bool, recorded: Key | None) -> Target | Waiting:
    body = bodies.get(parent)
    if body is not None:
        if is_deleted(body) and not through_deleted:
            return Waiting(Reason.PARENT_DELETING, f"{parent.kind} {parent.name} is being deleted")
        above = target_of(bodies, body, through_deleted=through_deleted, recorded_below=recorded)
        if isinstance(above, Waiting):
            reason = Reason.PARENT_NOT_READY if above.reason is Reason.INVALID else above.reason
            return Waiting(reason, f"{shown(parent, child['metadata'].get('namespace', ''))}: {above.message}")
        return above
    # A parent may exist in the broker without a resource.
    elsewhere = parent.namespace != child["metadata"].get("namespace", "")
    if not elsewhere and _is_name_in_broker(parent):
        cluster = _cluster(bodies, child, recorded)
        if isinstance(cluster, Key):
            if parent.kind == "Topic":
                return _existing_topic(cluster, parent.name)
            for part in parent.name.split("/"):
                check_part("tenant or namespace", part)
            return Target(cluster, parent.kind, parent.name, parent.name.partition("/")[0])
        if cluster.reason is not Reason.PARENT_MISSING or _stated_cluster(child).name:
            return cluster
    return Waiting(
        Reason.PARENT_MISSING,
        f"there is no {parent.kind} {parent.name!r} ({full_name(parent.kind)}) in Kubernetes namespace"
        f" {parent.namespace} yet{_UNWATCHED if elsewhere else ''}",
    )


def _is_name_in_broker(parent: Key) -> bool:
    """Whether a reference may be the name of an object: a tenant's, ``tenant/namespace``, or a topic's with a slash."""
    slashes = parent.name.count("/")
    return {"Tenant": True, "Namespace": slashes == 1, "Topic": slashes > 0}[parent.kind]


def _existing_topic(cluster: Key, text: str) -> Target | Waiting:
    try:
        topic = TopicName.parse(text)
    except InvalidName as error:
        return Waiting(Reason.INVALID, f"spec.topicRef.name: {error}")
    if topic.partition >= 0:
        message = f"spec.topicRef.name: {topic} is a partition; valid: {topic.base}, for all of its partitions"
        return Waiting(Reason.INVALID, message)
    return Target(cluster, "Topic", _addressable(str(topic)), topic.namespace_name)


def _cluster(bodies: Bodies, body: Body, recorded: Key | None) -> Key | Waiting:
    """Return what is named, else what is recorded, else the only BrokerCluster, else the one named ``default``.

    A BrokerConnection is never chosen: one that somebody adds changes nothing for others.
    """
    namespace = body["metadata"].get("namespace", "")
    stated = _stated_cluster(body)
    named = stated if stated.name else recorded
    if named is not None:
        if bodies.get(named) is not None:
            return named
        where = "spec.clusterRef.name" if stated.name else "annotation heliograph.dev/cluster"
        missing = f"{where}: there is no {named.kind} {named.name!r} in Kubernetes namespace {named.namespace}"
        connection = named._replace(kind=BROKER_CONNECTION.name)
        if connection != named and bodies.get(connection) is not None:
            missing += (
                f", but a BrokerConnection; valid: delete this resource, and create it with kind: {connection.kind} in"
                " spec.clusterRef"
            )
        return Waiting(Reason.PARENT_MISSING, f"{missing}{_UNWATCHED if named.namespace != namespace else ''}")
    known = {key.name: key for key in bodies.keys(BROKER_CLUSTER.name, namespace)}
    if len(known) == 1:
        return next(iter(known.values()))
    if _DEFAULT in known:
        return known[_DEFAULT]
    if known:
        return Waiting(
            Reason.CLUSTER_AMBIGUOUS,
            f"there are several BrokerClusters ({', '.join(sorted(known))}) and none is named default;"
            " valid: name one in spec.clusterRef",
        )
    missing = f"there is no BrokerCluster in Kubernetes namespace {namespace}; create one, or set spec.clusterRef"
    return Waiting(Reason.PARENT_MISSING, missing)


def _referred(body: Body, field: str, kind: str) -> Key:
    """Return the key of the resource that a field names; without a name if the field is not set."""
    reference = (body.get("spec") or {}).get(field) or {}
    namespace = str(reference.get("namespace") or body["metadata"].get("namespace", ""))
    return Key(kind, namespace, str(reference.get("name") or ""))


def _stated_cluster(body: Body) -> Key:
    """Return the key in ``clusterRef``; without a name if the field is not set."""
    kind = ((body.get("spec") or {}).get("clusterRef") or {}).get("kind")
    return _referred(body, "clusterRef", (BROKER_CONNECTION if kind == BROKER_CONNECTION.name else BROKER_CLUSTER).name)


def _own_name(body: Body) -> str:
    named = (body.get("spec") or {}).get("name")
    return str(body["metadata"]["name"] if named is None else named)


def _full_name(kind: str, parent: str, name: str, body: Body) -> str:
    if kind == "Namespace":
        check_part("namespace", name)
        return f"{parent}/{name}"
    if kind == "Subscription":
        return _subscription(parent, name)
    persistent = (body.get("spec") or {}).get("persistent", True)
    tenant, _, local = parent.partition("/")
    return str(TopicName.of("persistent" if persistent else "non-persistent", tenant, local, name))
