"""An API server in memory, with what reconcilers ask of one object at a time, for tests without a cluster."""

from __future__ import annotations

from typing import Any

from heliograph_operator.act.controller import Context
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.resource_memory import ResourceMemories
from heliograph_operator.act.work_queue import WorkQueue
from heliograph_operator.kube.client import Kube, KubeRefused
from heliograph_operator.kube.events import Events
from heliograph_operator.objects.kinds import Body, Key, Kind, key_of
from heliograph_operator.objects.resource_cache import ResourceCache
from heliograph_operator.operator_settings import Settings

from tests.support.merge_patch import merge_patched


class ApiServer(Kube):
    """Merges patches as the real one does: a resourceVersion that is not the present one is a conflict."""

    def __init__(self, *bodies: Body) -> None:
        super().__init__()
        self.objects = {key_of(body): dict(body) for body in bodies}
        self.patches: list[dict[str, Any]] = []
        self.events: list[tuple[str, str]] = []
        #: Keys of the objects that were applied, and of those whose deletion was requested, in order.
        self.applied: list[Key] = []
        self.deleted: list[Key] = []
        #: Keys of the objects that were created or replaced, in order.
        self.written: list[Key] = []
        #: Keys of the objects that may not be read.
        self.forbidden: set[Key] = set()

    def change(self, key: Key, **metadata: Any) -> None:
        """Change metadata as another writer does."""
        self._write(key, {"metadata": metadata})

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        key = Key(kind.name, namespace, name)
        if key in self.forbidden:
            raise KubeRefused(403, "Forbidden", f"{key} is forbidden")
        return self.objects.get(key)

    async def list(self, kind: Kind, namespace: str = "", *, labels: str = "") -> list[dict[str, Any]]:
        wanted = dict(each.split("=", 1) for each in labels.split(",") if each).items()
        named = [found for key, found in self.objects.items() if key[:2] == (kind.name, namespace)]
        return [found for found in named if wanted <= found["metadata"].get("labels", {}).items()]

    async def apply(self, kind: Kind, body: Body, *, dry_run: bool = False) -> dict[str, Any]:
        if dry_run:
            return dict(body)
        key = key_of(body)
        self.applied.append(key)
        self.objects[key] = {**body, "metadata": {**body["metadata"], "uid": str(key), "resourceVersion": "1"}}
        return self.objects[key]

    async def delete(self, kind: Kind, namespace: str, name: str, *, propagation: str = "Background") -> None:
        key = Key(kind.name, namespace, name)
        self.deleted.append(key)
        self.objects.pop(key, None)

    async def patch(
        self, kind: Kind, namespace: str, name: str, body: Body, *, subresource: str = ""
    ) -> dict[str, Any]:
        key = Key(kind.name, namespace, name)
        if key not in self.objects:
            raise KubeRefused(404, "NotFound", f"{key} not found")
        expected = body.get("metadata", {}).get("resourceVersion")
        if expected not in (None, self.objects[key]["metadata"]["resourceVersion"]):
            raise KubeRefused(409, "Conflict", f"{key} has been modified")
        self.patches.append(dict(body))
        return self._write(key, body)

    async def create(self, kind: Kind, body: Body) -> dict[str, Any]:
        if kind.name == "Event":
            self.events.append((body["reason"], body["message"]))
            return dict(body)
        key = key_of(body)
        if key in self.objects:
            raise KubeRefused(409, "AlreadyExists", f"{key} already exists")
        self.written.append(key)
        self.objects[key] = {**body, "metadata": {**body["metadata"], "uid": str(key), "resourceVersion": "1"}}
        return self.objects[key]

    async def replace(self, kind: Kind, body: Body, subresource: str = "") -> dict[str, Any]:
        key = key_of(body)
        now = self.objects.get(key)
        if now is None:
            raise KubeRefused(404, "NotFound", f"{key} not found")
        if body["metadata"]["resourceVersion"] != now["metadata"]["resourceVersion"]:
            raise KubeRefused(409, "Conflict", f"{key} has been modified")
        version = str(int(now["metadata"]["resourceVersion"]) + 1)
        self.written.append(key)
        self.objects[key] = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
        return self.objects[key]

    def context(self) -> Context:
        """Return the context of a reconcile whose cache has all objects."""
        cache = ResourceCache()
        for body in self.objects.values():
            cache.put(body)
        return Context(Settings(), self, cache, ResourceMemories(), WorkQueue(), Events(self, "test"))

    def _write(self, key: Key, patch: Body) -> dict[str, Any]:
        now = self.objects[key]
        changed = patch.get("metadata", {})
        metadata = {**now["metadata"], **changed}
        if "annotations" in changed:
            notes = {**now["metadata"].get("annotations", {}), **changed["annotations"]}
            metadata["annotations"] = {name: value for name, value in notes.items() if value is not None}
        metadata["resourceVersion"] = str(int(now["metadata"]["resourceVersion"]) + 1)
        merged = {**now, "metadata": metadata}
        if "spec" in patch:
            merged["spec"] = {**now.get("spec", {}), **patch["spec"]}
        if "status" in patch:
            merged["status"] = merge_patched(now.get("status", {}), patch["status"])
        self.objects[key] = merged
        return merged


def resource_of(context: Context, key: Key) -> Resource:
    """Return a resource that the context's cache has."""
    found = context.resource(key)
    assert found is not None
    return found
