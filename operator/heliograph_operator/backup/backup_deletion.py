"""Deletes a Backup: stops its Job, then deletes what is stored if it says so, then removes the finalizer."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

from heliograph_api.resources.model import Backup, BrokerCluster

from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import changed_since, release
from heliograph_operator.act.object_apply import ObjectRefused, apply_all, belongs_to, check_owner, refusal_reason
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.status_report import report
from heliograph_operator.decide.archive_cron_job import JOB
from heliograph_operator.decide.backup_jobs import (
    CONTAINER,
    backup_pods,
    delete_job,
    delete_job_name,
    push_job_name,
    stored_name,
)
from heliograph_operator.decide.backup_state import EXPIRED, FAILED, is_over
from heliograph_operator.decide.job_runs import failure_of, last_end, run_of
from heliograph_operator.decide.stateful_set import Site
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.kube.kube_namespaces import namespace_ends
from heliograph_operator.objects import clock
from heliograph_operator.objects.conditions import Reason, ready, timestamp
from heliograph_operator.objects.kinds import BROKER_CLUSTER, Key, annotation, is_deleted, is_held

from .backup_pods import pods_of_job

_KINDS: Final = {JOB.name: JOB}
_AGAIN_S: Final = 2.0
#: Time (s) after which a deletion that failed is tried again.
_RETRY_S: Final = 60.0
_WAY_OUT: Final = "annotation heliograph.dev/managed=false leaves it in the store"


class BackupDeletion:
    """The part of :class:`.backup_reconciler.BackupReconciler` for resources that are being deleted."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def proceed(self, context: Context, resource: Resource) -> Outcome:
        """Take the next step. Each call starts at the first, so a restart in between does no harm."""
        if not is_held(resource.body):
            return Outcome("gone")
        try:
            return await self._proceed(context, resource)
        except ObjectRefused as error:
            return await self._failed(context, resource, error.reason, str(error))
        except KubeRefused as error:
            return await self._failed(context, resource, refusal_reason(error), str(error))

    async def _proceed(self, context: Context, resource: Resource) -> Outcome:
        key, name = resource.key, push_job_name(resource.key.name)
        job = await context.kube.find(JOB, key.namespace, name)
        mine = job is not None and belongs_to(job, resource.uid, orphans=False)
        if job is not None and mine and not resource.status.get("startTime"):
            # The operator was killed before it recorded that. The Job goes, and what it stored does not.
            fields = {"phase": "Running", "startTime": run_of(job).began or timestamp(clock.now())}
            await report(context, resource, [ready(Reason.DELETING, f"Job {name} began")], fields)
        begun = mine or resource.status.get("startTime")
        if why := resource.suspended:
            return await (self._retain(context, resource, why) if begun else self._release(context, resource))
        if job is not None and mine and run_of(job).succeeded is None:
            if not is_deleted(job):
                # What it uploads is deleted when it does not upload any more.
                await context.kube.delete(JOB, key.namespace, name, propagation="Foreground")
            return await self._wait(context, resource, f"waiting for Job {name} to end")
        if job is None and (left := await self._left(context, key, name)):
            return await self._wait(context, resource, f"waiting for {left} to end")
        if not begun:
            return await self._release(context, resource)
        if resource.spec.get("deletionPolicy") != "Delete" and annotation(resource.body, EXPIRED) != "true":
            return await self._retain(context, resource, "spec.deletionPolicy is Retain")
        if await namespace_ends(context.kube, key.namespace):
            return await self._retain(context, resource, f"Kubernetes namespace {key.namespace} is being deleted")
        model = resource.model
        if not isinstance(model, Backup):
            return await self._failed(context, resource, Reason.INVALID, resource.memory.problem)
        if not is_over(resource.body):
            # Its Job has ended: it does not hold back another Backup.
            fields = {"phase": FAILED, "completionTime": timestamp(clock.now())}
            await report(context, resource, [ready(Reason.DELETING, "it was deleted before it ended")], fields)
        return await self._delete(context, resource, model)

    async def _left(self, context: Context, key: Key, name: str) -> str:
        """Return a pod of a Job that was deleted, and has not ended yet; empty if there is none."""
        job = {"metadata": {"name": name, "namespace": key.namespace}}
        for pod, _ in await pods_of_job(context, job):
            if (pod.get("status") or {}).get("phase") == "Running":
                return f"pod {pod['metadata']['name']}"
        return ""

    async def _delete(self, context: Context, resource: Resource, model: Backup) -> Outcome:
        key, name = resource.key, delete_job_name(resource.key.name)
        job = await context.kube.find(JOB, key.namespace, name)
        if job is None:
            cluster = context.resource(Key(BROKER_CLUSTER.name, key.namespace, model.spec.cluster_ref.name))
            found = cluster.model if cluster is not None else None
            pods = backup_pods(found if isinstance(found, BrokerCluster) else None, self._site)
            if (changed := await changed_since(context, resource)) is not None:
                return changed
            wanted = delete_job(model.spec.destination, resource.body, pods)
            await apply_all(context, resource, [wanted], kinds=_KINDS, existed=False)
            return await self._wait(
                context, resource, f"Job {name} deletes {stored_name(resource.body)} from its store"
            )
        check_owner(resource, JOB, job)
        run, pods_now = run_of(job), await pods_of_job(context, job)
        if run.succeeded:
            return await self._release(context, resource)
        if run.succeeded is None:
            problems = "; ".join(f"{pod['metadata']['name']}: {problem}" for pod, problem in pods_now if problem)
            message = f"Job {name} deletes {stored_name(resource.body)} from its store"
            return await self._wait(context, resource, f"{message}: {problems}; {_WAY_OUT}" if problems else message)
        end = last_end([pod for pod, _ in pods_now], CONTAINER)
        why = failure_of(end) if end is not None and end.get("exitCode") else run.message
        if _age_s(run.ended) >= _RETRY_S:
            await context.kube.delete(JOB, key.namespace, name)
        message = f"{stored_name(resource.body)} could not be deleted from its store: {why}"
        return await self._failed(context, resource, Reason.BACKUP_DELETION_FAILED, message)

    async def _retain(self, context: Context, resource: Resource, why: str) -> Outcome:
        message = f"{stored_name(resource.body)} stays in its store, as far as it was stored: {why}"
        await context.events.emit(resource.body, "DataRetained", message)
        return await self._release(context, resource)

    async def _release(self, context: Context, resource: Resource) -> Outcome:
        await release(context, resource)
        return Outcome("gone")

    async def _wait(self, context: Context, resource: Resource, message: str) -> Outcome:
        await report(context, resource, [ready(Reason.DELETING, message)])
        return Outcome("waiting", _AGAIN_S)

    async def _failed(self, context: Context, resource: Resource, reason: StrEnum, message: str) -> Outcome:
        await report(context, resource, [ready(reason, f"{message}; it is tried again; {_WAY_OUT}")])
        return Outcome("waiting", _RETRY_S)


def _age_s(ended: str) -> float:
    return (clock.now() - datetime.fromisoformat(ended)).total_seconds() if ended else _RETRY_S
