"""Waits for the end of the archive of a Topic that is being deleted, before its data is."""

from __future__ import annotations

from typing import Final

import structlog

from heliograph_operator.act.controller import Context
from heliograph_operator.act.resource import Resource
from heliograph_operator.decide.archive_cron_job import CRON_JOB, LABELS, OF, cron_job_name
from heliograph_operator.decide.cluster_objects import POD
from heliograph_operator.decide.stateful_set import as_selector
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.kinds import Body, deleted_for_s

log = structlog.get_logger(__name__)

#: Time (s) that runs have to end before the topic they read is deleted all the same.
_ENDS_WITHIN_S: Final = 60.0


async def ends_archive(context: Context, resource: Resource) -> bool:
    """Return whether to wait for the end of the Topic's CronJob and its jobs, or of a run of the archive.

    A run that goes on would recreate the deleted topic by reading it. Their deletion has been requested.
    """
    if not context.settings.archives or "archive" not in resource.status:
        return False
    if deleted_for_s(resource.body) > _ENDS_WITHIN_S:
        return False
    key = resource.key
    try:
        found = await find_cron_job(context, resource)
        if found is None:
            # Only a pod that runs counts: a job a person created may never start.
            label = as_selector({**LABELS, OF: cron_job_name(key.name)})
            pods = await context.kube.list(POD, key.namespace, labels=label)
            return any((pod.get("status") or {}).get("phase") == "Running" for pod in pods)
    except KubeRefused as error:
        if error.status != 403:
            raise
        # Kubernetes deletes it with its owner, the Topic.
        log.warning("the end of the archive cannot be awaited", resource=str(key), error=str(error))
        return False
    return True


async def find_cron_job(context: Context, resource: Resource) -> Body | None:
    """Return the CronJob whose owner is this Topic; None if there is none."""
    key, uid = resource.key, resource.uid
    found = await context.kube.find(CRON_JOB, key.namespace, cron_job_name(key.name))
    owners = (found or {}).get("metadata", {}).get("ownerReferences") or ()
    return found if any(owner.get("uid") == uid for owner in owners) else None
