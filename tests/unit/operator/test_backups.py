"""A Backup is made once, by one Job, and goes as it says; a schedule creates and deletes Backups."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from heliograph_api.resources.backup_spec import BackupSpec, ScheduledBackupSpec
from heliograph_api.resources.model import BrokerCluster
from heliograph_operator.act.controller import Outcome
from heliograph_operator.backup.backup_reconciler import BackupReconciler
from heliograph_operator.backup.schedule_reconciler import ScheduleReconciler
from heliograph_operator.decide.backup_jobs import BackupPods, backup_pods, push_job
from heliograph_operator.decide.backup_schedule import SCHEDULE, plan
from heliograph_operator.decide.cron_times import ScheduleError, last_time, next_time
from heliograph_operator.decide.owned_objects import resources_of
from heliograph_operator.decide.stateful_set import Site
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.conditions import READY, condition
from heliograph_operator.objects.kinds import FINALIZER, Key

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


def backup(name: str = "monday", destination: Any = None, **spec: Any) -> dict[str, Any]:
    stated = {"clusterRef": {"name": "main"}, "destination": destination or BUCKET, **spec}
    return body("Backup", name, stated, uid=UID)


def main(brokers: int = 1) -> dict[str, Any]:
    found = broker_cluster(uid="uid-of-main")
    return {**found, "status": {**found["status"], "readyReplicas": brokers}}


async def reconcile(server: Server, key: Key = MONDAY) -> Outcome:
    """Reconcile once, as an operator does that has just started."""
    context = server.context()
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


def job_of(destination: Any, pods: BackupPods | None = None, **spec: Any) -> dict[str, Any]:
    stated = backup("monday", destination, **spec)
    made = push_job(
        BackupSpec.model_validate(stated["spec"]),
        stated,
        pods or BackupPods("heliograph/broker:1", True, {}),
        "http://main-admin:8080",
        "uid-of-main",
    )
    return made


def test_the_pod_keeps_to_the_restricted_standard_and_gets_the_keys_alone() -> None:
    made = job_of({"s3": {**BUCKET["s3"], "endpoint": "http://store:9000", "region": "eu-1", "virtualHosted": True}})
    assert resources_of(made) == {MONDAY}
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["args"] == [
        *("backup", "push", "s3://backups/team/main", "monday-1a2b3c4d"),
        *("--http-url", "http://main-admin:8080", "--source", "uid-of-main", "--again"),
        *("--result", "/dev/termination-log", "--endpoint", "http://store:9000", "--virtual-hosted"),
    ]
    assert "envFrom" not in container
    keys = {each["name"]: each.get("valueFrom") or each["value"] for each in container["env"]}
    assert keys.pop("AWS_REGION") == "eu-1"
    assert set(keys) == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
    assert keys["AWS_ACCESS_KEY_ID"]["secretKeyRef"] == {"name": "store", "key": "AWS_ACCESS_KEY_ID", "optional": True}
    assert [each["name"] for each in pod["volumes"]] == ["tmp"]


def test_a_volume_is_mounted_and_scratch_space_is_as_large_as_that_of_a_broker() -> None:
    spec = {
        "image": "mine:2",
        "imagePullPolicy": "Always",
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"pool": "brokers"},
        "storage": {"size": "20Gi", "storageClassName": "fast"},
    }
    found = BrokerCluster.model_validate({**body("BrokerCluster", "main"), "metadata": {"name": "main"}, "spec": spec})
    made = job_of(VOLUME, backup_pods(found, Site("default:1", fixed_user=False)), verify=True)
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][2] == "file:///backups/team/main"
    assert container["args"][-2:] == ["--verify", "/scratch/restored"]
    assert (container["image"], container["imagePullPolicy"]) == ("mine:2", "Always")
    assert (pod["imagePullSecrets"], pod["nodeSelector"]) == ([{"name": "registry"}], {"pool": "brokers"})
    assert "runAsUser" not in pod["securityContext"]
    assert {each["mountPath"] for each in container["volumeMounts"]} == {"/tmp", "/backups", "/scratch"}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["backups"]["persistentVolumeClaim"] == {"claimName": "disk"}
    claim = volumes["scratch"]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert (claim["resources"]["requests"]["storage"], claim["storageClassName"]) == ("20Gi", "fast")


async def test_a_backup_is_made_once_and_says_what_is_stored() -> None:
    server = Server(main(), backup())
    await reconcile(server)
    assert condition_of(server)[1] == "BackupRunning"
    status = server.objects[MONDAY]["status"]
    assert (status["phase"], "startTime" in status) == ("Running", True)
    assert FINALIZER in server.objects[MONDAY]["metadata"]["finalizers"]
    arguments = server.objects[PUSH]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--http-url") + 1] == "http://broker"
    assert arguments[arguments.index("--source") + 1] == "uid-of-main"
    await reconcile(server)
    assert server.applied == [PUSH]

    end_job(server, PUSH, json.dumps(RESULT))
    await reconcile(server)
    assert condition_of(server) == ("True", "BackupSucceeded", "monday-1a2b3c4d is stored at s3://backups/team/main")
    status = server.objects[MONDAY]["status"]
    expected = {"phase": "Succeeded", "name": "monday-1a2b3c4d", "size": "2.8Mi", "sizeBytes": 3_000_000, "topics": 7}
    assert expected.items() <= status.items()
    assert status["completionTime"] == "2026-01-01T03:00:42Z"
    assert status["pointInTime"] == "2026-01-01T00:00:00Z"
    assert "verifiedTime" not in status
    # Not even when its Job is gone.
    del server.objects[PUSH]
    await reconcile(server)
    assert (server.applied, server.objects[MONDAY]["status"]["phase"]) == ([PUSH], "Succeeded")
    assert [reason for reason, _ in server.events] == ["BackupRunning", "BackupSucceeded"]


@pytest.mark.parametrize("verify", [False, True])
async def test_scratch_space_is_freed_when_a_backup_was_verified(verify: bool) -> None:
    server = Server(main(), backup(verify=verify))
    await reconcile(server)
    assert server.objects[PUSH]["spec"]["ttlSecondsAfterFinished"] == 86_400
    end_job(server, PUSH, json.dumps({**RESULT, "verifiedMs": 1_767_225_660_000}))
    await reconcile(server)
    await reconcile(server)
    await reconcile(server)
    assert server.deleted == ([PUSH] if verify else [])
    assert server.objects[MONDAY]["status"]["verifiedTime"] == "2026-01-01T00:01:00Z"


async def test_a_backup_that_failed_says_what_its_job_said() -> None:
    server = Server(main(), backup())
    await reconcile(server)
    end_job(server, PUSH, json.dumps({"error": "there are no keys"}), succeeded=False)
    await reconcile(server)
    assert condition_of(server) == ("False", "BackupFailed", "Job monday-backup failed: there are no keys")
    assert server.objects[MONDAY]["status"]["phase"] == "Failed"
    assert server.events[-1][0] == "BackupFailed"
    # Without a pod that ended: what Kubernetes says.
    server = Server(main(), backup())
    await reconcile(server)
    end_job(server, PUSH, succeeded=False)
    server.objects = {key: each for key, each in server.objects.items() if key.kind != "Pod"}
    await reconcile(server)
    assert condition_of(server)[2] == "Job monday-backup failed: Job has reached its limit"


async def test_a_job_that_somebody_deleted_is_not_made_again() -> None:
    server = Server(main(), backup())
    await reconcile(server)
    del server.objects[PUSH]
    await reconcile(server)
    assert condition_of(server)[1] == "BackupFailed"
    assert "was deleted" in condition_of(server)[2]
    assert server.applied == [PUSH]


async def test_a_pod_that_cannot_run_is_named() -> None:
    server = Server(main(), backup())
    await reconcile(server)
    pod = body("Pod", "monday-backup-x", labels={"batch.kubernetes.io/job-name": PUSH.name})
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": "backup", "state": {"waiting": waiting}}]}
    server.objects[Key("Pod", "team", "monday-backup-x")] = pod
    await reconcile(server)
    assert condition_of(server)[1:] == ("BackupRunning", "monday-backup-x: ImagePullBackOff: no such image")
    # What the attempt before it reported stays to be seen.
    before = body("Pod", "monday-backup-w", labels={"batch.kubernetes.io/job-name": PUSH.name})
    ended = {"exitCode": 1, "finishedAt": "2026-01-01T03:00:42Z", "message": "there are no keys"}
    before["status"] = {"phase": "Failed", "containerStatuses": [{"name": "backup", "state": {"terminated": ended}}]}
    server.objects[Key("Pod", "team", "monday-backup-w")] = before
    await reconcile(server)
    message = condition_of(server)[2]
    assert "it is tried again after: there are no keys" in message
    assert "monday-backup-x: ImagePullBackOff: no such image" in message


@pytest.mark.parametrize(
    ("bodies", "reason"),
    [((), "ParentMissing"), ((main(0),), "ClusterNotReady"), ((broker_cluster(http=""),), "ClusterNotReady")],
)
async def test_a_backup_waits_for_its_brokers(bodies: Any, reason: str) -> None:
    server = Server(*bodies, backup())
    outcome = await reconcile(server)
    assert condition_of(server)[:2] == ("False", reason)
    assert server.objects[MONDAY]["status"]["phase"] == "Waiting"
    assert (server.applied, outcome.requeue_s is not None) == ([], True)


async def test_a_broker_makes_one_backup_at_a_time() -> None:
    server = Server(main(), backup("zebra"), backup("apple"))
    zebra, apple = Key("Backup", "team", "zebra"), Key("Backup", "team", "apple")
    await reconcile(server, zebra)
    assert condition_of(server, zebra)[1:] == (
        "BackupWaiting",
        "waiting for Backup apple: a broker makes one backup at a time",
    )
    await reconcile(server, apple)
    await reconcile(server, zebra)
    assert condition_of(server, zebra)[1] == "BackupWaiting"
    end_job(server, Key("Job", "team", "apple-backup"), json.dumps(RESULT))
    await reconcile(server, apple)
    await reconcile(server, zebra)
    assert condition_of(server, zebra)[1] == "BackupRunning"


async def test_a_job_of_somebody_else_is_left_alone() -> None:
    foreign = body("Job", "monday-backup", ownerReferences=[{"uid": "other", "controller": True}])
    server = Server(main(), backup(), foreign)
    await reconcile(server)
    assert condition_of(server)[1] == "Conflict"
    server.change(MONDAY, deletionTimestamp=datetime.now(UTC).isoformat())
    await reconcile(server)
    assert server.deleted == []
    assert FINALIZER not in server.objects[MONDAY]["metadata"]["finalizers"]


@pytest.mark.parametrize("note", ["managed", "paused"])
async def test_annotations_keep_a_backup_from_being_begun(note: str) -> None:
    value = {"managed": "false", "paused": "true"}[note]
    server = Server(main(), backup())
    server.change(MONDAY, annotations={f"heliograph.dev/{note}": value})
    await reconcile(server)
    assert (condition_of(server)[0], server.applied) == ("Unknown", [])


async def test_a_job_of_an_earlier_backup_of_that_name_says_nothing_about_this_one() -> None:
    server = Server(main(), backup())
    await reconcile(server)
    end_job(server, PUSH, json.dumps(RESULT))
    # Deleted with --cascade=orphan, and created again.
    orphan = {**server.objects[PUSH]["metadata"], "ownerReferences": []}
    server.objects[PUSH] = {**server.objects[PUSH], "metadata": orphan}
    server.objects[MONDAY] = backup()
    await reconcile(server)
    assert condition_of(server)[:2] == ("False", "Conflict")
    server.objects.pop(PUSH)
    server.applied.clear()
    await reconcile(server)
    assert server.applied == [PUSH]


async def test_a_backup_that_something_else_keeps_back_does_not_keep_back_others() -> None:
    tuesday = Key("Backup", "team", "tuesday")
    server = Server(main(), backup(), {**backup("tuesday"), "metadata": {**backup("tuesday")["metadata"], "uid": "t"}})
    server.objects[PUSH] = body("Job", "monday-backup", labels={"app.kubernetes.io/managed-by": "somebody"})
    await reconcile(server)
    assert condition_of(server)[1] == "Conflict"
    await reconcile(server, tuesday)
    assert condition_of(server, tuesday)[1] == "BackupRunning"


async def test_one_that_was_deleted_while_it_ran_does_not_keep_back_others() -> None:
    tuesday = Key("Backup", "team", "tuesday")
    server = Server(main(), backup(deletionPolicy="Delete"))
    await reconcile(server)
    server.change(MONDAY, deletionTimestamp=datetime.now(UTC).isoformat())
    server.objects[tuesday] = {**backup("tuesday"), "metadata": {**backup("tuesday")["metadata"], "uid": "t"}}
    for _ in range(2):
        # Its Job is stopped; then what is stored is deleted, which may take any time.
        await reconcile(server)
    assert DELETE in server.objects
    await reconcile(server, tuesday)
    assert condition_of(server, tuesday)[1] == "BackupRunning"


async def made(**spec: Any) -> Server:
    """Return a server with a Backup that succeeded, and whose deletion was requested."""
    server = Server(main(), backup(**spec))
    await reconcile(server)
    end_job(server, PUSH, json.dumps(RESULT))
    await reconcile(server)
    server.change(MONDAY, deletionTimestamp=datetime.now(UTC).isoformat())
    return server


def is_held(server: Server) -> bool:
    return FINALIZER in server.objects[MONDAY]["metadata"]["finalizers"]


async def test_what_is_stored_stays_by_default() -> None:
    server = await made()
    await reconcile(server)
    assert not is_held(server)
    assert DELETE not in server.objects
    assert server.events[-1] == (
        "DataRetained",
        "monday-1a2b3c4d stays in its store, as far as it was stored: spec.deletionPolicy is Retain",
    )


@pytest.mark.parametrize("expired", [False, True])
async def test_what_is_stored_goes_before_the_resource(expired: bool) -> None:
    server = await made(**({} if expired else {"deletionPolicy": "Delete"}))
    if expired:
        server.change(MONDAY, annotations={"heliograph.dev/expired": "true"})
    await reconcile(server)
    container = server.objects[DELETE]["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == ["backup", "delete", "s3://backups/team/main", "monday-1a2b3c4d"]
    assert (is_held(server), condition_of(server)[1]) == (True, "Deleting")
    end_job(server, DELETE)
    await reconcile(server)
    assert not is_held(server)


async def test_a_deletion_that_failed_is_tried_again_until_somebody_ends_it() -> None:
    server = await made(deletionPolicy="Delete")
    await reconcile(server)
    end_job(server, DELETE, "heliograph: there are no keys", succeeded=False)
    await reconcile(server)
    _, reason, message = condition_of(server)
    assert reason == "BackupDeletionFailed"
    assert "there are no keys" in message
    assert "heliograph.dev/managed=false" in message
    # The Job failed long ago, by the clock: another one is created.
    assert DELETE not in server.objects
    await reconcile(server)
    assert DELETE in server.objects
    server.change(MONDAY, annotations={"heliograph.dev/managed": "false"})
    await reconcile(server)
    assert not is_held(server)


async def test_an_upload_ends_before_what_it_stored_is_deleted() -> None:
    server = Server(main(), backup(deletionPolicy="Delete"))
    await reconcile(server)
    server.change(MONDAY, deletionTimestamp=datetime.now(UTC).isoformat())
    pod = body("Pod", "monday-backup-x", labels={"batch.kubernetes.io/job-name": PUSH.name})
    server.objects[Key("Pod", "team", "monday-backup-x")] = {**pod, "status": {"phase": "Running"}}
    await reconcile(server)
    assert server.deleted == [PUSH]
    await reconcile(server)
    assert DELETE not in server.objects
    assert "monday-backup-x" in condition_of(server)[2]
    del server.objects[Key("Pod", "team", "monday-backup-x")]
    await reconcile(server)
    assert DELETE in server.objects


async def test_a_backup_that_was_never_begun_leaves_nothing() -> None:
    server = Server(backup(deletionPolicy="Delete"))
    await reconcile(server)
    server.change(MONDAY, deletionTimestamp=datetime.now(UTC).isoformat())
    await reconcile(server)
    assert (is_held(server), server.applied) == (False, [])


NIGHTLY = Key("ScheduledBackup", "team", "nightly")
SPEC = {"schedule": "15 3 * * *", "template": {"clusterRef": {"name": "main"}, "destination": BUCKET}}


def nightly(**spec: Any) -> dict[str, Any]:
    return body("ScheduledBackup", "nightly", {**SPEC, **spec}, uid="uid-of-nightly")


def night(day: int, phase: str = "Succeeded", message: str = "") -> dict[str, Any]:
    """Return the Backup of a night of January."""
    owner = {"apiVersion": "heliograph.dev/v1alpha1", "kind": "ScheduledBackup", "name": "nightly"}
    name, at = f"nightly-202601{day:02}0315", f"2026-01-{day:02}T03:16:00Z"
    found = body(
        "Backup",
        name,
        SPEC["template"],  # type: ignore[arg-type]
        uid=name,
        labels={SCHEDULE: "nightly"},
        ownerReferences=[{**owner, "uid": "uid-of-nightly", "controller": True}],
    )
    ready = {"type": "Ready", "status": str(phase == "Succeeded"), "reason": "x", "message": message}
    over = {"completionTime": at} if phase in ("Succeeded", "Failed") else {}
    return {**found, "status": {"phase": phase, "conditions": [ready], **over}}


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}+00:00")


async def scheduled(server: Server, now: str) -> Outcome:
    context = server.context()
    return await ScheduleReconciler(lambda: at(now)).reconcile(context, resource_of(context, NIGHTLY))


def names(server: Server) -> list[str]:
    return sorted(key.name for key in server.objects if key.kind == "Backup")


async def test_a_backup_is_created_at_each_time_and_a_missed_one_is_made_up_for_once() -> None:
    server = Server(nightly())
    outcome = await scheduled(server, "2026-01-01T03:14:00")
    assert names(server) == []
    assert outcome.requeue_s == pytest.approx(60.1)
    await scheduled(server, "2026-01-01T03:15:00")
    assert names(server) == ["nightly-202601010315"]
    status = server.objects[NIGHTLY]["status"]
    assert (status["lastScheduleTime"], status["lastBackup"]) == ("2026-01-01T03:15:00Z", "nightly-202601010315")
    assert status["nextTime"] == "2026-01-02T03:15:00Z"
    made = server.objects[Key("Backup", "team", "nightly-202601010315")]
    assert made["spec"] == SPEC["template"]
    assert resources_of(made) == {NIGHTLY}
    server.objects[Key("Backup", "team", "nightly-202601010315")] = night(1)
    await scheduled(server, "2026-01-01T12:00:00")
    # The operator was away for three nights.
    await scheduled(server, "2026-01-04T09:00:00")
    await scheduled(server, "2026-01-04T09:00:01")
    assert names(server) == ["nightly-202601010315", "nightly-202601040315"]


async def test_one_that_still_runs_delays_the_next_one() -> None:
    server = Server(nightly(), night(1, "Running"))
    await scheduled(server, "2026-01-02T03:15:00")
    assert names(server) == ["nightly-202601010315"]
    assert "waits for Backup nightly-202601010315" in condition_of(server, NIGHTLY)[2]
    server.objects[Key("Backup", "team", "nightly-202601010315")] = night(1)
    await scheduled(server, "2026-01-02T05:00:00")
    assert names(server) == ["nightly-202601010315", "nightly-202601020315"]


async def test_a_schedule_that_is_suspended_creates_nothing() -> None:
    server = Server(nightly(suspend=True))
    await scheduled(server, "2026-01-04T09:00:00")
    assert names(server) == []
    assert condition_of(server, NIGHTLY)[:2] == ("True", "BackupSuspended")
    assert "nextTime" not in server.objects[NIGHTLY]["status"]


async def test_the_status_tells_of_the_last_success_and_of_a_failure() -> None:
    server = Server(nightly(), night(1), night(2, "Failed", "there are no keys"))
    server.objects[NIGHTLY]["status"] = {"lastScheduleTime": "2026-01-02T03:15:00Z"}
    await scheduled(server, "2026-01-02T09:00:00")
    assert condition_of(server, NIGHTLY) == (
        "False",
        "BackupFailed",
        "Backup nightly-202601020315: there are no keys",
    )
    status = server.objects[NIGHTLY]["status"]
    assert (status["lastSuccess"], status["lastSuccessTime"]) == ("nightly-202601010315", "2026-01-01T03:16:00Z")
    assert status["backups"] == 1
    server.objects[Key("Backup", "team", "nightly-202601020315")] = night(2)
    await scheduled(server, "2026-01-02T09:00:00")
    assert condition_of(server, NIGHTLY)[:2] == ("True", "BackupScheduled")


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        ({}, [1, 2, 4, 5]),
        ({"keep": 2}, [4, 5]),
        ({"keepFor": "50h"}, [4, 5]),
        ({"keepFor": "1m"}, [5]),
        ({"keepFor": "-1"}, [1, 2, 4, 5]),
        ({"keep": 1, "keepFor": "1000d"}, [5]),
    ],
)
async def test_backups_that_are_not_kept_go_with_what_is_stored(spec: dict[str, Any], kept: list[int]) -> None:
    # A failed one goes once a later one has succeeded.
    server = Server(nightly(**spec), night(1), night(2), night(3, "Failed"), night(4), night(5))
    server.objects[NIGHTLY]["status"] = {"lastScheduleTime": "2026-01-05T03:15:00Z"}
    other = {**night(1), "metadata": {**night(1)["metadata"], "name": "manual", "ownerReferences": []}}
    server.objects[Key("Backup", "team", "manual")] = other
    await scheduled(server, "2026-01-05T09:00:00")
    assert names(server) == ["manual", *(f"nightly-202601{day:02}0315" for day in kept)]
    noted = [each.get("metadata", {}).get("annotations") for each in server.patches]
    assert {"heliograph.dev/expired": "true"} in noted


def test_the_last_backup_that_can_be_restored_is_kept_however_old_and_failed_ones_do_not_pile_up() -> None:
    spec = ScheduledBackupSpec.model_validate({**SPEC, "keepFor": "1m"})
    backups = [night(1), *(night(day, "Failed") for day in (2, 3, 4, 5, 6))]
    expired = plan(spec, nightly(), backups, at("2026-01-20T00:00:00")).expired
    assert expired == ()
    expired = plan(spec, nightly(), backups[1:], at("2026-01-20T00:00:00")).expired
    assert [each["metadata"]["name"] for each in expired] == ["nightly-202601030315", "nightly-202601020315"]


def going(day: int) -> dict[str, Any]:
    """Return the Backup of a night, whose deletion was requested."""
    found = night(day)
    return {**found, "metadata": {**found["metadata"], "deletionTimestamp": "2026-01-06T00:00:00Z"}}


@pytest.mark.parametrize("kept", [{"keep": 1}, {"keepFor": "50h"}])
def test_one_that_is_being_deleted_does_not_stand_in_for_the_last_one(kept: dict[str, Any]) -> None:
    spec = ScheduledBackupSpec.model_validate({**SPEC, **kept})
    assert plan(spec, nightly(), [night(4), going(5)], at("2026-01-10T00:00:00")).expired == ()


def test_a_clock_that_was_ahead_deletes_no_new_backup_and_does_not_end_the_schedule() -> None:
    spec = ScheduledBackupSpec.model_validate({**SPEC, "keep": 1})
    ahead, newer = night(4), night(5)
    ahead["status"]["completionTime"] = "2027-01-01T00:00:00Z"
    newer["metadata"]["creationTimestamp"] = "2026-01-05T03:15:00Z"
    assert newer not in plan(spec, nightly(), [ahead, newer], at("2026-01-05T09:00:00")).expired
    late = {**nightly(), "status": {"lastScheduleTime": "2027-01-01T03:15:00Z"}}
    assert plan(spec, late, [newer], at("2026-01-05T09:00:00")).due is None
    assert plan(spec, late, [newer], at("2026-01-06T09:00:00")).due == at("2026-01-06T03:15:00")


async def test_what_marks_a_backup_as_expired_is_taken_back_if_it_is_kept() -> None:
    server = Server(nightly(), night(1))
    first = Key("Backup", "team", "nightly-202601010315")
    server.change(first, annotations={"heliograph.dev/expired": "true"})
    server.objects[NIGHTLY]["status"] = {"lastScheduleTime": "2026-01-01T03:15:00Z"}
    await scheduled(server, "2026-01-01T09:00:00")
    assert server.objects[first]["metadata"]["annotations"] == {}


async def test_a_backup_is_created_once_for_a_time_even_if_an_expired_one_cannot_be_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(nightly(keep=1), night(1), night(2))
    server.objects[NIGHTLY]["status"] = {"lastScheduleTime": "2026-01-02T03:15:00Z"}

    async def refused(*_: Any, **__: Any) -> None:
        raise KubeRefused(403, "Forbidden", "no")

    monkeypatch.setattr(server, "delete", refused)
    await scheduled(server, "2026-01-03T09:00:00")
    assert server.objects[NIGHTLY]["status"]["lastScheduleTime"] == "2026-01-03T03:15:00Z"
    third = Key("Backup", "team", "nightly-202601030315")
    # The operator is killed between the creation and the status; the template is another one when it returns.
    server.objects[third] = night(3)
    changed = {**SPEC["template"], "deletionPolicy": "Delete"}  # type: ignore[dict-item]
    server.objects[NIGHTLY] = {**nightly(template=changed), "status": {"lastScheduleTime": "2026-01-02T03:15:00Z"}}
    server.applied.clear()
    await scheduled(server, "2026-01-03T09:00:10")
    assert server.applied == []
    assert server.objects[NIGHTLY]["status"]["lastBackup"] == third.name


@pytest.mark.parametrize(
    ("schedule", "zone", "now", "before", "after"),
    [
        ("15 3 * * *", "UTC", "2026-01-02T03:15:00", "2026-01-02T03:15:00", "2026-01-03T03:15:00"),
        ("15 3 * * *", "UTC", "2026-01-02T03:14:59.9", "2026-01-01T03:15:00", "2026-01-02T03:15:00"),
        ("@hourly", "UTC", "2026-01-02T03:15:00", "2026-01-02T03:00:00", "2026-01-02T04:00:00"),
        ("@weekly", "UTC", "2026-01-02T03:15:00", "2025-12-28T00:00:00", "2026-01-04T00:00:00"),
        ("0 3 * * mon-fri", "Europe/Berlin", "2026-07-04T12:00:00", "2026-07-03T01:00:00", "2026-07-06T01:00:00"),
        # Berlin has no 02:30 on this day: an hour later by the clock there.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00", "2026-03-28T01:30:00", "2026-03-29T01:00:00"),
        # It has two of it on this day: once.
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T12:00:00", "2026-10-25T00:30:00", "2026-10-26T01:30:00"),
    ],
)
def test_times_of_a_schedule(schedule: str, zone: str, now: str, before: str, after: str) -> None:
    assert last_time(schedule, zone, at(now)) == at(before)
    assert next_time(schedule, zone, at(now)) == at(after)


async def test_a_schedule_without_times_says_so() -> None:
    for spec, message in (
        ({"schedule": "0 0 31 2 *"}, "spec.schedule: '0 0 31 2 *' has no times"),
        ({"timeZone": "Mars/Phobos"}, "spec.timeZone: 'Mars/Phobos' is not a time zone"),
    ):
        server = Server(nightly(**spec))
        await scheduled(server, "2026-01-04T09:00:00")
        assert condition_of(server, NIGHTLY)[1] == "Invalid"
        assert condition_of(server, NIGHTLY)[2].startswith(message)
    with pytest.raises(ScheduleError):
        next_time("0 0 31 2 *", "UTC", at("2026-01-01T00:00:00"))
