"""A Topic's archive: its CronJob is made so and kept so, and the status says what became of the runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import structlog
from heliograph_api.resources.archive_spec import SUBSCRIPTION, ArchiveSpec
from heliograph_api.resources.model import Topic

from heliograph_operator.act.controller import Context
from heliograph_operator.act.object_apply import ObjectRefused, apply_all, refusal_reason
from heliograph_operator.act.resource_memory import Memories, Memory
from heliograph_operator.decide.archive_cron_job import (
    CRON_JOB,
    JOB,
    LABELS,
    OF,
    ArchiveSite,
    Source,
    cron_job,
    cron_job_name,
)
from heliograph_operator.decide.archive_runs import Run, runs_of, with_result
from heliograph_operator.decide.cluster_objects import POD
from heliograph_operator.decide.stateful_set import as_selector
from heliograph_operator.decide.targets import Target
from heliograph_operator.kube.client import KubeError, KubeRefused
from heliograph_operator.objects.conditions import ARCHIVED, Reason, Verdict
from heliograph_operator.objects.kinds import Body, Key, deleted_for_s, is_deleted, is_paused, key_of

log = structlog.get_logger(__name__)

_KINDS: Final = {CRON_JOB.name: CRON_JOB}
#: Time (s) that runs have to end in before the topic they read is deleted.
_ENDS_WITHIN_S: Final = 60.0
#: Time (s) until what was refused is tried again.
REFUSED_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What a look at an archive found: fields of ``status.archive``, and the condition; None if there is no archive."""

    fields: Mapping[str, Any] | None = None
    verdict: Verdict | None = None
    again_s: float | None = None


class Archives:
    """Looks after the archives of Topics. What it remembers of one can be lost."""

    def __init__(self, site: ArchiveSite) -> None:
        self._site = site

    async def reconcile(
        self, context: Context, body: Body, memory: Memory, model: Topic, target: Target
    ) -> ArchiveReport:
        """Make the CronJob as the Topic says, or take it away; return what there is to report."""
        spec = model.spec.archive
        try:
            if spec is None:
                await self._end(context, body, memory)
                return ArchiveReport()
            if not is_paused(body):
                await self._make_so(context, body, spec, target)
            runs = await self._runs(context, key_of(body), memory)
        except ObjectRefused as error:
            return _refused(body, error.reason, str(error))
        except KubeRefused as error:
            return _refused(body, refusal_reason(error), str(error))
        return ArchiveReport(_fields(body, runs), _verdict(spec, runs))

    async def _make_so(self, context: Context, body: Body, spec: ArchiveSpec, target: Target) -> None:
        cluster = context.store.get(target.cluster) or {}
        endpoints = (cluster.get("status") or {}).get("endpoints") or {}
        source = Source(target.name, str(endpoints.get("broker", "")), str(endpoints.get("http", "")))
        wanted = cron_job(spec, body, source, self._site)
        made_before = "archive" in (body.get("status") or {})
        changed = await apply_all(context, body, [wanted], kinds=_KINDS, made_before=made_before)
        if changed:
            await context.events.emit(body, "Applied", ", ".join(changed), repeat=True)

    async def _end(self, context: Context, body: Body, memory: Memory) -> None:
        """Take the CronJob away, with its jobs: the archive is in the spec no more."""
        if "archive" not in (body.get("status") or {}) and memory.archive_seen is None:
            return
        if is_paused(body):
            return
        found = await _found(context, body)
        if found is None or is_deleted(found):
            return
        await context.kube.delete(CRON_JOB, found["metadata"]["namespace"], found["metadata"]["name"])
        message = (
            f"there are no more runs; subscription {SUBSCRIPTION} stays, and what it has not acknowledged stays stored:"
            " unsubscribe it if no archive is to come"
        )
        await context.events.emit(body, "ArchiveEnded", message)

    async def _runs(self, context: Context, key: Key, memory: Memory) -> list[Run]:
        name = cron_job_name(key.name)
        runs = runs_of(await context.kube.list(JOB, key.namespace, labels=as_selector({**LABELS, OF: name})))
        for at, run in enumerate(runs):
            if run.succeeded is None or run is not _last_ended(runs):
                continue
            if memory.archive_run is None or memory.archive_run.uid != run.uid:
                label = as_selector({"batch.kubernetes.io/job-name": run.name})
                memory.archive_run = with_result(run, await context.kube.list(POD, key.namespace, labels=label))
            runs[at] = memory.archive_run
        return runs


