"""Resolves a resource to its object in a broker: Topic, Namespace, Tenant and BrokerCluster each name the next."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph_api.values.names import InvalidName, TopicName, check_part

from heliograph_operator.objects.conditions import Reason
from heliograph_operator.objects.kinds import Body, Key, is_deleted
from heliograph_operator.objects.resource_cache import Claim, ResourceCache, parent_of

_DEFAULT = "default"


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
    return str(((cluster.get("status") or {}).get("endpoints") or {}).get("http") or "")


def target_of(cache: ResourceCache, body: Body) -> Target | Waiting:
    """Follow the references; the answer names the resource that is missing or being deleted."""
    kind, name = body["kind"], _own_name(body)
    namespace = body["metadata"].get("namespace", "")
    parent = parent_of(body)
    try:
        if parent is None:
            cluster = _cluster(cache, namespace, ((body.get("spec") or {}).get("clusterRef") or {}).get("name", ""))
            if isinstance(cluster, Waiting):
                return cluster
            check_part("tenant", name)
            return Target(cluster, kind, name, "")
        above = _above(cache, parent)
        if isinstance(above, Waiting):
            return above
        return Target(above.cluster, kind, _full_name(kind, above.name, name, body), above.name)
    except InvalidName as error:
        return Waiting(Reason.INVALID, f"spec.name: {error}")


def _above(cache: ResourceCache, parent: Key) -> Target | Waiting:
    body = cache.get(parent)
    if body is not None:
        if is_deleted(body):
            return Waiting(Reason.PARENT_DELETING, f"{parent.kind} {parent.name} is being deleted")
        above = target_of(cache, body)
        if isinstance(above, Waiting):
            reason = Reason.PARENT_NOT_READY if above.reason is Reason.INVALID else above.reason
            return Waiting(reason, f"{parent.kind} {parent.name}: {above.message}")
        return above
    # A parent may exist in the broker without a resource: a tenant by its name, a namespace by ``tenant/namespace``.
    if parent.kind == "Tenant" or parent.name.count("/") == 1:
        cluster = _cluster(cache, parent.namespace, "")
        if isinstance(cluster, Key):
            for part in parent.name.split("/"):
                check_part("tenant or namespace", part)
            return Target(cluster, parent.kind, parent.name, parent.name.partition("/")[0])
    return Waiting(
        Reason.PARENT_MISSING,
        f"there is no {parent.kind} {parent.name!r} in Kubernetes namespace {parent.namespace} yet",
    )


def _cluster(cache: ResourceCache, namespace: str, name: str) -> Key | Waiting:
    """Return the named BrokerCluster, else the only one, else the one called ``default``."""
    known = {key.name: key for key in cache.keys("BrokerCluster", namespace)}
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
            f"there are several BrokerClusters ({', '.join(sorted(known))}) and none is named default;"
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
