"""The finalizer that holds a resource until its data is taken care of, and annotations that say which data that is.

Finalizer and annotations are written together, once: ``heliograph.dev/broker-object`` and ``heliograph.dev/cluster``
name what to delete even when the resources that led to it are gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from heliograph_operator.decide.targets import Target
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.kinds import GROUP, KINDS, Body, annotation, is_deleted

from .controller import Context
from .resource import Resource

FINALIZER: Final = f"{GROUP}/broker-data"
#: On a Namespace or Tenant: something in it was retained, so it must not be deleted with its content.
HOLDS_RETAINED: Final = "holds-retained"
_ATTEMPTS = 5

Change = Callable[[Body], dict[str, Any] | None]


def is_held(body: Body) -> bool:
    """Whether the resource has the operator's finalizer."""
    return FINALIZER in (body["metadata"].get("finalizers") or ())


def owned(body: Body) -> tuple[str, str]:
    """Return the (cluster, full name) that was created for a resource; empty texts if nothing was."""
    return annotation(body, "cluster"), annotation(body, "broker-object")


async def hold(context: Context, resource: Resource, target: Target | None = None) -> bool:
    """Add the finalizer, before anything is created for the resource; with ``target``, the annotations for it, too.

    Returns False if the resource is gone, or is being deleted: nothing may be created for it any more.
    """

    def change(now: Body) -> dict[str, Any] | None:
        if is_held(now) or is_deleted(now):
            return None
        added: dict[str, Any] = {"finalizers": [*(now["metadata"].get("finalizers") or ()), FINALIZER]}
        if target is not None:
            notes = {f"{GROUP}/cluster": target.cluster.name, f"{GROUP}/broker-object": target.name}
            added["annotations"] = notes
        return added

    return await _change(context, resource, change) and is_held(resource.body)


async def release(context: Context, resource: Resource) -> None:
    """Remove the finalizer and the annotations: the operator has nothing more to do with the resource."""

    def change(now: Body) -> dict[str, Any] | None:
        if not is_held(now):
            return None
        rest = [each for each in now["metadata"].get("finalizers") or () if each != FINALIZER]
        notes = {f"{GROUP}/cluster": None, f"{GROUP}/broker-object": None}
        return {"finalizers": rest, "annotations": notes}

    await _change(context, resource, change)


async def note_retained(context: Context, resource: Resource) -> None:
    """Record on a resource that something in it was retained."""

    def change(now: Body) -> dict[str, Any] | None:
        if annotation(now, HOLDS_RETAINED) == "true":
            return None
        return {"annotations": {f"{GROUP}/{HOLDS_RETAINED}": "true"}}

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
