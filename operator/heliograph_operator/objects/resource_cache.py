"""The resources as the API server last gave them, indexed by their parents and by the broker objects they claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from .kinds import Body, Key, annotation, is_managed, key_of

#: The field in which a kind names its parent, and the parent's kind.
PARENTS: Final = {"Topic": ("namespaceRef", "Namespace"), "Namespace": ("tenantRef", "Tenant")}

#: Number of uids of deleted objects that are remembered, to ignore late news of them.
_DELETED_REMEMBERED: Final = 10_000


class Claim(NamedTuple):
    """An object of a broker, which only one resource may describe: BrokerCluster, kind and full name."""

    cluster: Key
    kind: str
    name: str


def parent_of(body: Body) -> Key | None:
    """Return the key of the Namespace of a Topic, or of the Tenant of a Namespace."""
    if body["kind"] not in PARENTS:
        return None
    field, kind = PARENTS[body["kind"]]
    reference = (body.get("spec") or {}).get(field) or {}
    return Key(kind, body["metadata"].get("namespace", ""), str(reference.get("name", "")))


class ResourceCache:
    """All resources by key. Bodies are never changed in place."""

    def __init__(self) -> None:
        #: Called after each update with the body before (None: the object is new) and the body now.
        self.listeners: list[Callable[[Body | None, Body], None]] = []
        self._bodies: dict[Key, Body] = {}
        # The uids of objects that were deleted, oldest first.
        self._deleted: dict[str, None] = {}
        self._children: dict[Key, set[Key]] = {}
        # By the Kubernetes namespace, so that a cluster finds its resources.
        self._namespaces: dict[str, set[Key]] = {}
        self._claimants: dict[Claim, set[Key]] = {}
        self._claims: dict[Key, Claim] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def get(self, key: Key) -> Body | None:
        """Return the body of a resource; None if it is not cached."""
        return self._bodies.get(key)

    def is_managed(self, key: Key) -> bool:
        """Whether the resource is cached and not excluded by its annotation."""
        body = self._bodies.get(key)
        return body is not None and is_managed(body)

    def is_newer(self, key: Key, body: Body) -> bool:
        """Whether a body is newer than the cached one; not that of an object that was deleted.

        Watches, listings and responses to writes come on separate connections, in any order.
        """
        metadata, known = body["metadata"], self._bodies.get(key)
        if metadata["uid"] in self._deleted:
            return False
        if known is None or metadata["uid"] != known["metadata"]["uid"]:
            return True
        try:
            return int(metadata["resourceVersion"]) > int(known["metadata"]["resourceVersion"])
        except ValueError:
            # Every API server uses numbers; any other version counts as newer.
            return True

    def put(self, body: Body) -> Body | None:
        """Cache a body if it is newer; return the one before."""
        key = key_of(body)
        before = self._bodies.get(key)
        if not self.is_newer(key, body):
            return before
        if before is not None:
            self._forget_parent(key, before)
        self._bodies[key] = body
        self._namespaces.setdefault(key.namespace, set()).add(key)
        parent = parent_of(body)
        if parent is not None:
            self._children.setdefault(parent, set()).add(key)
        for listener in self.listeners:
            listener(before, body)
        return before

    def remove(self, key: Key) -> Body | None:
        """Drop a deleted object; return its last body."""
        before = self._bodies.pop(key, None)
        if before is not None:
            self._forget_parent(key, before)
            self._namespaces[key.namespace].discard(key)
            self._deleted[before["metadata"]["uid"]] = None
            if len(self._deleted) > _DELETED_REMEMBERED:
                del self._deleted[next(iter(self._deleted))]
        self.claim(key, None)
        return before

    def keys(self, kind: str = "", namespace: str | None = None) -> list[Key]:
        """Return the keys of a kind (or all), in a Kubernetes namespace (or all)."""
        among = self._bodies if namespace is None else self._namespaces.get(namespace, ())
        return [key for key in among if not kind or key.kind == kind]

    def children(self, key: Key) -> list[Key]:
        """Return the keys of the resources that name this one as their parent, whether it exists or not."""
        return sorted(self._children.get(key, ()))

    def claim(self, key: Key, claim: Claim | None) -> list[Key]:
        """Record which object a resource claims; return the other claimants of the one it claimed before."""
        before = self._claims.get(key)
        if before == claim:
            return []
        left: list[Key] = []
        if before is not None:
            others = self._claimants[before]
            others.discard(key)
            left = sorted(others)
            if not others:
                del self._claimants[before]
            del self._claims[key]
        if claim is not None:
            self._claimants.setdefault(claim, set()).add(key)
            self._claims[key] = claim
        return left

    def claimants(self, claim: Claim) -> list[Key]:
        """Return the resources that claim an object, oldest first: the first one owns it."""
        keys = [key for key in self._claimants.get(claim, ()) if key in self._bodies]
        return sorted(keys, key=self._age)

    def rivals(self, key: Key) -> list[Key]:
        """Return the other resources that claim the same object."""
        claim = self._claims.get(key)
        return sorted(self._claimants[claim] - {key}) if claim is not None else []

    def _forget_parent(self, key: Key, body: Body) -> None:
        parent = parent_of(body)
        if parent is not None and parent in self._children:
            self._children[parent].discard(key)
            if not self._children[parent]:
                del self._children[parent]

    def _age(self, key: Key) -> tuple[str, bool, str, str]:
        """Sort by creation, which is known to the second; then those that were held already, then by name."""
        body = self._bodies[key]
        created = str(body["metadata"].get("creationTimestamp", ""))
        return created, not annotation(body, "broker-object"), key.namespace, key.name
