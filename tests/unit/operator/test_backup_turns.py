"""A broker makes one backup at a time: the other Backups wait, and begin in the order of their creation."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from heliograph_operator.backup.backup_reconciler import BackupReconciler
from heliograph_operator.decide.backup_state import waiting_text
from heliograph_operator.decide.stateful_set import Site
from heliograph_operator.objects.kinds import Body, Key, Kind

from .api_server import resource_of
from .backups import RESULT, backup, condition_of, end_job, main, reconcile
from .installation import Server

ZEBRA, APPLE = Key("Backup", "team", "zebra"), Key("Backup", "team", "apple")


class Slow(Server):
    """Others proceed while it answers."""

    async def apply(self, kind: Kind, body: Body, *, dry_run: bool = False) -> dict[str, Any]:
        await asyncio.sleep(0)
        return await super().apply(kind, body, dry_run=dry_run)

    async def list(self, kind: Kind, namespace: str = "", *, labels: str = "") -> list[dict[str, Any]]:
        found = await super().list(kind, namespace, labels=labels)
        await asyncio.sleep(0)
        return found


def begun(server: Server) -> list[str]:
    return [key.name for key in server.applied]


async def test_of_two_backups_that_are_reconciled_at_the_same_time_one_waits() -> None:
    server = Slow(main(), backup("zebra", uid="z"))
    context = server.context()
    reconciler = BackupReconciler(Site("heliograph/broker:1"))
    # The first one in the order is created while the other one begins.
    zebra = asyncio.ensure_future(reconciler.reconcile(context, resource_of(context, ZEBRA)))
    await asyncio.sleep(0)
    server.objects[APPLE] = backup("apple", uid="a")
    context.cache.put(server.objects[APPLE])
    await asyncio.gather(zebra, reconciler.reconcile(context, resource_of(context, APPLE)))
    assert begun(server) == ["zebra-backup"]
    assert condition_of(server, APPLE)[1:] == ("BackupWaiting", waiting_text("zebra"))


async def test_a_backup_that_has_begun_counts_before_the_cache_knows() -> None:
    server = Server(main(), backup("zebra", uid="z"))
    stale = server.context()
    await reconcile(server, ZEBRA)
    server.objects[APPLE] = backup("apple", uid="a")
    stale.cache.put(server.objects[APPLE])
    await BackupReconciler(Site("heliograph/broker:1")).reconcile(stale, resource_of(stale, APPLE))
    assert begun(server) == ["zebra-backup"]
    assert condition_of(server, APPLE)[1:] == ("BackupWaiting", waiting_text("zebra"))


async def test_a_backup_whose_job_was_created_before_the_operator_ended_counts() -> None:
    server = Server(main(), backup("zebra", uid="z"), backup("apple", uid="a"))
    unpatched = server.objects[ZEBRA]
    del server.objects[APPLE]
    await reconcile(server, ZEBRA)
    # It did not come to the status.
    server.objects |= {ZEBRA: unpatched, APPLE: backup("apple", uid="a")}
    await reconcile(server, APPLE)
    assert begun(server) == ["zebra-backup"]
    assert condition_of(server, APPLE)[1:] == ("BackupWaiting", waiting_text("zebra"))
    end_job(server, Key("Job", "team", "zebra-backup"), json.dumps(RESULT))
    await reconcile(server, ZEBRA)
    await reconcile(server, APPLE)
    assert begun(server) == ["zebra-backup", "apple-backup"]


async def test_backups_that_waited_for_their_brokercluster_begin_in_their_order() -> None:
    server = Server(backup("zebra", uid="z"), backup("apple", uid="a"))
    for key in (ZEBRA, APPLE):
        await reconcile(server, key)
        assert condition_of(server, key)[1] == "ParentMissing"
    server.objects[Key("BrokerCluster", "team", "main")] = main()
    for key in (ZEBRA, APPLE):
        await reconcile(server, key)
    assert begun(server) == ["apple-backup"]
