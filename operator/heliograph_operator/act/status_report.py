"""Writes the status of a resource, only if it changed, and emits Events for changes a person has to know."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import structlog

from heliograph_operator import operator_metrics
from heliograph_operator.decide.cluster_status import ClusterReason
from heliograph_operator.decide.resource_stats import ResourceStats, worth_writing
from heliograph_operator.decide.status_patch import merge_patch, policy_fields, status_after
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects import clock
from heliograph_operator.objects.conditions import (
    ADOPTED,
    ARCHIVED,
    POLICIES_APPLIED,
    QUOTA_EXCEEDED,
    READY,
    TLS_READY,
    Reason,
    Verdict,
    condition,
)
from heliograph_operator.objects.kinds import KINDS, Body, is_adopted, is_held

from .controller import Context
from .resource import Resource

log = structlog.get_logger(__name__)

#: Reasons of states that usually pass within a second, and of a deletion: no Event is emitted for them.
_PASSING: Final = (Reason.PARENT_NOT_READY, Reason.CLUSTER_NOT_READY, Reason.PARENT_DELETING, Reason.DELETING)
#: Reasons that make Ready false without being a problem.
_EXPECTED: Final = (
    ClusterReason.POD_MISSING,
    ClusterReason.ROLLING_OUT,
    ClusterReason.PREFLIGHT_RUNNING,
    ClusterReason.STOPPED,
    ClusterReason.VOLUMES_GROWING,
    Reason.EXPIRED,
    Reason.BACKUP_WAITING,
    Reason.BACKUP_RUNNING,
)
#: Attempts to write a status while others change the resource.
ATTEMPTS: Final = 5
#: Differences named in one Event.
MAX_NAMED: Final = 8


async def report(
    context: Context,
    resource: Resource,
    verdicts: Sequence[Verdict],
    fields: Mapping[str, Any] | None = None,
    *,
    without: Collection[str] = (),
) -> None:
    """Write ``verdicts`` and ``fields`` to the status; see :func:`.status_patch.status_after`.

    A resource that was deleted and created again since the reconcile began gets nothing: they are not about it.
    """
    key = resource.key
    kind = KINDS[key.kind]
    for attempt in range(ATTEMPTS):
        # The cache may be newer than what this reconcile began with.
        body = context.cache.get(key) or resource.body
        if body["metadata"].get("uid") != resource.body["metadata"].get("uid"):
            return
        before: dict[str, Any] = dict(body.get("status") or {})
        after = status_after(before, fields or {}, verdicts, resource.generation, clock.now(), without=without)
        patch = merge_patch(before, after)
        if not patch:
            return
        # With the version it was read from: the object may be another one of this name, which the cache does not know.
        change = {"metadata": {"resourceVersion": body["metadata"]["resourceVersion"]}, "status": patch}
        try:
            written = await context.kube.patch(kind, key.namespace, key.name, change, subresource="status")
        except KubeRefused as error:
            if error.status == 404:
                return
            resource.memory.written = None
            if error.status != 409 or attempt == ATTEMPTS - 1:
                raise
            fresh = await context.kube.find(kind, key.namespace, key.name)
            if fresh is None or fresh["metadata"].get("uid") != resource.body["metadata"].get("uid"):
                return
            context.cache.put(fresh)
            continue
        context.cache.put(written)
        await _emit_changes(context, body, before, after)
        return


async def report_policies(
    context: Context,
    resource: Resource,
    verdicts: Sequence[Verdict],
    name: str = "",
    stats: ResourceStats | None = None,
    archive: Mapping[str, Any] | None = None,
) -> None:
    """Report on a Tenant, Namespace or Topic; small movements of ``stats`` alone are not written.

    Without ``archive``, the reported state of an archive in the spec stays. An adoption is reported while it lasts, so
    that the next one is reviewed as the first was.
    """
    memory = resource.memory
    body = context.cache.get(resource.key) or resource.body
    before: Mapping[str, Any] = body.get("status") or {}
    loop_now = asyncio.get_running_loop().time()
    shown = stats
    if stats is not None:
        if worth_writing(memory.written, stats, loop_now - memory.written_at):
            memory.written, memory.written_at = stats, loop_now
        else:
            shown = memory.written
    if archive is None and resource.spec.get("archive") is not None:
        archive = before.get("archive")
    fields = policy_fields(before, name, shown, archive)
    if not is_held(resource.body):
        # The name is the mark of a resource that was applied; see :func:`.adoption.was_never_applied`.
        fields["name"] = None
    archived = archive is not None or any(each.type == ARCHIVED for each in verdicts)
    over = {ARCHIVED: not archived, ADOPTED: not is_adopted(resource.body)}
    await report(context, resource, verdicts, fields, without=[each for each, is_over in over.items() if is_over])


async def report_drift(context: Context, resource: Resource, differences: Sequence[object]) -> None:
    """Emit an Event that names the fields that somebody else changed in the broker, and that are repaired.

    It was somebody else if the broker already had the policies of this generation; else the resource changed.
    """
    before = condition(resource.status, POLICIES_APPLIED)
    if before.get("status") != "True" or before.get("observedGeneration") != resource.generation:
        return
    operator_metrics.DRIFT.labels(resource.key.kind).inc(len(differences))
    await context.events.emit(resource.body, "DriftRepaired", named(differences), repeat=True)


def named(items: Sequence[object], most: int = MAX_NAMED, separator: str = "; ") -> str:
    """Return ``items`` as one text, and how many are left out beyond ``most``."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return separator.join(map(str, items[:most])) + more


async def _emit_changes(context: Context, body: Body, before: dict[str, Any], after: dict[str, Any]) -> None:
    was, now = condition(before, QUOTA_EXCEEDED), condition(after, QUOTA_EXCEEDED)
    if now.get("status") == "True" and was.get("status") != "True":
        await context.events.emit(body, now["reason"], now["message"], "Warning")
    elif now.get("status") == "False" and was.get("status") == "True":
        await context.events.emit(body, "QuotaRecovered", now["message"])
    was, now = condition(before, ARCHIVED), condition(after, ARCHIVED)
    # One Event for each run that fails, with the run's own message.
    if now.get("status") == "False" and (was.get("status"), was.get("message")) != ("False", now.get("message")):
        await context.events.emit(body, now["reason"], now["message"], "Warning")
    elif now.get("status") == "True" and was.get("status") == "False":
        await context.events.emit(body, now["reason"], now["message"])
    was, now = condition(before, TLS_READY), condition(after, TLS_READY)
    if now.get("status") == "False" and (was.get("status"), was.get("reason")) != ("False", now.get("reason")):
        await context.events.emit(body, now["reason"], now["message"], "Warning")
    was, now = condition(before, READY), condition(after, READY)
    if (was.get("status"), was.get("reason")) == (now.get("status"), now.get("reason")) or now["reason"] in _PASSING:
        return
    if now["status"] != "True":
        warn = now["status"] == "False" and now["reason"] not in _EXPECTED
        await context.events.emit(body, now["reason"], now["message"], "Warning" if warn else "Normal")
    elif was and was.get("reason") not in _PASSING:
        await context.events.emit(body, now["reason"], now["message"] or "the broker matches the resource")
