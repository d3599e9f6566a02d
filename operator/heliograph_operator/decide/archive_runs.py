"""What became of an archive's runs, as its jobs and their pods tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heliograph_operator.objects.kinds import Body

from .archive_cron_job import CONTAINER

#: Of what a run ended with, in a status.
_LONGEST_MESSAGE = 1024


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
    """Return the runs, oldest first; what only their pods know is not in them."""
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
    """Return a run that is over with what its last pod said: the rows it wrote, or why it failed."""
    ends = [end for pod in pods if (end := _terminated(pod)) is not None]
    if not ends:
        return run
    last = max(ends, key=lambda end: str(end.get("finishedAt", "")))
    said = str(last.get("message", "")).strip()
    result = _result(said)
    rows = result.get("rows")
    message = run.message
    if run.succeeded is False:
        own = result.get("error") or (said.splitlines()[-1] if said and not result else "")
        code = f"its container ended with {last.get('reason', 'Error')} (exit code {last.get('exitCode')})"
        message = str(own or code)
    return Run(
        run.name,
        run.uid,
        run.began,
        run.ended,
        run.succeeded,
        rows if isinstance(rows, int) and rows >= 0 else None,
        message[:_LONGEST_MESSAGE],
    )


def _terminated(pod: Body) -> Body | None:
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container.get("name") == CONTAINER:
            found: Body | None = (container.get("state") or {}).get("terminated")
            return found
    return None


def _result(said: str) -> dict[str, Any]:
    """Return the job's own word: one JSON object. A log, which Kubernetes takes where there is none, is not."""
    try:
        found = json.loads(said)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
