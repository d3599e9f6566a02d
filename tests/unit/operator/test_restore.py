"""A new broker begins with a backup: a container restores it, and a later change of the spec has no effect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from heliograph_api.resources.backup_spec import RestoreSpec
from heliograph_api.resources.model import BrokerCluster
from heliograph_operator.decide.cluster_objects import manifests
from heliograph_operator.decide.restore import may_fetch, restore_fields, restored, restoring
from heliograph_operator.decide.stateful_set import BeforeStart, Site
from heliograph_operator.decide.strategic_merge import PatchError

S3 = {"bucket": "backups", "prefix": "main", "endpoint": "http://s3:9000", "credentialsRef": {"name": "store"}}
FROM_S3: dict[str, Any] = {"destination": {"s3": S3}}
FROM_VOLUME: dict[str, Any] = {"destination": {"volume": {"claimRef": {"name": "disk"}, "directory": "main"}}}
RESULT = {"url": "s3://backups/main", "name": "monday-1", "pointInTimeMs": 1_767_225_600_000, "bytes": 1024}
ENDED = {"exitCode": 0, "finishedAt": "2026-01-02T00:00:00Z", "message": json.dumps(RESULT)}
RESTORED = {
    "url": "s3://backups/main",
    "name": "monday-1",
    "pointInTime": "2026-01-01T00:00:00Z",
    "size": "1Ki",
    "restoredTime": "2026-01-02T00:00:00Z",
}


def stated(restore: dict[str, Any]) -> RestoreSpec:
    return RestoreSpec.model_validate(restore)


def objects(before_start: BeforeStart | None, *, restores: bool = False, **spec: Any) -> dict[str, Any]:
    body = {
        "apiVersion": "heliograph.dev/v1alpha1",
        "kind": "BrokerCluster",
        "metadata": {"name": "main", "namespace": "team", "uid": "1"},
        "spec": spec,
    }
    cluster = BrokerCluster.model_validate(body)
    made = manifests(cluster, body, Site("broker:1"), before_start=before_start, restores=restores)
    return {each["kind"]: each for each in made}


def pod(**state: Any) -> dict[str, Any]:
    """Return a broker's pod whose container for the restore is in a state."""
    return {
        "metadata": {"name": "main-0"},
        "status": {"initContainerStatuses": [{"name": "restore", "state": {}, **state}]},
    }


DONE = pod(state={"terminated": ENDED})
FAILED = pod(
    state={"waiting": {"reason": "CrashLoopBackOff"}},
    lastState={"terminated": {"exitCode": 1, "message": json.dumps({"error": "there are no keys"})}},
)
_UNFINISHED: list[list[dict[str, Any]]] = [[], [FAILED], [pod(state={"running": {}})], [{"metadata": {}}]]


def test_a_container_restores_the_backup_before_the_broker_starts() -> None:
    found = objects(restoring(stated(FROM_S3), None, {}), resources={"limits": {"memory": "4Gi"}})
    spec = found["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = spec["initContainers"]
    assert (container["name"], container["image"]) == ("restore", "broker:1")
    assert container["args"] == [
        *("backup", "pull", "s3://backups/main", "latest", "--data-dir", "/data", "--once"),
        *("--result", "/dev/termination-log", "--endpoint", "http://s3:9000"),
    ]
    assert container["resources"] == {"limits": {"memory": "4Gi"}}
    assert container["securityContext"] == spec["containers"][0]["securityContext"]
    assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
    assert "initContainers" not in objects(None)["StatefulSet"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"image": "x"}, ".image"),
        ({"command": ["x"]}, ".command"),
        ({"args": ["x"]}, ".args"),
        ({"envFrom": [{"secretRef": {"name": "x"}}]}, ".envFrom"),
        ({"volumeMounts": [{"name": "x", "mountPath": "/data"}]}, ".volumeMounts[/data]"),
        ({"$patch": "delete"}, ""),
    ],
)
def test_a_pod_template_does_not_change_the_container_that_restores(patch: dict[str, Any], field: str) -> None:
    template = {"spec": {"initContainers": [{"name": "restore", **patch}]}}
    with pytest.raises(PatchError) as refused:
        objects(restoring(stated(FROM_S3), None, {}), podTemplate=template)
    assert refused.value.field == f"spec.podTemplate.spec.initContainers[restore]{field}"
    assert "; valid: " in str(refused.value)


def test_a_pod_template_may_limit_the_container_that_restores_and_have_others_before_it() -> None:
    limited = {"name": "restore", "resources": {"limits": {"cpu": "1"}}, "env": [{"name": "HTTPS_PROXY", "value": "x"}]}
    template = {"spec": {"initContainers": [limited, {"name": "wait", "image": "wait:1"}]}}
    found = objects(restoring(stated(FROM_S3), None, {}), podTemplate=template)
    restore, wait = found["StatefulSet"]["spec"]["template"]["spec"]["initContainers"]
    assert (restore["name"], restore["resources"]["limits"]["cpu"], wait["name"]) == ("restore", "1", "wait")


