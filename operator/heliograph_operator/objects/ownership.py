"""The owner of each object of a broker among the resources, and the resources that stand for something in it.

All is keyed by the names that the broker knows, whatever the resources are called in Kubernetes. The index holds every
resource that names an object, also those that are not managed or that nothing was created for yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from heliograph_api.values.names import SubscriptionName

from .kinds import Key, shown

#: The kinds whose full names begin with a domain.
_OF_NAMESPACES: Final = ("Topic", "Subscription")


class Claim(NamedTuple):
    """An object of a broker, which only one resource may describe: BrokerCluster, kind and full name."""

    cluster: Key
    kind: str
    name: str

    @property
    def tenant(self) -> str:
        """The tenant that it is, or is in."""
        return self._path[0]

    def containers(self) -> Iterator[Claim]:
        """Yield the objects that it is in, the nearest first: of a subscription, its topic, namespace and tenant."""
        if self.kind == "Tenant":
            return
        tenant, *rest = self._path
        if (topic := self.topic) is not None:
            yield topic
        if self.kind in _OF_NAMESPACES:
            yield Claim(self.cluster, "Namespace", "/".join([tenant, *rest[:1]]))
        yield Claim(self.cluster, "Tenant", tenant)

    @property
    def topic(self) -> Claim | None:
        """The topic that a subscription is of; None for everything else."""
        if self.kind != "Subscription":
            return None
        return Claim(self.cluster, "Topic", str(SubscriptionName.parse(self.name).topic))

    @property
    def _path(self) -> list[str]:
        """The parts of its name. Only the first ``://`` ends the domain: a topic's own name may contain another."""
        path = self.name.partition("://")[2] if self.kind in _OF_NAMESPACES else self.name
        return path.split("/", 2)


@dataclass(frozen=True, slots=True)
class Stake:
    """The relation of a resource to the object that it names."""

    claim: Claim
    #: When the resource was created, as the API server writes it.
    created: str = ""
    #: Whether the object was recorded as its own: it holds the object until it is released.
    established: bool = False
    #: Whether the operator reconciles it; if not, it owns nothing, but the object is not deleted under it.
    managed: bool = True
    #: Whether its deletion was requested.
    deleted: bool = False


class OwnershipIndex:
    """The stakes of all resources. Its answers depend on what was put last for each, not on the order."""

    def __init__(self) -> None:
        self._stakes: dict[Key, Stake] = {}
        # By claims; the last one by BrokerClusters.
        self._claimants: dict[object, set[Key]] = {}
        self._below: dict[object, set[Key]] = {}
        self._clusters: dict[object, set[Key]] = {}
        self._reserved: set[Key] = set()

    def put(self, key: Key, stake: Stake | None) -> set[Key]:
        """Record the stake of a resource, None: it has none; return the other resources that this concerns.

        They are all rivals for the object it had and the one it has, the resources above it that are being deleted,
        which wait for what is below them, and those of a subscription's topic or a topic's subscriptions: both may name
        the same subscription.
        """
        before = self._stakes.get(key)
        if before == stake:
            return set()
        concerned: set[Key] = set()
        for each in (before, stake):
            if each is not None:
                concerned |= self._concerned(each.claim)
        if before is not None:
            del self._stakes[key]
            for index, name in self._entries(before.claim):
                index[name].discard(key)
                if not index[name]:
                    del index[name]
        if stake is not None:
            self._stakes[key] = stake
            for index, name in self._entries(stake.claim):
                index.setdefault(name, set()).add(key)
        return concerned - {key}

    @contextmanager
    def reserved(self, key: Key) -> Iterator[None]:
        """Let a resource have its object while that is being recorded: until then, an older one might appear."""
        self._reserved.add(key)
        try:
            yield
        finally:
            self._reserved.discard(key)

    def stake(self, key: Key) -> Stake | None:
        """Return the stake of a resource; None if it names no object, or the object is not known yet."""
        return self._stakes.get(key)

    def owner(self, claim: Claim) -> Key | None:
        """Return the resource that the object belongs to; None if it is no managed resource's.

        The one that has it keeps it. Age decides only while nobody has it, or more than one does.
        """
        return next((key for key in self.claimants(claim) if self._stakes[key].managed), None)

    def heir(self, key: Key) -> Key | None:
        """Return the resource that stays and stands for the object of this one, None if there is none.

        One that is not managed counts: the broker keeps its object.
        """
        stake = self._stakes.get(key)
        others = self.claimants(stake.claim) if stake is not None else []
        return next((other for other in others if other != key and not self._stakes[other].deleted), None)

    def claimants(self, claim: Claim) -> list[Key]:
        """Return all resources that name an object, its owner first and those that are not managed last."""
        return sorted(self._claimants.get(claim, ()), key=self._rank)

    def rivals(self, key: Key) -> list[Key]:
        """Return the other resources that name the same object as this one."""
        stake = self._stakes.get(key)
        return [other for other in self.claimants(stake.claim) if other != key] if stake is not None else []

    def below(self, claim: Claim) -> list[Key]:
        """Return the resources whose objects are in this one: what its deletion would delete with it."""
        return sorted(self._below.get(claim, ()))

    def on_cluster(self, cluster: Key) -> list[Key]:
        """Return the resources whose objects are in the broker of a BrokerCluster."""
        return sorted(self._clusters.get(cluster, ()))

    def established_on(self, cluster: Key) -> list[Key]:
        """Return the resources that have their object in the broker of a BrokerCluster, or are about to."""
        return [key for key in self.on_cluster(cluster) if self._stakes[key].established or key in self._reserved]

    def _concerned(self, claim: Claim) -> set[Key]:
        found = set(self._claimants.get(claim, ()))
        if claim.kind == "Topic":
            # What it names in its spec, its subscriptions leave to it.
            found |= self._below.get(claim, set())
        for container in claim.containers():
            above = self._claimants.get(container, ())
            found |= {key for key in above if container.kind == "Topic" or self._stakes[key].deleted}
        return found

    def _entries(self, claim: Claim) -> Iterator[tuple[dict[object, set[Key]], object]]:
        yield self._claimants, claim
        yield self._clusters, claim.cluster
        for container in claim.containers():
            yield self._below, container

    def _rank(self, key: Key) -> tuple[bool, bool, bool, str, str, str]:
        """Managed before not; those that have it before those that want it; then by age, known to the second.

        One that is being deleted and does not have it wants it no more, however long a finalizer of others keeps it.
        """
        stake = self._stakes[key]
        established = stake.established or key in self._reserved
        released = stake.deleted and not established
        return not stake.managed, released, not established, stake.created, key.namespace, key.name


def conflict(owner: Key, name: str, namespace: str) -> str:
    """Return what a resource of a Kubernetes namespace says whose object ``name`` is another one's."""
    return f"{shown(owner, namespace)} already describes {name}; delete one of the two resources"
