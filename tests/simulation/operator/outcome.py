"""Checks statuses and deletions once everything can be reached and nothing changes any more."""

from __future__ import annotations

from heliograph_operator.objects.kinds import Key

from .claims import (
    Object,
    Place,
    held_place,
    is_allowed,
    is_held,
    is_leaving,
    is_managed,
    is_within,
    key_of,
    naming_topic,
    noted,
    parent_key,
    place_by_spec,
    place_of,
)
from .witness import POLICY_KINDS, Violation, ready_of, wanted_of
from .world import NAMESPACE, World


def check(world: World) -> None:
    """Raise :class:`.witness.Violation` for a deletion that hangs without a reason, or a status that is not true."""
    for body in [body for key, body in world.server.objects.items() if key.kind in POLICY_KINDS]:
        ready = ready_of(body.get("status") or {})
        if is_leaving(body):
            _leaving(world, body, ready)
        else:
            _staying(world, body, ready)
    _archives(world)


def _archives(world: World) -> None:
    """Raise a violation for a CronJob whose Topic may not have one, and for a Topic that should and has none."""
    objects = world.server.objects
    owners = {body["metadata"]["ownerReferences"][0]["uid"] for key, body in objects.items() if key.kind == "CronJob"}
    topics = {body["metadata"]["uid"]: body for key, body in objects.items() if key.kind == "Topic"}
    if gone := owners - topics.keys():
        raise Violation("an archive goes on", f"the Topics {gone} are gone")
    for uid, body in topics.items():
        why = _not_archived(objects, body)
        if uid in owners and why:
            raise Violation("an archive goes on", f"{key_of(body)} {why}")
        ready = ready_of(body.get("status") or {}).get("status") == "True"
        if ready and not why and body["spec"].get("archive") and uid not in owners:
            raise Violation("an archive is missing", f"{key_of(body)} may have it")


def _not_archived(objects: dict[Key, Object], body: Object) -> str:
    """Return why a Topic may not have the CronJob of an archive; empty if it may."""
    if not is_managed(body) or is_leaving(body):
        return "is not managed, or is being deleted"
    paused = noted(body, "paused") == "true"
    if not body["spec"].get("archive") and not paused:
        return "has no archive"
    place = held_place(body)
    if place is None:
        return "" if paused else "owns nothing"
    cluster = objects.get(Key("BrokerCluster", NAMESPACE, place.cluster.rpartition("/")[2])) or {}
    consent = (cluster.get("spec") or {}).get("archives") or {}
    allowed = consent.get("enabled") and "files" in consent.get("volumeClaims", ())
    if not allowed or body["metadata"]["namespace"] != NAMESPACE:
        return "is not allowed one"
    return ""


def _leaving(world: World, body: Object, ready: Object) -> None:
    reason, name = ready.get("reason"), key_of(body)
    if ready.get("status") != "False" or not ready.get("message"):
        raise Violation("a deletion hangs", f"{name} does not say why: {ready}")
    if reason in ("Refused", "BrokerUnreachable", "Deleting"):
        raise Violation("a deletion hangs", f"{name}, although everything can be reached: {ready}")
    place = held_place(body)
    below = [
        other
        for key, other in world.server.objects.items()
        if key.kind in POLICY_KINDS
        and other is not body
        and (
            parent_key(other) == name
            or (place and (of := place_of(world.server.objects, other)) is not None and is_within(of, place))
        )
    ]
    if not below:
        raise Violation("a deletion hangs", f"{name} has nothing below it and waits: {ready}")


def _staying(world: World, body: Object, ready: Object) -> None:
    name, metadata = key_of(body), body["metadata"]
    if ready.get("observedGeneration") != metadata["generation"]:
        raise Violation("a false status", f"{name} has generation {metadata['generation']} and says {ready}")
    reason = ready["reason"]
    place = held_place(body)
    if not is_managed(body):
        if reason != "Unmanaged" or place is not None:
            raise Violation("a false status", f"{name} is not managed: {ready}")
        return
    stands_for = place_of(world.server.objects, body)
    if stands_for is not None and not is_allowed(world.server.objects, body, stands_for):
        if reason != "NotAllowed" or is_held(body):
            raise Violation("a false status", f"{name} is not allowed: {ready}")
        return
    if ready["status"] == "True":
        present = world.brokers[place.cluster].present(place.kind, place.name) if place else None
        if present is None or present != wanted_of(body, body["spec"]):
            raise Violation("a false status", f"{name} is Ready, and {place} is {present}")
        return
    if not _is_true(world, body, reason):
        raise Violation("a false status", f"{name} is not Ready without a reason: {ready}")


def _is_true(world: World, body: Object, reason: str) -> bool:
    objects = world.server.objects
    place, parent = place_of(objects, body), parent_key(body)
    above = objects.get(parent) if parent is not None else None
    clusters = [key.name for key in objects if key.kind == "BrokerCluster"]
    match reason:
        case "Paused":
            return noted(body, "paused") == "true"
        case "AdoptionPending" | "SubscriptionOwned":
            return place is not None and _is_about_subscriptions(world, body, place, reason)
        case "Conflict":
            if body["kind"] == "Subscription" and place is not None and naming_topic(objects, place) is not None:
                return True
            return any(
                other is not body and place_of(objects, other) == place and is_managed(other)
                for key, other in objects.items()
                if key.kind == body["kind"]
            )
        case "ParentMissing":
            by_spec = place_by_spec(objects, body)
            return (parent is not None and above is None) or by_spec is None or by_spec.cluster not in clusters
        case "ParentDeleting":
            return _any_above(world, body, is_leaving)
        case "ParentNotReady":
            return place is not None and not _parent_exists(world, body)
        case "ClusterAmbiguous":
            return held_place(body) is None and not _any_above(world, body, lambda each: held_place(each) is not None)
        case "ClusterNotReady":
            return place is not None and place.cluster != "main"
        case "RenameRefused":
            return place_by_spec(objects, body) != held_place(body)
        case "ShrinkRefused" | "PartitioningRefused":
            present = world.brokers["main"].present("Topic", place.name) if place else None
            return present is not None and present[0] != wanted_of(body, body["spec"])[0]
    return False


def _is_about_subscriptions(world: World, body: Object, place: Place, reason: str) -> bool:
    """Whether the subscriptions of a topic are the reason that a resource is not Ready."""
    if reason == "AdoptionPending":
        # Histories name everything else that they set.
        topic = world.brokers[place.cluster].topics.get(place.name)
        return topic is not None and topic.policies.subscription_policies is not None
    named = {f"{place.name}/subscription/{each}" for each in body["spec"].get("subscriptions") or ()}
    return any((of := held_place(other)) is not None and of.name in named for other in world.server.objects.values())


def _any_above(world: World, body: Object, check: object) -> bool:
    parent = parent_key(body)
    while parent is not None and (above := world.server.objects.get(parent)) is not None:
        if check(above):  # type: ignore[operator]
            return True
        parent = parent_key(above)
    return False


def _parent_exists(world: World, body: Object) -> bool:
    place = place_of(world.server.objects, body)
    assert place is not None
    broker = world.brokers.get(place.cluster)
    if broker is None:
        return False
    if place.kind == "Namespace":
        return place.name.split("/")[0] in broker.tenants
    if place.kind == "Subscription":
        return place.name.partition("/subscription/")[0] in broker.topics
    return place.name.partition("://")[2].rpartition("/")[0] in broker.namespaces
