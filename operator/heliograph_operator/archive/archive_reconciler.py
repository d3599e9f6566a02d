"""Keeps the CronJob of a Topic's archive in step with the spec, and reports the outcome of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import structlog
from heliograph_api.admin.admin_client import AdminRefused
from heliograph_api.resources.archive_spec import SUBSCRIPTION, ArchiveSpec
from heliograph_api.resources.model import Topic

from heliograph_operator.act.controller import Context
from heliograph_operator.act.object_apply import ObjectRefused, apply_all, refusal_reason
from heliograph_operator.act.resource import NOT_RECONCILED, Resource
from heliograph_operator.decide.archive_consent import consent_of, refusal
from heliograph_operator.decide.archive_cron_job import (
    CRON_JOB,
    JOB,
    LABELS,
    OF,
    ArchiveSite,
    cron_job,
    cron_job_name,
)
from heliograph_operator.decide.archive_runs import (
    archive_fields,
    archive_verdict,
    last_ended,
    runs_of,
    with_result,
)
from heliograph_operator.decide.cluster_objects import POD
from heliograph_operator.decide.job_runs import Run, pods_selector
from heliograph_operator.decide.stateful_set import as_selector
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.conditions import ARCHIVED, Reason, Verdict, condition
from heliograph_operator.objects.kinds import is_deleted
from heliograph_operator.objects.ownership import conflict
from heliograph_operator.objects.targets import Target, claim_of

from .archive_deletion import find_cron_job
from .archive_identity import ArchiveIdentity

log = structlog.get_logger(__name__)

#: Reasons that only a change of a resource ends.
_KNOWN: Final = (Reason.ARCHIVE_NOT_ALLOWED, Reason.UNMANAGED, Reason.CONFLICT)
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

    def __init__(self, site: ArchiveSite, identity: ArchiveIdentity) -> None:
        self._site = site
        self._identity = identity

    async def check(self, context: Context, resource: Resource) -> Verdict | None:
        """Delete the CronJob of a Topic that may not have one; return the condition of an archive that is refused.

        This comes first in every reconcile: whatever else a Topic waits for, its archive must not go on.
        """
        if resource.spec.get("archive") is None and not _may_have_cron_job(resource):
            return None
        verdict = None if resource.deleted else _refusal(context, resource)
        ended = not resource.paused and isinstance(resource.model, Topic) and resource.model.spec.archive is None
        if not context.settings.archives or not (verdict is not None or ended or resource.deleted):
            return verdict
        if not _may_have_cron_job(resource):
            return verdict
        try:
            await self._delete(context, resource, verdict)
        except KubeRefused as error:
            log.warning("an archive's CronJob could not be deleted", resource=str(resource.key), error=str(error))
            return Verdict(ARCHIVED, "False", refusal_reason(error), str(error))
        return verdict

    async def reconcile(
        self, context: Context, resource: Resource, spec: ArchiveSpec | None, target: Target
    ) -> ArchiveReport:
        """Apply the CronJob of an archive that :meth:`check` did not refuse; return what to report.

        Raises AdminUnreachable if the brokers have to grant it something, and do not answer.
        """
        # The consent may have been withdrawn since, and the Topic is queued for that.
        refused = resource.memory.archive_refused or _refusal(context, resource)
        if (refused is not None or spec is None) and not resource.paused:
            await self._identity.revoke(resource, context.cache.get(target.cluster))
        if refused is not None:
            requeue_s = None if refused.reason in _KNOWN else REFUSED_S
            return ArchiveReport(_status(resource) or None, refused, requeue_s)
        if spec is None:
            return ArchiveReport()
        try:
            if resource.paused:
                await self._identity.renew(context, resource, context.cache.get(target.cluster) or {})
            else:
                await self._apply(context, resource, spec, target)
            runs = await self._runs(context, resource)
        except ObjectRefused as error:
            return _refused(resource, error.reason, str(error))
        except KubeRefused as error:
            return _refused(resource, refusal_reason(error), str(error))
        except AdminRefused as error:
            return _refused(resource, Reason.REFUSED, f"the grant of the archive's role: {error.reason}")
        return ArchiveReport(archive_fields(_status(resource), runs), archive_verdict(spec, runs))

    async def renew(self, context: Context, resource: Resource) -> None:
        """Renew what runs use while their Topic waits, of an archive that :meth:`check` did not refuse: they go on."""
        if not context.settings.archives or "archive" not in resource.status or resource.spec.get("archive") is None:
            return
        claim = claim_of(context.cache, resource.body)
        cluster = context.cache.get(claim.cluster) if claim is not None else None
        if cluster is None:
            return
        try:
            await self._identity.renew(context, resource, cluster)
        except (ObjectRefused, KubeRefused) as error:
            log.warning("the access of an archive could not be renewed", resource=str(resource.key), error=str(error))

    async def _apply(self, context: Context, resource: Resource, spec: ArchiveSpec, target: Target) -> None:
        cluster = context.cache.get(target.cluster) or {}
        source = await self._identity.keep(context, resource, target.name, cluster)
        wanted = cron_job(spec, resource.body, source, self._site, consent_of(cluster).jobs)
        was_refused = condition(resource.status, ARCHIVED).get("reason") in (*_KNOWN, Reason.CLUSTER_NOT_READY)
        existed = "archive" in resource.status and not was_refused
        changed = await apply_all(context, resource, [wanted], kinds=_KINDS, existed=existed)
        if changed:
            await context.events.emit(resource.body, "Applied", ", ".join(changed), repeat=True)

    async def _delete(self, context: Context, resource: Resource, refused: Verdict | None) -> None:
        """Delete the CronJob with its jobs and their pods, if there is one, and take its grant from the role."""
        found, name = await find_cron_job(context, resource), cron_job_name(resource.key.name)
        ends = found is not None and not is_deleted(found)
        if ends:
            # A run that is under way must end before the topic that it reads is deleted.
            propagation = "Foreground" if resource.deleted else "Background"
            await context.kube.delete(CRON_JOB, resource.key.namespace, name, propagation=propagation)
        # Also of a Topic that is deleted: what it stands for may stay.
        claim = claim_of(context.cache, resource.body)
        await self._identity.revoke(resource, context.cache.get(claim.cluster) if claim is not None else None)
        if not ends or resource.deleted:
            return
        why = f"CronJob {name} was deleted with its runs: {refused.message}; " if refused is not None else ""
        message = (
            f"{why}no more runs are started; subscription {SUBSCRIPTION} keeps its unacknowledged messages: unsubscribe"
            " it if the topic is not to be archived again"
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
                pods = await context.kube.list(POD, namespace, labels=pods_selector(run.name))
                memory.archive_run = with_result(run, pods)
            runs[at] = memory.archive_run
        return runs


def _may_have_cron_job(resource: Resource) -> bool:
    return "archive" in resource.status or resource.memory.has_cron_job


def _refusal(context: Context, resource: Resource) -> Verdict | None:
    """Return why a Topic may not have the CronJob of its archive; None if it may."""
    model, key = resource.model, resource.key
    spec = model.spec.archive if isinstance(model, Topic) else None
    if isinstance(model, Topic) and spec is None:
        return None
    # One that never had an archive says already in Ready that it stands for nothing.
    had = bool(condition(resource.status, ARCHIVED)) or _may_have_cron_job(resource)
    if not resource.managed:
        return Verdict(ARCHIVED, "Unknown", Reason.UNMANAGED, NOT_RECONCILED) if had else None
    claim = claim_of(context.cache, resource.body)
    owner = context.cache.ownership.owner(claim) if claim is not None else None
    if claim is not None and owner is not None and owner != key:
        message = conflict(owner, claim.name, key.namespace)
        return Verdict(ARCHIVED, "False", Reason.CONFLICT, message) if had else None
    if not context.settings.archives:
        message = "this operator runs no archives; valid: archive.enabled: true in its chart (--archives)"
        if "archive" in resource.status:
            name = cron_job_name(key.name)
            message += f"; CronJob {name} may still be there from before, and runs until somebody deletes it"
        return Verdict(ARCHIVED, "False", Reason.ARCHIVE_NOT_ALLOWED, message)
    cluster = context.cache.get(claim.cluster) if claim is not None else None
    if claim is None or cluster is None:
        message = "its BrokerCluster does not exist, so nothing allows an archive"
        return Verdict(ARCHIVED, "False", Reason.ARCHIVE_NOT_ALLOWED, message) if had else None
    if claim.cluster.namespace != key.namespace:
        # The BrokerCluster cannot know what the names in its consent stand for elsewhere.
        message = (
            "an archive works in the Kubernetes namespace of its BrokerCluster only; valid: a Topic in"
            f" {claim.cluster.namespace}"
        )
        return Verdict(ARCHIVED, "False", Reason.ARCHIVE_NOT_ALLOWED, message)
    message = refusal(spec, consent_of(cluster), claim.cluster.name)
    return Verdict(ARCHIVED, "False", Reason.ARCHIVE_NOT_ALLOWED, message) if message else None


def _status(resource: Resource) -> Mapping[str, Any]:
    return resource.status.get("archive") or {}


def _refused(resource: Resource, reason: StrEnum, message: str) -> ArchiveReport:
    return ArchiveReport(_status(resource), Verdict(ARCHIVED, "False", reason, message), REFUSED_S)
