"""The runs of an archive: their outcome, read from its jobs and their pods, and its fields in the status."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heliograph_api.resources.archive_spec import ArchiveSpec

from heliograph_operator.objects.conditions import ARCHIVED, Reason, Verdict
from heliograph_operator.objects.kinds import Body

from .archive_cron_job import CONTAINER

#: Characters of a run's message that a status keeps.
_MAX_MESSAGE_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class Run:
    """One job. ``succeeded`` is None as long as it runs; times are as the API server writes them."""

    name: str
    uid: str
    began: str
    ended: str = ""
    succeeded: bool | None = None
    rows: int | None = None
    message: str = ""


def runs_of(jobs: Sequence[Body]) -> list[Run]:
    """Return the runs, oldest first, without the results that only their pods have."""
    return sorted((_run(job) for job in jobs), key=lambda run: (run.began, run.name))


def _run(job: Body) -> Run:
    metadata, status = job["metadata"], job.get("status") or {}
    began = str(status.get("startTime") or metadata.get("creationTimestamp", ""))
    for condition in status.get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            ended = str(status.get("completionTime") or condition.get("lastTransitionTime", ""))
            message = str(condition.get("message", ""))
            succeeded = condition["type"] == "Complete"
            return Run(metadata["name"], metadata["uid"], began, ended, succeeded, message="" if succeeded else message)
    return Run(metadata["name"], metadata["uid"], began)


def with_result(run: Run, pods: Sequence[Body]) -> Run:
    """Return a run that ended with the result its last pod reported: the rows it wrote, or why it failed."""
    ends = [end for pod in pods if (end := _terminated(pod)) is not None]
    if not ends:
        return run
    last = max(ends, key=lambda end: str(end.get("finishedAt", "")))
    text = str(last.get("message", "")).strip()
    result = _result(text)
    rows = result.get("rows")
    message = run.message
    if run.succeeded is False:
        own = result.get("error") or (text.splitlines()[-1] if text and not result else "")
        code = f"its container ended with {last.get('reason', 'Error')} (exit code {last.get('exitCode')})"
        message = str(own or code)
    counted = rows if isinstance(rows, int) and rows >= 0 else None
    return replace(run, rows=counted, message=message[:_MAX_MESSAGE_LENGTH])


def _terminated(pod: Body) -> Body | None:
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container.get("name") == CONTAINER:
            found: Body | None = (container.get("state") or {}).get("terminated")
            return found
    return None


def _result(text: str) -> dict[str, Any]:
    """Return the JSON object a job writes as its result; empty for a log, which Kubernetes takes if there is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def last_ended(runs: Sequence[Run]) -> Run | None:
    """Return the newest run that ended; None if none has."""
    return next((run for run in reversed(runs) if run.succeeded is not None), None)


def archive_fields(before: Mapping[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Return the fields of ``status.archive``; what ``before`` has of deleted jobs stays."""
    fields: dict[str, Any] = dict(before)
    fields["running"] = bool(runs) and runs[-1].succeeded is None
    if runs:
        fields["lastRunTime"] = runs[-1].began
    if (succeeded := [run for run in runs if run.succeeded]) and succeeded[-1].ended:
        fields["lastSuccessTime"] = succeeded[-1].ended
    if (last := last_ended(runs)) is not None:
        for name, value in (("rows", last.rows), ("message", last.message or None)):
            fields.pop(name, None)
            if value is not None:
                fields[name] = value
    return fields


def archive_verdict(spec: ArchiveSpec, runs: Sequence[Run]) -> Verdict:
    """Return the Archived condition."""
    last = last_ended(runs)
    if last is not None and not last.succeeded:
        return Verdict(ARCHIVED, "False", Reason.ARCHIVE_FAILED, f"{last.name}: {last.message}")
    if spec.suspend:
        return Verdict(ARCHIVED, "Unknown", Reason.ARCHIVE_SUSPENDED, "spec.archive.suspend: no run is started")
    if last is None:
        return Verdict(ARCHIVED, "Unknown", Reason.ARCHIVE_PENDING, f"no run has ended yet; schedule: {spec.schedule}")
    rows = "messages" if last.rows is None else f"{last.rows} messages"
    return Verdict(ARCHIVED, "True", Reason.ARCHIVE_SUCCEEDED, f"{last.name} archived {rows}")
