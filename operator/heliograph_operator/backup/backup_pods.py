"""Reads the pods of a Job."""

from __future__ import annotations

from heliograph_operator.act.controller import Context
from heliograph_operator.decide.cluster_objects import POD
from heliograph_operator.decide.cluster_status import pod_problem
from heliograph_operator.decide.job_runs import pods_selector
from heliograph_operator.objects.kinds import Body

#: Phases of pods that are over.
_OVER = ("Succeeded", "Failed")


async def pods_of_job(context: Context, job: Body) -> list[tuple[Body, str]]:
    """Return the pods of a Job, each with what keeps it from running; empty for one that runs or has ended."""
    metadata = job["metadata"]
    pods = await context.kube.list(POD, metadata["namespace"], labels=pods_selector(metadata["name"]))
    return [(pod, _problem(pod)) for pod in pods]


def _problem(pod: Body) -> str:
    if (pod.get("status") or {}).get("phase") in ("Running", *_OVER):
        return ""
    return pod_problem(pod) or ""
