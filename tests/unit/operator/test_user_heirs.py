"""A User is deleted, and a younger one has its role: what nobody states any more is gone, also if that one waits."""

from __future__ import annotations

from typing import Any

from heliograph_api.resources.role_state import RoleLimits, RoleSettings, service_account
from heliograph_operator.objects.kinds import Key

from .users import USER, Team, closed, user

AGAIN = Key("User", "team", "again")


async def with_an_heir(**spec: Any) -> Team:
    """Return a User with rights, which is deleted, and a younger one with its role that was held up by it."""
    younger = user("again", role="team/billing", **spec)
    younger["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    proofs = [{"serviceAccount": {"name": each}} for each in ("billing", "other")]
    permissions = [{"namespace": "shop/payments", "actions": ["produce", "consume"], "subscriptions": ["s", "t"]}]
    team = Team(younger, user(authentication=proofs, permissions=permissions, limits={"connections": 5}))
    await team.reconcile()
    await team.reconcile(AGAIN)
    assert team.condition(key=AGAIN)[1] == "Conflict"
    team.server.change(USER, deletionTimestamp="2026-03-01T00:00:00Z")
    return team


async def test_a_paused_heir_keeps_what_it_states_of_the_rights_and_gets_no_others() -> None:
    stated = [
        {"namespace": "shop/payments", "actions": ["consume"], "subscriptions": ["t", "u"]},
        {"namespace": "public/default", "actions": ["produce"]},
    ]
    proofs = [{"serviceAccount": {"name": each}} for each in ("other", "third")]
    team = await with_an_heir(permissions=stated, authentication=proofs)
    team.server.change(AGAIN, annotations={"heliograph.dev/paused": "true"})
    team.broker.unreachable = True
    await team.reconcile()
    assert team.condition()[1] == "Deleting"
    team.broker.unreachable = False
    await team.reconcile()
    assert not team.server.objects[USER]["metadata"]["finalizers"]
    granted = team.broker.policies("shop/payments")
    assert granted["namespace_auth"] == {"team/billing": ["consume"]}
    assert granted["subscription_auth_roles"] == {"t": ["team/billing"]}
    assert team.broker.policies("public/default")["namespace_auth"] == {}
    # A limit takes no right, so it stays until the heir's are set.
    limits = RoleLimits(connections=5)
    assert team.broker.roles == {"team/billing": RoleSettings([service_account("team", "other")], limits)}
    del team.server.objects[USER]
    team.server.change(AGAIN, annotations={"heliograph.dev/paused": "false"})
    await team.reconcile(AGAIN)
    assert team.condition(key=AGAIN)[1] == "Reconciled"
    assert team.broker.policies("public/default")["namespace_auth"] == {"team/billing": ["produce"]}


async def test_an_heir_that_is_invalid_keeps_nothing() -> None:
    team = await with_an_heir(permissions=[{"namespace": "shop/payments", "actions": ["consume"]}])
    team.server.objects[AGAIN]["spec"]["permissions"] = [{"namespace": "shop/payments", "actions": ["admin"]}]
    team.server.objects[AGAIN]["metadata"]["generation"] = 2
    await team.reconcile()
    assert not team.server.objects[USER]["metadata"]["finalizers"]
    granted = team.broker.policies("shop/payments")
    assert granted["namespace_auth"] == granted["subscription_auth_roles"] == {}
    assert team.broker.roles == {}


async def test_a_paused_heir_whose_end_nobody_would_wait_for_keeps_nothing() -> None:
    """Without the finalizer, its deletion would not take the rights away."""
    team = await with_an_heir(permissions=[{"namespace": "shop/payments", "actions": ["consume"]}])
    team.server.change(AGAIN, annotations={"heliograph.dev/paused": "true"}, finalizers=[])
    await team.reconcile()
    assert team.broker.policies("shop/payments")["namespace_auth"] == {}
    assert team.broker.roles == {}


async def test_a_paused_heir_without_consent_keeps_nothing() -> None:
    elsewhere: dict[str, Any] = {"clusterRef": {"name": "main", "namespace": "team"}}
    consent = {"kubernetesNamespaces": ["app"], "tenants": ["shop"], "kinds": ["User"]}
    permissions = [{"namespace": each, "actions": ["consume"]} for each in ("shop/payments", "public/default")]
    younger = user("again", "app", role="app/billing", **elsewhere, permissions=permissions)
    younger["metadata"] |= {
        "creationTimestamp": "2026-02-01T00:00:00Z",
        "annotations": {"heliograph.dev/paused": "true"},
    }
    older = user("billing", "app", **elsewhere, permissions=permissions[:1])
    team, key = Team(older, younger, cluster=closed(consents=[consent])), Key("User", "app", "billing")
    await team.reconcile(key)
    assert team.broker.policies("shop/payments")["namespace_auth"] == {"app/billing": ["consume"]}
    team.server.change(key, deletionTimestamp="2026-03-01T00:00:00Z")
    await team.reconcile(key)
    assert team.broker.policies("shop/payments")["namespace_auth"] == {}


async def test_the_deletion_of_a_younger_user_takes_nothing_from_a_paused_or_invalid_older_one() -> None:
    team = await with_an_heir(permissions=[])
    team.server.change(USER, deletionTimestamp=None, annotations={"heliograph.dev/paused": "true"})
    team.server.change(AGAIN, deletionTimestamp="2026-03-01T00:00:00Z")
    await team.reconcile(AGAIN)
    assert not team.server.objects[AGAIN]["metadata"]["finalizers"]
    assert team.broker.policies("shop/payments")["namespace_auth"] == {"team/billing": ["consume", "produce"]}


async def test_the_rights_wait_for_an_heir_that_is_not_held_yet() -> None:
    """Its deletion could come before its first reconcile, and would leave the rights to nobody."""
    team = await with_an_heir(permissions=[{"namespace": "shop/payments", "actions": ["consume"]}])
    team.server.change(AGAIN, finalizers=[])
    outcome = await team.reconcile()
    assert outcome.requeue_s is not None
    assert team.server.objects[USER]["metadata"]["finalizers"]
    del team.server.objects[AGAIN]
    await team.reconcile()
    assert not team.server.objects[USER]["metadata"]["finalizers"]
    assert team.broker.policies("shop/payments")["namespace_auth"] == {}
    assert team.broker.roles == {}


async def test_an_heir_that_gets_the_finalizer_takes_the_role_over() -> None:
    team = await with_an_heir(permissions=[{"namespace": "shop/payments", "actions": ["consume"]}])
    team.server.change(AGAIN, finalizers=[])
    await team.reconcile()
    await team.reconcile(AGAIN)
    await team.reconcile()
    assert not team.server.objects[USER]["metadata"]["finalizers"]
    await team.reconcile(AGAIN)
    assert team.broker.policies("shop/payments")["namespace_auth"] == {"team/billing": ["consume"]}
