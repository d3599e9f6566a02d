"""The CronJob of a Topic's archive: the schedule and the pod of its Spark job."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Final

from heliograph_api.resources.archive_spec import MOUNT, SUBSCRIPTION, ArchiveSpec

from heliograph_operator.objects.kinds import API_VERSION, GROUP, Body, Kind

from .stateful_set import CONTAINER_SECURITY, POD_SECURITY, Manifest

CRON_JOB: Final = Kind("CronJob", "cronjobs", "batch/v1")
JOB: Final = Kind("Job", "jobs", "batch/v1")
#: Labels of the CronJobs, jobs and pods of all archives.
LABELS: Final = {
    "app.kubernetes.io/name": "heliograph-archive",
    "app.kubernetes.io/component": "archive",
    "app.kubernetes.io/managed-by": "heliograph-operator",
}
#: Label with the name of the CronJob, on itself, its jobs and their pods.
OF: Final = f"{GROUP}/archive"
CONTAINER: Final = "archive"
RESULT: Final = "/dev/termination-log"
#: The template for pods of executors, a file of the image.
_EXECUTOR_POD: Final = "/opt/heliograph/executor-pod.yaml"
#: Time (s) after which a run that could not start when it was due is skipped.
_STARTS_WITHIN_S: Final = 3600
#: The most characters of a CronJob's name: its jobs' names have eleven more, in a label of 63.
_MAX_NAME_LENGTH: Final = 52
_SUFFIX: Final = "-archive"


@dataclass(frozen=True, slots=True)
class ArchiveSite:
    """Defaults for all archives: image and ServiceAccount."""

    image: str
    service_account: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of the messages: the topic's full name, and the URLs of its broker."""

    topic: str
    service_url: str
    admin_url: str


def cron_job_name(topic: str) -> str:
    """Return the name of a Topic's CronJob: the Topic's with ``-archive``, shortened with a hash if it is too long."""
    if len(topic) + len(_SUFFIX) <= _MAX_NAME_LENGTH and "." not in topic:
        return f"{topic}{_SUFFIX}"
    short = re.sub("[^a-z0-9-]", "-", topic)[: _MAX_NAME_LENGTH - len(_SUFFIX) - 9].strip("-")
    return f"{short}-{hashlib.sha256(topic.encode()).hexdigest()[:8]}{_SUFFIX}"


def cron_job(spec: ArchiveSpec, body: Body, source: Source, site: ArchiveSite) -> Manifest:
    """Return the CronJob, whose owner is the Topic ``body``."""
    own = body["metadata"]
    name = cron_job_name(own["name"])
    labels = {**LABELS, OF: name}
    return {
        "apiVersion": CRON_JOB.api_version,
        "kind": CRON_JOB.name,
        "metadata": {
            "name": name,
            "namespace": own["namespace"],
            "labels": labels,
            "ownerReferences": [
                {"apiVersion": API_VERSION, "kind": "Topic", "name": own["name"], "uid": own["uid"], "controller": True}
            ],
        },
        "spec": {
            "schedule": spec.schedule,
            "timeZone": "Etc/UTC",
            "suspend": spec.suspend,
            # The subscription is exclusive: one run at a time.
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": _STARTS_WITHIN_S,
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 1,
            "jobTemplate": {
                "metadata": {"labels": labels},
                "spec": {
                    "backoffLimit": 1,
                    "template": {"metadata": {"labels": labels}, "spec": _pod(spec, body, source, site)},
                },
            },
        },
    }


def _pod(spec: ArchiveSpec, body: Body, source: Source, site: ArchiveSite) -> Manifest:
    account = spec.service_account_name or site.service_account
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    if spec.volume_claim_ref is not None:
        volumes.append({"name": "archive", "persistentVolumeClaim": {"claimName": spec.volume_claim_ref.name}})
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        # The pod needs no access to the API server unless an account is configured for it.
        "automountServiceAccountToken": bool(account),
        "enableServiceLinks": False,
        # A run may be killed at any moment, and ignores SIGTERM.
        "terminationGracePeriodSeconds": 5,
        "securityContext": POD_SECURITY,
        "containers": [_container(spec, body, source, site)],
        "volumes": volumes,
    }
    return pod | ({"serviceAccountName": account} if account else {})


def _container(spec: ArchiveSpec, body: Body, source: Source, site: ArchiveSite) -> Manifest:
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    if spec.volume_claim_ref is not None:
        mounts.append({"name": "archive", "mountPath": MOUNT})
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": spec.image or site.image,
        "args": _arguments(spec, body, source, spec.image or site.image),
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "workingDir": "/tmp",
        "terminationMessagePath": RESULT,
        # A container that ends without a result has the reason in its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts,
    }
    if spec.secret_ref is not None:
        container["envFrom"] = [{"secretRef": {"name": spec.secret_ref.name}}]
    if spec.resources:
        container["resources"] = spec.resources
    return container


def _arguments(spec: ArchiveSpec, body: Body, source: Source, image: str) -> list[str]:
    """Return the job's command line; the Spark configuration of the resource comes last and wins."""
    options = {
        "--service-url": source.service_url,
        "--admin-url": source.admin_url,
        "--topic": source.topic,
        "--path": spec.path,
        "--format": spec.format,
        "--subscription": SUBSCRIPTION,
        "--file-size": str(spec.file_size),
        "--master": spec.master,
        "--result": RESULT,
    }
    conf = (_executors(spec, body, image) if spec.master.startswith("k8s:") else {}) | spec.conf
    given = [f"{option}={value}" for option, value in options.items()]
    return ["archive", *given, *(f"--conf={name}={value}" for name, value in conf.items())]


def _executors(spec: ArchiveSpec, body: Body, image: str) -> dict[str, str]:
    """Return the Spark configuration for executors that connect to the job's pod and are deleted with it."""
    conf = {
        "spark.kubernetes.namespace": body["metadata"]["namespace"],
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.executor.podTemplateFile": _EXECUTOR_POD,
        "spark.driver.host": "$(POD_IP)",
        # Spark 4.3 passes this address to executors.
        "spark.driver.bindAddress": "$(POD_IP)",
    }
    if spec.volume_claim_ref is not None:
        volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.archive"
        conf[f"{volume}.options.claimName"] = spec.volume_claim_ref.name
        conf[f"{volume}.mount.path"] = MOUNT
    return conf
