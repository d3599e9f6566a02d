"""The CronJob of a Topic's archive: when the job of Spark's runs, and what its pod is like."""

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
#: Labels of all archives' CronJobs, jobs and pods.
LABELS: Final = {
    "app.kubernetes.io/name": "heliograph-archive",
    "app.kubernetes.io/component": "archive",
    "app.kubernetes.io/managed-by": "heliograph-operator",
}
#: Label with the name of the CronJob: on it, its jobs and their pods.
OF: Final = f"{GROUP}/archive"
CONTAINER: Final = "archive"
RESULT: Final = "/dev/termination-log"
#: Pods of executors begin as this file of the image says.
_EXECUTOR_POD: Final = "/opt/heliograph/executor-pod.yaml"
#: Time (s) after which a run that could not begin when it was due is left out.
_STARTS_WITHIN_S: Final = 3600
#: A CronJob's name may have 52 characters: that of a job has eleven more, in a label of 63.
_LONGEST_NAME: Final = 52
_SUFFIX: Final = "-archive"


@dataclass(frozen=True, slots=True)
class ArchiveSite:
    """What the operator knows for all archives: image, and the ServiceAccount of topics that name none."""

    image: str
    service_account: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the messages are: the topic's full name, and the URLs of its broker."""

    topic: str
    service_url: str
    admin_url: str


def cron_job_name(topic: str) -> str:
    """Return the name of the CronJob of a Topic: its own with ``-archive``, cut and made unique if it is too long."""
    if len(topic) + len(_SUFFIX) <= _LONGEST_NAME and "." not in topic:
        return f"{topic}{_SUFFIX}"
    short = re.sub("[^a-z0-9-]", "-", topic)[: _LONGEST_NAME - len(_SUFFIX) - 9].strip("-")
    return f"{short}-{hashlib.sha256(topic.encode()).hexdigest()[:8]}{_SUFFIX}"


def cron_job(spec: ArchiveSpec, body: Body, source: Source, site: ArchiveSite) -> Manifest:
    """Return the CronJob of the Topic ``body``; it goes with it."""
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
            # The subscription is one run's at a time.
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
        # Nothing in the pod asks the API server for anything, unless somebody gives it an account for that.
        "automountServiceAccountToken": bool(account),
        "enableServiceLinks": False,
        # A run may be killed at any moment, and does not listen before.
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
        # What ends before it has a result says why in its log.
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
    """Return the job's command line; what the resource says of Spark comes last, and so counts."""
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
    """Return what lets Spark, in the job's pod, make executors that find their way back to it, and go with it."""
    conf = {
        "spark.kubernetes.namespace": body["metadata"]["namespace"],
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.executor.podTemplateFile": _EXECUTOR_POD,
        "spark.driver.host": "$(POD_IP)",
        # Executors of Spark 4.3 are told this one.
        "spark.driver.bindAddress": "$(POD_IP)",
    }
    if spec.volume_claim_ref is not None:
        volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.archive"
        conf[f"{volume}.options.claimName"] = spec.volume_claim_ref.name
        conf[f"{volume}.mount.path"] = MOUNT
    return conf
