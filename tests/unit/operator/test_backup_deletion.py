"""The deletion of a Backup: its upload ends first, and what is stored goes only if it says so."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from heliograph_operator.objects.kinds import FINALIZER, Key

from .backups import DELETE, MONDAY, PUSH, RESULT, backup, condition_of, end_job, main, reconcile
from .bodies import body
from .installation import Server


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


async def test_the_watch_is_late_with_an_annotation_that_keeps_what_is_stored() -> None:
    server = await made(deletionPolicy="Delete")
    context = server.context()
    server.change(MONDAY, annotations={"heliograph.dev/managed": "false"})
    await reconcile(server, context=context)
    assert DELETE not in server.objects


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
async def test_what_a_job_stored_that_the_status_does_not_know_is_not_forgotten(policy: str) -> None:
    server = Server(main(), backup(deletionPolicy=policy))
    await reconcile(server)
    # The operator was killed after it had created the Job.
    server.objects[MONDAY]["status"] = {}
    server.change(MONDAY, deletionTimestamp=datetime.now(UTC).isoformat())
    await reconcile(server)
    assert PUSH not in server.objects
    await reconcile(server)
    assert (DELETE in server.objects) == is_held(server) == (policy == "Delete")
    assert [reason for reason, _ in server.events].count("DataRetained") == int(policy == "Retain")


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
