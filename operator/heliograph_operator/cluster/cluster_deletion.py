"""The end of a BrokerCluster: its tenants first, then its pods, then everything else; and an end in any case."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import FINALIZER, release
from heliograph_operator.decide.cluster_objects import OWNED, POD, STATEFUL_SET, VOLUME_CLAIM
from heliograph_operator.decide.cluster_status import PROGRESSING
from heliograph_operator.decide.stateful_set import as_selector, labels, selector
from heliograph_operator.decide.targets import Target, target_of
from heliograph_operator.objects.conditions import Reason, Verdict, ready, with_verdicts
from heliograph_operator.objects.kinds import (
    BROKER_CLUSTER,
    Body,
    deleted_for_s,
    is_deleted,
    is_managed,
    is_paused,
    key_of,
)

from .cluster_volumes import claims_of

#: Time (s) that tenants which are being deleted have before the brokers go: they cannot be deleted properly after.
CHILDREN_S: Final = 60.0
#: Time (s) that pods have beyond their grace period, before nobody waits for them any more.
PODS_S: Final = 120.0
_LOOK_S: Final = 1.0


async def end(context: Context, body: Body) -> Outcome:
    """Go on with the deletion; it has ended when the finalizer is gone."""
    if FINALIZER not in (body["metadata"].get("finalizers") or ()):
        return Outcome("deleted")
    if not is_managed(body) or is_paused(body):
        await context.events.emit(body, "Retained", "the brokers run on: an annotation says to leave them alone")
        await forget(context, body)
        return Outcome("deleted")
    spec = body.get("spec") or {}
    policy = spec.get("deletionPolicy", "Delete")
    waited_s = deleted_for_s(body)
    tenants = tenants_on(context, body)
    leaving = [tenant for tenant in tenants if is_deleted(tenant)]
    if leaving and waited_s < CHILDREN_S:
        names = ", ".join(sorted(tenant["metadata"]["name"] for tenant in leaving)[:5])
        await _say(context, body, Reason.DELETING, f"waits until Tenant {names} has gone")
        return Outcome("waiting", _LOOK_S)
    staying = [tenant for tenant in tenants if not is_deleted(tenant)]
    if policy == "Retain" or (policy == "DeleteIfEmpty" and staying):
        why = "spec.deletionPolicy is Retain" if policy == "Retain" else f"{len(staying)} tenants are left on them"
        await context.events.emit(body, "Retained", f"the brokers run on: {why}")
        await forget(context, body)
        return Outcome("deleted")
    return await _delete(context, body, waited_s)


async def _delete(context: Context, body: Body, waited_s: float) -> Outcome:
    spec, namespace, name = body.get("spec") or {}, body["metadata"]["namespace"], body["metadata"]["name"]
    found = await context.kube.find(STATEFUL_SET, namespace, name)
    if found is not None and not found["metadata"].get("deletionTimestamp"):
        await context.kube.delete(STATEFUL_SET, namespace, name)
    pods = await context.kube.list(POD, namespace, labels=as_selector(selector(name)))
    grace_s = float(spec.get("terminationGracePeriodSeconds", 60))
    if pods and waited_s < CHILDREN_S + grace_s + PODS_S:
        await _say(context, body, Reason.DELETING, f"waits until {len(pods)} pods have gone")
        return Outcome("waiting", _LOOK_S)
    if pods:
        await context.events.emit(body, "PodsLeft", f"{len(pods)} pods do not go (is their node gone?)", "Warning")
    for kind in OWNED.values():
        for item in await _made_for(context, body, kind.name):
            await context.kube.delete(kind, namespace, item["metadata"]["name"])
    if not _keeps_volumes(spec):
        for claim in await claims_of(context, body):
            await context.kube.delete(VOLUME_CLAIM, namespace, claim["metadata"]["name"])
    await release(context, body)
    return Outcome("deleted")


def _keeps_volumes(spec: dict[str, Any]) -> bool:
    return (spec.get("storage") or {}).get("retainOnDelete") is not False


async def forget(context: Context, body: Body) -> None:
    """Let the resource go and everything that was made for it run on, nobody's: what has an owner goes with it."""
    if FINALIZER not in (body["metadata"].get("finalizers") or ()):
        return
    for kind in OWNED.values():
        for item in await _made_for(context, body, kind.name):
            name, namespace = item["metadata"]["name"], item["metadata"]["namespace"]
            await context.kube.patch(kind, namespace, name, {"metadata": {"ownerReferences": None}})
    await release(context, body)


async def _made_for(context: Context, body: Body, kind: str) -> list[dict[str, Any]]:
    """Return the objects of a kind that belong to this very BrokerCluster."""
    metadata = body["metadata"]
    found = await context.kube.list(OWNED[kind], metadata["namespace"], labels=as_selector(labels(metadata["name"])))
    return [
        item
        for item in found
        if any(owner.get("uid") == metadata["uid"] for owner in item["metadata"].get("ownerReferences") or ())
    ]


def tenants_on(context: Context, body: Body) -> list[Body]:
    """Return the Tenants that are on this cluster."""
    key = key_of(body)
    found = []
    for tenant in context.store.bodies("Tenant", key.namespace):
        target = target_of(context.store, tenant)
        if isinstance(target, Target) and target.cluster == key:
            found.append(tenant)
    return found


async def _say(context: Context, body: Body, reason: Reason, message: str) -> None:
    metadata, status = body["metadata"], (context.store.get(key_of(body)) or body).get("status") or {}
    verdicts = [ready(reason, message), Verdict(PROGRESSING, "True", reason, message)]
    before = status.get("conditions") or []
    conditions = with_verdicts(before, verdicts, int(metadata.get("generation", 0)), datetime.now(UTC))
    if conditions != before:
        change = {"status": {"conditions": conditions}}
        written = await context.kube.patch(
            BROKER_CLUSTER, metadata["namespace"], metadata["name"], change, subresource="status"
        )
        context.store.put(written)
