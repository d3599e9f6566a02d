"""The CronJob of a Topic's archive: the schedule and the pod of its Spark job."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Final

from heliograph_api.resources.archive_consent_spec import ArchiveJobsSpec
from heliograph_api.resources.archive_spec import MOUNT, SUBSCRIPTION, ArchiveSpec
from heliograph_api.values.durations import format_duration

from heliograph_operator.objects.kinds import API_VERSION, GROUP, Body, Kind

from .archive_access import NO_ACCESS, ArchiveAccess
from .literal_text import literal
from .stateful_set import CONTAINER_SECURITY, Manifest, pod_security

CRON_JOB: Final = Kind("CronJob", "cronjobs", "batch/v1")
JOB: Final = Kind("Job", "jobs", "batch/v1")
#: Labels of the CronJobs, jobs and pods of all archives.
LABELS: Final = {
    "app.kubernetes.io/name": "heliograph-archive",
    "app.kubernetes.io/component": "archive",
    "app.kubernetes.io/managed-by": "heliograph-operator",
}
#: Labels of all pods that connect to brokers for archives: those of jobs, and of their executors.
CLIENT_LABELS: Final = {"app.kubernetes.io/name": "heliograph-archive"}
#: Label with the name of the CronJob, on itself, its jobs and their pods.
OF: Final = f"{GROUP}/archive"
CONTAINER: Final = "archive"
RESULT: Final = "/dev/termination-log"
#: The templates for pods of executors, files of the image: with its user, and with the one that is assigned.
_EXECUTOR_POD: Final = "/opt/heliograph/executor-pod.yaml"
_EXECUTOR_POD_ASSIGNED_USER: Final = "/opt/heliograph/executor-pod-assigned-user.yaml"
#: Time (s) after which a run that could not start when it was due is skipped.
_STARTS_WITHIN_S: Final = 3600
#: The most characters of a CronJob's name: its jobs' names have eleven more, in a label of 63.
_MAX_NAME_LENGTH: Final = 52
_SUFFIX: Final = "-archive"


@dataclass(frozen=True, slots=True)
class ArchiveSite:
    """Defaults for all archives: image, ServiceAccount, and whether pods run as the user of the image."""

    image: str
    service_account: str = ""
    fixed_user: bool = True


@dataclass(frozen=True, slots=True)
class Source:
    """The source of the messages: the topic's full name, and how its broker is reached."""

    topic: str
    service_url: str
    admin_url: str
    access: ArchiveAccess = NO_ACCESS


def cron_job_name(topic: str) -> str:
    """Return the name of a Topic's CronJob: the Topic's with ``-archive``, shortened with a hash if it is too long."""
    if len(topic) + len(_SUFFIX) <= _MAX_NAME_LENGTH and "." not in topic:
        return f"{topic}{_SUFFIX}"
    short = re.sub("[^a-z0-9-]", "-", topic)[: _MAX_NAME_LENGTH - len(_SUFFIX) - 9].strip("-")
    return f"{short}-{hashlib.sha256(topic.encode()).hexdigest()[:8]}{_SUFFIX}"


def cron_job(spec: ArchiveSpec, body: Body, source: Source, site: ArchiveSite, jobs: ArchiveJobsSpec) -> Manifest:
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
                    "activeDeadlineSeconds": jobs.active_deadline_seconds,
                    "template": {"metadata": {"labels": labels}, "spec": _pod(spec, body, source, site, jobs)},
                },
            },
        },
    }


def _pod(spec: ArchiveSpec, body: Body, source: Source, site: ArchiveSite, jobs: ArchiveJobsSpec) -> Manifest:
    account = spec.service_account_name or site.service_account
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    if spec.volume_claim_ref is not None:
        volumes.append({"name": "archive", "persistentVolumeClaim": {"claimName": spec.volume_claim_ref.name}})
    volumes += source.access.volumes()
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        # The pod needs no access to the API server unless an account is configured for it.
        "automountServiceAccountToken": bool(account),
        "enableServiceLinks": False,
        # A run may be killed at any moment, and ignores SIGTERM.
        "terminationGracePeriodSeconds": 5,
        "securityContext": pod_security(fixed_user=site.fixed_user),
        "containers": [_container(spec, body, source, site, jobs)],
        "volumes": volumes,
    }
    given: dict[str, Any] = {
        "serviceAccountName": account,
        "imagePullSecrets": [{"name": each.name} for each in jobs.image_pull_secrets],
        "nodeSelector": dict(jobs.node_selector),
        "tolerations": list(jobs.tolerations),
        "priorityClassName": jobs.priority_class_name,
    }
    return pod | {name: value for name, value in given.items() if value}


def _container(spec: ArchiveSpec, body: Body, source: Source, site: ArchiveSite, jobs: ArchiveJobsSpec) -> Manifest:
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]
    if spec.volume_claim_ref is not None:
        mounts.append({"name": "archive", "mountPath": MOUNT})
    mounts += source.access.mounts()
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": spec.image or site.image,
        "args": _arguments(spec, body, source, site, jobs),
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
    if resources := spec.resources or jobs.resources:
        container["resources"] = resources
    return container


def _arguments(spec: ArchiveSpec, body: Body, source: Source, site: ArchiveSite, jobs: ArchiveJobsSpec) -> list[str]:
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
    if spec.merge_to is not None:
        options["--merge-to"] = str(spec.merge_to)
    if spec.keep is not None:
        options["--keep"] = format_duration(spec.keep)
    executors = _executors(spec, body, source, site, jobs) if spec.master.startswith("k8s:") else {}
    conf = executors | {literal(name): literal(value) for name, value in spec.conf.items()}
    given = [f"{option}={literal(value)}" for option, value in options.items()]
    given += [f"--option={name}={value}" for name, value in source.access.options().items()]
    return ["archive", *given, *(f"--conf={name}={value}" for name, value in conf.items())]


def _executors(
    spec: ArchiveSpec, body: Body, source: Source, site: ArchiveSite, jobs: ArchiveJobsSpec
) -> dict[str, str]:
    """Return the Spark configuration for executors that connect to the job's pod and are deleted with it."""
    conf = {
        "spark.kubernetes.namespace": body["metadata"]["namespace"],
        "spark.kubernetes.container.image": spec.image or site.image,
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.executor.podTemplateFile": _EXECUTOR_POD if site.fixed_user else _EXECUTOR_POD_ASSIGNED_USER,
        "spark.driver.host": "$(POD_IP)",
        # Spark 4.3 passes this address to executors.
        "spark.driver.bindAddress": "$(POD_IP)",
    }
    conf |= {f"spark.kubernetes.executor.label.{name}": value for name, value in CLIENT_LABELS.items()}
    if jobs.image_pull_secrets:
        conf["spark.kubernetes.container.image.pullSecrets"] = ",".join(each.name for each in jobs.image_pull_secrets)
    conf |= {f"spark.kubernetes.executor.node.selector.{name}": value for name, value in jobs.node_selector.items()}
    if spec.volume_claim_ref is not None:
        volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.archive"
        conf[f"{volume}.options.claimName"] = spec.volume_claim_ref.name
        conf[f"{volume}.mount.path"] = MOUNT
    return conf | source.access.executors()
