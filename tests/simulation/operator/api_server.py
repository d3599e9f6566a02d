"""An API server in memory: versions, generations, finalizers, patches, lists and watches, as the real one has them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from heliograph_operator.kube.client import Kube, KubeError, KubeRefused
from heliograph_operator.objects.kinds import KINDS, Body, Key, Kind

from tests.support.merge_patch import merge_patched

from .requests import NoAnswer, exchange
from .virtual_time import stamp

T = TypeVar("T")
Object = dict[str, Any]
#: Kinds that operators write and do not watch, and that say nothing about whether there is something to do.
UNWATCHED = ("Event", "Lease")
#: Time (s) after which a request fails that nobody answers.
_SILENT_S = 10.0
#: The finalizer of an object that goes without its dependents.
ORPHAN = "orphan"


class Observer(Protocol):
    """Gets every change of an object, before anybody else."""

    def changed(self, before: Object | None, now: Object | None) -> None:
        """``before`` became ``now``; None: it did not exist, or is gone."""


class ApiServer:
    """The objects of all kinds, none of which is changed in place, and who watches them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.objects: dict[Key, Object] = {}
        #: The specs that each generation of each uid had, and when (s).
        self.specs: dict[tuple[str, int], tuple[float, Object]] = {}
        self.watches: list[asyncio.Queue[tuple[str, Object]]] = []
        #: Whether watches lose what happens, and whether they ever did.
        self.loses_news = self.lost_news = False
        self.observers: list[Observer] = []
        self._here = asyncio.Event()
        self._here.set()
        #: Writes to the kinds and what is made for them, without Events and Leases: what was before and after.
        self.writes: list[tuple[Object | None, Object | None]] = []
        self._version = 0
        self._uid = 0

    @property
    def away(self) -> bool:
        return not self._here.is_set()

    def set_away(self, away: bool) -> None:
        """Let it answer nothing, or answer again."""
        if away:
            self._here.clear()
        else:
            self._here.set()

    async def reachable(self) -> None:
        """Return when it answers."""
        await self._here.wait()

    # -- what any client may do ------------------------------------------------------------------------------------

    def create(self, kind: str, api_version: str, body: Body) -> Object:
        metadata = body["metadata"]
        key = Key(kind, metadata.get("namespace", ""), metadata["name"])
        if key in self.objects:
            raise KubeRefused(409, "AlreadyExists", f"{key} already exists")
        self._uid += 1
        created = {
            **body,
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                **metadata,
                "uid": f"uid-{self._uid}",
                "generation": 1,
                "creationTimestamp": stamp(),
            },
        }
        self._store(key, None, created)
        return created

    def merge(self, key: Key, patch: Body, *, status: bool = False) -> Object:
        """Apply a JSON merge patch to an object or to its status alone."""
        before = self._existing(key)
        expected = (patch.get("metadata") or {}).get("resourceVersion")
        if expected not in (None, before["metadata"]["resourceVersion"]):
            raise KubeRefused(409, "Conflict", f"{key} has been modified")
        if (patch.get("metadata") or {}).get("uid") not in (None, before["metadata"]["uid"]):
            raise KubeRefused(409, "Conflict", f"{key} is another object")
        after: Object = merge_patched(before, {"status": patch.get("status")} if status else patch)
        kept = ("uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")
        unchanged = {name: before["metadata"][name] for name in kept if name in before["metadata"]}
        after["metadata"] = {**after["metadata"], **unchanged}
        return self._change(key, before, after)

    def apply(self, kind: Kind, body: Body) -> Object:
        """Server-side apply by one owner; lists are replaced."""
        metadata = body["metadata"]
        key = Key(kind.name, metadata.get("namespace", ""), metadata["name"])
        if key not in self.objects:
            return self.create(kind.name, kind.api_version, body)
        templates = "volumeClaimTemplates"
        if (body.get("spec") or {}).get(templates) != (self.objects[key].get("spec") or {}).get(templates):
            raise KubeRefused(422, "Invalid", f"{key}: spec.{templates} cannot be changed")
        return self.merge(key, body)

    def replace(self, key: Key, body: Body) -> Object:
        """Replace the spec of an object that has not changed since it was read."""
        before = self._existing(key)
        if body["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]:
            raise KubeRefused(409, "Conflict", f"{key} has been modified")
        return self._change(key, before, {**before, "metadata": dict(before["metadata"]), "spec": body["spec"]})

    def delete(self, key: Key, *, orphan: bool = False) -> None:
        before = self._existing(key)
        if orphan and "deletionTimestamp" not in before["metadata"]:
            # The garbage collector removes it once it has released the dependents.
            finalizers = [*before["metadata"].get("finalizers", ()), ORPHAN]
            before = {**before, "metadata": {**before["metadata"], "finalizers": finalizers}}
        if not before["metadata"].get("finalizers"):
            self._store(key, before, None)
        elif "deletionTimestamp" not in before["metadata"]:
            metadata = before["metadata"]
            leaving = {"deletionTimestamp": stamp(), "generation": metadata["generation"] + 1}
            self._store(key, before, {**before, "metadata": {**metadata, **leaving}})

    def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        """Return the objects in any order: no client may rely on one."""
        found = [
            body
            for key, body in self.objects.items()
            if key.kind == kind and namespace in ("", key.namespace) and selected(body, labels)
        ]
        self.rng.shuffle(found)
        return found

    # -- keeping ---------------------------------------------------------------------------------------------------

    def _existing(self, key: Key) -> Object:
        if key not in self.objects:
            raise KubeRefused(404, "NotFound", f"{key} not found")
        return self.objects[key]

    def _change(self, key: Key, before: Object, after: Object) -> Object:
        if after == before:
            return before
        if after.get("spec") != before.get("spec"):
            after["metadata"]["generation"] += 1
        if "deletionTimestamp" in after["metadata"] and not after["metadata"].get("finalizers"):
            self._store(key, before, None)
            return after
        self._store(key, before, after)
        return after

    def _store(self, key: Key, before: Object | None, after: Object | None) -> None:
        self._version += 1
        if key.kind not in UNWATCHED:
            self.writes.append((before, after))
        if after is None:
            assert before is not None
            del self.objects[key]
        else:
            after["metadata"]["resourceVersion"] = str(self._version)
            self.objects[key] = after
            if key.kind in KINDS:
                which = after["metadata"]["uid"], after["metadata"]["generation"]
                self.specs.setdefault(which, (asyncio.get_running_loop().time(), after.get("spec") or {}))
        for observer in self.observers:
            observer.changed(before, after)
        if key.kind not in UNWATCHED:
            event = ("DELETED", before) if after is None else ("MODIFIED" if before else "ADDED", after)
            for watch in self.watches:
                watch.put_nowait(event)  # type: ignore[arg-type]


class Connection(Kube):
    """One life of an operator at the API server: its requests take time, and fail while the API server is away."""

    def __init__(self, server: ApiServer, sends: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._objects = server
        #: Called when this operator sends a change, to a broker or to the API server, but for its Lease.
        self.sends = sends
        self._linked = asyncio.Event()
        self._linked.set()
        #: The process was killed: nothing of it has an effect any more.
        self.dead = False
        #: The newest version of each object that this operator was given.
        self.given: dict[Key, int] = {}
        #: The newest generation of each object that it was given, and when (s).
        self.given_specs: dict[Key, tuple[int, float]] = {}

    @property
    def cut(self) -> bool:
        """Whether it loses all requests of this operator."""
        return not self._linked.is_set()

    def set_cut(self, cut: bool) -> None:
        """Lose all requests of this operator, or answer again."""
        if cut:
            self._linked.clear()
        else:
            self._linked.set()

    async def reachable(self) -> None:
        """Return when the API server answers this operator."""
        while self._objects.away or self.cut:
            await self._objects.reachable()
            await self._linked.wait()

    def knows(self, body: Body) -> bool:
        """Whether this operator was given the object as it is now."""
        metadata = body["metadata"]
        key = Key(body["kind"], metadata.get("namespace", ""), metadata["name"])
        return self.given.get(key, 0) >= int(metadata["resourceVersion"])

    def knows_for_s(self, body: Body) -> float:
        """Return for how long this operator has known the spec of the object; 0 if it does not."""
        metadata = body["metadata"]
        key = Key(body["kind"], metadata.get("namespace", ""), metadata["name"])
        generation, at = self.given_specs.get(key, (0, 0.0))
        return asyncio.get_running_loop().time() - at if generation == metadata["generation"] else 0.0

    def note(self, body: Body) -> None:
        """Remember that this operator was given an object."""
        metadata = body["metadata"]
        if "resourceVersion" in metadata:
            key = Key(body["kind"], metadata.get("namespace", ""), metadata["name"])
            self.given[key] = max(self.given.get(key, 0), int(metadata["resourceVersion"]))
            if metadata["generation"] > self.given_specs.get(key, (0, 0.0))[0]:
                self.given_specs[key] = metadata["generation"], asyncio.get_running_loop().time()

    async def version(self) -> str:
        return await self._asked(lambda: "v1.34")

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        if kind.api_version == "v1" and kind.name == "Namespace":
            return await self._asked(lambda: {"metadata": {"name": name}})
        key = Key(kind.name, namespace, name)
        return self._noted(await self._asked(lambda: self._objects._existing(key)))

    async def list(self, kind: Kind, namespace: str = "", *, labels: str = "") -> list[Object]:
        return [
            self._noted(each) for each in await self._asked(lambda: self._objects.list(kind.name, namespace, labels))
        ]

    async def create(self, kind: Kind, body: Body) -> Object:
        return await self._changed(kind, lambda: self._objects.create(kind.name, kind.api_version, body))

    async def replace(self, kind: Kind, body: Body, subresource: str = "") -> Object:
        key = Key(kind.name, body["metadata"]["namespace"], body["metadata"]["name"])
        return await self._changed(kind, lambda: self._objects.replace(key, body))

    async def apply(self, kind: Kind, body: Body, *, dry_run: bool = False) -> Object:
        if dry_run:
            return await self._asked(lambda: dict(body))
        return await self._changed(kind, lambda: self._objects.apply(kind, body))

    async def patch(self, kind: Kind, namespace: str, name: str, body: Body, *, subresource: str = "") -> Object:
        key = Key(kind.name, namespace, name)
        merged = self._changed(kind, lambda: self._objects.merge(key, body, status=subresource == "status"))
        return self._noted(await merged)

    async def delete(self, kind: Kind, namespace: str, name: str, *, propagation: str = "Background") -> None:
        key = Key(kind.name, namespace, name)

        def effect() -> None:
            if key in self._objects.objects:
                self._objects.delete(key, orphan=propagation == "Orphan")

        await self._changed(kind, effect)

    def _noted(self, body: Object) -> Object:
        self.note(body)
        return body

    async def _changed(self, kind: Kind, effect: Callable[[], T]) -> T:
        self.check_leadership()
        if kind.name != "Lease":
            self.sends()
        return await self._asked(effect)

    async def _asked(self, effect: Callable[[], T]) -> T:
        """Let a request travel, take effect and return; it can be lost on either way."""

        def arrive() -> T:
            self._pass()
            return effect()

        answer = await exchange(lambda: self._objects.rng.choice((0.001, 0.004, 0.02, 0.1)), arrive, self._pass)
        self.answered_at = asyncio.get_running_loop().time()
        return answer

    def _pass(self) -> None:
        """Let a request or its answer pass, unless the network or the API server does not."""
        if self.dead:
            raise NoAnswer
        if self.cut:
            raise NoAnswer(_SILENT_S, KubeError("the API server does not answer"))
        if self._objects.away:
            raise KubeError("the API server does not answer")


def selected(body: Body, labels: str) -> bool:
    """Whether an object has all labels of a selector."""
    wanted = dict(pair.split("=") for pair in labels.split(",")) if labels else {}
    return wanted.items() <= (body["metadata"].get("labels") or {}).items()
