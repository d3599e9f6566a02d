"""Valid and invalid specs of backups and schedules; a broker does not take them."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_api.manifests.manifest_error import ManifestError
from heliograph_api.manifests.manifest_reader import parse
from heliograph_api.resources.backup_spec import BackupSpec, RestoreSpec
from heliograph_api.resources.model import Backup, BrokerCluster, ScheduledBackup
from pydantic import ValidationError

S3 = {"bucket": "backups", "prefix": "team/main", "credentialsRef": {"name": "store"}}
VOLUME = {"claimRef": {"name": "disk"}, "directory": "main"}


def spec(**destination: Any) -> dict[str, Any]:
    return {"clusterRef": {"name": "main"}, "destination": destination}


def resource(kind: str, name: str, stated: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "heliograph.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": stated}


@pytest.mark.parametrize(
    "destination", [{"s3": S3}, {"volume": VOLUME}, {"s3": {**S3, "endpoint": "http://[::1]:9000"}}]
)
def test_a_backup_has_one_destination(destination: dict[str, Any]) -> None:
    found = BackupSpec.model_validate(spec(**destination))
    assert (found.verify, found.deletion_policy) == (False, "Retain")


@pytest.mark.parametrize(
    ("destination", "message"),
    [
        ({}, "valid: s3 or volume, and not both"),
        ({"s3": S3, "volume": VOLUME}, "valid: s3 or volume, and not both"),
        ({"s3": {**S3, "bucket": "No"}}, "not the name of a bucket"),
        ({"s3": {**S3, "prefix": "../other"}}, "not a path"),
        ({"s3": {**S3, "prefix": "a//b"}}, "not a path"),
        ({"s3": {**S3, "endpoint": "s3.example.com"}}, "not the URL of a store"),
        ({"s3": {**S3, "endpoint": "https://user:secret@host"}}, "not the URL of a store"),
        ({"volume": {**VOLUME, "directory": "/main"}}, "not a path"),
        ({"volume": {**VOLUME, "directory": "main\n"}}, "not a path"),
    ],
)
def test_other_destinations_are_refused_with_what_is_valid(destination: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BackupSpec.model_validate(spec(**destination))


def test_names_leave_room_for_those_of_jobs() -> None:
    Backup.model_validate(resource("Backup", "a" * 49, spec(s3=S3)))
    schedule = {"schedule": "@daily", "template": spec(s3=S3)}
    ScheduledBackup.model_validate(resource("ScheduledBackup", "a" * 36, schedule))
    with pytest.raises(ValidationError, match="at most 49 characters"):
        Backup.model_validate(resource("Backup", "a" * 50, spec(s3=S3)))
    with pytest.raises(ValidationError, match="at most 36 characters"):
        ScheduledBackup.model_validate(resource("ScheduledBackup", "a" * 37, schedule))


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"schedule": "15 3 * *"}, "is not a schedule"),
        ({"keep": 0}, "greater than or equal to 1"),
        ({"keepFor": "59s"}, "would delete backups at once"),
        ({"keepFor": 0}, "would delete backups at once"),
        ({"timeZone": "Europe Berlin"}, "not a time zone"),
    ],
)
def test_schedules_that_are_refused(stated: dict[str, Any], message: str) -> None:
    full = {"schedule": "@daily", "template": spec(s3=S3), **stated}
    with pytest.raises(ValidationError, match=message):
        ScheduledBackup.model_validate(resource("ScheduledBackup", "nightly", full))


def test_the_newest_backup_is_restored_by_default() -> None:
    assert RestoreSpec.model_validate({"destination": {"s3": S3}}).backup == "latest"
    with pytest.raises(ValidationError, match="not the name of a backup"):
        RestoreSpec.model_validate({"destination": {"s3": S3}, "backup": "No/Name"})
    assert BrokerCluster.model_validate(resource("BrokerCluster", "x", {})).spec.bootstrap.restore_from is None


@pytest.mark.parametrize("kind", ["Backup", "ScheduledBackup"])
def test_a_broker_does_not_take_them(kind: str) -> None:
    text = f"apiVersion: heliograph.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{}}\n"
    with pytest.raises(ManifestError, match=f"kind: '{kind}' is for the operator only"):
        parse(text)
