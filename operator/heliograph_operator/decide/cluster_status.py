"""The conditions of a BrokerCluster, derived from its StatefulSet, its pods and its broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from heliograph_operator.objects.conditions import POLICIES_APPLIED, READY, Reason, Truth, Verdict
from heliograph_operator.objects.kinds import Body

PROGRESSING: Final = "Progressing"
Problem = tuple[StrEnum, str]
"""The reason and the message of a condition."""
_NEWLY_STARTED: Final = ("ContainerCreating", "PodInitializing")


class ClusterReason(StrEnum):
    """Reasons that only a BrokerCluster has, beside :class:`.conditions.Reason`."""

    POD_NOT_READY = "PodNotReady"
    POD_MISSING = "PodMissing"
    STOPPED = "Stopped"
    ROLLING_OUT = "RollingOut"
    ROLLED_OUT = "RolledOut"
    ROLLOUT_WAITING = "RolloutWaiting"
    PREFLIGHT_RUNNING = "PreflightRunning"
    PREFLIGHT_FAILED = "PreflightFailed"
    APPLY_FAILED = "ApplyFailed"
    FORBIDDEN = "Forbidden"
    STORAGE_GROWTH_UNSUPPORTED = "StorageGrowthUnsupported"
    LISTENER_PENDING = "ListenerPending"
    VOLUMES_GROWING = "VolumesGrowing"
    VOLUME_GROWTH_FAILED = "VolumeGrowthFailed"
    CERTIFICATE_VALID = "CertificateValid"
    CERTIFICATE_MISSING = "CertificateMissing"
    CERTIFICATE_UNUSABLE = "CertificateUnusable"
    CERTIFICATE_NAMES_MISSING = "CertificateNamesMissing"
    CERTIFICATE_EXPIRING = "CertificateExpiring"
    CERTIFICATE_EXPIRED = "CertificateExpired"
    RESTORE_RUNNING = "RestoreRunning"
    RESTORE_FAILED = "RestoreFailed"
    RESTORED = "Restored"
    RESTORE_IGNORED = "RestoreIgnored"


@dataclass(frozen=True, slots=True)
class Pods:
    """Counts of a cluster's pods, and their problems."""

    wanted: int
    found: int
    ready: int
    #: Pods of the newest template.
    updated: int
    #: Why pods are not ready, one text each.
    problems: tuple[str, ...]
    #: Whether the StatefulSet's controller has seen the newest template.
    settled: bool
    #: The name of the StatefulSet; empty if there is none.
    stateful_set: str = ""

    @property
    def rolled_out(self) -> bool:
        """Whether every wanted pod has the latest specification and is ready."""
        return self.settled and self.updated == self.found == self.ready == self.wanted


def pods_of(stateful_set: Body | None, pods: Sequence[Body]) -> Pods:
    """Summarize a StatefulSet and its pods."""
    spec = (stateful_set or {}).get("spec") or {}
    status = (stateful_set or {}).get("status") or {}
    metadata = (stateful_set or {}).get("metadata") or {}
    generation = metadata.get("generation")
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
        stateful_set=str(metadata.get("name", "")),
    )


