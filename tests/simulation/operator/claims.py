"""Finds the object of a broker that a resource stands for, by rules that are not the operator's code."""

from __future__ import annotations

from typing import Any, NamedTuple

from heliograph_operator.objects.kinds import Key

Object = dict[str, Any]
PREFIX = "heliograph.dev/"
FINALIZER = f"{PREFIX}broker-data"
_PARENTS = {
    "Namespace": ("tenantRef", "Tenant"),
    "Topic": ("namespaceRef", "Namespace"),
    "Subscription": ("topicRef", "Topic"),
}


class Place(NamedTuple):
    """An object of a broker: cluster, kind and full name."""

    cluster: str
    kind: str
    name: str


def key_of(body: Object) -> Key:
    return Key(body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"])


def noted(body: Object, name: str) -> str:
    return str((body["metadata"].get("annotations") or {}).get(PREFIX + name, ""))


def is_held(body: Object) -> bool:
    return FINALIZER in (body["metadata"].get("finalizers") or ())


def is_leaving(body: Object) -> bool:
    return "deletionTimestamp" in body["metadata"]


def is_managed(body: Object) -> bool:
    return noted(body, "managed") != "false"


def keeps_data(body: Object) -> bool:
    """Whether the deletion of a resource leaves its data in the broker, whatever is in it."""
    policy = (body.get("spec") or {}).get("deletionPolicy")
    return policy == "Retain" or noted(body, "paused") == "true" or not is_managed(body)


def held_place(body: Object) -> Place | None:
    """Return what was made for a resource, by its annotations."""
    name = noted(body, "broker-object")
    # All BrokerClusters are in one Kubernetes namespace, so that their names identify them.
    return Place(noted(body, "cluster").rpartition("/")[2], body["kind"], name) if name and is_held(body) else None


def parent_key(body: Object) -> Key | None:
    if body["kind"] not in _PARENTS:
        return None
    reference, kind = _PARENTS[body["kind"]]
    named = body["spec"][reference]
    return Key(kind, named.get("namespace", body["metadata"]["namespace"]), named["name"])


def place_of(objects: dict[Key, Object], body: Object) -> Place | None:
    """Return what a resource stands for, held or not; None while nobody can tell."""
    return held_place(body) or place_by_spec(objects, body)


def place_by_spec(objects: dict[Key, Object], body: Object, recorded: str = "") -> Place | None:
    """Return what a resource would stand for by its spec and those of its parents, whatever was made for them.

    Where no spec names a cluster, it is the one ``recorded`` for the resource, or for one that refers to it.
    """
    recorded = noted(body, "cluster").rpartition("/")[2] or recorded
    own = body["spec"].get("name") or body["metadata"]["name"]
    parent = parent_key(body)
    if parent is None:
        cluster = _cluster(objects, body, recorded)
        return Place(cluster, "Tenant", own) if cluster else None
    above = objects.get(parent)
    if above is not None:
        of = place_by_spec(objects, above, recorded)
        if of is None:
            return None
        cluster, name = of.cluster, of.name
    else:
        if parent.namespace != body["metadata"]["namespace"] or (parent.kind != "Tenant" and "/" not in parent.name):
            return None
        cluster, name = _cluster(objects, body, recorded), parent.name
        if not cluster:
            return None
    if body["kind"] == "Subscription":
        topic = name if "://" in name else f"persistent://{name}"
        return Place(cluster, body["kind"], f"{topic}/subscription/{own}")
    full = f"{name}/{own}" if body["kind"] == "Namespace" else f"persistent://{name}/{own}"
    return Place(cluster, body["kind"], full)


def is_allowed(objects: dict[Key, Object], body: Object, place: Place) -> bool:
    """Whether the BrokerCluster of an object lets a resource stand for it; one that is gone forbids nothing."""
    cluster = next((each for key, each in objects.items() if key[::2] == ("BrokerCluster", place.cluster)), None)
    own = body["metadata"]["namespace"]
    if cluster is None or cluster["metadata"]["namespace"] == own:
        return True
    tenant = (place.name.partition("://")[2] or place.name).split("/")[0]
    for consent in cluster["spec"].get("consents", []):
        kinds = consent.get("kinds", ["Namespace", "Topic", "Subscription"])
        if own in consent["kubernetesNamespaces"] and tenant in consent["tenants"] and body["kind"] in kinds:
            return True
    return False


def is_within(place: Place, above: Place) -> bool:
    """Whether an object is in a topic, namespace or tenant."""
    if place.cluster != above.cluster or above.kind == "Subscription":
        return False
    if above.kind == "Topic":
        return place.name.startswith(f"{above.name}/subscription/")
    own = place.name.partition("://")[2] or place.name
    return own.startswith(f"{above.name}/")


def naming_topic(objects: dict[Key, Object], place: Place) -> Object | None:
    """Return a Topic that is to stay and names a subscription of its topic in its spec; None if there is none."""
    for key, body in objects.items():
        if key.kind != "Topic" or is_leaving(body) or not is_managed(body):
            continue
        of = place_of(objects, body)
        local = place.name.rpartition("/")[2]
        if of is not None and is_within(place, of) and local in (body["spec"].get("subscriptions") or ()):
            return body
    return None


def _cluster(objects: dict[Key, Object], body: Object, recorded: str) -> str:
    if reference := body["spec"].get("clusterRef"):
        return str(reference["name"])
    namespace = body["metadata"]["namespace"]
    known = {key.name for key in objects if key.kind == "BrokerCluster" and key.namespace == namespace}
    if recorded or len(known) == 1:
        return recorded or next(iter(known))
    return "default" if "default" in known else ""