def test_a_volume_of_backups_is_mounted_for_the_restore_alone() -> None:
    spec = objects(restoring(stated(FROM_VOLUME), None, {}))["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = spec["initContainers"]
    assert container["args"][2] == "file:///backups/main"
    assert {"name": "backups", "persistentVolumeClaim": {"claimName": "disk"}} in spec["volumes"]
    assert "/backups" in {each["mountPath"] for each in container["volumeMounts"]}
    assert "/backups" not in {each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}


@pytest.mark.parametrize("first", [FROM_S3, FROM_VOLUME])
def test_the_container_follows_the_spec_until_the_restore_has_ended_and_no_longer(first: dict[str, Any]) -> None:
    begun = restoring(stated(first), None, {})
    found = objects(begun)["StatefulSet"]
    assert restoring(stated(first), found, {}) == begun
    corrected = stated({**FROM_S3, "backup": "monday-1"})
    assert restoring(corrected, found, {}) == restoring(corrected, None, {}) != begun
    assert restoring(corrected, found, {"restore": RESTORED}) == begun
    assert objects(restoring(corrected, found, {"restore": RESTORED}))["StatefulSet"] == found
    # Another image is for it, too.
    upgraded = objects(restoring(corrected, found, {"restore": RESTORED}), image="broker:2")["StatefulSet"]
    assert upgraded["spec"]["template"]["spec"]["initContainers"][0]["image"] == "broker:2"
    assert restoring(None, found, {"restore": RESTORED}) is None


def test_a_broker_that_has_started_gets_no_restore() -> None:
    found = objects(None)["StatefulSet"]
    assert restoring(stated(FROM_S3), found, {}) is None
    verdict = restored(stated(FROM_S3), None, None, [])
    assert verdict is not None
    assert (verdict.status, verdict.reason) == ("False", "RestoreIgnored")


def test_what_was_restored_is_kept_when_pods_are_gone() -> None:
    assert restore_fields({}, [DONE]) == RESTORED
    assert restore_fields({"restore": RESTORED}, []) == RESTORED
    for pods in ([], [FAILED], [pod(state={"running": {}})]):
        assert restore_fields({}, pods) is None


def test_the_condition_tells_of_each_step() -> None:
    wanted = stated(FROM_S3)
    before_start = restoring(wanted, None, {})

    def reported(fields: Any, pods: list[Any], spec: RestoreSpec | None = wanted) -> tuple[str, str, str]:
        verdict = restored(spec, before_start, fields, pods)
        assert verdict is not None
        return verdict.status, verdict.reason, verdict.message

    assert reported(None, [])[:2] == ("False", "RestoreRunning")
    assert reported(None, [FAILED]) == ("False", "RestoreFailed", "there are no keys")
    began = "the broker began with backup monday-1 of s3://backups/main, as of 2026-01-01T00:00:00Z"
    assert reported(RESTORED, [DONE]) == ("True", "Restored", began)
    other = stated({**FROM_S3, "backup": "tuesday-1"})
    _, reason, message = reported(RESTORED, [DONE], other)
    assert (reason, message.partition("; ")[2]) == (
        "Restored",
        "spec.bootstrap.restoreFrom was changed afterwards, which has no effect",
    )
    assert reported(RESTORED, [], None)[2] == began
    assert restored(None, None, None, []) is None


def test_another_backup_than_that_of_a_kept_volume_is_not_said_to_be_restored() -> None:
    wanted = stated({**FROM_S3, "backup": "tuesday-1"})
    verdict = restored(wanted, restoring(wanted, None, {}), RESTORED, [DONE])
    assert verdict is not None
    assert (verdict.status, verdict.reason) == ("False", "RestoreIgnored")
    assert "tuesday-1 was not restored into it" in verdict.message


def test_a_restore_into_a_new_volume_is_told_from_the_first_one() -> None:
    wanted = stated(FROM_S3)
    again = json.dumps({**RESULT, "name": "tuesday-1"})
    done = pod(state={"terminated": {"exitCode": 0, "finishedAt": "2026-01-03T00:00:00Z", "message": again}})
    fields = restore_fields({"restore": RESTORED}, [done])
    assert fields is not None
    assert (fields["name"], fields["restoredTime"]) == ("tuesday-1", "2026-01-03T00:00:00Z")
    assert restore_fields({"restore": RESTORED}, [DONE]) == RESTORED
    verdict = restored(wanted, restoring(wanted, None, {}), RESTORED, [FAILED])
    assert verdict is not None
    assert (verdict.status, verdict.reason) == ("False", "RestoreFailed")


def test_brokers_reach_a_store_only_while_one_of_them_may_need_it() -> None:
    from_s3, from_volume = restoring(stated(FROM_S3), None, {}), restoring(stated(FROM_VOLUME), None, {})
    for pods in _UNFINISHED:
        assert may_fetch(from_s3, pods)
    assert not may_fetch(from_s3, [DONE])
    assert not may_fetch(from_volume, [])
    assert not may_fetch(None, [])
    for restores in (False, True):
        egress = objects(from_s3, restores=restores)["NetworkPolicy"]["spec"]["egress"]
        everything = {"ports": [{"port": 1, "endPort": 65535, "protocol": "TCP"}]}
        assert (everything in egress) is restores
