"""The mark that keeps a resource until its data is seen to, and the notes of what it stands for.

All are written together, once: annotations ``heliograph.dev/broker-object`` and ``heliograph.dev/cluster`` say what to
delete even when the resources it was found by are gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from heliograph_operator.decide.targets import Target
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.kinds import GROUP, KINDS, Body, annotation, key_of

from .controller import Context

FINALIZER: Final = f"{GROUP}/broker-data"
#: On a Namespace or Tenant: something in it was kept on purpose, so that it is not deleted with what is in it.
HOLDS_RETAINED: Final = "holds-retained"
_ATTEMPTS = 5

Change = Callable[[Body], dict[str, Any] | None]


def is_held(body: Body) -> bool:
    """Whether the operator keeps the resource until it has seen to its data."""
    return FINALIZER in (body["metadata"].get("finalizers") or ())


def owned(body: Body) -> tuple[str, str]:
    """Return the (cluster, full name) that a resource was made so for; empty texts if it never was."""
    return annotation(body, "cluster"), annotation(body, "broker-object")


async def hold(context: Context, body: Body, target: Target) -> Body | None:
    """Mark a resource before anything is made in a broker for it; return it, or None if it is gone."""

    def change(now: Body) -> dict[str, Any] | None:
        metadata = now["metadata"]
        if is_held(now) or metadata.get("deletionTimestamp"):
            return None
        notes = {f"{GROUP}/cluster": target.cluster.name, f"{GROUP}/broker-object": target.name}
        return {"finalizers": [*(metadata.get("finalizers") or ()), FINALIZER], "annotations": notes}

    return await _change(context, body, change)


async def release(context: Context, body: Body) -> None:
    """Let a resource go: the operator has nothing more to do with it."""

    def change(now: Body) -> dict[str, Any] | None:
        if not is_held(now):
            return None
        rest = [each for each in now["metadata"].get("finalizers") or () if each != FINALIZER]
        notes = {f"{GROUP}/cluster": None, f"{GROUP}/broker-object": None}
        return {"finalizers": rest, "annotations": notes}

    await _change(context, body, change)


async def note_retained(context: Context, body: Body) -> None:
    """Note on a resource that something in it was kept."""

    def change(now: Body) -> dict[str, Any] | None:
        if annotation(now, HOLDS_RETAINED) == "true":
            return None
        return {"annotations": {f"{GROUP}/{HOLDS_RETAINED}": "true"}}

    await _change(context, body, change)


async def _change(context: Context, body: Body, change: Change) -> Body | None:
    """Change metadata as ``change`` says; retry if it was changed meanwhile. None: the resource is gone."""
    key = key_of(body)
    kind = KINDS[key.kind]
    now = body
    for attempt in range(_ATTEMPTS):
        wanted = change(now)
        if wanted is None:
            return now
        # With the version the list of finalizers was read from, so that nobody else's is lost.
        metadata = {**wanted, "resourceVersion": now["metadata"]["resourceVersion"], "uid": now["metadata"]["uid"]}
        try:
            written = await context.kube.patch(kind, key.namespace, key.name, {"metadata": metadata})
        except KubeRefused as error:
            if error.status == 404:
                return None
            if error.status != 409 or attempt == _ATTEMPTS - 1:
                raise
            fresh = await context.kube.find(kind, key.namespace, key.name)
            if fresh is None or fresh["metadata"]["uid"] != body["metadata"]["uid"]:
                return None
            now = fresh
            continue
        # Of an object whose last finalizer went, the answer is the last there is of it.
        if written["metadata"].get("deletionTimestamp") and not written["metadata"].get("finalizers"):
            return None
        context.store.put(written)
        return written
    raise AssertionError("the last attempt returns or raises")
