"""What a BrokerCluster reports: from its StatefulSet, its pods and its broker to conditions. Nothing is done here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from heliograph_operator.objects.conditions import POLICIES_APPLIED, READY, Reason, Truth, Verdict
from heliograph_operator.objects.kinds import Body

PROGRESSING: Final = "Progressing"
Problem = tuple[StrEnum, str]
"""A reason for programs, and a message for people."""
_NEWLY_STARTED: Final = ("ContainerCreating", "PodInitializing")


class ClusterReason(StrEnum):
    """Reasons only a BrokerCluster has, beside :class:`.conditions.Reason`."""

    POD_NOT_READY = "PodNotReady"
    POD_MISSING = "PodMissing"
    STOPPED = "Stopped"
    ROLLING_OUT = "RollingOut"
    ROLLED_OUT = "RolledOut"
    APPLY_FAILED = "ApplyFailed"
    FORBIDDEN = "Forbidden"
    STORAGE_GROWTH_UNSUPPORTED = "StorageGrowthUnsupported"


@dataclass(frozen=True, slots=True)
class Pods:
    """What is there of a cluster's brokers."""

    wanted: int
    found: int
    ready: int
    #: Pods that have the newest template.
    updated: int
    #: Why pods are not ready, one line each.
    problems: tuple[str, ...]
    #: Whether the StatefulSet's controller has seen the newest template.
    settled: bool

    @property
    def rolled_out(self) -> bool:
        return self.settled and self.updated == self.found == self.ready == self.wanted


def pods_of(stateful_set: Body | None, pods: Sequence[Body]) -> Pods:
    """Sum up a StatefulSet and its pods."""
    spec = (stateful_set or {}).get("spec") or {}
    status = (stateful_set or {}).get("status") or {}
    generation = ((stateful_set or {}).get("metadata") or {}).get("generation")
    newest = status.get("updateRevision")
    there = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    return Pods(
        wanted=int(spec.get("replicas", 0)),
        found=len(there),
        ready=sum(1 for pod in there if _is_ready(pod)),
        updated=sum(1 for pod in there if _revision(pod) == newest),
        problems=tuple(
            f"{pod['metadata']['name']}: {problem}" for pod in pods if (problem := pod_problem(pod)) is not None
        ),
        settled=status.get("observedGeneration") == generation and generation is not None,
    )


def pod_problem(pod: Body) -> str | None:
    """Return why a pod is not ready, in Kubernetes' own words and with its own reason first; None if it is."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if _is_ready(pod):
        return None
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _said(condition, "Unschedulable")
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        if waiting := state.get("waiting"):
            problem = _said(waiting, "Waiting")
            if waiting.get("reason") in _NEWLY_STARTED:
                return problem
            return problem + _last_end(container)
        if terminated := state.get("terminated"):
            return _said(terminated, "Terminated") + f" (exit code {terminated.get('exitCode')})"
        if "running" in state:
            return "ContainerNotReady: the broker runs and does not say it is ready yet" + _last_end(container)
    if status.get("reason"):
        return _said(status, "Pending")
    return f"{status.get('phase', 'Pending')}: its container has not started yet"


def _last_end(container: Mapping[str, Any]) -> str:
    """Say how a container ended before: what it waits for is the consequence."""
    ended = (container.get("lastState") or {}).get("terminated")
    if not ended:
        return ""
    said = str(ended.get("message") or "").strip()
    detail = f": {said}" if said else ""
    return f"; it ended with {ended.get('reason', 'Error')} (exit code {ended.get('exitCode')}){detail}"


def _said(told: Mapping[str, Any], otherwise: str) -> str:
    reason, message = told.get("reason") or otherwise, told.get("message")
    return f"{reason}: {message}" if message else str(reason)


def _is_ready(pod: Body) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return not pod["metadata"].get("deletionTimestamp") and any(
        each.get("type") == "Ready" and each.get("status") == "True" for each in conditions
    )


def _revision(pod: Body) -> Any:
    return (pod["metadata"].get("labels") or {}).get("controller-revision-hash")


def progressing(pods: Pods) -> Verdict:
    """Return whether pods are still being brought to what the StatefulSet says."""
    if pods.rolled_out:
        return Verdict(PROGRESSING, "False", ClusterReason.ROLLED_OUT, f"{_count(pods.wanted)} as the resource says")
    message = f"{pods.updated} of {_count(pods.wanted)} as the resource says, {pods.ready} ready"
    return Verdict(PROGRESSING, "True", ClusterReason.ROLLING_OUT, message)


def readiness(pods: Pods, policies: Verdict, problem: Problem | None, unsupported: Problem | None) -> Verdict:
    """Return the Ready condition: brokers answer, and everything is as the resource says.

    ``problem`` is why an object could not be applied, ``unsupported`` what of the spec cannot be had.
    """
    for refusal in (problem, unsupported):
        if refusal is not None:
            return Verdict(READY, "False", refusal[0], refusal[1])
    if pods.wanted == 0:
        return Verdict(READY, "False", ClusterReason.STOPPED, "spec.replicas is 0: there is no broker")
    if pods.ready < pods.wanted:
        if pods.problems:
            return Verdict(READY, "False", ClusterReason.POD_NOT_READY, "; ".join(pods.problems))
        return Verdict(READY, "False", ClusterReason.POD_MISSING, f"{pods.found} of {_count(pods.wanted)} there")
    if policies.status != "True":
        return Verdict(READY, "False", policies.reason, policies.message)
    if not pods.rolled_out:
        message = f"{pods.updated} of {_count(pods.wanted)} as the resource says"
        return Verdict(READY, "False", ClusterReason.ROLLING_OUT, message)
    return Verdict(READY, "True", Reason.RECONCILED, f"{_count(pods.ready)} ready")


def policies_verdict(status: Truth, reason: StrEnum, message: str = "") -> Verdict:
    """Return the PoliciesApplied condition."""
    return Verdict(POLICIES_APPLIED, status, reason, message)


def _count(brokers: int) -> str:
    return f"{brokers} broker{'' if brokers == 1 else 's'}"
