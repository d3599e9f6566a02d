"""A User: its role has the grants that it states and no others, and its clients a token that is replaced in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from heliograph_api.admin.admin_client import AdminRefused
from heliograph_api.manifests.explain import explain
from heliograph_api.policies.policies import Policies, Rate
from heliograph_api.resources.broker_state import BrokerState, NamespaceState, TopicState
from heliograph_api.resources.model import User
from heliograph_api.resources.role_state import (
    ProvenIdentity,
    RoleLimits,
    RoleSettings,
    RoleState,
    service_account,
)
from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.cluster.cluster_keys import ClusterKeys
from heliograph_operator.decide.token_secrets import decoded
from heliograph_operator.decide.user_activity import Activity, worth_writing
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
from heliograph_operator.objects.conditions import condition
from heliograph_operator.objects.kinds import FINALIZER, Body, Key
from heliograph_operator.objects.user_roles import UserRoles
from heliograph_operator.user.user_reconciler import UserReconciler
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from pydantic import ValidationError

from .api_server import resource_of
from .bodies import body
from .cluster_keys import cluster_reconciler, tokens
from .installation import Broker, OneBroker, Server

CLUSTER = Key("BrokerCluster", "team", "main")
USER = Key("User", "team", "billing")
SECRET = Key("Secret", "team", "billing-token")
ORDERS = "persistent://shop/payments/orders"
TOKEN: dict[str, Any] = {"authentication": [{"token": {"validity": "30d", "rotateBefore": "7d"}}]}
PRODUCE: dict[str, Any] = {
    "permissions": [{"namespace": "shop/payments", "topics": "orders-*", "actions": ["produce"]}]
}
DAY = timedelta(days=1)


def user(name: str = "billing", namespace: str = "team", **spec: Any) -> dict[str, Any]:
    made = body("User", name, {"clusterRef": {"name": "main"}, **spec}, namespace=namespace, uid=f"{namespace}-{name}")
    return made | {"metadata": made["metadata"] | {"finalizers": [FINALIZER]}}


def closed(**spec: Any) -> dict[str, Any]:
    made = body("BrokerCluster", "main", {"authentication": {"enabled": True}, **spec}, finalizers=[FINALIZER])
    urls = {
        "http": "http://main-admin.team.svc.cluster.local:8080",
        "broker": "pulsar://main.team.svc.cluster.local:6650",
    }
    return {**made, "status": {"endpoints": urls, "readyReplicas": 1}}


class Granting(Broker):
    """A broker that keeps grants as the admin API does."""

    def __init__(self) -> None:
        super().__init__()
        self.namespaces["shop/payments"] = NamespaceState(4, Policies())
        self.topics[ORDERS] = TopicState(0, Policies())
        self.granted: list[str] = []
        self.set_roles: list[str] = []

    def policies(self, namespace: str) -> dict[str, Any]:
        kept = self.namespaces[namespace].policies
        empty: dict[str, Any] = {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}}
        kept.kept = kept.kept or {"auth_policies": deepcopy(empty)}
        found: dict[str, Any] = kept.kept["auth_policies"]
        return found

    async def grant(self, role: str, wanted: Sequence[Change]) -> None:
        self._reach()
        for each in wanted:
            self.granted.append(str(each))
            apply(self.policies, self.topics, role, each)

    async def set_role(self, role: str, settings: RoleSettings | None) -> None:
        self._reach()
        assert self.roles is not None
        self.set_roles.append(role)
        if settings is None:
            del self.roles[role]
            return
        for other, has in self.roles.items():
            if other != role and (shared := {*settings.identities} & {*has.identities}):
                raise AdminRefused(409, f"{shared} prove the role {other} already")
        self.roles[role] = settings


def apply(policies: Any, topics: Any, role: str, each: Change) -> None:
    """Change grants as the admin API does."""
    if isinstance(each, NamespaceGrant):
        roles = policies(each.namespace)["namespace_auth"]
        roles.pop(role, None) if not each.actions else roles.update({role: list(each.actions)})
    elif isinstance(each, TopicGrant):
        of_topics = policies(each.topic.partition("://")[2].rpartition("/")[0])["destination_auth"]
        is_known = each.topic in topics or (not each.actions and each.topic in of_topics)
        if not each.topic.endswith("*") and not is_known:
            raise AdminRefused(404, f"Topic {each.topic} not found")
        roles = of_topics.setdefault(each.topic, {})
        roles.pop(role, None) if not each.actions else roles.update({role: list(each.actions)})
        if not roles:
            del of_topics[each.topic]
    else:
        named = policies(each.namespace)["subscription_auth_roles"]
        left = list(each.roles) or [name for name in named[each.subscription] if name != role]
        named[each.subscription] = left
        if not left:
            del named[each.subscription]


class Team:
    """An API server, a broker, and an operator that keeps its memory."""

    def __init__(self, *bodies: Body, cluster: Body | None = None) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.server = Server(cluster or closed(), *bodies)
        self.broker = Granting()
        self.tokens = tokens(lambda: self.now)
        self.keys = ClusterKeys(self.tokens, lambda: self.now)
        self.trust = BrokerTrust()

    async def reconcile(self, key: Key = USER, *, keys: bool = True) -> Outcome:
        """Reconcile the BrokerCluster's keys and one User."""
        context = self.context()
        if keys and key.namespace == "team":
            await self._cluster(context)
        users = UserReconciler(OneBroker(self.broker), self.tokens, self.roles, self.trust, lambda: self.now)
        return await users.reconcile(context, resource_of(context, key))

    def context(self) -> Context:
        context = self.server.context()
        self.roles = UserRoles()
        for key in context.cache.keys(""):
            found = context.cache.get(key)
            assert found is not None
            self.tokens.seen(None, found)
            self.roles.seen(None, found)
        return context

    async def _cluster(self, context: Context) -> None:
        before = self.server.objects[CLUSTER]
        reconciler = cluster_reconciler(OneBroker(self.broker), self.keys)
        await reconciler.reconcile(context, resource_of(context, CLUSTER))
        self.server.objects[CLUSTER] = before

    def condition(self, kind: str = "Ready", key: Key = USER) -> tuple[str, str, str]:
        found = condition(self.server.objects[key].get("status", {}), kind)
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    def entries(self, key: Key = SECRET) -> dict[str, str]:
        return decoded(self.server.objects[key])


