"""What is known of the resources: as the API server gave them last, found by their parents and by what they name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from .kinds import Body, Key, annotation, key_of

#: Where a kind names its parent, and the parent's kind.
PARENTS: Final = {"Topic": ("namespaceRef", "Namespace"), "Namespace": ("tenantRef", "Tenant")}


#: So many of the objects that were deleted last are remembered: what was on its way when they went comes soon or never.
_GONE: Final = 10_000


def parent_of(body: Body) -> Key | None:
    """Return the key of the Namespace of a Topic, or of the Tenant of a Namespace."""
    if body["kind"] not in PARENTS:
        return None
    field, kind = PARENTS[body["kind"]]
    reference = (body.get("spec") or {}).get(field) or {}
    return Key(kind, body["metadata"].get("namespace", ""), str(reference.get("name", "")))


class Store:
    """All resources by key. Bodies are never changed in place."""

    def __init__(self) -> None:
        #: Called with what was known of an object (None: nothing) and what is known now, whoever learnt it.
        self.listeners: list[Callable[[Body | None, Body], None]] = []
        self._bodies: dict[Key, Body] = {}
        # The uids of objects that were deleted.
        self._gone: dict[str, None] = {}
        self._children: dict[Key, set[Key]] = {}
        # By the Kubernetes namespace, so that a cluster finds what it serves.
        self._namespaces: dict[str, set[Key]] = {}
        # Which resources name the same object of the same cluster.
        self._claims: dict[tuple[Key, str, str], set[Key]] = {}
        self._claimed: dict[Key, tuple[Key, str, str]] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def get(self, key: Key) -> Body | None:
        return self._bodies.get(key)

    def is_news(self, body: Body) -> bool:
        """Whether a version is newer than what is known of the object, which also may be that it is gone.

        Watches, listings and the answers to writes come by connections of their own, in any order.
        """
        metadata, known = body["metadata"], self._bodies.get(key_of(body))
        if metadata["uid"] in self._gone:
            return False
        if known is None or metadata["uid"] != known["metadata"]["uid"]:
            return True
        try:
            return int(metadata["resourceVersion"]) > int(known["metadata"]["resourceVersion"])
        except ValueError:
            # Versions are numbers in every API server there is; where they are not, every one counts as new.
            return True

    def put(self, body: Body) -> Body | None:
        """Take in what the API server says of an object, if that is news; return what it said before."""
        key = key_of(body)
        before = self._bodies.get(key)
        if not self.is_news(body):
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
        """The object is gone; return what was known of it."""
        before = self._bodies.pop(key, None)
        if before is not None:
            self._forget_parent(key, before)
            self._namespaces[key.namespace].discard(key)
            self._gone[before["metadata"]["uid"]] = None
            if len(self._gone) > _GONE:
                del self._gone[next(iter(self._gone))]
        self.claim(key, None)
        return before

    def keys(self, kind: str = "", namespace: str | None = None) -> list[Key]:
        """Return the keys of a kind (or all), in a Kubernetes namespace (or all), oldest first seen first."""
        among = self._bodies if namespace is None else self._namespaces.get(namespace, ())
        return [key for key in among if not kind or key.kind == kind]

    def bodies(self, kind: str, namespace: str | None = None) -> Iterator[Body]:
        for key in self.keys(kind, namespace):
            yield self._bodies[key]

    def children(self, key: Key) -> list[Key]:
        """Return the keys of the resources that name this one as their parent, whether it is there or not."""
        return sorted(self._children.get(key, ()))

    def claim(self, key: Key, claimed: tuple[Key, str, str] | None) -> list[Key]:
        """Note which object (cluster, kind, full name) a resource names; return the others that it leaves behind."""
        before = self._claimed.get(key)
        if before == claimed:
            return []
        left: list[Key] = []
        if before is not None:
            others = self._claims[before]
            others.discard(key)
            left = sorted(others)
            if not others:
                del self._claims[before]
            del self._claimed[key]
        if claimed is not None:
            self._claims.setdefault(claimed, set()).add(key)
            self._claimed[key] = claimed
        return left

    def claimants(self, claimed: tuple[Key, str, str]) -> list[Body]:
        """Return the resources that name an object, oldest first: the first of them is the one that counts."""
        bodies = [self._bodies[key] for key in self._claims.get(claimed, ()) if key in self._bodies]
        return sorted(bodies, key=_age)

    def rivals(self, key: Key) -> list[Key]:
        """Return the other resources that name the same object."""
        claimed = self._claimed.get(key)
        return sorted(self._claims[claimed] - {key}) if claimed is not None else []

    def _forget_parent(self, key: Key, body: Body) -> None:
        parent = parent_of(body)
        if parent is not None and parent in self._children:
            self._children[parent].discard(key)
            if not self._children[parent]:
                del self._children[parent]


def _age(body: Body) -> tuple[str, bool, str, str]:
    """Sort by creation, which is known to the second; then whoever has it already, then by name."""
    metadata = body["metadata"]
    has_none = not annotation(body, "broker-object")
    return str(metadata.get("creationTimestamp", "")), has_none, metadata.get("namespace", ""), metadata["name"]
