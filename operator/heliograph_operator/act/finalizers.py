"""The finalizer that holds a resource until its data is taken care of, and annotations that say which data that is.

Finalizer and annotations are written together, once: ``heliograph.dev/broker-object`` and ``heliograph.dev/cluster``
name what to delete even when the resources that led to it are gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import structlog

from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.kinds import (
    FINALIZER,
    GROUP,
    KINDS,
    Body,
    Key,
    annotation,
    cluster_note,
    is_adopted,
    is_deleted,
    is_held,
    own_annotations,
    owned,
)
from heliograph_operator.objects.subscriptions import RETAINED_SUBSCRIPTIONS, retained_subscriptions
from heliograph_operator.objects.targets import Target

from .controller import Context, Outcome
from .resource import Resource

log = structlog.get_logger(__name__)

#: Pause (s) if the API server has another version of a resource than it had.
_OTHER_VERSION_S: Final = 5.0

#: On a Namespace or Tenant: something in it was retained, so it must not be deleted with its content.
HOLDS_RETAINED: Final = "holds-retained"
_ATTEMPTS = 5

Change = Callable[[Body], dict[str, Any] | None]


async def hold(context: Context, resource: Resource, target: Target | None = None, *, adopted: bool = False) -> bool:
    """Add the finalizer, before anything is created for the resource; with ``target``, the annotations for it, too.

    ``adopted`` is recorded with them: the object exists already, and is not the resource's to delete unless it says so.
    Returns False if the resource is gone, or is being deleted: nothing may be created for it any more.
    """

    def change(now: Body) -> dict[str, Any] | None:
        # Somebody may have removed the annotations, or added the finalizer.
        if is_deleted(now) or (is_held(now) and (target is None or owned(now)[1])):
            return None
        others = [each for each in now["metadata"].get("finalizers") or () if each != FINALIZER]
        added: dict[str, Any] = {"finalizers": [*others, FINALIZER]}
        if target is not None:
            cluster = cluster_note(target.cluster, now)
            notes = {f"{GROUP}/cluster": cluster, f"{GROUP}/broker-object": target.name}
            if adopted:
                notes[f"{GROUP}/adopted"] = "true"
            added["annotations"] = notes
        return added

    return await _change(context, resource, change) and is_held(resource.body)


async def release(context: Context, resource: Resource) -> None:
    """Remove the finalizer and the annotations: the operator has nothing more to do with the resource.

    Only its BrokerCluster stays recorded: what it described there must not pass for an object of another one.
    """

    def change(now: Body) -> dict[str, Any] | None:
        if not is_held(now):
            return None
        rest = [each for each in now["metadata"].get("finalizers") or () if each != FINALIZER]
        notes = {f"{GROUP}/broker-object": None, f"{GROUP}/adopted": None}
        return {"finalizers": rest, "annotations": notes}

    await _change(context, resource, change)


async def changed_since(context: Context, resource: Resource) -> Outcome | None:
    """Return how to go on if a resource is not as it was when the reconcile began; None: it is, by the API server.

    To be called last before data is deleted. The watch may be late, and the answer to the patch that released the
    resource may have been lost: what is there by now was created by clients, or belongs to another resource.
    """
    key = resource.key
    now = await context.kube.find(KINDS[key.kind], key.namespace, key.name)
    if now is None or now["metadata"]["uid"] != resource.uid:
        return Outcome("gone")
    context.cache.put(now)
    known, decided_by = context.cache.get(key), _decisive(resource.body)
    if known is None or _decisive(known) != decided_by:
        return Outcome("waiting", 0.0)
    if _decisive(now) != decided_by:
        # The API server has an older version than it had, as after the restore of a backup of it.
        log.warning("the API server has another version of the resource", resource=str(key))
        return Outcome("waiting", _OTHER_VERSION_S)
    return None


def _decisive(body: Body) -> Any:
    """Return what decides about the data of a resource.

    Not its status, nor labels and annotations of others: who writes these all the time must not delay it.
    """
    metadata = body["metadata"]
    return metadata["uid"], metadata.get("deletionTimestamp"), is_held(body), own_annotations(body), body.get("spec")


async def note_cluster(context: Context, resource: Resource, cluster: Key) -> None:
    """Record the BrokerCluster of a resource that is not held, so that it stays the same when there are others."""

    def change(now: Body) -> dict[str, Any] | None:
        if annotation(now, "cluster"):
            return None
        return {"annotations": {f"{GROUP}/cluster": cluster_note(cluster, now)}}

    await _change(context, resource, change)


async def note_adopted(context: Context, resource: Resource) -> None:
    """Record on a held resource that its object is not one that was created for it."""

    def change(now: Body) -> dict[str, Any] | None:
        if not is_held(now) or is_adopted(now):
            return None
        return {"annotations": {f"{GROUP}/adopted": "true"}}

    await _change(context, resource, change)


async def note_retained(context: Context, resource: Resource) -> None:
    """Record on a resource that something in it was retained."""

    def change(now: Body) -> dict[str, Any] | None:
        if annotation(now, HOLDS_RETAINED) == "true":
            return None
        return {"annotations": {f"{GROUP}/{HOLDS_RETAINED}": "true"}}

    await _change(context, resource, change)


async def note_retained_subscription(context: Context, resource: Resource, name: str) -> None:
    """Record on a Topic that a subscription of it was retained: it keeps the policies that it has."""

    def change(now: Body) -> dict[str, Any] | None:
        known = retained_subscriptions(now)
        if name in known:
            return None
        return {"annotations": {f"{GROUP}/{RETAINED_SUBSCRIPTIONS}": json.dumps(sorted({*known, name}))}}

    await _change(context, resource, change)


async def _change(context: Context, resource: Resource, change: Change) -> bool:
    """Apply ``change`` to the metadata, again after a conflict; return False if the resource is gone."""
    key = resource.key
    kind = KINDS[key.kind]
    for attempt in range(_ATTEMPTS):
        now = resource.body
        wanted = change(now)
        if wanted is None:
            return True
        # With the version the list of finalizers was read from, so that nobody else's finalizer is lost.
        metadata = {**wanted, "resourceVersion": now["metadata"]["resourceVersion"], "uid": now["metadata"]["uid"]}
        try:
            written = await context.kube.patch(kind, key.namespace, key.name, {"metadata": metadata})
        except KubeRefused as error:
            if error.status == 404:
                return False
            if error.status != 409 or attempt == _ATTEMPTS - 1:
                raise
            fresh = await context.kube.find(kind, key.namespace, key.name)
            if fresh is None or fresh["metadata"]["uid"] != now["metadata"]["uid"]:
                return False
            resource.body = fresh
            continue
        # When the last finalizer of a deleted object goes, the response is the last that is heard of it.
        if is_deleted(written) and not written["metadata"].get("finalizers"):
            return False
        context.cache.put(written)
        resource.body = written
        return True
    raise AssertionError("the last attempt returns or raises")
