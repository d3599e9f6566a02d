"""The token of a User, which is in a Secret and replaced in time."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from heliograph_operator.objects.kinds import Key

from .bodies import body
from .users import CLUSTER, DAY, PRODUCE, SECRET, TOKEN, USER, Team, closed, user


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


async def test_the_secret_of_a_user_with_a_long_name_can_be_created() -> None:
    """A label has 63 characters at most, a name 253."""
    name = "a" * 200
    key = Key("User", "team", name)
    team = Team(user(name, **TOKEN))
    await team.reconcile(key)
    made = team.server.objects[Key("Secret", "team", f"{name}-token")]["metadata"]["labels"]
    assert max(map(len, made.values())) <= 63
    assert made["app.kubernetes.io/component"] == "credentials"


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
    await team.reconcile()
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


@pytest.mark.parametrize("after", ["another name", "no token"])
async def test_a_secret_that_the_user_names_no_more_loses_its_token_and_goes(after: str) -> None:
    team = Team(user(**PRODUCE, **TOKEN))
    await team.reconcile()
    elsewhere = {"token": {"secretName": "elsewhere", "validity": "30d", "rotateBefore": "7d"}}
    wanted = [elsewhere] if after == "another name" else []
    team.server.objects[USER]["spec"] = {**team.server.objects[USER]["spec"], "authentication": wanted}
    team.server.change(USER, generation=2)
    team.server.events.clear()
    await team.reconcile()
    assert team.entries() == {}
    (owner,) = team.server.objects[SECRET]["metadata"]["ownerReferences"]
    # Kubernetes deletes what has no owner that exists: the operator has no right to delete Secrets.
    assert owner["uid"] not in {each["metadata"]["uid"] for each in team.server.objects.values()}
    (event,) = [message for reason, message in team.server.events if reason == "TokenRemoved"]
    assert event == "Secret billing-token is deleted with its token, which stays valid until 2026-01-31T00:00:00Z"
    status = team.server.objects[USER]["status"]
    assert status.get("credentials") == ({"name": "elsewhere"} if wanted else None)
    assert team.condition()[1] == "Reconciled"
    assert bool(team.server.objects.get(Key("Secret", "team", "elsewhere"))) is bool(wanted)
    # Once is enough.
    team.server.events.clear()
    before = team.server.objects[SECRET]
    await team.reconcile()
    assert "TokenRemoved" not in {reason for reason, _ in team.server.events}
    assert team.server.objects[SECRET] == before


async def test_a_secret_that_somebody_else_made_since_is_left() -> None:
    team = Team(user(**PRODUCE, **TOKEN))
    await team.reconcile()
    foreign = team.server.objects[SECRET] = body("Secret", "billing-token") | {"data": {"token": "YQ=="}}
    team.server.objects[USER]["spec"] = {**team.server.objects[USER]["spec"], "authentication": []}
    team.server.change(USER, generation=2)
    await team.reconcile()
    assert team.server.objects[SECRET] == foreign
    assert not team.server.objects[USER]["status"].get("credentials")


async def test_a_secret_that_the_operator_may_not_use_any_more_is_reported() -> None:
    team = Team(user(**PRODUCE, **TOKEN))
    await team.reconcile()
    team.server.objects[USER]["spec"] = {**team.server.objects[USER]["spec"], "authentication": []}
    team.server.change(USER, generation=2)
    team.server.forbidden.add(SECRET)
    await team.reconcile()
    assert team.condition()[1] == "Reconciled"
    (event,) = [message for reason, message in team.server.events if reason == "TokenLeft"]
    assert event.startswith("Secret billing-token still has a token, which is valid until 2026-01-31T00:00:00Z;")


async def test_a_secret_stays_while_the_user_is_paused() -> None:
    team = Team(user(**PRODUCE, **TOKEN))
    await team.reconcile()
    before = team.server.objects[SECRET]
    team.server.objects[USER]["spec"] = {**team.server.objects[USER]["spec"], "authentication": []}
    team.server.change(USER, generation=2, annotations={"heliograph.dev/paused": "true"})
    await team.reconcile()
    assert team.server.objects[SECRET] == before
    team.server.change(USER, annotations={"heliograph.dev/paused": None})
    await team.reconcile()
    assert team.entries() == {}


async def test_the_secrets_of_many_users_are_checked_twenty_a_second() -> None:
    team = Team(user(**TOKEN), *(user(f"user-{number}") for number in range(2399)))
    outcome = await team.reconcile()
    assert outcome.requeue_s == 120.0
    alone = Team(user(**TOKEN))
    outcome = await alone.reconcile()
    assert outcome.requeue_s == 60.0
