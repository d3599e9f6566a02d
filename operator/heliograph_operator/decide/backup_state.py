"""The state of Backups: which have ended, which is the next one to begin, and the fields of their status."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

from heliograph_api.values.readable import readable_size

from heliograph_operator.objects.conditions import READY, Reason, condition
from heliograph_operator.objects.kinds import Body, is_deleted, is_managed, is_paused

from .backup_jobs import stored_name
from .job_runs import Run, result_of, run_of
from .restore import of_ms

SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
#: Reasons of Backups that begin by themselves; none: it was not reconciled yet.
_WAITS: Final = (
    "",
    Reason.BACKUP_WAITING,
    Reason.CLUSTER_NOT_READY,
    Reason.PARENT_MISSING,
    Reason.PAUSED,
    Reason.UNMANAGED,
)
#: Annotation of a Backup whose stored data goes with it, whatever its deletionPolicy: it is not kept any longer.
EXPIRED: Final = "expired"


def phase_of(body: Body) -> str:
    """Return the phase of a Backup; empty before its first reconcile."""
    return str((body.get("status") or {}).get("phase") or "")


def is_over(body: Body) -> bool:
    """Whether a Backup has ended: it never runs a second time."""
    return phase_of(body) in (SUCCEEDED, FAILED)


def first_in_turn(backups: Iterable[Body], cluster: str, jobs: Iterable[Body] = ()) -> str | None:
    """Return the name of the Backup of a BrokerCluster that runs or may begin; a broker makes one at a time.

    ``jobs`` may show of a Backup that it has begun before its status does.
    """
    running = {
        owner["uid"]
        for job in jobs
        if run_of(job).succeeded is None
        for owner in job["metadata"].get("ownerReferences") or ()
        if owner.get("controller")
    }
    waiting = [
        (not _has_begun(body, running), *_created(body))
        for body in backups
        if body["spec"]["clusterRef"]["name"] == cluster and not is_over(body)
        if _has_begun(body, running) or _may_begin(body)
    ]
    return min(waiting)[-1] if waiting else None


def _has_begun(body: Body, running: Container[str]) -> bool:
    return bool((body.get("status") or {}).get("startTime")) or body["metadata"].get("uid") in running


def _may_begin(body: Body) -> bool:
    status = body.get("status") or {}
    # One that something else keeps back does not keep back others.
    waits = condition(status, READY).get("reason", "") in _WAITS
    return waits and not (is_deleted(body) or is_paused(body) or not is_managed(body))


def _created(body: Body) -> tuple[str, str]:
    metadata = body["metadata"]
    return str(metadata.get("creationTimestamp", "")), str(metadata["name"])


def waiting_text(first: str) -> str:
    """Return why a Backup waits for another one."""
    return f"waiting for Backup {first}: a broker makes one backup at a time"


def ended_fields(body: Body, run: Run, ends: Sequence[Body]) -> dict[str, Any]:
    """Return the fields of the status of a Backup whose Job has ended; ``ends``: those of its containers, last first.

    One that failed has a ``name`` only if it is stored all the same: its verification failed, or a later attempt did
    before it found that out.
    """
    fields: dict[str, Any] = {"completionTime": run.ended}
    results = [result_of(end) for end in (ends[:1] if run.succeeded else ends)]
    result = next((each for each in results if each.get("name")), results[0] if results else {})
    if not run.succeeded and not result.get("name"):
        return fields
    fields["name"] = str(result.get("name") or stored_name(body))
    size = result.get("bytes")
    if isinstance(size, int):
        fields |= {"size": readable_size(size), "sizeBytes": size}
    for field, name in (("url", "url"), ("topics", "topics"), ("version", "version"), ("damaged", "damaged")):
        if result.get(name) is not None:
            fields[field] = result[name]
    for field, name in (("pointInTime", "pointInTimeMs"), ("verifiedTime", "verifiedMs")):
        if (at := of_ms(result.get(name))) is not None:
            fields[field] = at
    return fields
