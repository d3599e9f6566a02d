"""Enqueues the Topics whose archive's CronJob or jobs changed; these are polled and not watched."""

from __future__ import annotations

import structlog

from heliograph_operator.act.controller import Context
from heliograph_operator.decide.archive_cron_job import CRON_JOB, JOB, LABELS, OF, cron_job_name
from heliograph_operator.decide.archive_runs import runs_of
from heliograph_operator.decide.stateful_set import as_selector
from heliograph_operator.kube.client import KubeError
from heliograph_operator.objects.kinds import Body, Key, is_deleted

log = structlog.get_logger(__name__)


async def enqueue_changed(context: Context) -> None:
    """Compare all CronJobs and jobs with those of the last call: two requests for each Kubernetes namespace."""
    seen: dict[Key, list[object]] = {}
    try:
        for namespace in context.settings.namespaces or ("",):
            for kind in (CRON_JOB, JOB):
                for found in await context.kube.list(kind, namespace, labels=as_selector(LABELS)):
                    own = found["metadata"]
                    key = Key("Topic", own["namespace"], own["labels"].get(OF, ""))
                    seen.setdefault(key, []).append(_state(found))
    except KubeError as error:
        log.warning("archives could not be listed", error=str(error))
        return
    for key, memory in context.memories.all():
        if key.kind != "Topic":
            continue
        now = seen.get(key._replace(name=cron_job_name(key.name)))
        if now != memory.archive_seen:
            memory.archive_seen = now
            context.queue.add(key)


def _state(found: Body) -> object:
    """Return the part of a CronJob or job that a reconcile depends on."""
    if found["kind"] == CRON_JOB.name:
        return found["metadata"]["uid"], found["metadata"].get("generation"), is_deleted(found)
    (run,) = runs_of([found])
    return run.uid, run.began, run.succeeded
