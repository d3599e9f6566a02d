"""Makes the objects of a resource be what its manifests say: applied when they changed, repaired when drifted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from heliograph_operator import operator_metrics
from heliograph_operator.decide.cluster_objects import OWNED
from heliograph_operator.decide.cluster_status import ClusterReason
from heliograph_operator.decide.object_differences import differences, without_strangers
from heliograph_operator.decide.stateful_set import Manifest, digest
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.conditions import Reason
from heliograph_operator.objects.kinds import GROUP, Body, Kind

from .controller import Context

#: What was applied last: an object that has this and looks otherwise was changed by somebody else.
APPLIED: Final = f"{GROUP}/applied"
#: Paths named in one event.
_SHOWN = 6


class ObjectRefused(Exception):
    """The API server refused an object of the resource; ``reason`` is for a condition, the text for people."""

    def __init__(self, reason: StrEnum, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def apply_all(
    context: Context,
    body: Body,
    wanted: Sequence[Manifest],
    *,
    kinds: Mapping[str, Kind] = OWNED,
    made_before: bool | None = None,
) -> list[str]:
    """Apply what differs from what is wanted of ``kinds``; return what was changed, such as ``Service x``.

    ``made_before`` says whether all was there, so that what is not was deleted by somebody else; left out, it was if
    the status is about this generation. Raises :class:`ObjectRefused`; objects that come before the refused one are
    done by then.
    """
    changed = []
    for manifest in wanted:
        if await _apply_one(context, body, manifest, kinds[manifest["kind"]], made_before):
            changed.append(f"{manifest['kind']} {manifest['metadata']['name']}")
    return changed


async def _apply_one(context: Context, body: Body, wanted: Manifest, kind: Kind, made_before: bool | None) -> bool:
    namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
    annotations = {**wanted["metadata"].get("annotations", {}), APPLIED: digest(wanted)}
    wanted = {**wanted, "metadata": {**wanted["metadata"], "annotations": annotations}}
    try:
        found = await context.kube.find(kind, namespace, name)
        if found is not None and not _ours(found, body):
            raise ObjectRefused(
                Reason.CONFLICT,
                f"{kind.name} {name} is there and was not made for this {body['kind']}; delete it, or call this one"
                " something else",
            )
        # A form the API server writes in another way (cpu: 1000m) looks like a difference at every look; whether it
        # was one shows in the resourceVersion.
        where = differences(wanted, found) if found is not None else []
        if found is not None and not where:
            return False
        applied = await context.kube.apply(kind, wanted)
        if found is not None and (strangers := without_strangers(wanted, applied)):
            applied = await context.kube.patch(kind, namespace, name, strangers)
    except KubeRefused as error:
        raise ObjectRefused(refusal_reason(error), f"{kind.name} {name}: {error}") from error
    if found is None:
        if made_before is None:
            made_before = (body.get("status") or {}).get("observedGeneration") == body["metadata"].get("generation")
        if made_before:
            await _say_repaired(context, body, f"{kind.name} {name} was gone; it is there again")
        return True
    if applied["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]:
        return False
    before = (found["metadata"].get("annotations") or {}).get(APPLIED)
    if before == annotations[APPLIED]:
        shown = ", ".join(where[:_SHOWN]) + (f" and {len(where) - _SHOWN} more" if len(where) > _SHOWN else "")
        await _say_repaired(context, body, f"{kind.name} {name} was changed by somebody else; set right again: {shown}")
    return True


def _ours(found: Body, body: Body) -> bool:
    """Whether an object may be taken over: one that nobody owns is what an earlier BrokerCluster left (Retain)."""
    metadata = found["metadata"]
    owners = [owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    if owners:
        return bool(owners[0].get("uid") == body["metadata"]["uid"])
    return (metadata.get("labels") or {}).get("app.kubernetes.io/managed-by") == "heliograph-operator"


async def _say_repaired(context: Context, body: Body, message: str) -> None:
    operator_metrics.DRIFT.labels(body["kind"]).inc()
    await context.events.emit(body, "DriftRepaired", message, "Warning")


def refusal_reason(error: KubeRefused) -> StrEnum:
    """Return the reason of a condition for what the API server refuses."""
    match error.status:
        case 403:
            return ClusterReason.FORBIDDEN
        case 422 | 400:
            return Reason.INVALID
        case 409:
            return Reason.CONFLICT
        case _:
            return ClusterReason.APPLY_FAILED
