"""The identities of a User, which prove its role, its limits, and what the status tells of its clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from heliograph_api.policies.policies import Rate
from heliograph_api.resources.role_state import (
    ProvenIdentity,
    RoleLimits,
    RoleSettings,
    RoleState,
    service_account,
)
from heliograph_operator.decide.user_activity import Activity, worth_writing
from heliograph_operator.objects.kinds import Body, Key
from heliograph_operator.user.user_reconciler import UserReconciler
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from .api_server import resource_of
from .installation import OneBroker
from .users import CLUSTER, PRODUCE, USER, Team, closed, user

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
    # The listing with its role is the next one.
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
