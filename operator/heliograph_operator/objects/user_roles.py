"""The Users by their roles: the oldest of those that state a role on a BrokerCluster has it."""

from __future__ import annotations

from .kinds import BROKER_CLUSTER, USER, Body, Key, is_deleted, is_managed, key_of


def role_of(body: Body) -> str:
    """Return the role of a User."""
    metadata = body["metadata"]
    stated = (body.get("spec") or {}).get("role")
    return str(stated or f"{metadata['namespace']}/{metadata['name']}")


def cluster_of(body: Body) -> Key:
    """Return the key of the BrokerCluster that a User names."""
    reference = (body.get("spec") or {}).get("clusterRef") or {}
    namespace = reference.get("namespace") or body["metadata"]["namespace"]
    return Key(BROKER_CLUSTER.name, str(namespace), str(reference.get("name", "")))


class UserRoles:
    """The Users by BrokerCluster and role. Register :meth:`seen` with the cache, and :meth:`forget` for deletions."""

    def __init__(self) -> None:
        self._users: dict[tuple[Key, str], dict[Key, Body]] = {}
        self._places: dict[Key, tuple[Key, str]] = {}

    def seen(self, before: Body | None, body: Body) -> None:
        """Take in a resource of the cache."""
        if body["kind"] != USER.name:
            return
        key, place = key_of(body), (cluster_of(body), role_of(body))
        if self._places.get(key, place) != place:
            self.forget(key)
        self._places[key] = place
        self._users.setdefault(place, {})[key] = body

    def forget(self, key: Key) -> None:
        """Take in that a resource is gone."""
        place = self._places.pop(key, None)
        if place is not None:
            self._users[place].pop(key, None)
            if not self._users[place]:
                del self._users[place]

    def has(self, cluster: Key, role: str) -> bool:
        """Return whether a User states a role on a BrokerCluster."""
        return (cluster, role) in self._users

    def on(self, cluster: Key) -> list[str]:
        """Return the roles that Users state on a BrokerCluster."""
        return sorted(role for on, role in self._users if on == cluster)

    def owner(self, body: Body) -> Key | None:
        """Return the User that has the role which ``body`` states; None: no User does that is managed and stays."""
        found = self._users.get((cluster_of(body), role_of(body)), {})
        standing = [(_age(each), key) for key, each in found.items() if is_managed(each) and not is_deleted(each)]
        return min(standing)[1] if standing else None

    def others(self, body: Body) -> list[Key]:
        """Return the other Users that state the same role."""
        found = self._users.get((cluster_of(body), role_of(body)), {})
        return sorted(found.keys() - {key_of(body)})


def _age(body: Body) -> tuple[str, str]:
    metadata = body["metadata"]
    return str(metadata.get("creationTimestamp", "")), str(metadata.get("uid", ""))
