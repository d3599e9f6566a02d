"""Histories of a ScheduledBackup: Jobs that end or fail, operators in trouble, and the Backups that have to stay."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from heliograph_operator.objects.kinds import Key

from tests.simulation.run import quiet

from .api_server import Object
from .claims import is_leaving
from .virtual_time import VirtualLoop, stamp, virtual_wall_clock
from .witness import Violation
from .world import LEADER, NAMESPACE, Operation, World

SCHEDULE = Key("ScheduledBackup", NAMESPACE, "often")
#: Operations of a history.
LENGTH = 30
#: Time (s) between two Backups.
PERIOD_S = 300
#: Time (s) for which what people changed may be unknown: an operator is frozen, or cut off, for up to 90 s.
_UNKNOWN_S = 100.0
#: Times (s) that Jobs take, and how many of ten fail.
_RUNS_S = (2.0, 10.0, 60.0, 200.0, 400.0)
_FAIL_OF_TEN = 2
_DESTINATION = {"volume": {"claimRef": {"name": "disk"}, "directory": "main"}}


class Store:
    """The Jobs of Backups, what they have stored, and a check of every Backup that is created or deleted."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        #: When (s) each backup was stored completely, by its name in the store.
        self.stored: dict[str, float] = {}
        #: The values that ``keep`` had, each until when (s); the present one is last.
        self._keeps: list[tuple[float, int]] = []
        #: When (s) people deleted Backups, by uid.
        self.deleted_by_people: dict[str, float] = {}
        self.people = False

    def backups(self, phase: str = "") -> list[Object]:
        """Return the Backups of the schedule, in a phase or in any."""
        found = [body for key, body in self._world.server.objects.items() if key.kind == "Backup"]
        return [body for body in found if not phase or _phase(body) == phase]

    def changed(self, before: Object | None, now: Object | None) -> None:
        body = now if now is not None else before
        assert body is not None
        if body["kind"] == "Job" and before is None:
            self._begin(body)
        elif body["kind"] == "Backup" and before is None:
            self._created(body)
        elif body["kind"] == "Backup" and now is None:
            self._collect(body)
        elif body["kind"] == "Backup" and is_leaving(body) and not is_leaving(before or {"metadata": {}}):
            self._deleted(body)
        elif body["kind"] == "ScheduledBackup":
            at = asyncio.get_running_loop().time()
            self._keeps = [*((until or at, keep) for until, keep in self._keeps), (0.0, body["spec"]["keep"])]

    def _created(self, backup: Object) -> None:
        running = [
            each for each in self.backups() if _phase(each) not in ("Succeeded", "Failed") and each is not backup
        ]
        if waits := [each["metadata"]["name"] for each in running if not is_leaving(each)]:
            self._fail("two at a time", f"{backup['metadata']['name']} was created while {waits} had not ended")

    def _deleted(self, backup: Object) -> None:
        """Check that an operator deletes no Backup that is kept."""
        uid, at = backup["metadata"]["uid"], asyncio.get_running_loop().time()
        if self.people:
            self.deleted_by_people[uid] = at
            return
        if _phase(backup) != "Succeeded":
            return
        recently = {each for each, when in self.deleted_by_people.items() if at - when < _UNKNOWN_S}
        left = [
            each
            for each in self.backups("Succeeded")
            if each is not backup and (not is_leaving(each) or each["metadata"]["uid"] in recently)
        ]
        keep = min(keep for until, keep in self._keeps if not until or at - until < _UNKNOWN_S)
        name = backup["metadata"]["name"]
        if len(left) < keep:
            self._fail("too few are kept", f"{name} was deleted, which leaves {len(left)}, and keep is {keep}")
        elif all(self._stored_at(each) < self._stored_at(backup) for each in left):
            self._fail("the last one is deleted", f"{name} was deleted, and nothing was stored after it")

    def _stored_at(self, backup: Object) -> float:
        return self.stored.get(backup["status"]["name"], 0.0)

    # -- Kubernetes' own controllers ---------------------------------------------------------------------------------

    def _begin(self, job: Object) -> None:
        verb, name = job["spec"]["template"]["spec"]["containers"][0]["args"][1::2][:2]
        running = [body for key, body in self._world.server.objects.items() if key.kind == "Job" and body is not job]
        others = [each["metadata"]["name"] for each in running if _uploads(each) and not _ended(each)]
        if verb == "push" and others:
            self._fail("two at a time", f"{job['metadata']['name']} was created while {others} ran")
        asyncio.get_running_loop().call_later(self._rng.choice(_RUNS_S), self._end, job["metadata"], verb, name)

    def _end(self, metadata: Object, verb: str, name: str) -> None:
        key = Key("Job", metadata["namespace"], metadata["name"])
        job = self._world.server.objects.get(key)
        if job is None or job["metadata"]["uid"] != metadata["uid"]:
            return
        succeeds = self._rng.randrange(10) >= _FAIL_OF_TEN
        if succeeds and verb == "push":
            self.stored[name] = asyncio.get_running_loop().time()
        elif succeeds:
            self.stored.pop(name, None)
        kind = "Complete" if succeeds else "Failed"
        ended: Object = {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": stamp()}]}
        if succeeds:
            ended["completionTime"] = stamp()
        self._world.server.merge(key, {"status": ended}, status=True)

    def _collect(self, backup: Object) -> None:
        """Delete the Jobs of a Backup that is gone, as the garbage collector does."""
        for key, body in list(self._world.server.objects.items()):
            if key.kind == "Job" and body["metadata"]["ownerReferences"][0]["uid"] == backup["metadata"]["uid"]:
                asyncio.get_running_loop().call_soon(self._world.server.delete, key)

    def _fail(self, kind: str, text: str) -> None:
        self._world.witness.fail(kind, text)


class BackupWorld(World):
    """One BrokerCluster with a ScheduledBackup, and operators that share a Lease."""

    def __init__(self, seed: int, operators: int) -> None:
        super().__init__(seed, operators)
        self.store = Store(self, self.rng)
        self.server.observers.append(self.store)

    async def __aenter__(self) -> BackupWorld:
        await super().__aenter__()
        template = {"clusterRef": {"name": "main"}, "destination": _DESTINATION}
        self._create(SCHEDULE.kind, SCHEDULE.name, {"schedule": "*/5 * * * *", "keep": 3, "template": template})
        return self

    async def delete_backup(self, number: int) -> None:
        """Let somebody delete one of the Backups, not the last one that was stored."""
        good = sorted(self.store.backups("Succeeded"), key=self.store._stored_at)
        if len(good) > 1:
            self.store.people = True
            self.server.delete(Key("Backup", NAMESPACE, good[number % (len(good) - 1)]["metadata"]["name"]))
            self.store.people = False


def generate(seed: int) -> list[Operation]:
    """Return the history of a seed."""
    rng = random.Random(f"backups {seed}")
    operations: list[Operation] = []
    while len(operations) < LENGTH:
        kind, *arguments = rng.choice(_STEPS)
        operations.append(Operation(str(kind), tuple(each(rng) for each in arguments), rng.choice(_PAUSES_S)))
    return operations


def _leader_or_not(rng: random.Random) -> int:
    return rng.choice((LEADER, LEADER, 0, 1))


def _trouble_s(rng: random.Random) -> float:
    return rng.choice((3.0, 14.0, 30.0, 90.0))


_PAUSES_S = (0.0, 0.1, 2.0, 30.0, 100.0, 280.0, 300.0, 330.0)
_STEPS: tuple[tuple[Any, ...], ...] = (
    ("wait",),
    ("wait",),
    ("kill_operator", _leader_or_not),
    ("stop_operator", _leader_or_not),
    ("start_all",),
    ("start_all",),
    ("freeze_operator", _leader_or_not, _trouble_s),
    ("cut_operator", _leader_or_not, _trouble_s),
    ("set_clock", _leader_or_not, lambda rng: rng.choice((-3600.0, -200.0, 0.0, 0.0, 200.0, 3600.0))),
    ("delete_backup", lambda rng: rng.randrange(9)),
    ("edit", lambda _: SCHEDULE.kind, lambda _: SCHEDULE.name, lambda rng: {"keep": rng.randint(1, 4)}),
    ("edit", lambda _: SCHEDULE.kind, lambda _: SCHEDULE.name, lambda rng: {"suspend": rng.random() < 0.3}),
)


def run(seed: int, operations: list[Operation] | None = None) -> Violation | None:
    """Return what was broken in the history of a seed, or in other operations with its delays; None: nothing."""
    history = generate(seed) if operations is None else operations
    with quiet(), virtual_wall_clock(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_run(seed, history))


async def _run(seed: int, history: list[Operation]) -> Violation | None:
    async with BackupWorld(seed, 2) as world:
        for operation in history:
            await world.do(operation)
            if world.witness.violation is not None:
                return world.witness.violation
        for each in world.operators:
            each.machine.ahead_s = 0.0
        await world.edit(SCHEDULE.kind, SCHEDULE.name, {"suspend": False})
        await world.calm()
        calm_at = asyncio.get_running_loop().time()
        # Several may fail in a row, and each can take as long as two periods.
        for _ in range(20):
            await asyncio.sleep(PERIOD_S)
            if max(world.store.stored.values(), default=0.0) > calm_at:
                break
        else:
            world.witness.fail("backups have ended", "no backup was stored after the last trouble")
        await world.edit(SCHEDULE.kind, SCHEDULE.name, {"suspend": True})
        # Failed deletions are tried again every minute.
        await asyncio.sleep(4 * PERIOD_S)
        _check_kept(world)
        return world.witness.violation


def _check_kept(world: BackupWorld) -> None:
    """Check that what is kept is stored, and nothing is kept that should not be."""
    store, keep = world.store, world.server.objects[SCHEDULE]["spec"]["keep"]
    if leaving := [each["metadata"]["name"] for each in store.backups() if is_leaving(each)]:
        world.witness.fail("a deletion hangs", f"{leaving}")
    good = store.backups("Succeeded")
    if missing := [each["metadata"]["name"] for each in good if each["status"]["name"] not in store.stored]:
        world.witness.fail("backups are lost", f"{missing} are Succeeded and not in the store")
    if len(good) > keep:
        world.witness.fail("too many are kept", f"{len(good)}, and keep is {keep}")


def _phase(backup: Object) -> str:
    return str((backup.get("status") or {}).get("phase", ""))


def _uploads(job: Object) -> bool:
    return "push" in job["spec"]["template"]["spec"]["containers"][0]["args"]


def _ended(job: Object) -> bool:
    return bool((job.get("status") or {}).get("conditions"))
