"""Backups, their Jobs and one reconcile of them, for tests without a cluster."""

from __future__ import annotations

from typing import Any

from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.backup.backup_reconciler import BackupReconciler
from heliograph_operator.decide.stateful_set import Site
from heliograph_operator.objects.conditions import READY, condition
from heliograph_operator.objects.kinds import Key

from .api_server import resource_of
from .bodies import body
from .bodies import cluster as broker_cluster
from .installation import Server

BUCKET = {"s3": {"bucket": "backups", "prefix": "team/main", "credentialsRef": {"name": "store"}}}
VOLUME = {"volume": {"claimRef": {"name": "disk"}, "directory": "team/main"}}
MONDAY = Key("Backup", "team", "monday")
PUSH = Key("Job", "team", "monday-backup")
DELETE = Key("Job", "team", "monday-backup-delete")
UID = "1a2b3c4d-aaaa-bbbb-cccc-000000000000"
RESULT = {
    "url": "s3://backups/team/main",
    "name": "monday-1a2b3c4d",
    "bytes": 3_000_000,
    "topics": 7,
    "pointInTimeMs": 1_767_225_600_000,
    "version": "0.1.0",
    "damaged": 0,
}


def backup(name: str = "monday", destination: Any = None, *, uid: str = UID, **spec: Any) -> dict[str, Any]:
    stated = {"clusterRef": {"name": "main"}, "destination": destination or BUCKET, **spec}
    return body("Backup", name, stated, uid=uid)


def main(brokers: int = 1) -> dict[str, Any]:
    found = broker_cluster(uid="uid-of-main")
    return {**found, "status": {**found["status"], "readyReplicas": brokers}}


async def reconcile(server: Server, key: Key = MONDAY, context: Context | None = None) -> Outcome:
    """Reconcile once, as an operator does that has just started, or that knows what is in ``context``."""
    context = context or server.context()
    return await BackupReconciler(Site("heliograph/broker:1")).reconcile(context, resource_of(context, key))


def condition_of(server: Server, key: Key = MONDAY) -> tuple[str, str, str]:
    found = condition(server.objects[key].get("status", {}), READY)
    return found["status"], found["reason"], found["message"]


def end_job(server: Server, key: Key, message: str = "", *, succeeded: bool = True) -> None:
    """Say how a Job and its pod ended, as the job controller and the kubelet do."""
    at = "2026-01-01T03:00:42Z"
    kind = "Complete" if succeeded else "Failed"
    ended = {"type": kind, "status": "True", "message": "Job has reached its limit", "lastTransitionTime": at}
    completed = {"completionTime": at} if succeeded else {}
    server.objects[key] = {**server.objects[key], "status": {"conditions": [ended], **completed}}
    terminated = {"exitCode": 0 if succeeded else 1, "finishedAt": at, "message": message}
    pod = body("Pod", f"{key.name}-x", labels={"batch.kubernetes.io/job-name": key.name})
    state = {"name": "backup", "state": {"terminated": terminated}}
    pod["status"] = {"phase": "Succeeded" if succeeded else "Failed", "containerStatuses": [state]}
    server.objects[Key("Pod", "team", f"{key.name}-x")] = pod
