"""The status of a Tenant, Namespace or Topic: written only if a person would see a difference."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog

from heliograph_operator.decide.resource_stats import Figures, worth_writing
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.conditions import (
    ARCHIVED,
    QUOTA_EXCEEDED,
    READY,
    Reason,
    Verdict,
    condition,
    with_verdicts,
)
from heliograph_operator.objects.kinds import KINDS, Body, key_of

from .controller import Context
from .resource_memory import Memory

log = structlog.get_logger(__name__)

#: The fields of a status that :class:`.resource_stats.Figures` fills.
_COUNTS = ("partitions", "subscriptions", "topics", "namespaces")
_FIGURES = ("backlog", "storage", "quotaUsed", "quotaUsedPercent", *_COUNTS)

#: What a resource waits for on its way, usually for a second: no Event tells of it.
_PASSING = (Reason.PARENT_NOT_READY, Reason.CLUSTER_NOT_READY, Reason.PARENT_DELETING)


def status_after(
    before: dict[str, Any],
    verdicts: Sequence[Verdict],
    generation: int,
    name: str,
    figures: Figures | None,
    now: datetime,
    archive: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the status that follows ``before``; without figures the last ones known stay.

    ``archive`` are the fields of the archive but for its lag, which is a figure; None: there is no archive.
    """
    after = dict(before)
    lag = (after.pop("archive", None) or {}).get("lag")
    if figures is not None:
        for field in _FIGURES:
            after.pop(field, None)
        after.update(figures.shown())
        lag = after.pop("archive", {}).get("lag")
    if archive is not None:
        after["archive"] = {**archive, "lag": lag} if lag is not None else dict(archive)
    if name:
        after["name"] = name
    after["observedGeneration"] = generation
    known = [each for each in before.get("conditions") or () if archive is not None or each.get("type") != ARCHIVED]
    after["conditions"] = with_verdicts(known, verdicts, generation, now)
    return after


def merge_patch(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch from one to the other; lists are replaced whole."""
    patch: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    for name, value in after.items():
        was = before.get(name)
        if isinstance(value, dict) and isinstance(was, dict):
            if inner := merge_patch(was, value):
                patch[name] = inner
        elif name not in before or was != value:
            patch[name] = value
    return patch


async def report(
    context: Context,
    memory: Memory,
    body: Body,
    verdicts: Sequence[Verdict],
    name: str = "",
    figures: Figures | None = None,
    archive: Mapping[str, Any] | None = None,
) -> None:
    """Write the status if anything but small movements of figures changed; Events tell of quotas and of readiness.

    Without ``archive`` what is known of the one in the spec stays.
    """
    # What the API server said last, which may be newer than what this look began with.
    key = key_of(body)
    body = context.store.get(key) or body
    before: dict[str, Any] = dict(body.get("status") or {})
    loop_now = asyncio.get_running_loop().time()
    shown = figures
    if figures is not None and not worth_writing(memory.written, figures, loop_now - memory.written_at):
        shown = memory.written
    if archive is None and (body.get("spec") or {}).get("archive") is not None:
        archive = before.get("archive")
    generation = body["metadata"].get("generation", 0)
    after = status_after(before, verdicts, generation, name, shown, datetime.now(UTC), archive)
    patch = merge_patch(before, after)
    if figures is not None and shown is figures:
        memory.written, memory.written_at = figures, loop_now
    if not patch:
        return
    try:
        written = await context.kube.patch(
            KINDS[key.kind], key.namespace, key.name, {"status": patch}, subresource="status"
        )
    except KubeRefused as error:
        if error.status == 404:
            return
        memory.written = None
        raise
    context.store.put(written)
    await _tell(context, body, before, after)


async def _tell(context: Context, body: Body, before: dict[str, Any], after: dict[str, Any]) -> None:
    was, now = condition(before, QUOTA_EXCEEDED), condition(after, QUOTA_EXCEEDED)
    if now.get("status") == "True" and was.get("status") != "True":
        await context.events.emit(body, now["reason"], now["message"], "Warning")
    elif now.get("status") == "False" and was.get("status") == "True":
        await context.events.emit(body, "QuotaRecovered", now["message"])
    was, now = condition(before, ARCHIVED), condition(after, ARCHIVED)
    # Each run that fails is told, with its own words.
    if now.get("status") == "False" and (was.get("status"), was.get("message")) != ("False", now.get("message")):
        await context.events.emit(body, now["reason"], now["message"], "Warning")
    elif now.get("status") == "True" and was.get("status") == "False":
        await context.events.emit(body, now["reason"], now["message"])
    was, now = condition(before, READY), condition(after, READY)
    if (was.get("status"), was.get("reason")) == (now.get("status"), now.get("reason")) or now["reason"] in _PASSING:
        return
    if now["status"] != "True":
        await context.events.emit(
            body, now["reason"], now["message"], "Warning" if now["status"] == "False" else "Normal"
        )
    elif was and was.get("reason") not in _PASSING:
        await context.events.emit(body, now["reason"], "the broker is as the resource says")
