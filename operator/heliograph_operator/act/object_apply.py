"""Applies the Kubernetes objects of a resource: those whose manifest changed, and those somebody else changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from heliograph_operator import operator_metrics
from heliograph_operator.decide.cluster_objects import OWNED
from heliograph_operator.decide.cluster_status import ClusterReason
from heliograph_operator.decide.object_differences import differences, foreign_fields
from heliograph_operator.decide.stateful_set import Manifest, digest
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.conditions import Reason
from heliograph_operator.objects.kinds import BACKUP, GROUP, SCHEDULED_BACKUP, USER, Body, Kind

from .controller import Context
from .resource import Resource
from .status_report import named

#: The digest of the manifest last applied: an object that has it and differs was changed by somebody else.
APPLIED: Final = f"{GROUP}/applied"
#: Paths named in one event.
_MAX_PATHS: Final = 6


class ObjectRefused(Exception):
    """The API server refused an object of the resource; ``reason`` is for a condition, the text for people."""

    def __init__(self, reason: StrEnum, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def apply_all(
    context: Context,
    resource: Resource,
    wanted: Sequence[Manifest],
    *,
    kinds: Mapping[str, Kind] = OWNED,
    existed: bool | None = None,
) -> list[str]:
    """Apply the manifests that differ from what exists; return the changed objects, such as ``Service x``.

    ``existed`` says whether all objects existed before, so that a missing one was deleted by somebody else; by default,
    they did if the status is about this generation and the last reconcile was not refused. Raises
    :class:`ObjectRefused`; the objects before the refused one are applied by then.
    """
    if existed is None:
        current = resource.status.get("observedGeneration") == resource.generation
        existed = current and not resource.memory.unapplied
    changed = []
    for manifest in wanted:
        if await _apply(context, resource, manifest, kinds[manifest["kind"]], existed):
            changed.append(f"{manifest['kind']} {manifest['metadata']['name']}")
    return changed


async def validate(context: Context, resource: Resource, wanted: Manifest, found: Body | None) -> None:
    """Let the API server validate a changed manifest, before anything is applied. Raises :class:`ObjectRefused`."""
    current = digest(wanted)
    if resource.memory.validated == current or (found is not None and _applied(found) == current):
        return
    try:
        await context.kube.apply(OWNED[wanted["kind"]], wanted, dry_run=True)
        resource.memory.validated = current
    except KubeRefused as error:
        message = f"{wanted['kind']} {wanted['metadata']['name']}: {error}"
        raise ObjectRefused(refusal_reason(error), message) from error


async def remove_all(context: Context, resource: Resource, unwanted: Sequence[tuple[Kind, str]]) -> list[str]:
    """Delete the objects of these kinds and names that are the resource's; return them, such as ``removed Service x``.

    Raises :class:`ObjectRefused`.
    """
    removed = []
    for kind, name in unwanted:
        try:
            found = await context.kube.find(kind, resource.key.namespace, name)
            if found is not None and belongs_to(found, resource.uid):
                await context.kube.delete(kind, resource.key.namespace, name)
                removed.append(f"removed {kind.name} {name}")
        except KubeRefused as error:
            raise ObjectRefused(refusal_reason(error), f"{kind.name} {name}: {error}") from error
    return removed


async def _apply(context: Context, resource: Resource, wanted: Manifest, kind: Kind, existed: bool) -> bool:
    namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
    annotations = {**wanted["metadata"].get("annotations", {}), APPLIED: digest(wanted)}
    wanted = {**wanted, "metadata": {**wanted["metadata"], "annotations": annotations}}
    try:
        found = await context.kube.find(kind, namespace, name)
        if found is not None:
            check_owner(resource, kind, found)
        # What the API server writes in a form not known here looks different every time; whether it really was shows
        # in the resourceVersion.
        paths = differences(wanted, found) if found is not None else []
        if found is not None and not paths:
            return False
        try:
            applied = await context.kube.apply(kind, wanted)
        except KubeRefused as error:
            if error.status != 422 or found is None or _applied(found) != annotations[APPLIED]:
                raise
            if not (foreign := foreign_fields(wanted, found)):
                raise
            # It was accepted before, so what somebody else added contradicts it, as a port of the same name does.
            await context.kube.patch(kind, namespace, name, foreign)
            applied = await context.kube.apply(kind, wanted)
        if found is not None and (foreign := foreign_fields(wanted, applied)):
            applied = await context.kube.patch(kind, namespace, name, foreign)
    except KubeRefused as error:
        raise ObjectRefused(refusal_reason(error), f"{kind.name} {name}: {error}") from error
    if found is None:
        if existed:
            await _report_repair(context, resource, f"recreated {kind.name} {name}, which somebody else deleted")
        return True
    if applied["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]:
        return False
    if _applied(found) == annotations[APPLIED]:
        message = f"{kind.name} {name} was changed by somebody else; restored {named(paths, _MAX_PATHS, ', ')}"
        await _report_repair(context, resource, message)
    return True


def _applied(found: Body) -> str | None:
    """Return the digest of the manifest that an object was last applied from."""
    return (found["metadata"].get("annotations") or {}).get(APPLIED)


def belongs_to(found: Body, uid: str, *, orphans: bool = True) -> bool:
    """Whether an object belongs to the resource, or is an orphan of an earlier BrokerCluster (Retain).

    Without ``orphans`` it has to be the resource's own: what ran for an earlier one of that name says nothing.
    """
    metadata = found["metadata"]
    owners = [owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    if owners:
        return bool(owners[0].get("uid") == uid)
    return orphans and (metadata.get("labels") or {}).get("app.kubernetes.io/managed-by") == "heliograph-operator"


def check_owner(resource: Resource, kind: Kind, found: Body) -> None:
    """Raise :class:`ObjectRefused` for an object that is somebody else's."""
    if not belongs_to(
        found, resource.uid, orphans=resource.key.kind not in (BACKUP.name, SCHEDULED_BACKUP.name, USER.name)
    ):
        message = (
            f"{kind.name} {found['metadata']['name']} exists and does not belong to this {resource.key.kind}; delete"
            " it, or use another name"
        )
        raise ObjectRefused(Reason.CONFLICT, message)


async def _report_repair(context: Context, resource: Resource, message: str) -> None:
    operator_metrics.DRIFT.labels(resource.key.kind).inc()
    await context.events.emit(resource.body, "DriftRepaired", message, "Warning")


def refusal_reason(error: KubeRefused) -> StrEnum:
    """Return the reason of a condition for a refusal of the API server."""
    match error.status:
        case 403:
            return ClusterReason.FORBIDDEN
        case 422 | 400:
            return Reason.INVALID
        case 500 if "typed patch" in str(error):
            # The answer to a server-side apply with a field that the kind does not have.
            return Reason.INVALID
        case 409:
            return Reason.CONFLICT
        case _:
            return ClusterReason.APPLY_FAILED
