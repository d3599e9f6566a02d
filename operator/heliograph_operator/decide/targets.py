"""From a resource to its place in a broker: Topic, Namespace, Tenant, BrokerCluster, each naming the next."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph_api.values.names import InvalidName, TopicName, check_part

from heliograph_operator.objects.conditions import Reason
from heliograph_operator.objects.kinds import Body, Key, is_deleted
from heliograph_operator.objects.resource_cache import Store, parent_of

_DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Target:
    """The object a resource stands for: ``name`` is full, ``parent`` that of what holds it ("" for a tenant)."""

    cluster: Key
    kind: str
    name: str
    parent: str

    @property
    def claim(self) -> tuple[Key, str, str]:
        """What only one resource can have."""
        return self.cluster, self.kind, self.name


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why there is no place for it yet; it is looked at again when that changes."""

    reason: Reason
    message: str


def http_url(cluster: Body) -> str:
    """Return where a cluster's brokers answer, or an empty text as long as they do not."""
    return str(((cluster.get("status") or {}).get("endpoints") or {}).get("http") or "")


def target_of(store: Store, body: Body) -> Target | Waiting:
    """Follow the references. What is missing, or being deleted, is named in the answer."""
    kind, name = body["kind"], _own_name(body)
    namespace = body["metadata"].get("namespace", "")
    parent = parent_of(body)
    try:
        if parent is None:
            cluster = _cluster(store, namespace, ((body.get("spec") or {}).get("clusterRef") or {}).get("name", ""))
            if isinstance(cluster, Waiting):
                return cluster
            check_part("tenant", name)
            return Target(cluster, kind, name, "")
        above = _above(store, parent)
        if isinstance(above, Waiting):
            return above
        return Target(above.cluster, kind, _full_name(kind, above.name, name, body), above.name)
    except InvalidName as error:
        return Waiting(Reason.INVALID, f"spec.name: {error}")


def _above(store: Store, parent: Key) -> Target | Waiting:
    body = store.get(parent)
    if body is not None:
        if is_deleted(body):
            return Waiting(Reason.PARENT_DELETING, f"{parent.kind} {parent.name} is being deleted")
        above = target_of(store, body)
        if isinstance(above, Waiting):
            reason = Reason.PARENT_NOT_READY if above.reason is Reason.INVALID else above.reason
            return Waiting(reason, f"{parent.kind} {parent.name}: {above.message}")
        return above
    # What a broker has without a resource can be named too: a tenant, or a namespace with its tenant.
    if parent.kind == "Tenant" or parent.name.count("/") == 1:
        cluster = _cluster(store, parent.namespace, "")
        if isinstance(cluster, Key):
            for part in parent.name.split("/"):
                check_part("tenant or namespace", part)
            return Target(cluster, parent.kind, parent.name, parent.name.partition("/")[0])
    return Waiting(
        Reason.PARENT_MISSING,
        f"there is no {parent.kind} {parent.name!r} in Kubernetes namespace {parent.namespace} yet",
    )


def _cluster(store: Store, namespace: str, name: str) -> Key | Waiting:
    """Return the named BrokerCluster, else the only one, else the one called ``default``."""
    known = {key.name: key for key in store.keys("BrokerCluster", namespace)}
    if name:
        if name in known:
            return known[name]
        return Waiting(
            Reason.PARENT_MISSING,
            f"spec.clusterRef.name: there is no BrokerCluster {name!r} in Kubernetes namespace {namespace}",
        )
    if len(known) == 1:
        return next(iter(known.values()))
    if _DEFAULT in known:
        return known[_DEFAULT]
    if known:
        return Waiting(
            Reason.CLUSTER_AMBIGUOUS,
            f"there are several BrokerClusters ({', '.join(sorted(known))}) and none is called default;"
            " valid: name one in the Tenant's spec.clusterRef",
        )
    return Waiting(Reason.PARENT_MISSING, f"there is no BrokerCluster in Kubernetes namespace {namespace}")


def _own_name(body: Body) -> str:
    named = (body.get("spec") or {}).get("name")
    return str(body["metadata"]["name"] if named is None else named)


def _full_name(kind: str, parent: str, name: str, body: Body) -> str:
    if kind == "Namespace":
        check_part("namespace", name)
        return f"{parent}/{name}"
    persistent = (body.get("spec") or {}).get("persistent", True)
    tenant, _, local = parent.partition("/")
    return str(TopicName.of("persistent" if persistent else "non-persistent", tenant, local, name))
