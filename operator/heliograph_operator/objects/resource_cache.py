"""The resources as the API server last gave them, indexed by their parents and by the broker objects they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .consent import refusal
from .kinds import CLUSTER_KINDS, OF_BROKERS, USER, Body, Key, annotation, is_deleted, is_managed, key_of, owned
from .ownership import OwnershipIndex, Stake
from .targets import claim_of, is_established, other_clusters, parent_of
from .user_places import cluster_of

#: Number of uids of deleted objects that are remembered, to ignore late news of them.
_DELETED_REMEMBERED: Final = 10_000


class ResourceCache:
    """All resources by key. Bodies are never changed in place.

    The index of owners is complete after each change, before anything else can ask for it.
    """

    def __init__(self) -> None:
        #: Called after each update with the body before (None: the object is new) and the body now.
        self.listeners: list[Callable[[Body | None, Body], None]] = []
        #: Called after each update or removal with the other resources whose place among the owners may have changed.
        self.ownership_listeners: list[Callable[[set[Key]], None]] = []
        self.ownership = OwnershipIndex()
        self._bodies: dict[Key, Body] = {}
        # The uids of objects that were deleted, oldest first.
        self._deleted: dict[str, None] = {}
        self._children: dict[Key, set[Key]] = {}
        # By BrokerClusters and BrokerConnections in other Kubernetes namespaces.
        self._from_elsewhere: dict[Key, set[Key]] = {}
        # By Kubernetes namespace and kind, so that a cluster finds its resources; in the order in which they came.
        self._namespaces: dict[str, dict[str, dict[Key, None]]] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def get(self, key: Key) -> Body | None:
        """Return the body of a resource; None if it is not cached."""
        return self._bodies.get(key)

    def is_newer(self, key: Key, body: Body) -> bool:
        """Whether a body is newer than the cached one; not that of an object that was deleted.

        Watches, listings and responses to writes come on separate connections, in any order.
        """
        metadata, known = body["metadata"], self._bodies.get(key)
        if metadata["uid"] in self._deleted:
            return False
        if known is None:
            return True
        # News of an object may also come after the next one of its name was seen.
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
            self._forget_references(key, before)
        self._bodies[key] = body
        self._namespaces.setdefault(key.namespace, {}).setdefault(key.kind, {})[key] = None
        parent = parent_of(body)
        if parent is not None:
            self._children.setdefault(parent, set()).add(key)
        for cluster in other_clusters(body):
            self._from_elsewhere.setdefault(cluster, set()).add(key)
        if before is None or _names(before) != _names(body):
            self._restake(key)
        for listener in self.listeners:
            listener(before, body)
        return before

    def remove(self, key: Key) -> Body | None:
        """Drop a deleted object; return its last body."""
        before = self._bodies.pop(key, None)
        if before is not None:
            self._forget_references(key, before)
            self._namespaces[key.namespace][key.kind].pop(key, None)
            self._deleted[before["metadata"]["uid"]] = None
            if len(self._deleted) > _DELETED_REMEMBERED:
                del self._deleted[next(iter(self._deleted))]
            self._restake(key)
        return before

    def keys(self, kind: str = "", namespace: str | None = None) -> list[Key]:
        """Return the keys of a kind (or all), in a Kubernetes namespace (or all)."""
        if namespace is None:
            return [key for key in self._bodies if not kind or key.kind == kind]
        kinds = self._namespaces.get(namespace, {})
        return [key for each in ([kind] if kind else list(kinds)) for key in kinds.get(each, ())]

    def broker_cluster(self, key: Key) -> Key | None:
        """Return the BrokerCluster or BrokerConnection whose broker a reconcile asks; None if that is not known yet."""
        if key.kind in CLUSTER_KINDS:
            return key
        if key.kind == USER.name:
            # It stands for no object, and asks all the same.
            user = self._bodies.get(key)
            return cluster_of(user) if user is not None else None
        stake = self.ownership.stake(key)
        return stake.claim.cluster if stake is not None else None

    def children(self, key: Key) -> list[Key]:
        """Return the keys of the resources that name this one as their parent, whether it exists or not."""
        return sorted(self._children.get(key, ()))

    def named_by(self, key: Key) -> list[Key]:
        """Return a resource and all whose place in a broker may depend on it, parents first."""
        if key.kind in CLUSTER_KINDS:
            own = (each for kind in (*OF_BROKERS, USER.name) for each in self.keys(kind, key.namespace))
            found = dict.fromkeys([*own, *sorted(self._from_elsewhere.get(key, ()))])
        else:
            found = {key: None}
        waiting = list(found)
        for each in waiting:
            for child in self.children(each):
                if child not in found:
                    found[child] = None
                    waiting.append(child)
        return waiting

    def _forget_references(self, key: Key, body: Body) -> None:
        parent = parent_of(body)
        if parent is not None:
            _discard(self._children, parent, key)
        for cluster in other_clusters(body):
            _discard(self._from_elsewhere, cluster, key)

    def _restake(self, changed: Key) -> None:
        """Update the index for a resource and for all that are named by it."""
        concerned: set[Key] = set()
        for key in self.named_by(changed):
            before, stake = self.ownership.stake(key), self._stake(key)
            concerned |= self.ownership.put(key, stake)
            if before != stake:
                concerned.add(key)
        concerned.discard(changed)
        if concerned:
            for listener in self.ownership_listeners:
                listener(concerned)

    def _stake(self, key: Key) -> Stake | None:
        body = self._bodies.get(key)
        claim = claim_of(self, body) if body is not None and key.kind in OF_BROKERS else None
        # Its annotations may have been written by hand: only the BrokerCluster's consent counts.
        if body is None or claim is None or refusal(self, key, claim):
            return None
        return Stake(
            claim,
            created=str(body["metadata"].get("creationTimestamp", "")),
            established=is_established(body),
            managed=is_managed(body),
            deleted=is_deleted(body),
        )


def _discard(index: dict[Key, set[Key]], entry: Key, key: Key) -> None:
    if entry in index:
        index[entry].discard(key)
        if not index[entry]:
            del index[entry]


def _names(body: Body) -> object:
    """Return all that decides what a resource and those that name it stand for, and who owns that."""
    if body["kind"] in CLUSTER_KINDS:
        return (body.get("spec") or {}).get("consents") or ()
    uid, cluster = body["metadata"]["uid"], annotation(body, "cluster")
    return uid, body.get("spec"), owned(body), cluster, is_managed(body), is_deleted(body)