# -- grants --------------------------------------------------------------------------------------------------------


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
    context = team.context()
    users = UserReconciler(OneBroker(team.broker), team.tokens, team.roles, BrokerTrust(), lambda: team.now)
    resource = resource_of(context, USER)
    await users.reconcile(context, resource)
    listing = await team.broker.listing(0.0)
    assert resource.memory.observed == listing.role("team/billing")
    team.broker.policies("shop/payments")["namespace_auth"]["team/billing"] = ["consume"]
    assert (await team.broker.listing(0.0)).role("team/billing") != resource.memory.observed
    await users.reconcile(context, resource)
    assert (await team.broker.listing(0.0)).role("team/billing") == resource.memory.observed
    await team.broker.set_role("team/billing", None)
    assert (await team.broker.listing(0.0)).role("team/billing") != resource.memory.observed


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


# -- credentials ---------------------------------------------------------------------------------------------------


async def test_the_secret_leads_to_the_port_with_tls_and_has_the_authorities() -> None:
    team = Team(user(**PRODUCE, **TOKEN), cluster=closed(tls={"enabled": True}))
    team.trust.use(CLUSTER, [], "the authorities")
    await team.reconcile()
    entries = team.entries()
    assert (entries["uri"], entries["port"]) == ("pulsar+ssl://main.team.svc.cluster.local:6651", "6651")
    assert entries["ca.crt"] == "the authorities"
    # An operator that has just started does not know them yet, and takes none away.
    team.trust.forget(CLUSTER)
    await team.reconcile()
    assert team.entries() == entries
    team.trust.use(CLUSTER, [], "others")
    await team.reconcile()
    assert team.entries() == {**entries, "ca.crt": "others"}


