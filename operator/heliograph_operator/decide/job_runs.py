"""The runs of Jobs: when each began and ended, and what its container left as its result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from heliograph_operator.objects.kinds import Body

from .stateful_set import as_selector

#: Characters of a run's message that a status keeps.
MAX_MESSAGE_LENGTH: Final = 1024


@dataclass(frozen=True, slots=True)
class Run:
    """One Job. ``succeeded`` is None as long as it runs; times are as the API server writes them."""

    name: str
    uid: str
    began: str
    ended: str = ""
    succeeded: bool | None = None
    rows: int | None = None
    message: str = ""


def pods_selector(job: str) -> str:
    """Return the selector of the pods of a Job."""
    return as_selector({"batch.kubernetes.io/job-name": job})


def run_of(job: Body) -> Run:
    """Return the run that a Job is."""
    metadata, status = job["metadata"], job.get("status") or {}
    began = str(status.get("startTime") or metadata.get("creationTimestamp", ""))
    for condition in status.get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            ended = str(status.get("completionTime") or condition.get("lastTransitionTime", ""))
            message = str(condition.get("message", ""))
            succeeded = condition["type"] == "Complete"
            return Run(metadata["name"], metadata["uid"], began, ended, succeeded, message="" if succeeded else message)
    return Run(metadata["name"], metadata["uid"], began)


def ends_of(pods: Sequence[Body], container: str) -> list[Body]:
    """Return how a container ended in each pod of a run, the last one first."""
    ends = [end for pod in pods if (end := _terminated(pod, container)) is not None]
    return sorted(ends, key=lambda end: str(end.get("finishedAt", "")), reverse=True)


def last_end(pods: Sequence[Body], container: str) -> Body | None:
    """Return how a container ended last in any of the pods of a run; None if it has not."""
    return next(iter(ends_of(pods, container)), None)


def _terminated(pod: Body, container: str) -> Body | None:
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        if each.get("name") == container:
            found: Body | None = (each.get("state") or {}).get("terminated")
            return found
    return None


def result_of(end: Body) -> dict[str, Any]:
    """Return the JSON object that a container wrote as its result.

    It is empty for a log, which Kubernetes takes if there is none.
    """
    try:
        found = json.loads(_text(end))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def failure_of(end: Body) -> str:
    """Return why a container failed: the error of its result, or the last line of its log, or its exit code."""
    text, result = _text(end), result_of(end)
    own = result.get("error") or (text.splitlines()[-1] if text and not result else "")
    code = f"its container ended with {end.get('reason', 'Error')} (exit code {end.get('exitCode')})"
    return str(own or code)[:MAX_MESSAGE_LENGTH]


def _text(end: Body) -> str:
    return str(end.get("message", "")).strip()
