"""Creates a Backup at each time of a ScheduledBackup, and deletes those that are not kept any longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from heliograph_api.resources.model import ScheduledBackup

from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import changed_since
from heliograph_operator.act.object_apply import ObjectRefused, apply_all, check_owner, refusal_reason
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.status_report import report
from heliograph_operator.decide.backup_schedule import SCHEDULE, backup_of, plan, schedule_fields, schedule_verdict
from heliograph_operator.decide.backup_state import EXPIRED
from heliograph_operator.decide.cron_times import ScheduleError
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects import clock
from heliograph_operator.objects.conditions import Reason, Truth, ready, timestamp
from heliograph_operator.objects.kinds import BACKUP, GROUP, Body, annotation, is_deleted, key_of

_KINDS: Final = {BACKUP.name: BACKUP}
#: Time (s) after which a refused change is tried again.
_REFUSED_S: Final = 30.0


class ScheduleReconciler:
    """The reconciler of ScheduledBackups. Kubernetes deletes their Backups with them."""

    def __init__(self, now: Callable[[], datetime] = clock.now) -> None:
        self._now = now

    async def reconcile(self, context: Context, resource: Resource) -> Outcome:
        """See :data:`.controller.Reconciler`."""
        if resource.deleted:
            return Outcome("gone")
        resync_s = context.settings.resync_s
        if why := resource.suspended:
            reason = Reason.PAUSED if resource.managed else Reason.UNMANAGED
            return await self._say(context, resource, reason, why, "Unknown")
        model = resource.model
        if not isinstance(model, ScheduledBackup):
            return await self._say(context, resource, Reason.INVALID, resource.memory.problem)
        now, backups = self._now(), _backups(context, resource)
        try:
            wanted = plan(model.spec, resource.body, backups, now)
            if wanted.expired:
                # The watch may be late, and what is stored cannot be had again.
                if (changed := await changed_since(context, resource)) is not None:
                    return changed
                listed = await context.kube.list(BACKUP, resource.key.namespace)
                backups = [each for each in listed if _is_of(each, resource)]
                wanted = plan(model.spec, resource.body, backups, now)
            fields = schedule_fields(wanted, backups, model.spec.suspend)
            if wanted.due is not None:
                name = await self._create(context, resource, wanted.due)
                fields |= {"lastScheduleTime": timestamp(wanted.due), "lastBackup": name}
            # Before anything else that may be refused: a Backup is created once for each time.
            await report(context, resource, [schedule_verdict(model.spec, wanted, backups)], fields)
            await _keep(context, [each for each in backups if each not in wanted.expired])
            for each in wanted.expired:
                await self._delete(context, resource, each)
        except ScheduleError as error:
            return await self._say(context, resource, Reason.INVALID, str(error))
        except ObjectRefused as error:
            return await self._say(context, resource, error.reason, str(error))
        except KubeRefused as error:
            return await self._say(context, resource, refusal_reason(error), str(error))
        return Outcome("ready", min(max((wanted.next_time - now).total_seconds(), 0.0) + 0.1, resync_s))

    async def _create(self, context: Context, resource: Resource, due: datetime) -> str:
        """Create the Backup for a time, unless it is there, and return its name."""
        made = backup_of(resource.body, due)
        name = str(made["metadata"]["name"])
        found = await context.kube.find(BACKUP, resource.key.namespace, name)
        if found is not None:
            # It may have ended, and the template may be another one by now.
            check_owner(resource, BACKUP, found)
            return name
        await apply_all(context, resource, [made], kinds=_KINDS, existed=False)
        await context.events.emit(resource.body, "BackupCreated", f"Backup {name} for the time {timestamp(due)}")
        return name

    async def _delete(self, context: Context, resource: Resource, backup: Body) -> None:
        """Delete a Backup with what is stored, whatever its deletionPolicy says."""
        name, namespace = backup["metadata"]["name"], resource.key.namespace
        # With the uid, so that it cannot be another one of this name.
        note = {"metadata": {"uid": backup["metadata"]["uid"], "annotations": {f"{GROUP}/{EXPIRED}": "true"}}}
        try:
            await context.kube.patch(BACKUP, namespace, name, note)
            await context.kube.delete(BACKUP, namespace, name)
        except KubeRefused as error:
            if error.status != 404:
                raise
            return
        why = "spec.keep or spec.keepFor does not keep it, or it failed and a later one succeeded"
        await context.events.emit(
            resource.body, "BackupExpired", f"Backup {name} is deleted with what it stored: {why}"
        )

    async def _say(
        self, context: Context, resource: Resource, reason: Any, message: str, status: Truth = "False"
    ) -> Outcome:
        """Report why nothing is done."""
        await report(context, resource, [ready(reason, message, status)], {"nextTime": None})
        return Outcome("waiting", _REFUSED_S)


async def _keep(context: Context, backups: Sequence[Body]) -> None:
    """Take back what marks Backups as expired, if they are to be kept after all and were not deleted."""
    for each in backups:
        if annotation(each, EXPIRED) and not is_deleted(each):
            key = key_of(each)
            note = {"metadata": {"uid": each["metadata"]["uid"], "annotations": {f"{GROUP}/{EXPIRED}": None}}}
            await context.kube.patch(BACKUP, key.namespace, key.name, note)


def _backups(context: Context, resource: Resource) -> list[Body]:
    """Return the Backups of a ScheduledBackup."""
    found = (context.cache.get(key) for key in context.cache.keys(BACKUP.name, resource.key.namespace))
    return [body for body in found if body is not None and _is_of(body, resource)]


def _is_of(body: Body, resource: Resource) -> bool:
    metadata = body["metadata"]
    owners = metadata.get("ownerReferences") or ()
    label = (metadata.get("labels") or {}).get(SCHEDULE)
    return label == resource.key.name and any(owner.get("uid") == resource.uid for owner in owners)
