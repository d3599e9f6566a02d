"""A User: its role has the grants that it states and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from heliograph_api.manifests.explain import explain
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.broker_state import BrokerState, NamespaceState, TopicState
from heliograph_api.resources.model import User
from heliograph_api.resources.role_state import RoleLimits, RoleSettings, service_account
from heliograph_operator.act.broker_sessions import Listing
from heliograph_operator.decide.user_grants import (
    Change,
    Grants,
    NamespaceGrant,
    SubscriptionRoles,
    TopicGrant,
    changes,
    grants_by_role,
    stated_grants,
)
from heliograph_operator.objects.kinds import Key
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from .users import CLUSTER, ORDERS, PRODUCE, SECRET, TOKEN, USER, Granting, Team, apply, closed, user


async def test_a_role_gets_what_its_user_states() -> None:
    more = [
        {"namespace": "shop/payments", "topics": "orders-*", "actions": ["produce"]},
        {"namespace": "public/default", "actions": ["consume"]},
        {"topic": "shop/payments/orders", "subscriptions": ["billing"], "actions": ["consume", "produce"]},
    ]
    team = Team(user(permissions=more))
    await team.reconcile()
    assert team.condition()[:2] == ("True", "Reconciled")
    granted = team.broker.policies("shop/payments")
    assert granted["destination_auth"] == {
        "persistent://shop/payments/orders-*": {"team/billing": ["produce"]},
        ORDERS: {"team/billing": ["consume", "produce"]},
    }
    assert granted["subscription_auth_roles"] == {"billing": ["team/billing"]}
    assert team.broker.policies("public/default")["namespace_auth"] == {"team/billing": ["consume"]}
    assert team.server.objects[USER]["status"]["role"] == "team/billing"
    team.broker.granted.clear()
    await team.reconcile()
    assert team.broker.granted == []


async def test_what_the_user_does_not_state_any_more_is_gone_and_others_keep_theirs() -> None:
    team = Team(user(**PRODUCE))
    granted = team.broker.policies("shop/payments")
    granted["namespace_auth"] = {"team/billing": ["consume", "admin"], "others": ["produce"]}
    granted["destination_auth"] = {ORDERS: {"team/billing": ["functions"], "others": ["consume"]}}
    granted["subscription_auth_roles"] = {"sub": ["others", "team/billing"]}
    await team.reconcile()
    assert granted["destination_auth"] == {
        ORDERS: {"others": ["consume"]},
        "persistent://shop/payments/orders-*": {"team/billing": ["produce"]},
    }
    assert granted["subscription_auth_roles"] == {"sub": ["others"]}
    assert granted["namespace_auth"]["others"] == ["produce"]


async def test_drift_is_seen_by_the_listing_of_all_grants() -> None:
    team = Team(user(**PRODUCE))
    resource, reconcile = team.kept()
    await reconcile()
    listing = await team.broker.listing(0.0)
    assert resource.memory.observed == listing.role("team/billing")
    team.broker.policies("shop/payments")["namespace_auth"]["team/billing"] = ["consume"]
    assert (await team.broker.listing(0.0)).role("team/billing") != resource.memory.observed
    await reconcile()
    assert (await team.broker.listing(0.0)).role("team/billing") == resource.memory.observed
    await team.broker.set_role("team/billing", None)
    assert (await team.broker.listing(0.0)).role("team/billing") != resource.memory.observed


async def test_grants_that_the_broker_does_not_keep_are_told_after_the_next_listing() -> None:
    class Forgetful(Granting):
        forgets = True

        async def grant(self, role: str, wanted: Sequence[Change]) -> None:
            if not self.forgets:
                await super().grant(role, wanted)

    team = Team(user(**PRODUCE))
    team.broker = Forgetful()
    _, reconcile = team.kept()
    await reconcile()
    for _ in range(3):
        # It is tried again each time, and not taken for granted.
        await reconcile()
        assert team.condition()[1] == "NotApplied"
        assert "does not have them: produce on topic" in team.condition()[2]
    team.broker.forgets = False
    await reconcile()
    assert team.condition()[1] == "Reconciled"
    assert team.broker.policies("shop/payments")["destination_auth"]


async def test_identities_that_the_broker_does_not_keep_are_told_after_the_next_listing() -> None:
    class Forgetful(Granting):
        async def set_role(self, role: str, settings: RoleSettings | None) -> None:
            self._reach()

    team = Team(user(**PRODUCE, authentication=[{"serviceAccount": {"name": "billing"}}]))
    team.broker = Forgetful()
    _, reconcile = team.kept()
    await reconcile()
    for _ in range(2):
        await reconcile()
        assert team.condition()[1] == "NotApplied"
        assert "the identities and limits" in team.condition()[2]


async def test_grants_that_somebody_takes_away_before_the_next_listing_come_back_at_once() -> None:
    team = Team(user(**PRODUCE))
    _, reconcile = team.kept()
    for _ in range(2):
        team.broker.policies("shop/payments")["destination_auth"].clear()
        await reconcile()
        assert team.broker.policies("shop/payments")["destination_auth"]
        assert team.condition()[1] == "Reconciled"


async def test_a_user_costs_one_listing_at_most() -> None:
    class Counting(Granting):
        listings = 0

        async def listing(self, since: float, role: str | None = None) -> Listing:
            self.listings += 1
            return await super().listing(since)

    team = Team(user(**PRODUCE, authentication=[{"serviceAccount": {"name": "billing"}}]))
    team.broker = broker = Counting()
    _, reconcile = team.kept()
    await reconcile()
    assert team.condition()[1] == "Reconciled"
    assert broker.listings == 1
    assert broker.roles


async def test_a_namespace_or_a_topic_that_is_missing_is_waited_for() -> None:
    nowhere = user(permissions=[{"namespace": "shop/nothing", "actions": ["produce"]}])
    team = Team(nowhere)
    await team.reconcile()
    assert team.condition() == (
        "False",
        "ParentMissing",
        "spec.permissions: the broker does not have namespace shop/nothing",
    )
    team = Team(user(permissions=[{"topic": "shop/payments/nothing", "actions": ["produce"]}]))
    outcome = await team.reconcile()
    assert team.condition()[1] == "Refused"
    assert outcome.requeue_s is not None


async def test_what_is_not_stated_any_more_goes_also_while_a_namespace_is_missing() -> None:
    proofs = [{"serviceAccount": {"name": each}} for each in ("billing", "other")]
    both = {"namespace": "shop/payments", "actions": ["produce", "consume"], "subscriptions": ["s"]}
    team = Team(user(authentication=proofs, permissions=[both], limits={"connections": 5}))
    await team.reconcile()
    fewer = [{"namespace": "shop/payments", "actions": ["produce"]}, {"namespace": "shop/no", "actions": ["consume"]}]
    team.server.objects[USER]["spec"] |= {"permissions": fewer, "authentication": proofs[:1]}
    team.server.objects[USER]["metadata"]["generation"] = 2
    await team.reconcile()
    assert team.condition()[1] == "ParentMissing"
    granted = team.broker.policies("shop/payments")
    assert granted["namespace_auth"] == {"team/billing": ["produce"]}
    assert granted["subscription_auth_roles"] == {}
    kept = RoleSettings([service_account("team", "billing")], RoleLimits(connections=5))
    assert team.broker.roles == {"team/billing": kept}


async def test_a_broker_that_does_not_answer_is_waited_for() -> None:
    team = Team(user(**PRODUCE, **TOKEN))
    await team.reconcile()
    team.broker.unreachable = True
    await team.reconcile()
    assert team.condition()[1] == "BrokerUnreachable"
    assert team.condition("CredentialsIssued")[0] == "True"


async def test_a_deletion_takes_the_grants_and_waits_for_the_broker() -> None:
    team = Team(user(**PRODUCE))
    await team.reconcile()
    team.server.change(USER, deletionTimestamp="2026-01-02T00:00:00Z")
    team.broker.unreachable = True
    await team.reconcile()
    assert team.condition()[1] == "Deleting"
    assert team.server.objects[USER]["metadata"]["finalizers"]
    team.broker.unreachable = False
    await team.reconcile()
    assert team.broker.policies("shop/payments")["destination_auth"] == {}
    assert not team.server.objects[USER]["metadata"]["finalizers"]


async def test_the_deletion_of_a_paused_user_takes_the_rights_too() -> None:
    """It is newer than the pause, and after it no User is there that could take them away."""
    pod = {"serviceAccount": {"name": "billing"}}
    team = Team(user(authentication=[pod], **PRODUCE))
    await team.reconcile()
    team.server.change(USER, annotations={"heliograph.dev/paused": "true"})
    team.broker.granted.clear()
    await team.reconcile()
    assert team.broker.granted == []
    team.server.change(USER, deletionTimestamp="2026-01-02T00:00:00Z")
    team.broker.unreachable = True
    await team.reconcile()
    assert team.condition()[1] == "Deleting"
    team.broker.unreachable = False
    await team.reconcile()
    assert team.broker.policies("shop/payments")["destination_auth"] == {}
    assert team.broker.roles == {}
    assert not team.server.objects[USER]["metadata"]["finalizers"]


async def test_the_deletion_of_a_user_that_is_not_managed_leaves_the_rights() -> None:
    team = Team(user(**PRODUCE))
    await team.reconcile()
    team.server.change(USER, annotations={"heliograph.dev/managed": "false"}, deletionTimestamp="2026-01-02T00:00:00Z")
    await team.reconcile()
    assert team.broker.policies("shop/payments")["destination_auth"]
    assert not team.server.objects[USER]["metadata"]["finalizers"]


async def test_a_user_that_is_deleted_leaves_no_grant_on_a_topic_that_is_gone() -> None:
    """The topic may come back, when no User is there that could take the grant away."""
    team = Team(user(permissions=[{"topic": ORDERS, "actions": ["produce"]}]))
    await team.reconcile()
    assert team.broker.policies("shop/payments")["destination_auth"] == {ORDERS: {"team/billing": ["produce"]}}
    del team.broker.topics[ORDERS]
    team.server.change(USER, deletionTimestamp="2026-01-02T00:00:00Z")
    await team.reconcile()
    assert team.broker.policies("shop/payments")["destination_auth"] == {}
    assert not team.server.objects[USER]["metadata"]["finalizers"]


class Listed(Granting):
    """A broker whose last listing is shared until a change, or until somebody asks for a later one."""

    last: Listing | None = None

    async def listing(self, since: float, role: str | None = None) -> Listing:
        if self.last is None or since > self.last.at:
            self.last = Listing((await super().listing(since)).state, asyncio.get_running_loop().time())
        return self.last

    async def grant(self, role: str, wanted: Sequence[Change]) -> None:
        await super().grant(role, wanted)
        self.last = None


async def test_a_deletion_takes_what_somebody_granted_since_the_last_listing() -> None:
    team = Team(user(**PRODUCE))
    team.broker = Listed()
    await team.reconcile()
    await team.broker.listing(0.0)
    granted = team.broker.policies("shop/payments")
    granted["namespace_auth"]["team/billing"] = ["consume"]
    team.server.change(USER, deletionTimestamp="2026-01-02T00:00:00Z")
    await team.reconcile()
    assert granted["namespace_auth"] == {}
    assert not team.server.objects[USER]["metadata"]["finalizers"]


async def test_a_deletion_while_the_cluster_is_open_takes_the_rights_too() -> None:
    team = Team(user(**PRODUCE, **TOKEN))
    await team.reconcile()
    # Its keys, and so its tokens, are the same when it is closed again.
    team.server.objects[CLUSTER] = closed(authentication={"enabled": False})
    team.server.change(USER, deletionTimestamp="2026-01-02T00:00:00Z")
    await team.reconcile()
    assert team.broker.policies("shop/payments")["destination_auth"] == {}
    assert not team.server.objects[USER]["metadata"]["finalizers"]


async def test_a_deletion_while_the_brokers_are_stopped_waits_for_them() -> None:
    team = Team(user(**PRODUCE))
    await team.reconcile()
    cluster = team.server.objects[CLUSTER]
    team.server.objects[CLUSTER] = {**cluster, "status": {"replicas": 0, "storeFormat": "1"}}
    team.server.change(USER, deletionTimestamp="2026-01-02T00:00:00Z")
    await team.reconcile(keys=False)
    assert team.condition()[1] == "Deleting"
    assert "has no broker" in team.condition()[2]
    assert team.server.objects[USER]["metadata"]["finalizers"]
    team.server.objects[CLUSTER] = cluster
    await team.reconcile()
    assert team.broker.policies("shop/payments")["destination_auth"] == {}
    assert not team.server.objects[USER]["metadata"]["finalizers"]


async def test_a_deletion_before_there_was_a_broker_ends() -> None:
    cluster = closed()
    del cluster["status"]
    team = Team(user(**PRODUCE), cluster=cluster)
    team.server.change(USER, deletionTimestamp="2026-01-02T00:00:00Z")
    await team.reconcile(keys=False)
    assert not team.server.objects[USER]["metadata"]["finalizers"]


async def test_the_deletion_of_a_user_whose_cluster_is_gone_ends() -> None:
    team = Team(user(**PRODUCE))
    await team.reconcile()
    del team.server.objects[CLUSTER]
    team.server.change(USER, deletionTimestamp="2026-01-02T00:00:00Z")
    await team.reconcile(keys=False)
    assert not team.server.objects[USER]["metadata"]["finalizers"]


async def test_the_older_of_two_users_has_the_role_and_the_younger_takes_over() -> None:
    younger = user("again", role="team/billing", **PRODUCE, **TOKEN)
    younger["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    other = [{"namespace": "public/default", "actions": ["consume"]}]
    team = Team(younger, user(permissions=other))
    key = Key("User", "team", "again")
    await team.reconcile(key)
    assert team.condition(key=key)[1] == "Conflict"
    assert "User team/billing" in team.condition(key=key)[2]
    assert Key("Secret", "team", "again-token") not in team.server.objects
    await team.reconcile()
    assert team.condition()[1] == "Reconciled"
    team.server.change(USER, deletionTimestamp="2026-03-01T00:00:00Z")
    await team.reconcile()
    assert team.broker.policies("public/default")["namespace_auth"], "they are the heir's by now"
    del team.server.objects[USER]
    await team.reconcile(key)
    assert team.condition(key=key)[1] == "Reconciled"
    assert team.broker.policies("public/default")["namespace_auth"] == {}


@pytest.mark.parametrize("role", ["admin", "other/billing", "teams/billing"])
async def test_a_role_of_another_kubernetes_namespace_is_refused(role: str) -> None:
    team = Team(user(role=role, **PRODUCE, **TOKEN))
    await team.reconcile()
    assert team.condition()[1] == "NotAllowed"
    assert team.broker.granted == []
    assert SECRET not in team.server.objects


async def test_a_user_elsewhere_that_states_the_role_holds_up_neither_its_user_nor_its_end() -> None:
    thief = user("thief", "evil", role="team/billing", clusterRef={"name": "main", "namespace": "team"}, **PRODUCE)
    thief["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    team, key = Team(user(**PRODUCE), thief), Key("User", "evil", "thief")
    await team.reconcile(key)
    assert team.condition(key=key)[1] == "NotAllowed"
    await team.reconcile()
    assert team.condition()[1] == "Reconciled"
    assert team.broker.policies("shop/payments")["destination_auth"]
    team.server.change(USER, deletionTimestamp="2026-02-01T00:00:00Z")
    await team.reconcile()
    assert team.broker.policies("shop/payments")["destination_auth"] == {}
    assert not team.server.objects[USER]["metadata"]["finalizers"]


async def test_a_younger_user_that_is_not_allowed_takes_nothing_from_the_older() -> None:
    elsewhere: dict[str, Any] = {"clusterRef": {"name": "main", "namespace": "team"}}
    younger = user("again", "app", role="app/billing", permissions=[{"namespace": "bank/a", "actions": ["consume"]}])
    younger["spec"] |= elsewhere
    younger["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    consent = {"kubernetesNamespaces": ["app"], "tenants": ["shop"], "kinds": ["User"]}
    team = Team(user(namespace="app", **elsewhere, **PRODUCE), younger, cluster=closed(consents=[consent]))
    await team.reconcile(Key("User", "app", "billing"))
    await team.reconcile(Key("User", "app", "again"))
    assert team.condition(key=Key("User", "app", "again"))[1] == "NotAllowed"
    assert team.broker.policies("shop/payments")["destination_auth"]


async def test_a_user_of_another_kubernetes_namespace_needs_consent() -> None:
    key = Key("User", "app", "billing")
    there = user(namespace="app", clusterRef={"name": "main", "namespace": "team"}, **PRODUCE)
    team = Team(there, cluster=closed(consents=[{"kubernetesNamespaces": ["app"], "tenants": ["shop"]}]))
    await team.reconcile(key)
    assert team.condition(key=key)[1] == "NotAllowed"
    consent = {"kubernetesNamespaces": ["app"], "tenants": ["shop"], "kinds": ["User"]}
    team = Team(there, cluster=closed(consents=[consent]))
    await team.reconcile(key)
    assert team.condition(key=key)[1] == "Reconciled"
    assert team.broker.policies("shop/payments")["destination_auth"]
    team.server.objects[CLUSTER] = closed(consents=[{**consent, "tenants": ["bank"]}])
    await team.reconcile(key)
    assert "shop in tenants" in team.condition(key=key)[2]
    assert team.broker.policies("shop/payments")["destination_auth"] == {}, "without consent it has no rights"


async def test_a_user_elsewhere_that_is_paused_keeps_nothing_without_consent() -> None:
    consent = {"kubernetesNamespaces": ["other"], "tenants": ["shop"], "kinds": ["User"]}
    elsewhere = Key("User", "other", "billing")
    reference = {"name": "main", "namespace": "team"}
    team = Team(user(namespace="other", **PRODUCE | {"clusterRef": reference}), cluster=closed(consents=[consent]))
    await team.reconcile(elsewhere)
    assert team.broker.policies("shop/payments")["destination_auth"]
    team.server.change(elsewhere, annotations={"heliograph.dev/paused": "true"})
    await team.reconcile(elsewhere)
    assert team.condition(key=elsewhere)[1] == "Paused"
    assert team.broker.policies("shop/payments")["destination_auth"]
    team.server.objects[CLUSTER] = closed()
    await team.reconcile(elsewhere)
    assert team.condition(key=elsewhere)[1] == "NotAllowed"
    assert team.broker.policies("shop/payments")["destination_auth"] == {}


async def test_without_authentication_the_status_says_that_grants_have_no_effect() -> None:
    team = Team(user(**PRODUCE, **TOKEN), cluster=closed(authentication={"enabled": False}))
    await team.reconcile()
    assert team.condition()[1] == "AuthenticationDisabled"
    assert team.broker.granted == []


@pytest.mark.parametrize(("note", "reason"), [("paused", "Paused"), ("managed", "Unmanaged")])
async def test_a_user_that_is_left_alone_is_not_changed(note: str, reason: str) -> None:
    made = user(**PRODUCE, **TOKEN)
    made["metadata"]["annotations"] = {f"heliograph.dev/{note}": "true" if note == "paused" else "false"}
    team = Team(made)
    await team.reconcile()
    assert team.condition()[:2] == ("Unknown", reason)
    assert (team.broker.granted, SECRET in team.server.objects) == ([], False)


ACTION = st.sampled_from(["produce", "consume"])
PLACES = st.one_of(
    st.builds(lambda namespace: {"namespace": namespace}, st.sampled_from(["a/b", "a/c"])),
    st.builds(
        lambda namespace, topics: {"namespace": namespace, "topics": topics},
        st.sampled_from(["a/b", "a/c"]),
        st.sampled_from(["x", "x*", "y", "*"]),
    ),
    st.builds(lambda topic: {"topic": topic}, st.sampled_from(["a/b/x", "persistent://a/c/y"])),
)
PERMISSION = st.builds(
    lambda place, actions, subscriptions: (
        place | {"actions": actions} | ({"subscriptions": subscriptions} if "consume" in actions else {})
    ),
    PLACES,
    st.lists(ACTION, min_size=1, max_size=2, unique=True),
    st.lists(st.sampled_from(["s", "t"]), max_size=2, unique=True),
)


@given(st.lists(PERMISSION, max_size=4), st.lists(PERMISSION, max_size=4), st.lists(PERMISSION, max_size=3))
@settings(max_examples=200, deadline=None)
def test_the_changes_lead_to_what_is_stated_and_nothing_else(
    before: list[Any], after: list[Any], others: list[Any]
) -> None:
    state = BrokerState("1", Policies(), Policies(), {}, {}, {})
    for namespace in ("a/b", "a/c"):
        empty: dict[str, Any] = {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}}
        state.namespaces[namespace] = NamespaceState(1, Policies(kept={"auth_policies": empty}))
    for topic in ("a/b/x", "a/b/y", "a/c/x", "a/c/y"):
        state.topics[f"persistent://{topic}"] = TopicState(0, Policies())

    def make(role: str, permissions: list[Any]) -> Grants:
        spec = User.model_validate(
            {
                "apiVersion": "heliograph.dev/v1alpha1",
                "kind": "User",
                "metadata": {"name": "x"},
                "spec": {"clusterRef": {"name": "main"}, "permissions": permissions},
            }
        ).spec
        stated = stated_grants(spec.permissions)
        for each in changes(role, stated, grants_by_role(state).get(role, Grants()), state):
            apply(lambda name: state.namespaces[name].policies.kept["auth_policies"], state.topics, role, each)  # type: ignore[index]
        return stated

    of_others = make("others", others)
    make("role", before)
    stated = make("role", after)
    found = grants_by_role(state)
    assert found.get("role", Grants()) == stated
    assert found.get("others", Grants()) == of_others
    assert changes("role", stated, found.get("role", Grants()), state) == []


def test_what_a_role_gains_comes_before_what_it_loses() -> None:
    state = BrokerState("1", Policies(), Policies(), {}, {"a/b": NamespaceState(1, Policies())}, {})
    had = Grants({"a/b": frozenset(["produce"])}, {}, {("a/b", "s")})
    wanted = Grants({}, {"persistent://a/b/x*": frozenset(["produce"])}, {("a/b", "t")})
    found = changes("role", wanted, had, state)
    assert found == [
        TopicGrant("persistent://a/b/x*", ("produce",)),
        SubscriptionRoles("a/b", "t", ("role",)),
        NamespaceGrant("a/b", ()),
        SubscriptionRoles("a/b", "s", ()),
    ]


def test_names_with_dots_are_names() -> None:
    stated = [
        {"namespace": "a.b/...", "topics": "..*", "actions": ["produce"]},
        {"topic": "a/..b/c..", "subscriptions": [".s", "..."], "actions": ["consume"]},
    ]
    assert len(User.model_validate(user(permissions=stated) | {"metadata": {"name": "x"}}).spec.permissions) == 2


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"authentication": [{}]}, "one way"),
        ({"authentication": [{"token": {}, "certificate": {"subject": "CN=x"}}]}, "one way"),
        ({"authentication": [{"certificate": {}}]}, "known by one name"),
        ({"authentication": [{"certificate": {"subject": "CN=x", "dnsName": "x"}}]}, "known by one name"),
        ({"authentication": [{"certificate": {"subject": "billing"}}]}, "CN= and the name"),
        ({"authentication": [{"certificate": {"dnsName": "Billing!"}}]}, "not a DNS name"),
        ({"authentication": [{"oidc": {"issuer": "http://x", "subject": "y"}}]}, "a URL with https"),
        ({"authentication": [{"token": {}}, {"token": {}}]}, "more than one token"),
        ({"authentication": [{"token": {"validity": "1d", "rotateBefore": "1d"}}]}, "not shorter than validity"),
        ({"authentication": [{"token": {"rotateBefore": "0"}}]}, "before its end"),
        ({"authentication": [{"token": {"validity": "1s", "rotateBefore": "1ms"}}]}, "from 10m"),
        ({"permissions": [{"actions": ["produce"]}]}, "one place"),
        ({"permissions": [{"topics": "x", "topic": "a/b/c", "actions": ["produce"]}]}, "one place"),
        ({"permissions": [{"namespace": "a/b", "topic": "a/b/c", "actions": ["produce"]}]}, "one place"),
        ({"permissions": [{"namespace": "a", "actions": ["produce"]}]}, "tenant/namespace"),
        ({"permissions": [{"namespace": "a/b", "topics": "x*y", "actions": ["produce"]}]}, "at its end"),
        ({"permissions": [{"namespace": "a/b", "subscriptions": ["s"], "actions": ["produce"]}]}, "consume"),
        (
            {
                "permissions": [
                    {"namespace": "a/b", "actions": ["produce"]},
                    {"namespace": "../b", "actions": ["produce"]},
                ]
            },
            "spec.permissions[1].namespace: '../b' has the name . or .., which no request can have; valid: other names",
        ),
        ({"permissions": [{"namespace": "a/.", "actions": ["produce"]}]}, "permissions[0].namespace: 'a/.' has the"),
        ({"permissions": [{"namespace": "a/b", "topics": "..", "actions": ["produce"]}]}, "topics: '..' has the name"),
        ({"permissions": [{"topic": "a/b/..", "actions": ["produce"]}]}, "topic: 'a/b/..' has the name"),
        ({"permissions": [{"topic": "persistent://./b/c", "actions": ["produce"]}]}, "topic: 'persistent://./b/c' has"),
        (
            {"permissions": [{"namespace": "a/b", "subscriptions": ["s", ".."], "actions": ["consume"]}]},
            "spec.permissions[0].subscriptions[1]: '..' has the name",
        ),
        ({"permissions": [{"namespace": "a/b", "actions": ["admin"]}]}, "admin"),
        ({"permissions": [{"namespace": "a/b", "actions": []}]}, "actions"),
        ({"role": "heliograph:operator"}, "Heliograph's own"),
        ({"role": "a,b"}, "not a role"),
        ({"limits": {"connections": -1}}, "valid: 0 or more"),
        ({"limits": {"topics": 5}}, "unknown field"),
    ],
)
def test_a_spec_that_is_wrong_is_refused(spec: dict[str, Any], problem: str) -> None:
    document = {
        "apiVersion": "heliograph.dev/v1alpha1",
        "kind": "User",
        "metadata": {"name": "billing"},
        "spec": {"clusterRef": {"name": "main"}, **spec},
    }
    with pytest.raises(ValidationError) as found:
        User.model_validate(document)
    assert problem in "; ".join(explain(found.value, User, document))
