"""Deletes a BrokerCluster: its tenants first, then its pods, then the other objects, each within a time limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import changed_since, release
from heliograph_operator.act.object_apply import belongs_to
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.status_report import named, report
from heliograph_operator.decide.cluster_objects import OWNED, POD, STATEFUL_SET, VOLUME_CLAIM
from heliograph_operator.decide.cluster_status import PROGRESSING
from heliograph_operator.decide.stateful_set import as_selector, labels, selector
from heliograph_operator.objects.conditions import Reason, Verdict, ready
from heliograph_operator.objects.kinds import Body, Key, deleted_for_s, is_deleted, is_held

from .cluster_certificates import orphan_certificates
from .cluster_keys import orphan_keys
from .cluster_volumes import claims_of

#: Time (s) for tenants that are being deleted: once the brokers are gone, their data cannot be deleted with them.
CHILDREN_S: Final = 60.0
#: Time (s) for pods beyond their grace period; the deletion goes on without them after it.
PODS_S: Final = 120.0
_RECHECK_S: Final = 1.0


async def delete_cluster(context: Context, resource: Resource) -> Outcome:
    """Take the next step of the deletion, whose last is to remove the finalizer."""
    if not is_held(resource.body):
        return Outcome("deleted")
    if why := resource.suspended:
        await context.events.emit(resource.body, "Retained", f"the brokers keep running: {why}")
        await orphan_objects(context, resource)
        return Outcome("deleted")
    policy = resource.spec.get("deletionPolicy", "Delete")
    waited_s = deleted_for_s(resource.body)
    found = resources_on(context, resource.key)
    leaving = [body for body in found if is_deleted(body)]
    if leaving and waited_s < CHILDREN_S:
        names = named([f"{body['kind']} {body['metadata']['name']}" for body in leaving], 5, ", ")
        await _wait(context, resource, f"waiting for {names} to be deleted")
        return Outcome("waiting", _RECHECK_S)
    alive = [body for body in found if not is_deleted(body)]
    staying = [body for body in alive if body["kind"] == "Tenant"]
    if policy == "Retain" or (policy == "DeleteIfEmpty" and staying):
        why = "spec.deletionPolicy is Retain" if policy == "Retain" else f"they have {len(staying)} tenants"
        await context.events.emit(resource.body, "Retained", f"the brokers keep running: {why}")
        await orphan_objects(context, resource)
        return Outcome("deleted")
    if alive and not _keeps_volumes(resource.spec):
        names = named([f"{body['kind']} {body['metadata']['name']}" for body in alive], 5, ", ")
        message = (
            f"the volumes hold the messages of {names}; valid: delete these, too, or set spec.storage.retainOnDelete to"
            " true"
        )
        await _wait(context, resource, message, Reason.CHILDREN_EXIST)
        return Outcome("waiting", _RECHECK_S)
    return await _delete(context, resource, waited_s)


async def _delete(context: Context, resource: Resource, waited_s: float) -> Outcome:
    spec, namespace, name = resource.spec, resource.key.namespace, resource.key.name
    found = await context.kube.find(STATEFUL_SET, namespace, name)
    if found is not None and not is_deleted(found) and belongs_to(found, resource.uid):
        await context.kube.delete(STATEFUL_SET, namespace, name)
    pods = await context.kube.list(POD, namespace, labels=as_selector(selector(name)))
    grace_s = float(spec.get("terminationGracePeriodSeconds", 60))
    if pods and waited_s < CHILDREN_S + grace_s + PODS_S:
        await _wait(context, resource, f"waiting for {len(pods)} pods to terminate")
        return Outcome("waiting", _RECHECK_S)
    if pods:
        message = f"{len(pods)} pods do not terminate (has their node failed?)"
        await context.events.emit(resource.body, "PodsLeft", message, "Warning")
    for kind in OWNED.values():
        for item in await _owned(context, resource, kind.name):
            await context.kube.delete(kind, namespace, item["metadata"]["name"])
    if not _keeps_volumes(spec):
        claims = await claims_of(context, resource.key)
        # It may have been created again, and its spec may keep the volumes.
        if (changed := await changed_since(context, resource)) is not None:
            return changed
        for claim in claims:
            await context.kube.delete(VOLUME_CLAIM, namespace, claim["metadata"]["name"])
    await release(context, resource)
    return Outcome("deleted")


def _keeps_volumes(spec: Mapping[str, Any]) -> bool:
    return (spec.get("storage") or {}).get("retainOnDelete") is not False


async def orphan_objects(context: Context, resource: Resource) -> None:
    """Release the resource and leave its objects running: without an owner they are not deleted with it."""
    if not is_held(resource.body):
        return
    for kind in OWNED.values():
        for item in await _owned(context, resource, kind.name):
            name, namespace = item["metadata"]["name"], item["metadata"]["namespace"]
            await context.kube.patch(kind, namespace, name, {"metadata": {"ownerReferences": None}})
    await orphan_keys(context, resource)
    await orphan_certificates(context, resource)
    await release(context, resource)


async def _owned(context: Context, resource: Resource, kind: str) -> list[dict[str, Any]]:
    """Return the objects of a kind whose owner is this very BrokerCluster."""
    key, uid = resource.key, resource.uid
    found = await context.kube.list(OWNED[kind], key.namespace, labels=as_selector(labels(key.name)))
    return [
        item
        for item in found
        if any(owner.get("uid") == uid for owner in item["metadata"].get("ownerReferences") or ())
    ]


def resources_on(context: Context, cluster: Key) -> list[Body]:
    """Return the resources whose objects are in the broker of a BrokerCluster."""
    found = (context.cache.get(key) for key in context.cache.ownership.on_cluster(cluster))
    return [body for body in found if body is not None]


async def _wait(context: Context, resource: Resource, message: str, reason: Reason = Reason.DELETING) -> None:
    await report(context, resource, [ready(reason, message), Verdict(PROGRESSING, "True", reason, message)])