def pod_problem(pod: Body) -> str | None:
    """Return why a pod is not ready, as Kubernetes' reason and message; None if it is ready."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if _is_ready(pod):
        return None
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _explained(condition, "Unschedulable")
    containers = status.get("containerStatuses") or ()
    if containers and all(container.get("ready") for container in containers):
        # Only the kubelet writes the state of containers: Kubernetes has not heard from it since, and set the pod's.
        node = (pod.get("spec") or {}).get("nodeName")
        return (
            f"NodeNotReady: node {node} does not report; the broker was ready when it last did; if the node is lost, "
            f"delete the Node, or run `kubectl taint node {node} "
            "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`"
        )
    for container in containers:
        state = container.get("state") or {}
        if waiting := state.get("waiting"):
            problem = _explained(waiting, "Waiting")
            if waiting.get("reason") in _NEWLY_STARTED:
                return problem
            return problem + _last_end(container)
        if terminated := state.get("terminated"):
            return _explained(terminated, "Terminated") + f" (exit code {terminated.get('exitCode')})"
        if "running" in state:
            return "ContainerNotReady: the broker runs but is not ready yet" + _last_end(container)
    if status.get("reason"):
        return _explained(status, "Pending")
    return f"{status.get('phase', 'Pending')}: its container has not started yet"


def _last_end(container: Mapping[str, Any]) -> str:
    """Return how a container last ended, which is usually why it waits."""
    ended = (container.get("lastState") or {}).get("terminated")
    if not ended:
        return ""
    message = str(ended.get("message") or "").strip()
    detail = f": {message}" if message else ""
    return f"; it ended with {ended.get('reason', 'Error')} (exit code {ended.get('exitCode')}){detail}"


def _explained(state: Mapping[str, Any], default: str) -> str:
    reason, message = state.get("reason") or default, state.get("message")
    return f"{reason}: {message}" if message else str(reason)


def _is_ready(pod: Body) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return not pod["metadata"].get("deletionTimestamp") and any(
        each.get("type") == "Ready" and each.get("status") == "True" for each in conditions
    )


def _revision(pod: Body) -> Any:
    return (pod["metadata"].get("labels") or {}).get("controller-revision-hash")


def progressing(pods: Pods, growing: Problem | None = None) -> Verdict:
    """Return the Progressing condition: whether pods are rolled out, or volumes grow (and why they are not done)."""
    if pods.rolled_out and growing is not None:
        return Verdict(PROGRESSING, "True", growing[0], growing[1])
    if pods.rolled_out:
        return Verdict(PROGRESSING, "False", ClusterReason.ROLLED_OUT, f"{_count(pods.wanted)} up to date")
    message = f"{pods.updated} of {_count(pods.wanted)} up to date, {pods.ready} ready"
    return Verdict(PROGRESSING, "True", ClusterReason.ROLLING_OUT, message)


def readiness(
    pods: Pods,
    policies: Verdict,
    problem: Problem | None,
    unsupported: Problem | None,
    growing: Problem | None = None,
) -> Verdict:
    """Return the Ready condition: all brokers are up to date and ready, and have their policies and volumes.

    ``problem`` is why an object could not be applied, ``unsupported`` which part of the spec cannot be, ``growing`` why
    the volumes do not have their size yet, or another change waits.
    """
    for refusal in (problem, unsupported):
        if refusal is not None:
            return Verdict(READY, "False", refusal[0], refusal[1])
    if pods.wanted == 0:
        return Verdict(READY, "False", ClusterReason.STOPPED, "spec.replicas is 0: there is no broker")
    if pods.ready < pods.wanted:
        if pods.problems:
            return Verdict(READY, "False", ClusterReason.POD_NOT_READY, "; ".join(pods.problems))
        see = f"see why with `kubectl describe statefulset {pods.stateful_set}`"
        message = f"{pods.found} of {pods.wanted} pods exist; {see}"
        return Verdict(READY, "False", ClusterReason.POD_MISSING, message)
    if policies.status != "True":
        return Verdict(READY, "False", policies.reason, policies.message)
    if not pods.rolled_out:
        message = f"{pods.updated} of {_count(pods.wanted)} up to date"
        return Verdict(READY, "False", ClusterReason.ROLLING_OUT, message)
    if growing is not None:
        return Verdict(READY, "False", growing[0], growing[1])
    return Verdict(READY, "True", Reason.RECONCILED, f"{_count(pods.ready)} ready")


def policies_verdict(status: Truth, reason: StrEnum, message: str = "") -> Verdict:
    """Return the PoliciesApplied condition."""
    return Verdict(POLICIES_APPLIED, status, reason, message)


def _count(brokers: int) -> str:
    return f"{brokers} broker{'' if brokers == 1 else 's'}"
