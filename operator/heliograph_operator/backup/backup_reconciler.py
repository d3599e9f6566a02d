"""Makes each Backup once, by a Job, and deletes what is stored with the resource if it says so."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog
from heliograph_api.resources.model import Backup, BrokerCluster

from heliograph_operator.act.broker_tokens import needs_token
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import hold
from heliograph_operator.act.object_apply import (
    ObjectRefused,
    apply_all,
    belongs_to,
    check_owner,
    refusal_reason,
    remove_all,
)
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.status_report import report
from heliograph_operator.decide.archive_cron_job import JOB
from heliograph_operator.decide.backup_jobs import EXPIRING, LABELS, backup_pods, push_job, push_job_name
from heliograph_operator.decide.backup_state import (
    FAILED,
    ended_fields,
    first_in_turn,
    is_over,
    phase_of,
    waiting_text,
)
from heliograph_operator.decide.job_runs import ends_of, failure_of, run_of
from heliograph_operator.decide.program_tokens import backup_token
from heliograph_operator.decide.stateful_set import Site, as_selector
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects import clock
from heliograph_operator.objects.conditions import READY, Reason, Truth, condition, ready, timestamp
from heliograph_operator.objects.kinds import BACKUP, BROKER_CLUSTER, Body, Key, is_held
from heliograph_operator.objects.program_urls import program_urls

from .backup_deletion import BackupDeletion
from .backup_pods import pods_of_job

log = structlog.get_logger(__name__)

_KINDS: Final = {JOB.name: JOB}
#: Time (s) between two looks at what a Backup waits for.
_WAIT_S: Final = 5.0
#: Time (s) between two looks at a Job that runs, in case a watch missed a change.
_RUN_S: Final = 60.0
#: Time (s) from the record of an end to the settlement of the Job.
_SETTLE_S: Final = 1.0


class BackupReconciler:
    """The reconciler of Backups."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._deletion = BackupDeletion(site)
        #: Held from the choice of the next Backup until its status has that it began.
        self._beginning = asyncio.Lock()

    async def reconcile(self, context: Context, resource: Resource) -> Outcome:
        """See :data:`.controller.Reconciler`."""
        if resource.deleted:
            return await self._deletion.proceed(context, resource)
        if is_over(resource.body):
            try:
                return await self._keep(context, resource)
            except ObjectRefused as error:
                log.warning("the Job of a Backup could not be deleted", resource=str(resource.key), error=str(error))
                return Outcome("waiting", _RUN_S)
        if not resource.managed:
            return await self._say(context, resource, Reason.UNMANAGED, resource.suspended, "Unknown")
        model = resource.model
        if not isinstance(model, Backup):
            return await self._say(context, resource, Reason.INVALID, resource.memory.problem)
        if not is_held(resource.body):
            # Its Job and the stored backup have to be taken care of when it is deleted.
            return await self.reconcile(context, resource) if await hold(context, resource) else Outcome("gone")
        try:
            return await self._make(context, resource, model)
        except ObjectRefused as error:
            return await self._say(context, resource, error.reason, str(error))
        except KubeRefused as error:
            return await self._say(context, resource, refusal_reason(error), str(error))

    async def _make(self, context: Context, resource: Resource, model: Backup) -> Outcome:
        namespace, name = resource.key.namespace, push_job_name(resource.key.name)
        job = await context.kube.find(JOB, namespace, name)
        if job is not None:
            check_owner(resource, JOB, job)
            return await self._follow(context, resource, job)
        if resource.status.get("startTime"):
            message = f"its Job {name} was deleted before its end was seen; create another Backup"
            return await self._end(context, resource, FAILED, message, {"completionTime": timestamp(clock.now())})
        if resource.paused:
            return await self._say(context, resource, Reason.PAUSED, resource.suspended, "Unknown")
        return await self._begin(context, resource, model)

    async def _begin(self, context: Context, resource: Resource, model: Backup) -> Outcome:
        key = resource.key
        cluster_key = Key(BROKER_CLUSTER.name, key.namespace, model.spec.cluster_ref.name)
        found = context.resource(cluster_key)
        cluster = found.model if found is not None else None
        if found is None or not isinstance(cluster, BrokerCluster):
            message = f"BrokerCluster {cluster_key.name} is not valid; its condition Ready names the field"
            if found is None:
                message = (
                    f"spec.clusterRef.name: there is no BrokerCluster {cluster_key.name!r} in Kubernetes namespace"
                    f" {key.namespace}; valid: one that exists there"
                )
            return await self._say(context, resource, Reason.PARENT_MISSING, message)
        url = program_urls(found.body).http_url
        if not url or found.status.get("readyReplicas") == 0:
            message = f"no broker of BrokerCluster {cluster_key.name} is ready"
            return await self._say(context, resource, Reason.CLUSTER_NOT_READY, message)
        known = [context.cache.get(each) for each in context.cache.keys(BACKUP.name, key.namespace)]
        first = first_in_turn([each for each in known if each is not None], cluster_key.name)
        if first is not None and first != key.name:
            return await self._say(context, resource, Reason.BACKUP_WAITING, waiting_text(first))
        authorities = str((found.status.get("tls") or {}).get("authorities") or "")
        pods = backup_pods(cluster, self._site, authorities)
        secret = backup_token(cluster_key.name).secret if needs_token(found.body) else ""
        wanted = push_job(model.spec, resource.body, pods, url, found.uid, secret)
        async with self._beginning:
            # The cache may not have another one yet, nor that it has begun.
            backups = await context.kube.list(BACKUP, key.namespace)
            jobs = await context.kube.list(JOB, key.namespace, labels=as_selector(LABELS))
            first = first_in_turn(backups, cluster_key.name, jobs)
            if first is not None and first != key.name:
                return await self._say(context, resource, Reason.BACKUP_WAITING, waiting_text(first))
            await apply_all(context, resource, [wanted], kinds=_KINDS, existed=False)
            fields = {"phase": "Running", "startTime": timestamp(clock.now())}
            message = f"Job {wanted['metadata']['name']} began"
            await self._report(context, resource, Reason.BACKUP_RUNNING, message, fields)
        return Outcome("waiting", _RUN_S)

    async def _follow(self, context: Context, resource: Resource, job: Body) -> Outcome:
        run, pods = run_of(job), await pods_of_job(context, job)
        ends = ends_of([pod for pod, _ in pods], "backup")
        end = ends[0] if ends else None
        if run.succeeded is None:
            problems = [f"{pod['metadata']['name']}: {problem}" for pod, problem in pods if problem]
            if end is not None and end.get("exitCode"):
                problems.insert(0, f"it is tried again after: {failure_of(end)}")
            message = "; ".join(problems) or f"Job {run.name} runs; its log has the progress"
            fields = {"phase": "Running", "startTime": resource.status.get("startTime") or run.began}
            await self._report(context, resource, Reason.BACKUP_RUNNING, message, fields)
            return Outcome("waiting", _RUN_S)
        fields = ended_fields(resource.body, run, ends)
        if run.succeeded:
            message = f"{fields['name']} is stored" + (f" at {fields['url']}" if "url" in fields else "")
            return await self._end(context, resource, "Succeeded", message, fields)
        why = failure_of(end) if end is not None and end.get("exitCode") else run.message
        message = f"Job {run.name} failed: {why}"
        if "name" in fields:
            message = f"{fields['name']} is stored at {fields.get('url')}, but was not verified: {why}"
        return await self._end(context, resource, FAILED, message, fields)

    async def _end(
        self, context: Context, resource: Resource, phase: str, message: str, fields: dict[str, Any]
    ) -> Outcome:
        succeeded = phase != FAILED
        reason = Reason.BACKUP_SUCCEEDED if succeeded else Reason.BACKUP_FAILED
        verdict = ready(reason, message, "True" if succeeded else "False")
        await report(context, resource, [verdict], {"phase": phase, **fields})
        return Outcome("ready" if succeeded else "waiting", _SETTLE_S)

    async def _keep(self, context: Context, resource: Resource) -> Outcome:
        """Report on a Backup that has ended, whose generation may have changed since."""
        was = condition(resource.status, READY)
        succeeded = phase_of(resource.body) != FAILED
        if not resource.memory.job_settled:
            await self._settle_job(context, resource, succeeded)
            resource.memory.job_settled = True
        reason = Reason.BACKUP_SUCCEEDED if succeeded else Reason.BACKUP_FAILED
        await report(context, resource, [ready(reason, str(was.get("message", "")), "True" if succeeded else "False")])
        return Outcome("ready")

    async def _settle_job(self, context: Context, resource: Resource, succeeded: bool) -> None:
        """Let Kubernetes delete the Job of a Backup, whose end is recorded. Raises :class:`ObjectRefused`."""
        namespace, name = resource.key.namespace, push_job_name(resource.key.name)
        if succeeded and resource.spec.get("verify"):
            # Its pod keeps the scratch space, which is as large as a broker's volume.
            await remove_all(context, resource, [(JOB, name)])
            return
        try:
            job = await context.kube.find(JOB, namespace, name)
            if job is None or not belongs_to(job, resource.uid, orphans=False):
                return
            if job["spec"].get("ttlSecondsAfterFinished") is None:
                await context.kube.patch(JOB, namespace, name, EXPIRING)
        except KubeRefused as error:
            if error.status != 404:
                raise ObjectRefused(refusal_reason(error), f"{JOB.name} {name}: {error}") from error

    async def _say(
        self, context: Context, resource: Resource, reason: Any, message: str, status: Truth = "False"
    ) -> Outcome:
        """Report why nothing is begun."""
        fields = {} if resource.status.get("startTime") else {"phase": "Waiting"}
        await report(context, resource, [ready(reason, message, status)], fields)
        return Outcome("waiting", _WAIT_S)

    async def _report(
        self, context: Context, resource: Resource, reason: Reason, message: str, fields: dict[str, Any]
    ) -> None:
        await report(context, resource, [ready(reason, message)], fields)
