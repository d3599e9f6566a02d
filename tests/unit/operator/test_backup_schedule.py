"""A schedule creates Backups, and deletes those that are not kept any longer."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from heliograph_api.resources.backup_spec import ScheduledBackupSpec
from heliograph_operator.act.controller import Outcome
from heliograph_operator.backup.schedule_reconciler import ScheduleReconciler
from heliograph_operator.decide.backup_schedule import SCHEDULE, plan
from heliograph_operator.decide.cron_times import ScheduleError, last_time, next_time
from heliograph_operator.decide.owned_objects import resources_of
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.kinds import SCHEDULED_BACKUP, Key

from .api_server import resource_of
from .backups import BUCKET, condition_of
from .bodies import body
from .installation import Server

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
        # Before the first year with four digits, and before the first year.
        ({"keepFor": "400000d"}, [1, 2, 4, 5]),
        ({"keepFor": "9223372036854775807ms"}, [1, 2, 4, 5]),
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


def test_failed_backups_that_are_stored_stay_until_one_has_succeeded() -> None:
    spec = ScheduledBackupSpec.model_validate({**SPEC, "keep": 1, "keepFor": "1m"})
    stored = [night(day, "Failed") for day in (1, 2, 3, 4, 5)]
    for each in stored:
        each["status"]["name"] = "nightly-1a2b3c4d"
    assert plan(spec, nightly(), stored, at("2026-01-20T00:00:00")).expired == ()
    assert len(plan(spec, nightly(), [*stored, night(6)], at("2026-01-20T00:00:00")).expired) == 5


def elsewhere(found: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Return a Backup whose spec has these fields of the bucket, or another ``cluster``."""
    spec = found["spec"]
    cluster = changed.pop("cluster", spec["clusterRef"]["name"])
    destination = {"s3": {**spec["destination"]["s3"], **changed}}
    return {**found, "spec": {**spec, "clusterRef": {"name": cluster}, "destination": destination}}


def expired(backups: list[dict[str, Any]], **kept: Any) -> list[str]:
    """Return the days of the Backups that are not kept on the 20th of January."""
    spec = ScheduledBackupSpec.model_validate({**SPEC, **kept})
    found = plan(spec, nightly(**kept), backups, at("2026-01-20T00:00:00")).expired
    return sorted(each["metadata"]["name"][-6:-4] for each in found)


@pytest.mark.parametrize("changed", [{"bucket": "other"}, {"prefix": "other"}, {"endpoint": "http://other"}])
def test_backups_in_another_store_do_not_count_for_keep(changed: dict[str, Any]) -> None:
    old = [elsewhere(night(day), **changed) for day in (1, 2, 3)]
    assert expired([*old, night(4)], keep=2) == ["01"]
    assert expired([*old, night(4), night(5), night(6)], keep=2) == ["01", "04"]
    # By their age they go, but for the last one of all.
    assert expired([*old, night(4), night(5)], keepFor="1m") == ["01", "02", "03", "04"]


def test_backups_of_another_brokercluster_do_not_count_for_keep() -> None:
    old = [elsewhere(night(day), cluster="other") for day in (1, 2, 3)]
    assert expired([*old, night(4)], keep=2) == ["01"]


def test_other_keys_of_a_bucket_are_no_other_store() -> None:
    old = [elsewhere(night(day), credentialsRef={"name": "new"}, region="eu-1") for day in (1, 2)]
    assert expired([*old, night(4)], keep=1) == ["01", "02"]


def test_volumes_are_stores_of_their_own() -> None:
    def on(day: int, claim: str, directory: str) -> dict[str, Any]:
        found = night(day)
        volume = {"volume": {"claimRef": {"name": claim}, "directory": directory}}
        return {**found, "spec": {**found["spec"], "destination": volume}}

    kept = [on(1, "a", "x"), on(2, "b", "x"), on(3, "a", "y"), night(4)]
    assert expired(kept, keep=1) == []
    assert expired([*kept, on(5, "a", "x")], keep=1) == ["01"]


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


@pytest.mark.parametrize("late", ["deletion", "spec", "schedule created again"])
async def test_the_watch_is_late_with_what_keeps_the_last_backup(late: str) -> None:
    server = Server(nightly(keep=1), night(1), night(2))
    server.objects[NIGHTLY]["status"] = {"lastScheduleTime": "2026-01-02T03:15:00Z"}
    context = server.context()
    if late == "deletion":
        del server.objects[Key("Backup", "team", "nightly-202601020315")]
    elif late == "spec":
        await server.patch(SCHEDULED_BACKUP, "team", "nightly", {"spec": {"keep": 2}})
    else:
        server.change(NIGHTLY, uid="uid-of-another")
    left = names(server)
    await ScheduleReconciler(lambda: at("2026-01-02T09:00:00")).reconcile(context, resource_of(context, NIGHTLY))
    assert names(server) == left


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
