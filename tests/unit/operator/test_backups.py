"""A Backup is made once, by one Job, and says what is stored."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from heliograph_api.resources.backup_spec import BackupSpec
from heliograph_api.resources.model import BrokerCluster
from heliograph_operator.backup.backup_reconciler import BackupReconciler
from heliograph_operator.decide.backup_jobs import BackupPods, backup_pods, push_job
from heliograph_operator.decide.cluster_objects import endpoints
from heliograph_operator.decide.cluster_tls import OpenPorts
from heliograph_operator.decide.owned_objects import resources_of
from heliograph_operator.decide.stateful_set import Site
from heliograph_operator.objects.kinds import FINALIZER, Key

from .api_server import resource_of
from .backups import BUCKET, DELETE, MONDAY, PUSH, RESULT, VOLUME, backup, condition_of, end_job, main, reconcile
from .bodies import body
from .bodies import cluster as broker_cluster
from .installation import Server


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


def test_the_pod_trusts_the_authorities_of_the_brokers() -> None:
    found = BrokerCluster.model_validate({**body("BrokerCluster", "main"), "metadata": {"name": "main"}})
    made = job_of(VOLUME, backup_pods(found, Site("default:1"), "main-ca"))
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {"name": "HELIOGRAPH_TLS_CA", "value": "/etc/heliograph/ca/ca.crt"} in container["env"]
    mount = next(each for each in container["volumeMounts"] if each["mountPath"] == "/etc/heliograph/ca")
    assert {"name": mount["name"], "configMap": {"name": "main-ca"}} in pod["volumes"]


@pytest.mark.parametrize("tls", [{"only": True}, {}])
async def test_the_pod_fetches_the_backup_by_tls_if_brokers_have_it(tls: dict[str, Any]) -> None:
    found = main() | {"spec": {"tls": {"enabled": True, **tls}}}
    urls = endpoints(found, Site("image"), OpenPorts(plain="only" not in tls, encrypted=True))
    found["status"] |= {"endpoints": urls, "tls": {"authorities": "main-ca"}}
    server = Server(found, backup())
    await reconcile(server)
    pod = server.objects[PUSH]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][container["args"].index("--http-url") + 1] == urls["https"]
    assert {"name": "authorities", "configMap": {"name": "main-ca"}} in pod["volumes"]


async def test_the_pod_uses_no_tls_with_brokers_that_require_a_certificate() -> None:
    asks = {"enabled": True, "clientCA": {"secretRef": {"name": "people"}}, "requireClientCertificate": True}
    found = main() | {"spec": {"tls": asks}}
    urls = endpoints(found, Site("image"), OpenPorts(plain=True, encrypted=True))
    found["status"] |= {"endpoints": urls, "tls": {"authorities": "main-ca"}}
    server = Server(found, backup())
    await reconcile(server)
    arguments = server.objects[PUSH]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--http-url") + 1] == urls["http"]


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


@pytest.mark.parametrize("succeeded", [False, True])
async def test_a_job_stays_until_its_end_is_recorded_and_no_longer_than_a_day(succeeded: bool) -> None:
    """The operator may be away for longer."""
    server = Server(main(), backup())
    await reconcile(server)
    assert "ttlSecondsAfterFinished" not in server.objects[PUSH]["spec"]
    end_job(server, PUSH, json.dumps(RESULT if succeeded else {"error": "x"}), succeeded=succeeded)
    await reconcile(server)
    assert server.objects[MONDAY]["status"]["phase"] == ("Succeeded" if succeeded else "Failed")
    await reconcile(server)
    assert server.objects[PUSH]["spec"]["ttlSecondsAfterFinished"] == 86_400
    written = len(server.patches)
    await reconcile(server)
    assert len(server.patches) == written


async def test_at_rest_nobody_looks_for_the_job_of_a_backup_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(main(), backup())
    context, reconciler = server.context(), BackupReconciler(Site("heliograph/broker:1"))
    await reconciler.reconcile(context, resource_of(context, MONDAY))
    end_job(server, PUSH, json.dumps(RESULT))
    outcome = await reconciler.reconcile(context, resource_of(context, MONDAY))
    # No watch tells the operator of its own change.
    assert outcome.requeue_s is not None
    outcome = await reconciler.reconcile(context, resource_of(context, MONDAY))
    assert server.objects[PUSH]["spec"]["ttlSecondsAfterFinished"] == 86_400

    async def nobody(*_: Any) -> None:
        raise AssertionError("there is no need to look")

    monkeypatch.setattr(server, "find", nobody)
    again = await reconciler.reconcile(context, resource_of(context, MONDAY))
    assert (outcome.requeue_s, again.requeue_s) == (None, None)


@pytest.mark.parametrize("verify", [False, True])
async def test_scratch_space_is_freed_when_a_backup_was_verified(verify: bool) -> None:
    server = Server(main(), backup(verify=verify))
    await reconcile(server)
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


async def test_a_backup_whose_verification_failed_has_failed_and_says_what_is_stored() -> None:
    server = Server(main(), backup(verify=True))
    await reconcile(server)
    end_job(server, PUSH, json.dumps({**RESULT, "error": "it lacks topic orders"}), succeeded=False)
    await reconcile(server)
    assert condition_of(server) == (
        "False",
        "BackupFailed",
        "monday-1a2b3c4d is stored at s3://backups/team/main, but was not verified: it lacks topic orders",
    )
    status = server.objects[MONDAY]["status"]
    assert status["phase"] == "Failed"
    # With these it can be restored all the same.
    assert (status["name"], status["url"]) == ("monday-1a2b3c4d", "s3://backups/team/main")
    assert "verifiedTime" not in status


async def test_what_an_earlier_attempt_stored_is_in_the_status_of_a_failed_backup() -> None:
    server = Server(main(), backup(verify=True))
    await reconcile(server)
    end_job(server, PUSH, json.dumps({**RESULT, "error": "it lacks topic orders"}), succeeded=False)
    pods = [key for key in server.objects if key.kind == "Pod"]
    first = server.objects[pods[0]]
    last = body("Pod", "monday-backup-y", labels=first["metadata"]["labels"])
    terminated = {"exitCode": 1, "finishedAt": "2026-01-01T03:09:00Z", "message": '{"error": "connection refused"}'}
    last["status"] = {"phase": "Failed", "containerStatuses": [{"name": "backup", "state": {"terminated": terminated}}]}
    server.objects[Key("Pod", "team", "monday-backup-y")] = last
    await reconcile(server)
    assert condition_of(server)[2] == (
        "monday-1a2b3c4d is stored at s3://backups/team/main, but was not verified: connection refused"
    )
    assert server.objects[MONDAY]["status"]["name"] == "monday-1a2b3c4d"


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
