"""Keeps the CronJob of a Topic's archive in step with the spec, and reports the outcome of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from heliograph_api.resources.archive_spec import SUBSCRIPTION, ArchiveSpec

from heliograph_operator.act.controller import Context
from heliograph_operator.act.object_apply import ObjectRefused, apply_all, refusal_reason
from heliograph_operator.act.resource import Resource
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
from heliograph_operator.decide.archive_runs import (
    Run,
    archive_fields,
    archive_verdict,
    last_ended,
    runs_of,
    with_result,
)
from heliograph_operator.decide.cluster_objects import POD
from heliograph_operator.decide.stateful_set import as_selector
from heliograph_operator.decide.targets import Target
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.conditions import ARCHIVED, Verdict
from heliograph_operator.objects.kinds import is_deleted

from .archive_deletion import find_cron_job

_KINDS: Final = {CRON_JOB.name: CRON_JOB}
#: Time (s) until a refused request is tried again.
REFUSED_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """The fields of ``status.archive`` and the condition (None: there is no archive), and when to requeue the Topic."""

    fields: Mapping[str, Any] | None = None
    verdict: Verdict | None = None
    requeue_s: float | None = None


class ArchiveReconciler:
    """Reconciles the archives of Topics."""

    def __init__(self, site: ArchiveSite) -> None:
        self._site = site

    async def reconcile(
        self, context: Context, resource: Resource, spec: ArchiveSpec | None, target: Target
    ) -> ArchiveReport:
        """Apply the CronJob, or delete that of an archive no longer in the spec; return what to report."""
        try:
            if spec is None:
                await self._delete(context, resource)
                return ArchiveReport()
            if not resource.paused:
                await self._apply(context, resource, spec, target)
            runs = await self._runs(context, resource)
        except ObjectRefused as error:
            return _refused(resource, error.reason, str(error))
        except KubeRefused as error:
            return _refused(resource, refusal_reason(error), str(error))
        return ArchiveReport(archive_fields(_status(resource), runs), archive_verdict(spec, runs))

    async def _apply(self, context: Context, resource: Resource, spec: ArchiveSpec, target: Target) -> None:
        cluster = context.cache.get(target.cluster) or {}
        endpoints = (cluster.get("status") or {}).get("endpoints") or {}
        source = Source(target.name, str(endpoints.get("broker", "")), str(endpoints.get("http", "")))
        wanted = cron_job(spec, resource.body, source, self._site)
        existed = "archive" in resource.status
        changed = await apply_all(context, resource, [wanted], kinds=_KINDS, existed=existed)
        if changed:
            await context.events.emit(resource.body, "Applied", ", ".join(changed), repeat=True)

    async def _delete(self, context: Context, resource: Resource) -> None:
        """Delete the CronJob and its jobs, if there is one."""
        if "archive" not in resource.status and resource.memory.archive_seen is None:
            return
        if resource.paused:
            return
        found = await find_cron_job(context, resource)
        if found is None or is_deleted(found):
            return
        await context.kube.delete(CRON_JOB, found["metadata"]["namespace"], found["metadata"]["name"])
        message = (
            f"no more runs are started; subscription {SUBSCRIPTION} keeps its unacknowledged messages: unsubscribe it"
            " if the topic is not to be archived again"
        )
        await context.events.emit(resource.body, "ArchiveEnded", message)

    async def _runs(self, context: Context, resource: Resource) -> list[Run]:
        """Return the archive's runs, oldest first; the last one that ended with its result."""
        memory, namespace = resource.memory, resource.key.namespace
        name = cron_job_name(resource.key.name)
        runs = runs_of(await context.kube.list(JOB, namespace, labels=as_selector({**LABELS, OF: name})))
        for at, run in enumerate(runs):
            if run.succeeded is None or run is not last_ended(runs):
                continue
            if memory.archive_run is None or memory.archive_run.uid != run.uid:
                label = as_selector({"batch.kubernetes.io/job-name": run.name})
                memory.archive_run = with_result(run, await context.kube.list(POD, namespace, labels=label))
            runs[at] = memory.archive_run
        return runs


def _status(resource: Resource) -> Mapping[str, Any]:
    return resource.status.get("archive") or {}


def _refused(resource: Resource, reason: StrEnum, message: str) -> ArchiveReport:
    return ArchiveReport(_status(resource), Verdict(ARCHIVED, "False", reason, message), REFUSED_S)
