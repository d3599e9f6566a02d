"""The grants that a namespace keeps: which role may do what on it, on its topics and on its subscriptions.

They are Pulsar's ``auth_policies``, kept as JSON in the namespace's policies. Also decided here: what they become by
the permissions that a resource states, for brokers that apply manifests and for the operator that compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from .policies import Policies

AUTH_POLICIES: Final = "auth_policies"
"""The name of the grants among a namespace's kept settings."""
ADMINISTRATION: Final = "admin"
"""The action, unknown to Pulsar, that allows everything on the namespace or topic."""
WILDCARD: Final = "*"
"""Ends the name of a topic that stands for all topics that begin so."""

Actions = dict[str, list[str]]
RESERVED: Final = "heliograph:"
"""Begins the roles of the operator and of other programs of Heliograph. Their grants are the operator's to keep."""
#: Tells the roles whose grants belong to somebody else.
IsOthers = Callable[[str], bool]


class AuthPolicies(msgspec.Struct):
    """Pulsar's AuthPolicies: actions by role of the namespace and of its topics, and roles by subscription."""

    namespace_auth: Actions = msgspec.field(default_factory=dict)
    destination_auth: dict[str, Actions] = msgspec.field(default_factory=dict)
    subscription_auth_roles: dict[str, list[str]] = msgspec.field(default_factory=dict)


def auth_policies(policies: Policies) -> AuthPolicies:
    """Return the grants that a namespace keeps. Its three maps are copies; what they hold is not, and never changed.

    A copy of everything would take a second for a hundred thousand grants.
    """
    kept = (policies.kept or {}).get(AUTH_POLICIES) or {}
    return AuthPolicies(**{name: dict(kept.get(name) or {}) for name in AuthPolicies.__struct_fields__})


def actions_on_topic(policies: Policies, topic: str) -> Actions:
    """Return the actions by role that a namespace keeps for a topic, or for a prefix; not to be changed."""
    kept = (policies.kept or {}).get(AUTH_POLICIES) or {}
    found: Actions = (kept.get("destination_auth") or {}).get(topic) or {}
    return found


def keep_grants(policies: Policies, grants: AuthPolicies) -> None:
    """Put grants into a namespace's policies, which have a new map of kept settings then."""
    others = {name: value for name, value in (policies.kept or {}).items() if name != AUTH_POLICIES}
    kept = {name: getattr(grants, name) for name in AuthPolicies.__struct_fields__}
    policies.kept = (others | {AUTH_POLICIES: kept} if any(kept.values()) else others) or None


def with_stated(found: Mapping[str, list[str]], stated: Mapping[str, list[str]], is_others: IsOthers) -> Actions:
    """Return the actions by role where some are stated: these, and those of the roles of others as they are."""
    kept = {role: actions for role, actions in found.items() if role.startswith(RESERVED) or is_others(role)}
    wanted = {role: _same(found.get(role), actions) for role, actions in stated.items() if not is_others(role)}
    return kept | wanted


def with_namespace_grants(found: AuthPolicies, stated: AuthPolicies, is_others: IsOthers) -> AuthPolicies:
    """Return the grants of a namespace whose resource states some: those on it, on prefixes and on subscriptions.

    What it does not state is gone, except for the roles of others. Grants on single topics are these topics' own.
    """
    single = {topic: roles for topic, roles in found.destination_auth.items() if not topic.endswith(WILDCARD)}
    prefixes = found.destination_auth.keys() - single.keys()
    topics = {
        topic: with_stated(found.destination_auth.get(topic, {}), stated.destination_auth.get(topic, {}), is_others)
        for topic in sorted(prefixes | stated.destination_auth.keys())
    }
    subscriptions = {
        name: _with_roles(
            found.subscription_auth_roles.get(name, []), stated.subscription_auth_roles.get(name, []), is_others
        )
        for name in sorted(found.subscription_auth_roles.keys() | stated.subscription_auth_roles.keys())
    }
    return AuthPolicies(
        with_stated(found.namespace_auth, stated.namespace_auth, is_others),
        single | {topic: roles for topic, roles in topics.items() if roles},
        {name: roles for name, roles in subscriptions.items() if roles},
    )


def with_topic_grants(found: AuthPolicies, topic: str, roles: Actions) -> AuthPolicies:
    """Return the grants of a namespace with others on one of its topics."""
    topics = {name: each for name, each in found.destination_auth.items() if name != topic}
    return msgspec.structs.replace(found, destination_auth=topics | ({topic: roles} if roles else {}))


def _with_roles(found: Sequence[str], stated: Sequence[str], is_others: IsOthers) -> list[str]:
    kept = [role for role in found if role.startswith(RESERVED) or is_others(role)]
    wanted = kept + [role for role in stated if not is_others(role)]
    return _same(list(found), wanted)


def _same(found: list[str] | None, wanted: list[str]) -> list[str]:
    """Return what is wanted, in the order in which it is there."""
    return found if found is not None and sorted(found) == sorted(wanted) else wanted
