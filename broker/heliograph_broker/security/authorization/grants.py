"""The grants of a namespace, ready to be asked, and as Pulsar's clients are shown them.

A decision reads them as they are kept; only the topics with a ``*`` at their end, which stand for all topics that
begin so, are collected when they have changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from heliograph_api.policies.grants import AUTH_POLICIES, WILDCARD, Actions, AuthPolicies

from heliograph_broker.messaging.base.records import NamespaceRecord

SUBSCRIPTION_AUTH_MODE: Final = "subscription_auth_mode"
SUBSCRIPTION_AUTH_MODES: Final = ("None", "Prefix")
ACTIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")
"""Pulsar's actions; of these, only the first two have anything to allow here."""


def shown(actions: Actions) -> Actions:
    """Return actions by role without those that Pulsar has not, which its clients could not read."""
    known = {role: [action for action in given if action in ACTIONS] for role, given in actions.items()}
    return {role: found for role, found in known.items() if found or not actions[role]}


def granted(before: list[str] | None, actions: list[str]) -> list[str]:
    """Return a role's actions once Pulsar's API has set them: it neither shows the others nor takes them away."""
    return [*actions, *(action for action in before or () if action not in ACTIONS)]


def shown_policies(policies: AuthPolicies) -> AuthPolicies:
    """Return the grants with :func:`shown` actions, as Pulsar's document of a namespace has them."""
    topics = {topic: shown(actions) for topic, actions in policies.destination_auth.items()}
    return AuthPolicies(
        shown(policies.namespace_auth),
        {topic: actions for topic, actions in topics.items() if actions or not policies.destination_auth[topic]},
        policies.subscription_auth_roles,
    )


class Grant(msgspec.Struct, frozen=True):
    """An action that a role may do, and where: ``on`` is for people, such as ``namespace shop/payments``."""

    action: str
    on: str


class NamespaceGrants:
    """The grants that one record of a namespace keeps, ready to be asked."""

    __slots__ = ("_lengths", "_name", "_namespace", "_prefixes", "_subscriptions", "_topics", "kept", "prefix_mode")

    def __init__(self, name: str, record: NamespaceRecord, before: NamespaceGrants | None = None) -> None:
        """Read ``record``; ``before`` are the grants of its last version, if any, most of which may still apply."""
        kept = record.policies.kept or {}
        self.prefix_mode: bool = kept.get(SUBSCRIPTION_AUTH_MODE) == "Prefix"
        #: The value these were read from; another one replaces it at every change.
        self.kept: Any = kept.get(AUTH_POLICIES)
        given: Mapping[str, Any] = self.kept or {}
        self._name = name
        self._namespace: Actions = given.get("namespace_auth") or {}
        self._topics: dict[str, Actions] = given.get("destination_auth") or {}
        self._subscriptions: dict[str, list[str]] = given.get("subscription_auth_roles") or {}
        unchanged = before is not None and before.kept is self.kept
        self._prefixes: dict[str, Actions] = before._prefixes if before and unchanged else _prefixes(self._topics)
        #: The lengths that prefixes have: a topic's beginnings of these lengths are looked up.
        self._lengths: list[int] = sorted({len(prefix) for prefix in self._prefixes})

    def find(self, role: str, topic: str, *actions: str) -> Grant | None:
        """Return a grant of one of ``actions`` to a role on a topic, or on the namespace if ``topic`` is empty."""
        found = _first(actions, self._namespace.get(role))
        if found:
            return Grant(found, f"namespace {self._name}")
        if not topic:
            return None
        roles = self._topics.get(topic)
        if roles is not None:
            found = _first(actions, roles.get(role))
            if found:
                return Grant(found, f"topic {topic}")
        for length in self._lengths:
            roles = self._prefixes.get(topic[:length])
            if roles is not None:
                found = _first(actions, roles.get(role))
                if found:
                    return Grant(found, f"topics {topic[:length]}{WILDCARD}")
        return None

    def for_others(self, subscription: str, role: str) -> bool:
        """Return whether a subscription has roles, which alone may consume with it, and ``role`` is none of them."""
        roles = self._subscriptions.get(subscription)
        return bool(roles) and role not in (roles or ())

    def any_for_others(self, role: str) -> bool:
        """Return whether any subscription has roles of which ``role`` is none."""
        return any(self.for_others(subscription, role) for subscription in self._subscriptions)


def _prefixes(topics: dict[str, Actions]) -> dict[str, Actions]:
    return {topic[:-1]: roles for topic, roles in topics.items() if topic.endswith(WILDCARD)}


def _first(wanted: tuple[str, ...], given: list[str] | None) -> str:
    """Return the first action wanted that is given, "" if none is."""
    if given:
        for action in wanted:
            if action in given:
                return action
    return ""
