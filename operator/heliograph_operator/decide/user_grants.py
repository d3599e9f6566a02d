"""The grants of a role in a broker: those that its User states, those that it has, and the requests between the two.

A User owns its role, so its role has what the User states and nothing else; grants that others gave it are removed.
Grants of roles that no User has are never changed. The action ``admin`` is not a User's to give, and is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from heliograph_api.policies.grants import ADMINISTRATION, AUTH_POLICIES
from heliograph_api.resources.broker_state import BrokerState
from heliograph_api.resources.user_spec import PermissionSpec

Actions = frozenset[str]
NONE: Final[Actions] = frozenset()


@dataclass(slots=True)
class Grants:
    """The grants of one role."""

    #: Actions by namespace.
    namespaces: dict[str, Actions] = field(default_factory=dict)
    #: Actions by the full name of a topic, or of several with a ``*`` at its end.
    topics: dict[str, Actions] = field(default_factory=dict)
    #: Subscriptions that only the role and others may use, by namespace and name.
    subscriptions: set[tuple[str, str]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class NamespaceGrant:
    """Sets the actions of the role on a namespace; none: it gets none."""

    namespace: str
    actions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{_listed(self.actions)} on namespace {self.namespace}"


@dataclass(frozen=True, slots=True)
class TopicGrant:
    """Sets the actions of the role on a topic, or on several."""

    topic: str
    actions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{_listed(self.actions)} on topic {self.topic}"


@dataclass(frozen=True, slots=True)
class SubscriptionRoles:
    """Adds the role to those of a subscription, which are then ``roles``, or takes it from them if there are none.

    Others that were added since are kept.
    """

    namespace: str
    subscription: str
    roles: tuple[str, ...]

    def __str__(self) -> str:
        roles = ", ".join(self.roles) or "none"
        return f"roles of subscription {self.subscription} in namespace {self.namespace}: {roles}"


Change = NamespaceGrant | TopicGrant | SubscriptionRoles


def stated_grants(permissions: Iterable[PermissionSpec]) -> Grants:
    """Return the grants that a User states."""
    found = Grants()
    for each in permissions:
        place, where = (found.topics, each.on_topic) if each.on_topic else (found.namespaces, each.in_namespace)
        place[where] = place.get(where, NONE) | set(each.actions)
        found.subscriptions |= {(each.in_namespace, name) for name in each.subscriptions}
    return found


def common_grants(one: Grants, other: Grants) -> Grants:
    """Return the grants that are in both."""
    namespaces = {at: actions & other.namespaces.get(at, NONE) for at, actions in one.namespaces.items()}
    topics = {at: actions & other.topics.get(at, NONE) for at, actions in one.topics.items()}
    return Grants(
        {at: actions for at, actions in namespaces.items() if actions},
        {at: actions for at, actions in topics.items() if actions},
        one.subscriptions & other.subscriptions,
    )


def grants_by_role(state: BrokerState) -> dict[str, Grants]:
    """Return the grants that each role has in a broker."""
    found: dict[str, Grants] = {}
    for namespace, each in state.namespaces.items():
        kept = _mapping((each.policies.kept or {}).get(AUTH_POLICIES))
        for role, actions in _actions(kept.get("namespace_auth")):
            found.setdefault(role, Grants()).namespaces[namespace] = actions
        for topic, roles in _mapping(kept.get("destination_auth")).items():
            for role, actions in _actions(roles):
                found.setdefault(role, Grants()).topics[topic] = actions
        for subscription, names in _mapping(kept.get("subscription_auth_roles")).items():
            for role in names:
                found.setdefault(role, Grants()).subscriptions.add((namespace, subscription))
    return found


def changes(role: str, stated: Grants, found: Grants, state: BrokerState) -> list[Change]:
    """Return the requests that make the grants of a role those that are stated, what it gains first.

    So a client that keeps a right, by another grant, keeps it all the time.
    """
    gained: list[Change] = []
    lost: list[Change] = []
    for namespace in sorted(stated.namespaces.keys() | found.namespaces.keys()):
        wanted, has = stated.namespaces.get(namespace, NONE), found.namespaces.get(namespace, NONE)
        if wanted != has:
            (gained if wanted else lost).append(NamespaceGrant(namespace, tuple(sorted(wanted))))
    for topic in sorted(stated.topics.keys() | found.topics.keys()):
        wanted, has = stated.topics.get(topic, NONE), found.topics.get(topic, NONE)
        # Also of a topic that is gone: it may come back, when there may be no User that could take the grant away.
        if wanted != has:
            (gained if wanted else lost).append(TopicGrant(topic, tuple(sorted(wanted))))
    for namespace, name in sorted(stated.subscriptions - found.subscriptions):
        others = _roles_of(namespace, name, state)
        gained.append(SubscriptionRoles(namespace, name, (*others, role)))
    for namespace, name in sorted(found.subscriptions - stated.subscriptions):
        lost.append(SubscriptionRoles(namespace, name, ()))
    return [*gained, *lost]


def missing_namespaces(stated: Grants, permissions: Iterable[PermissionSpec], state: BrokerState) -> list[str]:
    """Return the namespaces of a User's permissions that the broker does not have."""
    return sorted({each.in_namespace for each in permissions} - state.namespaces.keys())


def _roles_of(namespace: str, subscription: str, state: BrokerState) -> list[str]:
    found = state.namespaces.get(namespace)
    kept = _mapping(((found.policies.kept or {}) if found is not None else {}).get(AUTH_POLICIES))
    return list(_mapping(kept.get("subscription_auth_roles")).get(subscription) or ())


def _actions(roles: Any) -> Iterator[tuple[str, Actions]]:
    for role, actions in _mapping(roles).items():
        if given := frozenset(actions) - {ADMINISTRATION}:
            yield role, given


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(actions: tuple[str, ...]) -> str:
    return ", ".join(actions) or "nothing"