async def test_the_secret_has_the_layout_of_service_bindings() -> None:
    team = Team(user(**PRODUCE, **TOKEN))
    await team.reconcile()
    secret = team.server.objects[SECRET]
    assert secret["type"] == "servicebinding.io/pulsar"
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "team-billing"
    entries = team.entries()
    assert {name: each for name, each in entries.items() if name != "token"} == {
        "type": "pulsar",
        "provider": "heliograph",
        "host": "main.team.svc.cluster.local",
        "port": "6650",
        "uri": "pulsar://main.team.svc.cluster.local:6650",
    }
    signer = team.tokens.signer(CLUSTER)
    assert signer is not None
    issued = signer.read(entries["token"])
    assert issued is not None
    assert (issued.role, issued.expires) == ("team/billing", team.now + 30 * DAY)
    status = team.server.objects[USER]["status"]
    assert status["credentials"] == {"name": "billing-token"}
    assert status["tokenExpires"] == "2026-01-31T00:00:00Z"
    assert team.condition("CredentialsIssued")[:2] == ("True", "CredentialsIssued")
    assert team.condition("Expiring")[:2] == ("False", "CredentialsValid")
    shown = json.dumps([team.server.events, status])
    assert entries["token"] not in shown


async def test_the_secret_needs_no_right_to_finalizers_of_users() -> None:
    # Some clusters refuse objects that block their owner's deletion to those who may not change its finalizers.
    team = Team(user(**TOKEN))
    await team.reconcile()
    (owner,) = team.server.objects[SECRET]["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("team-billing", True)
    assert not owner.get("blockOwnerDeletion")


async def test_a_token_is_replaced_in_time_and_the_one_before_stays_valid() -> None:
    team = Team(user(**TOKEN))
    await team.reconcile()
    first = team.entries()["token"]
    team.now += 23 * DAY - timedelta(seconds=1)
    await team.reconcile()
    assert team.entries()["token"] == first
    team.now += timedelta(seconds=1)
    await team.reconcile()
    assert team.entries()["token"] != first
    signer = team.tokens.signer(CLUSTER)
    assert signer is not None
    before = signer.read(first)
    assert before is not None
    assert before.expires > team.now


@pytest.mark.parametrize("what", ["deleted", "changed", "emptied"])
async def test_a_secret_that_somebody_changed_is_right_again(what: str) -> None:
    team = Team(user(**TOKEN))
    await team.reconcile()
    if what == "deleted":
        del team.server.objects[SECRET]
    elif what == "changed":
        team.server.objects[SECRET]["data"]["uri"] = "cHVsc2FyOi8vZXZpbA=="
    else:
        team.server.objects[SECRET] = {**team.server.objects[SECRET], "data": {}}
    await team.reconcile()
    assert team.entries()["uri"] == "pulsar://main.team.svc.cluster.local:6650"
    assert team.entries()["token"]


async def test_a_secret_of_another_owner_is_not_touched() -> None:
    foreign = body("Secret", "billing-token", labels={"app.kubernetes.io/managed-by": "heliograph-operator"})
    team = Team(user(**PRODUCE, **TOKEN), foreign)
    await team.reconcile()
    assert team.server.objects[SECRET] == foreign
    assert team.condition()[:2] == ("False", "Conflict")
    assert team.condition("CredentialsIssued")[:2] == ("False", "CredentialsPending")
    assert team.broker.granted, "its grants do not wait for that"


async def test_a_token_by_keys_that_were_revoked_is_replaced() -> None:
    team = Team(user(**TOKEN))
    await team.reconcile()
    first = team.entries()["token"]
    for name in ("main-token-signing-key", "main-token-keys"):
        del team.server.objects[Key("Secret", "team", name)]
    await team.reconcile()
    assert team.entries()["token"] != first


async def test_while_no_key_signs_the_token_stays_and_the_status_says_when_it_expires() -> None:
    team = Team(user(**TOKEN))
    await team.reconcile()
    first = team.entries()["token"]
    del team.server.objects[Key("Secret", "team", "main-token-signing-key")]
    team.now += 25 * DAY
    await team.reconcile()
    assert team.entries()["token"] == first
    assert team.condition("Expiring")[:2] == ("True", "CredentialsExpiring")
    team.now += 6 * DAY
    team.tokens.use(team.server.objects[CLUSTER], None)
    await team.reconcile(keys=False)
    assert team.condition("Expiring")[:2] == ("True", "CredentialsExpired")


@pytest.mark.parametrize("why", ["open", "paused"])
async def test_a_token_that_nobody_replaces_is_told(why: str) -> None:
    team = Team(user(**TOKEN))
    await team.reconcile()
    if why == "open":
        team.server.objects[CLUSTER] = closed(authentication={"enabled": False})
    else:
        team.server.change(USER, annotations={"heliograph.dev/paused": "true"})
    team.now += 25 * DAY
    await team.reconcile()
    assert team.condition("Expiring")[:2] == ("True", "CredentialsExpiring")
    team.now += 6 * DAY
    await team.reconcile()
    assert team.condition("Expiring")[:2] == ("True", "CredentialsExpired")


async def test_a_token_that_the_cluster_does_not_allow_is_not_issued() -> None:
    team = Team(user(authentication=[{"token": {"validity": "100d"}}]))
    await team.reconcile()
    status, reason, message = team.condition()
    assert (status, reason) == ("False", "NotAllowed")
    assert "valid: at most 90d" in message
    assert SECRET not in team.server.objects


# -- identities ------------------------------------------------------------------------------------------------------

POD: dict[str, Any] = {"serviceAccount": {"name": "billing"}}
ISSUER = "https://login.example.com"
WAYS = [POD, {"certificate": {"subject": "CN=billing"}}, {"oidc": {"issuer": ISSUER, "subject": "billing"}}]
OF_POD = service_account("team", "billing")


def proofs(*ways: dict[str, Any]) -> dict[str, Any]:
    return {"authentication": list(ways)}


def not_in_effect(team: Team, key: Key = USER) -> list[str]:
    named: list[str] = team.server.objects[key]["status"].get("notInEffect") or []
    return [each.split(":")[0].rpartition(".")[2] for each in named]


def older(body: Body) -> Body:
    body["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    return body


async def test_a_role_gets_the_identities_that_its_user_states() -> None:
    more = {"certificate": {"dnsName": "billing.example.org"}}
    team = Team(user(**proofs(*WAYS, more), **PRODUCE))
    await team.reconcile()
    assert team.condition()[:2] == ("True", "Reconciled")
    wanted = [
        OF_POD,
        ProvenIdentity("certificate", "CN=billing"),
        ProvenIdentity("oidc", "billing", ISSUER),
        ProvenIdentity("certificate", "DNS:billing.example.org"),
    ]
    assert team.broker.roles == {"team/billing": RoleSettings(wanted)}
    await team.reconcile()
    assert team.broker.set_roles == ["team/billing"], "nothing is repeated"
    assert team.roles.on(CLUSTER) == ["team/billing"], "identities are no roles"
    await team.broker.set_role("team/billing", RoleSettings([ProvenIdentity("certificate", "CN=somebody")]))
    await team.reconcile()
    assert team.broker.roles == {"team/billing": RoleSettings(wanted)}


async def test_identities_that_the_user_does_not_state_any_more_are_gone_and_all_with_the_user() -> None:
    team = Team(user(**proofs(*WAYS)))
    team.broker.roles = {"others": RoleSettings([service_account("other", "x")])}
    await team.reconcile()
    team.server.objects[USER]["spec"]["authentication"] = [POD]
    team.server.change(USER, generation=2)
    await team.reconcile()
    assert team.broker.roles == {
        "team/billing": RoleSettings([OF_POD]),
        "others": RoleSettings([service_account("other", "x")]),
    }
    team.server.change(USER, deletionTimestamp="2026-01-02T00:00:00Z")
    await team.reconcile()
    assert list(team.broker.roles) == ["others"]


async def test_ways_that_are_not_in_effect_are_named() -> None:
    team = Team(user(**proofs(*WAYS)))
    await team.reconcile()
    assert not_in_effect(team) == ["serviceAccount", "certificate", "oidc"]
    assert team.condition("CredentialsIssued")[:2] == ("False", "NoCredentials")
    accepting = {"serviceAccounts": {"enabled": True}, "oidc": {"issuers": [ISSUER], "audiences": ["heliograph"]}}
    team = Team(user(**proofs(*WAYS)), cluster=closed(authentication={"enabled": True, **accepting}))
    await team.reconcile()
    assert not_in_effect(team) == ["certificate"]
    by_certificate = {
        "tls": {"enabled": True, "clientCA": {"secretRef": {"name": "client-ca"}}},
        "config": {"auth": "tls"},
    }
    team = Team(user(**proofs(WAYS[1])), cluster=closed(**by_certificate))
    await team.reconcile()
    assert not_in_effect(team) == []


async def test_a_role_gets_the_limits_that_its_user_states() -> None:
    rate = {"messages": 100, "bytes": "1Mi"}
    team = Team(user(limits={"connections": 5, "producers": 0, "publishRate": rate}))
    await team.reconcile()
    wanted = RoleLimits(connections=5, producers=0, publish_rate=Rate(100, 1024 * 1024, 1))
    assert team.broker.roles == {"team/billing": RoleSettings([], wanted)}
    del team.server.objects[USER]["spec"]["limits"]
    team.server.change(USER, generation=2)
    await team.reconcile()
    assert team.broker.roles == {"team/billing": RoleSettings()}


async def test_a_broker_that_knows_of_no_identities_is_left_alone() -> None:
    team = Team(user(**proofs(POD), **PRODUCE))
    team.broker.roles = None
    await team.reconcile()
    assert team.condition()[:2] == ("True", "Reconciled")
    assert "a newer image" in team.server.objects[USER]["status"]["notInEffect"][0]
    team.server.change(USER, deletionTimestamp="2026-01-02T00:00:00Z")
    await team.reconcile()
    assert not team.server.objects[USER]["metadata"]["finalizers"]


async def test_the_older_of_two_users_has_the_identity_and_the_younger_takes_over() -> None:
    other = Key("User", "team", "other")
    team = Team(user(**proofs(POD, WAYS[1])), older(user("other", **proofs(POD))))
    await team.reconcile()
    assert team.condition()[:2] == ("False", "Conflict")
    assert "spec.authentication[0].serviceAccount: User team/other is older" in team.condition()[2]
    assert team.broker.roles == {"team/billing": RoleSettings([ProvenIdentity("certificate", "CN=billing")])}
    await team.reconcile(other)
    assert team.condition(key=other)[1] == "Reconciled"
    team.server.change(other, deletionTimestamp="2026-03-01T00:00:00Z")
    context = team.context()
    users = UserReconciler(OneBroker(team.broker), team.tokens, team.roles, team.trust, lambda: team.now)
    await users.reconcile(context, resource_of(context, other))
    assert await context.queue.take() == USER, "the heir follows"
    del team.server.objects[other]
    await team.reconcile()
    assert team.condition()[1] == "Reconciled"
    assert team.broker.roles == {"team/billing": RoleSettings([OF_POD, ProvenIdentity("certificate", "CN=billing")])}


async def test_an_older_user_gets_an_identity_that_the_younger_still_has_in_the_broker() -> None:
    other = Key("User", "team", "other")
    team = Team(user(**proofs(POD)), older(user("other")))
    await team.reconcile()
    team.server.objects[other]["spec"]["authentication"] = [POD]
    await team.reconcile(other)
    assert team.condition(key=other)[1] == "Refused"
    await team.reconcile()
    await team.reconcile(other)
    assert (team.condition()[1], team.condition(key=other)[1]) == ("Conflict", "Reconciled")
    assert team.broker.roles == {"team/billing": RoleSettings(), "team/other": RoleSettings([OF_POD])}


async def test_a_user_of_another_kubernetes_namespace_names_its_own_service_accounts_only() -> None:
    key = Key("User", "app", "billing")
    there = user(namespace="app", clusterRef={"name": "main", "namespace": "team"}, **proofs(*WAYS))
    consent = {"kubernetesNamespaces": ["app"], "tenants": ["shop"], "kinds": ["User"]}
    team = Team(there, cluster=closed(consents=[consent]))
    await team.reconcile(key)
    assert team.broker.roles == {"app/billing": RoleSettings([service_account("app", "billing")])}
    named = team.server.objects[key]["status"]["notInEffect"]
    assert "only Users in the Kubernetes namespace of BrokerCluster team/main may name these" in named[1]
    team.server.objects[CLUSTER] = closed()
    await team.reconcile(key)
    assert team.broker.roles == {}, "without consent nothing proves its role"


async def test_the_status_tells_of_the_clients_of_the_role() -> None:
    team = Team(user(**PRODUCE))
    minute = 60_000
    team.broker.clients["team/billing"] = RoleState(RoleSettings(), 3, 5 * minute, 7)
    await team.reconcile()
    status = team.server.objects[USER]["status"]
    assert (status["connections"], status["deniedLastHour"]) == (3, 7)
    assert (status["lastSeen"], status["countedSince"]) == ("1970-01-01T00:05:00Z", "1970-01-01T00:00:00Z")
    # A broker that has started again knows of nobody yet: what was known stays, and it counts from then.
    team.broker.clients.clear()
    team.broker.started_ms = 9 * minute
    await team.reconcile()
    status = team.server.objects[USER]["status"]
    assert (status["connections"], status["deniedLastHour"]) == (0, 0)
    assert (status["lastSeen"], status["countedSince"]) == ("1970-01-01T00:05:00Z", "1970-01-01T00:09:00Z")
    team.broker.unreachable = True
    await team.reconcile()
    assert team.server.objects[USER]["status"]["connections"] == 0


@pytest.mark.parametrize(
    ("now", "age_s", "worth"),
    [
        (Activity(2, 0, 0, 0), 3600.0, False),
        (Activity(3, 0, 0, 0), 59.0, False),
        (Activity(3, 0, 0, 0), 60.0, True),
        (Activity(0, 0, 0, 0), 0.0, True),
        (Activity(2, 0, 5, 0), 1.0, False),
        (Activity(2, 0, 5, 0), 61.0, True),
        (Activity(2, 540_000, 0, 0), 540.0, False),
        (Activity(2, 600_000, 0, 0), 600.0, True),
        (Activity(2, 0, 0, 1), 0.0, True),
        (None, 0.0, True),
    ],
)
def test_activity_is_not_written_at_every_request(now: Activity | None, age_s: float, worth: bool) -> None:
    assert worth_writing(Activity(2, 0, 0, 0), now, age_s) is worth
    assert worth_writing(None, now, age_s) is (now is not None)


class Population(RuleBasedStateMachine):
    """Users that come, change and go, and an operator that looks at one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.team = Team()

    @rule(name=st.sampled_from("abc"), names=st.sets(st.sampled_from("xyz")), age=st.integers(1, 9))
    def state(self, name: str, names: set[str], age: int) -> None:
        made = user(name, **proofs(*({"serviceAccount": {"name": each}} for each in sorted(names))))
        made["metadata"]["creationTimestamp"] = f"2025-01-0{age}T00:00:00Z"
        self.team.server.objects[Key("User", "team", name)] = made

    @rule(name=st.sampled_from("abc"))
    def delete(self, name: str) -> None:
        key = Key("User", "team", name)
        if key in self.team.server.objects:
            self.team.server.change(key, deletionTimestamp="2026-01-02T00:00:00Z")

    @rule(name=st.sampled_from("abc"))
    def reconcile(self, name: str) -> None:
        key = Key("User", "team", name)
        if key in self.team.server.objects:
            asyncio.run(self.team.reconcile(key, keys=False))
            if not self.team.server.objects[key]["metadata"]["finalizers"]:
                del self.team.server.objects[key]

    def teardown(self) -> None:
        """Looking at all of them again and again ends where each identity is of the oldest that states it."""
        for _ in range(4):
            for name in "abc":
                self.reconcile(name)
        stated = sorted(
            (body["metadata"]["creationTimestamp"], body["metadata"]["uid"], key.name, each["serviceAccount"]["name"])
            for key, body in self.team.server.objects.items()
            if key.kind == "User"
            for each in body["spec"]["authentication"]
        )
        wanted: dict[str, str] = {}
        for _, _, user_name, account in stated:
            wanted.setdefault(account, f"team/{user_name}")
        assert self.team.broker.roles is not None
        found = {
            identity.name.rpartition(":")[2]: role
            for role, each in self.team.broker.roles.items()
            for identity in each.identities
        }
        assert found == wanted


def test_whatever_happens_an_identity_is_of_the_oldest_user_that_states_it() -> None:
    run_state_machine_as_test(Population, settings=settings(max_examples=25, stateful_step_count=12, deadline=None))


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
