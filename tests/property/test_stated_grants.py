"""Grants of a namespace where a resource states some: these and those of other roles, whatever was there before."""

from __future__ import annotations

from copy import deepcopy

import msgspec
from heliograph_api.policies.grants import (
    Actions,
    AuthPolicies,
    auth_policies,
    keep_grants,
    with_namespace_grants,
    with_stated,
    with_topic_grants,
)
from heliograph_api.policies.policies import Policies
from hypothesis import given
from hypothesis import strategies as st

TOPIC = "persistent://shop/payments/orders"
PREFIX = "persistent://shop/payments/or*"
_ROLES = st.sampled_from(["a", "b", "c", "users/d", "users/e"])
_ACTIONS = st.dictionaries(_ROLES, st.lists(st.sampled_from(["produce", "consume", "admin"]), min_size=1, unique=True))
_SUBSCRIPTIONS = st.dictionaries(st.sampled_from(["s", "t"]), st.lists(_ROLES, min_size=1, unique=True))


def _grants(topics: st.SearchStrategy[str]) -> st.SearchStrategy[AuthPolicies]:
    by_topic = st.dictionaries(topics, _ACTIONS.filter(bool))
    return st.builds(AuthPolicies, _ACTIONS, by_topic, _SUBSCRIPTIONS)


_FOUND = _grants(st.sampled_from([TOPIC, PREFIX, "persistent://shop/payments/*"]))
_STATED = _grants(st.sampled_from([PREFIX, "persistent://shop/payments/*"]))


def is_users(role: str) -> bool:
    return role.startswith("users/")


def of(actions: Actions, *, users: bool) -> dict[str, frozenset[str]]:
    return {role: frozenset(given) for role, given in actions.items() if is_users(role) == users}


@given(_FOUND, _STATED)
def test_a_namespace_has_what_it_states_and_what_users_have(found: AuthPolicies, stated: AuthPolicies) -> None:
    before = deepcopy(found)
    made = with_namespace_grants(found, stated, is_users)
    assert found == before
    assert of(made.namespace_auth, users=False) == of(stated.namespace_auth, users=False)
    assert of(made.namespace_auth, users=True) == of(found.namespace_auth, users=True)
    assert made.destination_auth.get(TOPIC) == found.destination_auth.get(TOPIC)
    for topic in {*found.destination_auth, *stated.destination_auth, *made.destination_auth} - {TOPIC}:
        there, was = made.destination_auth.get(topic, {}), found.destination_auth.get(topic, {})
        assert of(there, users=False) == of(stated.destination_auth.get(topic, {}), users=False)
        assert of(there, users=True) == of(was, users=True)
        assert there or topic not in made.destination_auth
    for name in ("s", "t"):
        there_are = set(made.subscription_auth_roles.get(name, []))
        assert {role for role in there_are if not is_users(role)} == {
            role for role in stated.subscription_auth_roles.get(name, []) if not is_users(role)
        }
        assert {role for role in there_are if is_users(role)} == {
            role for role in found.subscription_auth_roles.get(name, []) if is_users(role)
        }
        assert there_are or name not in made.subscription_auth_roles
    # The same again changes nothing, so nothing is written and no drift is reported.
    assert with_namespace_grants(made, stated, is_users) == made


@given(_FOUND, _ACTIONS)
def test_a_topic_has_what_it_states_and_nothing_beside_it_changes(found: AuthPolicies, stated: Actions) -> None:
    roles = with_stated(found.destination_auth.get(TOPIC, {}), stated, is_users)
    made = with_topic_grants(found, TOPIC, roles)
    assert of(roles, users=False) == of(stated, users=False)
    assert of(roles, users=True) == of(found.destination_auth.get(TOPIC, {}), users=True)
    assert made.destination_auth.get(TOPIC, {}) == roles
    others = {topic: each for topic, each in found.destination_auth.items() if topic != TOPIC}
    assert {topic: each for topic, each in made.destination_auth.items() if topic != TOPIC} == others
    assert (made.namespace_auth, made.subscription_auth_roles) == (found.namespace_auth, found.subscription_auth_roles)
    assert with_stated(roles, stated, is_users) == roles


@given(_FOUND)
def test_grants_are_kept_as_they_are_read(grants: AuthPolicies) -> None:
    policies = Policies(kept={"other": 1})
    keep_grants(policies, grants)
    assert auth_policies(policies) == grants
    assert (policies.kept or {})["other"] == 1
    read = msgspec.json.decode(msgspec.json.encode(policies), type=Policies)
    assert auth_policies(read) == grants