async def still_archived(context: Context, body: Body) -> bool:
    """Whether a Topic that goes has a CronJob, or a run of it; these are told to end first.

    A run that is under way would recreate the deleted topic by reading it. Nobody waits for it longer than a minute.
    """
    if "archive" not in (body.get("status") or {}) or deleted_for_s(body) > _ENDS_WITHIN_S:
        return False
    key = key_of(body)
    try:
        found = await _found(context, body)
        if found is None:
            # A run that somebody began by hand holds up nothing.
            label = as_selector({**LABELS, OF: cron_job_name(key.name)})
            pods = await context.kube.list(POD, key.namespace, labels=label)
            return any((pod.get("status") or {}).get("phase") == "Running" for pod in pods)
        if not is_deleted(found):
            await context.kube.delete(CRON_JOB, key.namespace, found["metadata"]["name"], propagation="Foreground")
    except KubeRefused as error:
        if error.status != 403:
            raise
        # Its owner's end takes it along.
        log.warning("the CronJob of an archive cannot be ended first", resource=str(key), error=str(error))
        return False
    return True


async def _found(context: Context, body: Body) -> Body | None:
    """Return the Topic's own CronJob, None if there is none."""
    key = key_of(body)
    found = await context.kube.find(CRON_JOB, key.namespace, cron_job_name(key.name))
    owners = (found or {}).get("metadata", {}).get("ownerReferences") or ()
    return found if any(owner.get("uid") == body["metadata"]["uid"] for owner in owners) else None


async def look(context: Context, memories: Memories) -> None:
    """Have those Topics looked at whose CronJob or jobs are not as they were: two requests for all of a namespace."""
    seen: dict[Key, list[object]] = {}
    try:
        for namespace in context.settings.namespaces or ("",):
            for kind in (CRON_JOB, JOB):
                for found in await context.kube.list(kind, namespace, labels=as_selector(LABELS)):
                    own = found["metadata"]
                    key = Key("Topic", own["namespace"], own["labels"].get(OF, ""))
                    seen.setdefault(key, []).append(_state(found))
    except KubeError as error:
        log.warning("archives cannot be looked at", error=str(error))
        return
    for key, memory in memories.all():
        if key.kind != "Topic":
            continue
        now = seen.get(key._replace(name=cron_job_name(key.name)))
        if now != memory.archive_seen:
            memory.archive_seen = now
            context.queue.add(key)


def _state(found: Body) -> object:
    """Return what of a CronJob or a job changes what is to be done or told."""
    if found["kind"] == CRON_JOB.name:
        return found["metadata"]["uid"], found["metadata"].get("generation"), is_deleted(found)
    (run,) = runs_of([found])
    return run.uid, run.began, run.succeeded


def _last_ended(runs: list[Run]) -> Run | None:
    return next((run for run in reversed(runs) if run.succeeded is not None), None)


def _refused(body: Body, reason: StrEnum, message: str) -> ArchiveReport:
    before = (body.get("status") or {}).get("archive") or {}
    return ArchiveReport(before, Verdict(ARCHIVED, "False", reason, message), REFUSED_S)


def _fields(body: Body, runs: list[Run]) -> dict[str, Any]:
    """Return the fields of ``status.archive``; what older jobs told stays, as Kubernetes keeps the last ones only."""
    fields: dict[str, Any] = dict((body.get("status") or {}).get("archive") or {})
    fields["running"] = bool(runs) and runs[-1].succeeded is None
    if runs:
        fields["lastRunTime"] = runs[-1].began
    if (succeeded := [run for run in runs if run.succeeded]) and succeeded[-1].ended:
        fields["lastSuccessTime"] = succeeded[-1].ended
    if (last := _last_ended(runs)) is not None:
        for name, value in (("rows", last.rows), ("message", last.message or None)):
            fields.pop(name, None)
            if value is not None:
                fields[name] = value
    return fields


def _verdict(spec: ArchiveSpec, runs: list[Run]) -> Verdict:
    last = _last_ended(runs)
    if last is not None and not last.succeeded:
        return Verdict(ARCHIVED, "False", Reason.ARCHIVE_FAILED, f"{last.name}: {last.message}")
    if spec.suspend:
        return Verdict(ARCHIVED, "Unknown", Reason.ARCHIVE_SUSPENDED, "spec.archive.suspend: no run is begun")
    if last is None:
        return Verdict(ARCHIVED, "Unknown", Reason.ARCHIVE_PENDING, f"no run has ended yet; schedule: {spec.schedule}")
    rows = "messages" if last.rows is None else f"{last.rows} messages"
    return Verdict(ARCHIVED, "True", Reason.ARCHIVE_SUCCEEDED, f"{last.name} archived {rows}")
