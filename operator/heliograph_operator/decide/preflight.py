"""The pod that asks a new image, before any broker runs it, whether it reads the format of the brokers' volumes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from heliograph_operator.objects.kinds import GROUP, Body

from .cluster_status import ClusterReason, Problem, pod_problem
from .stateful_set import BROKER, CONTAINER_SECURITY, Manifest, digest, labels, metadata

#: What a pod was made to ask.
QUESTION: Final = f"{GROUP}/preflight"
#: A check that failed is repeated after this time: an image can be replaced under its tag.
REPEAT_AFTER: Final = timedelta(minutes=5)
#: A check that has not ended after this time has failed for now: its pod may find no node. It goes on.
ANSWERS_WITHIN: Final = timedelta(minutes=10)
_RESOURCES: Final = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
#: Reasons of a container that cannot start; all others pass.
_CANNOT_START: Final = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
#: Fields of the brokers' pods that decide where and as whom the image runs, and how it is pulled.
_OF_THE_POD: Final = (
    "automountServiceAccountToken",
    "enableServiceLinks",
    "imagePullSecrets",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "securityContext",
    "serviceAccountName",
    "tolerations",
)


def preflight_labels(name: str) -> dict[str, str]:
    """Return the labels of the preflight pods of a BrokerCluster; no Service selects them."""
    return {**labels(name), "app.kubernetes.io/component": "preflight"}


def preflight_pod(body: Body, stateful_set: Manifest, store_format: str) -> Manifest:
    """Return the pod that asks the image of ``stateful_set`` whether it reads ``store_format``."""
    pod = stateful_set["spec"]["template"]["spec"]
    broker = next(each for each in pod["containers"] if each["name"] == BROKER)
    container: Manifest = {
        "name": "preflight",
        "image": broker["image"],
        "args": ["store", "formats", "--reads", store_format],
        "resources": _RESOURCES,
        "securityContext": broker.get("securityContext", CONTAINER_SECURITY),
        # What the command complains of.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if "imagePullPolicy" in broker:
        container["imagePullPolicy"] = broker["imagePullPolicy"]
    spec = {field: pod[field] for field in _OF_THE_POD if field in pod} | {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    name = body["metadata"]["name"]
    found = metadata(body, f"{name}-preflight", annotations={QUESTION: digest(spec)})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**found, "labels": preflight_labels(name)}, "spec": spec}


def is_outdated(pod: Body, wanted: Manifest, now: datetime) -> bool:
    """Whether a pod asks something else than ``wanted``, or failed so long ago that it is to be asked again."""
    if (pod["metadata"].get("annotations") or {}).get(QUESTION) != wanted["metadata"]["annotations"][QUESTION]:
        return True
    return _phase(pod) == "Failed" and _age(pod, now) > REPEAT_AFTER


def answer_of(pod: Body, image: str, store_format: str, now: datetime) -> Problem | None:
    """Return what the pod has found: None if the image reads the format, else why the rollout waits or fails."""
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    if _phase(pod) == "Succeeded":
        return None
    if _phase(pod) == "Failed":
        ended: Mapping[str, Any] = next(
            (each["state"]["terminated"] for each in containers if "terminated" in each["state"]), {}
        )
        detail = _last_line(ended) or str(status.get("message") or status.get("reason") or "it failed")
        message = (
            f"image {image} cannot read data of format {store_format!r}: {detail}; set an image whose `heliograph store"
            " formats` lists it"
        )
        return ClusterReason.PREFLIGHT_FAILED, message
    waiting = (((each.get("state") or {}).get("waiting") or {}) for each in containers)
    if any(each.get("reason") in _CANNOT_START for each in waiting):
        return ClusterReason.PREFLIGHT_FAILED, f"image {image} does not start: {pod_problem(pod)}"
    if _age(pod, now) > ANSWERS_WITHIN:
        minutes = int(ANSWERS_WITHIN.total_seconds() // 60)
        detail = pod_problem(pod) or "its container runs"
        message = f"image {image} has not answered within {minutes} minutes: {pod['metadata']['name']}: {detail}"
        return ClusterReason.PREFLIGHT_FAILED, message
    return ClusterReason.PREFLIGHT_RUNNING, f"image {image} is asked whether it reads the format {store_format!r}"


def _last_line(ended: Mapping[str, Any]) -> str:
    """Return what the command said last, with its exit code."""
    lines = str(ended.get("message") or "").strip().splitlines()
    return f"{lines[-1].strip()} (exit code {ended.get('exitCode')})" if lines else ""


def _age(pod: Body, now: datetime) -> timedelta:
    return now - datetime.fromisoformat(str(pod["metadata"]["creationTimestamp"]))


def _phase(pod: Body) -> str:
    return str((pod.get("status") or {}).get("phase", ""))
