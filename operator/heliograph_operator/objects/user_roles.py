"""The Users by their roles and identities: the oldest of those that state one on a BrokerCluster has it."""

from __future__ import annotations

from collections.abc import Iterable

from heliograph_api.resources.role_state import ProvenIdentity

from .kinds import USER, Body, Key, is_deleted, is_managed, key_of
from .user_identities import identities_of
from .user_places import cluster_of, is_own_role, role_of

#: A role, or an identity, on a BrokerCluster.
_Place = tuple[Key, str | ProvenIdentity]


class UserRoles:
    """The Users by BrokerCluster, role and identity.

    Register :meth:`seen` with the cache, and :meth:`forget` for deletions.
    """

    def __init__(self) -> None:
        self._users: dict[_Place, dict[Key, Body]] = {}
        self._places: dict[Key, frozenset[_Place]] = {}

    def seen(self, before: Body | None, body: Body) -> None:
        """Take in a resource of the cache."""
        if body["kind"] != USER.name:
            return
        key, cluster = key_of(body), cluster_of(body)
        # A role of another Kubernetes namespace is not the User's: it must not keep it from those whose it is.
        names: list[str | ProvenIdentity] = [role_of(body)] if is_own_role(body) else []
        places: frozenset[_Place] = frozenset((cluster, at) for at in (*names, *identities_of(body)))
        if self._places.get(key, places) != places:
            self.forget(key)
        self._places[key] = places
        for place in places:
            self._users.setdefault(place, {})[key] = body

    def forget(self, key: Key) -> None:
        """Take in that a resource is gone."""
        for place in self._places.pop(key, ()):
            self._users[place].pop(key, None)
            if not self._users[place]:
                del self._users[place]

    def __len__(self) -> int:
        """Return the number of Users."""
        return len(self._places)

    def has(self, cluster: Key, role: str) -> bool:
        """Return whether a User states a role on a BrokerCluster."""
        return (cluster, role) in self._users

    def on(self, cluster: Key) -> list[str]:
        """Return the roles that Users state on a BrokerCluster."""
        return sorted(each for on, each in self._users if on == cluster and isinstance(each, str))

    def owner(self, body: Body) -> Key | None:
        """Return the User that has the role which ``body`` states; None: no User does that is managed and stays.

        A role of another Kubernetes namespace is had by Users there only.
        """
        return _oldest(self._users.get((cluster_of(body), role_of(body)), {}).items())

    def heir(self, body: Body) -> Body | None:
        """Return the User that gets the role of one that is deleted; None: no User does, or it has the role already."""
        found = self._users.get((cluster_of(body), role_of(body)), {})
        owner = self.owner(body)
        return found[owner] if owner is not None and _age(body) < _age(found[owner]) else None

    def owner_of(self, identity: ProvenIdentity, body: Body) -> Key | None:
        """Return the User whose role an identity proves on the BrokerCluster of ``body``; None: it proves none.

        A User that does not have its own role has no identities either.
        """
        found = self._users.get((cluster_of(body), identity), {})
        return _oldest((key, each) for key, each in found.items() if self.owner(each) == key)

    def others(self, body: Body) -> list[Key]:
        """Return the other Users that state the same role, or one of the same identities."""
        own: frozenset[_Place] = frozenset({(cluster_of(body), role_of(body))})
        places = self._places.get(key_of(body), own)
        return sorted({key for place in places for key in self._users.get(place, {})} - {key_of(body)})


def _oldest(found: Iterable[tuple[Key, Body]]) -> Key | None:
    standing = [(_age(each), key) for key, each in found if is_managed(each) and not is_deleted(each)]
    return min(standing)[1] if standing else None


def _age(body: Body) -> tuple[str, str]:
    metadata = body["metadata"]
    return str(metadata.get("creationTimestamp", "")), str(metadata.get("uid", ""))
