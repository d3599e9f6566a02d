"""The Jobs of a Backup: the one that makes it, and the one that deletes it from its store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from heliograph_api.resources.backup_spec import BackupDestination, BackupSpec
from heliograph_api.resources.model import BrokerCluster
from heliograph_api.values.sizes import format_size

from heliograph_operator.objects.kinds import API_VERSION, BACKUP, GROUP, Body

from .archive_cron_job import JOB
from .backup_store import RESULT, StoreAccess, store_access
from .program_tokens import TOKEN_FILE, token_mount, token_volume
from .server_certificate import AUTHORITIES
from .stateful_set import CONTAINER_SECURITY, Manifest, Site, pod_security

#: Label of pods that may ask brokers for a backup.
CLIENT_LABELS: Final = {"app.kubernetes.io/name": "heliograph-backup"}
LABELS: Final = {
    **CLIENT_LABELS,
    "app.kubernetes.io/component": "backup",
    "app.kubernetes.io/managed-by": "heliograph-operator",
}
#: Label with the name of the Backup, on its Jobs and their pods.
OF: Final = f"{GROUP}/backup"
CONTAINER: Final = "backup"
_SCRATCH: Final = "/scratch"
_AUTHORITIES: Final = "authorities"
_AUTHORITIES_PATH: Final = "/etc/heliograph/ca"
#: Attempts after the first one, with growing pauses.
_RETRIES: Final = 3
#: Time (s) for the deletion of a stored backup.
_DELETION_S: Final = 3600
#: Time (s) after its end at which Kubernetes deletes a Job, with its log.
_KEPT_S: Final = 86_400
#: Patch of the Job of a Backup whose end is recorded: the operator may have been away for any time before.
EXPIRING: Final = {"spec": {"ttlSecondsAfterFinished": _KEPT_S}}
_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}


@dataclass(frozen=True, slots=True)
class BackupPods:
    """Fields of the pods of Backups that come from their BrokerCluster, or from the operator if that is gone."""

    image: str
    fixed_user: bool
    fields: dict[str, Any]
    pull_policy: str | None = None
    #: The volume that a backup is restored into to verify it: as large as a broker's.
    scratch: Manifest | None = None
    #: The ConfigMap with the authorities of the brokers' certificate; empty: those of the system.
    authorities: str = ""


def backup_pods(cluster: BrokerCluster | None, site: Site, authorities: str = "") -> BackupPods:
    """Return it for a BrokerCluster, or for none."""
    if cluster is None:
        return BackupPods(site.broker_image, site.fixed_user, {})
    spec = cluster.spec
    fields: dict[str, Any] = {
        "imagePullSecrets": [{"name": each.name} for each in spec.image_pull_secrets],
        "nodeSelector": dict(spec.node_selector),
        "tolerations": list(spec.tolerations),
        "priorityClassName": spec.priority_class_name,
    }
    claim: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": format_size(spec.storage.size)}},
    }
    if spec.storage.storage_class_name is not None:
        claim["storageClassName"] = spec.storage.storage_class_name
    return BackupPods(
        spec.image or site.broker_image,
        site.fixed_user,
        {name: value for name, value in fields.items() if value},
        spec.image_pull_policy,
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}},
        authorities,
    )


def stored_name(body: Body) -> str:
    """Return the name of a Backup in its store; one that is created again has another one."""
    return f"{body['metadata']['name']}-{str(body['metadata']['uid'])[:8].lower().strip('-')}"


def push_job_name(backup: str) -> str:
    """Return the name of the Job that makes a Backup."""
    return f"{backup}-backup"


def delete_job_name(backup: str) -> str:
    """Return the name of the Job that deletes a Backup from its store."""
    return f"{backup}-backup-delete"


def push_job(
    spec: BackupSpec, body: Body, pods: BackupPods, http_url: str, source: str, token_secret: str = ""
) -> Manifest:
    """Return the Job that makes a Backup of the broker at ``http_url``; ``source`` names it in the store.

    ``token_secret`` is the Secret with the token that it shows to the broker; empty: it needs none.
    """
    access = store_access(spec.destination)
    arguments = ["push", access.url, stored_name(body), "--http-url", http_url, "--source", source]
    # A pod may end after the upload and before the Job knows of it.
    arguments += ["--again", "--result", RESULT]
    more: tuple[Manifest, ...] = ()
    if spec.verify and pods.scratch is not None:
        more = (pods.scratch,)
        # The volume's own directory has lost+found.
        arguments += ["--verify", f"{_SCRATCH}/restored"]
    name = push_job_name(body["metadata"]["name"])
    # It stays until its end is recorded, see EXPIRING.
    job = _job(name, body, pods, access, arguments, more, {"activeDeadlineSeconds": spec.active_deadline_seconds})
    return _with_token(job, token_secret) if token_secret else job


def delete_job(destination: BackupDestination, body: Body, pods: BackupPods) -> Manifest:
    """Return the Job that deletes a Backup from its store, complete or not."""
    access = store_access(destination)
    arguments = ["delete", access.url, stored_name(body)]
    # If its end is not seen, another one finds nothing to delete.
    times = {"activeDeadlineSeconds": _DELETION_S, "ttlSecondsAfterFinished": _KEPT_S}
    return _job(delete_job_name(body["metadata"]["name"]), body, pods, access, arguments, (), times)


def _with_token(job: Manifest, secret: str) -> Manifest:
    pod = job["spec"]["template"]["spec"]
    pod["volumes"].append(token_volume(secret))
    [container] = pod["containers"]
    container["volumeMounts"].append(token_mount())
    container["env"].append({"name": "HELIOGRAPH_TOKEN_FILE", "value": TOKEN_FILE})
    return job


def _job(
    name: str,
    body: Body,
    pods: BackupPods,
    access: StoreAccess,
    arguments: list[str],
    volumes: tuple[Manifest, ...],
    times: dict[str, int],
) -> Manifest:
    own = body["metadata"]
    ca_file = f"{_AUTHORITIES_PATH}/{AUTHORITIES}"
    trusted = [{"name": "HELIOGRAPH_TLS_CA", "value": ca_file}] if pods.authorities else []
    labels = {**LABELS, OF: own["name"]}
    owner = {"apiVersion": API_VERSION, "kind": BACKUP.name, "name": own["name"], "uid": own["uid"], "controller": True}
    container: Manifest = {
        "name": CONTAINER,
        "image": pods.image,
        "args": ["backup", *arguments, *access.options],
        "env": [*access.variables, *trusted],
        "resources": _RESOURCES,
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            *([{"name": _AUTHORITIES, "mountPath": _AUTHORITIES_PATH, "readOnly": True}] if trusted else ()),
            *access.mounts,
            *({"name": each["name"], "mountPath": _SCRATCH} for each in volumes),
        ],
    }
    if pods.pull_policy is not None:
        container["imagePullPolicy"] = pods.pull_policy
    pod: Manifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": pod_security(fixed_user=pods.fixed_user),
        "containers": [container],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            *([{"name": _AUTHORITIES, "configMap": {"name": pods.authorities}}] if trusted else ()),
            *access.volumes,
            *volumes,
        ],
        **pods.fields,
    }
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {
            "name": name,
            "namespace": own["namespace"],
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {
            "backoffLimit": _RETRIES,
            **times,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
