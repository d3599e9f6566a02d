"""A BrokerCluster with authentication: its Secrets, the settings of its brokers, and the operator's own token."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from heliograph_api.admin.admin_client import AdminUnreachable
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.resources.authentication_spec import OPERATOR_ROLE
from heliograph_api.resources.model import BrokerCluster
from heliograph_broker.security.authentication.provider import Credentials, Unauthenticated
from heliograph_broker.security.authentication.token import TokenProvider
from heliograph_operator.act.broker_tokens import OWN_VALIDITY
from heliograph_operator.act.controller import Outcome
from heliograph_operator.act.object_apply import ObjectRefused
from heliograph_operator.cluster.cluster_keys import CHECK_S, REVOKED_WITHIN, ClusterKeys
from heliograph_operator.decide.signed_tokens import Signer
from heliograph_operator.decide.token_keys import PUBLIC, SETTLE, KeyPlan, SigningKey
from heliograph_operator.decide.token_secrets import decoded
from heliograph_operator.kube.client import KubeError, KubeRefused
from heliograph_operator.objects.conditions import READY, condition
from heliograph_operator.objects.kinds import FINALIZER, Body, Key, Kind

from .api_server import ApiServer, resource_of
from .bodies import body
from .cluster_keys import cluster_keys, cluster_reconciler, tokens, url_of

CLUSTER = Key("BrokerCluster", "team", "main")
PRIVATE = Key("Secret", "team", "main-token-signing-key")
PUBLISHED = Key("Secret", "team", "main-token-keys")
CLOSED = {"authentication": {"enabled": True, "superusers": ["team/admin"]}}
START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def now_ms(self) -> int:
        return int(self.now.timestamp() * 1000)

    def monotonic(self) -> float:
        return self.now.timestamp()


class Accepting(ClusterKeys):
    """Brokers that accept each key, or none."""

    accepting = True

    async def _accepts(self, cluster: BrokerCluster, plan: KeyPlan, key: SigningKey, url: str) -> bool:
        return self.accepting


def closed(**authentication: Any) -> dict[str, Any]:
    spec = {"authentication": {**CLOSED["authentication"], **authentication}}
    return body("BrokerCluster", "main", spec, finalizers=[FINALIZER])


async def reconcile(server: ApiServer, keys: ClusterKeys) -> None:
    server.objects[CLUSTER] = {**server.objects[CLUSTER], "status": {"readyReplicas": 1}}
    context = server.context()
    await cluster_reconciler(keys=keys).reconcile(context, resource_of(context, CLUSTER))


async def test_brokers_get_the_public_half_and_nothing_of_the_private_one() -> None:
    server = ApiServer(closed())
    await reconcile(server, cluster_keys())
    assert server.written[:2] == [PRIVATE, PUBLISHED]
    for key in (PRIVATE, PUBLISHED):
        assert server.objects[key]["metadata"]["ownerReferences"][0]["uid"] == "BrokerCluster-main"
    published = decoded(server.objects[PUBLISHED])
    assert "BEGIN PUBLIC KEY" in published[PUBLIC]
    assert "PRIVATE" not in json.dumps(published)
    pod = server.objects[Key("StatefulSet", "team", "main")]["spec"]["template"]["spec"]
    volume = next(each for each in pod["volumes"] if each["name"] == "token-keys")
    assert volume["secret"] == {"secretName": "main-token-keys", "items": [{"key": PUBLIC, "path": PUBLIC}]}
    assert {"name": "token-keys", "mountPath": "/etc/heliograph/token-keys", "readOnly": True} in (
        pod["containers"][0]["volumeMounts"]
    )
    assert "main-token-signing-key" not in json.dumps(pod)
    settings = server.objects[Key("ConfigMap", "team", "main")]["data"]
    assert settings == {
        "HELIOGRAPH_AUTH": "token",
        "HELIOGRAPH_TOKEN_PUBLIC_KEY": "/etc/heliograph/token-keys/public.pem",
        "HELIOGRAPH_SUPERUSERS": f"{OPERATOR_ROLE},team/admin",
        "HELIOGRAPH_MONITORS": "heliograph:metrics",
        "HELIOGRAPH_BACKUPS": "heliograph:backup",
    }


async def test_settings_of_other_methods_stay() -> None:
    made = closed()
    made["spec"]["config"] = {"auth": "basic", "basic_file": "/users", "token_audience": "main"}
    server = ApiServer(made)
    await reconcile(server, cluster_keys())
    settings = server.objects[Key("ConfigMap", "team", "main")]["data"]
    assert settings["HELIOGRAPH_AUTH"] == "token,basic"
    assert settings["HELIOGRAPH_TOKEN_AUDIENCE"] == "main"


async def test_without_authentication_there_are_no_secrets_and_none_are_read() -> None:
    class Forbidding(ApiServer):
        async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
            assert kind.name != "Secret"
            return await super().find(kind, namespace, name)

    server = Forbidding(body("BrokerCluster", "main", {}, finalizers=[FINALIZER]))
    await reconcile(server, cluster_keys())
    assert server.written == []
    # Its pods can be reached by others: a broker needs a setting for that.
    assert server.objects[Key("ConfigMap", "team", "main")]["data"] == {"HELIOGRAPH_INSECURE": "true"}


async def test_nothing_is_written_at_rest() -> None:
    server = ApiServer(closed())
    clock = Clock()
    await reconcile(server, cluster_keys(clock))
    before = list(server.written)
    clock.now += timedelta(hours=7)
    for keys in (cluster_keys(clock), cluster_keys(clock)):
        await reconcile(server, keys)
    assert server.written == before


async def test_an_operator_that_may_not_use_secrets_says_what_helps() -> None:
    class Forbidding(ApiServer):
        async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
            if kind.name == "Secret":
                raise KubeRefused(403, "Forbidden", "secrets is forbidden")
            return await super().find(kind, namespace, name)

    server = Forbidding(closed())
    await reconcile(server, cluster_keys())
    found = condition(server.objects[CLUSTER]["status"], READY)
    assert (found["status"], found["reason"]) == ("False", "Forbidden")
    assert "authentication.enabled" in found["message"]
    assert Key("StatefulSet", "team", "main") not in server.objects, "no broker starts that would not be closed"


async def test_a_secret_of_another_owner_is_not_touched() -> None:
    foreign = body("Secret", PRIVATE.name)
    server = ApiServer(closed(), foreign)
    await reconcile(server, cluster_keys())
    found = condition(server.objects[CLUSTER]["status"], READY)
    assert (found["reason"], server.written) == ("Conflict", [])


async def test_a_write_of_another_operator_is_not_undone() -> None:
    class Late(ApiServer):
        async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
            return None if kind.name == "Secret" else await super().find(kind, namespace, name)

    server = ApiServer(closed())
    await reconcile(server, cluster_keys())
    late = Late(*server.objects.values())
    before = late.objects[PRIVATE]
    with pytest.raises(KubeRefused):
        await reconcile(late, cluster_keys())
    assert late.objects[PRIVATE] == before


def provider(server: ApiServer, clock: Clock) -> TokenProvider:
    """Return what a broker verifies tokens with that has read the mounted Secret."""
    text = base64.b64encode(decoded(server.objects[PUBLISHED])[PUBLIC].encode()).decode()
    return TokenProvider.from_config(BrokerConfig(auth="token", token_public_key=f"data:;base64,{text}"), clock)


async def role_of(server: ApiServer, clock: Clock, token: str) -> str:
    credentials = Credentials(token.encode())
    return (await provider(server, clock).authenticate(credentials)).role


async def test_the_operators_token_is_its_own_and_is_renewed_before_it_expires() -> None:
    clock = Clock()
    held = tokens(clock)
    server = ApiServer(closed())
    url = url_of(server.objects[CLUSTER])
    held.seen(None, server.objects[CLUSTER])
    with pytest.raises(AdminUnreachable, match="no key yet"):
        held.token(url)
    await reconcile(server, ClusterKeys(held, clock))
    first = held.token(url)
    assert await role_of(server, clock, first) == OPERATOR_ROLE
    clock.now += OWN_VALIDITY / 2 - timedelta(seconds=1)
    assert held.token(url) == first
    clock.now += timedelta(seconds=1)
    assert held.token(url) != first
    clock.now += OWN_VALIDITY / 2
    with pytest.raises(Unauthenticated):
        await role_of(server, clock, first)
    assert held.token("http://elsewhere") == "", "it goes nowhere else"


async def test_the_token_is_for_the_audience_and_the_claim_that_the_brokers_ask_for() -> None:
    clock = Clock()
    held = tokens(clock)
    made = closed()
    made["spec"]["config"] = {"token_audience": "main", "token_role_claim": "role"}
    server = ApiServer(made)
    await reconcile(server, ClusterKeys(held, clock))
    signer = held.signer(CLUSTER)
    assert signer is not None
    issued = signer.read(held.token(url_of(made)))
    assert issued is not None
    assert issued.role == OPERATOR_ROLE


async def test_keys_are_rotated_under_tokens_that_stay_valid() -> None:
    clock = Clock()
    held = tokens(clock)
    keys = Accepting(held, clock)
    server = ApiServer(closed(keyRotation={"every": "10d"}, maxTokenValidity="5d"))
    await reconcile(server, keys)
    signer = held.signer(CLUSTER)
    assert signer is not None
    old = signer.sign("team/app", 5 * DAY, clock.now)
    clock.now += 10 * DAY
    old = signer.sign("team/app", 5 * DAY, clock.now)
    await reconcile(server, keys)
    assert held.signer(CLUSTER).key == signer.key  # type: ignore[union-attr]
    clock.now += SETTLE + timedelta(seconds=1)
    keys.accepting = False
    await reconcile(server, keys)
    assert held.signer(CLUSTER).key == signer.key, "no broker accepts the new one yet"  # type: ignore[union-attr]
    keys.accepting = True
    await reconcile(server, keys)
    after = held.signer(CLUSTER)
    assert after is not None
    assert after.key != signer.key
    assert await role_of(server, clock, old) == "team/app"
    assert after.read(old) is not None
    clock.now += 4 * DAY
    await reconcile(server, keys)
    assert await role_of(server, clock, old) == "team/app"
    clock.now += 2 * DAY
    await reconcile(server, keys)
    assert after.key in json.dumps(decoded(server.objects[PUBLISHED]))
    assert signer.key not in json.dumps(decoded(server.objects[PUBLISHED]))


@pytest.mark.parametrize("refused", [PRIVATE, PUBLISHED])
async def test_a_key_that_may_have_retired_signs_nothing_any_more(refused: Key) -> None:
    """The write that retires it has no answer, or the one after it is refused for as long as nobody looks."""

    class Refusing(ApiServer):
        refuses = False

        async def replace(self, kind: Kind, body: Body, subresource: str = "") -> dict[str, Any]:
            if self.refuses and body["metadata"]["name"] == refused.name:
                if refused == PRIVATE:
                    await super().replace(kind, body, subresource)
                    raise KubeError("the API server does not answer")
                raise KubeRefused(403, "Forbidden", "secrets is forbidden")
            return await super().replace(kind, body, subresource)

    clock, server = Clock(), Refusing(closed())
    held = tokens(clock)
    keys = Accepting(held, clock)
    await reconcile(server, keys)
    first = held.signer(CLUSTER)
    clock.now += 91 * DAY
    await reconcile(server, keys)
    clock.now += SETTLE
    server.refuses = True
    with suppress(KubeError):
        await reconcile(server, keys)
    now = held.signer(CLUSTER)
    assert first is not None
    assert now is None or now.key != first.key


@pytest.mark.parametrize("every", ["3000000d", "9223372036854775807ms"])
async def test_a_period_beyond_the_calendar_is_none(every: str) -> None:
    server, keys = ApiServer(closed(keyRotation={"every": every})), cluster_keys()
    await reconcile(server, keys)
    await reconcile(server, keys)
    assert PUBLISHED in server.objects


@pytest.mark.parametrize("secrets", [(PRIVATE, PUBLISHED), (PUBLISHED, PRIVATE)])
async def test_keys_that_are_revoked_are_gone_though_the_operator_looks_between_the_deletions(
    secrets: tuple[Key, Key],
) -> None:
    clock, server = Clock(), ApiServer(closed())
    held = tokens(clock)
    keys = ClusterKeys(held, clock)
    await reconcile(server, keys)
    before = decoded(server.objects[PUBLISHED])[PUBLIC]
    for each in secrets:
        server.objects.pop(each)
        await reconcile(server, keys)
        await reconcile(server, ClusterKeys(tokens(clock), clock))
        clock.now += timedelta(seconds=10)
    after = decoded(server.objects[PUBLISHED])[PUBLIC]
    assert before not in after
    assert after.count("BEGIN") == 1


@pytest.mark.parametrize("secret", [PRIVATE, PUBLISHED])
async def test_a_secret_that_is_deleted_alone_is_written_again_soon(secret: Key) -> None:
    clock, server = Clock(), ApiServer(closed())
    held = tokens(clock)
    keys = ClusterKeys(held, clock)
    await reconcile(server, keys)
    before, signer = decoded(server.objects[PUBLISHED])[PUBLIC], held.signer(CLUSTER)
    server.objects.pop(secret)
    await reconcile(server, keys)
    assert secret not in server.objects
    assert held.signer(CLUSTER) is signer, "meanwhile it signs as before"
    assert keys.before_check(CLUSTER, Outcome("ready", 300.0)).requeue_s == pytest.approx(
        REVOKED_WITHIN.total_seconds(), 0.1
    )
    clock.now += REVOKED_WITHIN
    await reconcile(server, keys)
    assert secret in server.objects
    assert before in decoded(server.objects[PUBLISHED])[PUBLIC]


async def test_another_operator_goes_on_with_the_same_keys() -> None:
    clock = Clock()
    server = ApiServer(closed())
    first, second = tokens(clock), tokens(clock)
    await reconcile(server, ClusterKeys(first, clock))
    await reconcile(server, ClusterKeys(second, clock))
    assert first.signer(CLUSTER).key == second.signer(CLUSTER).key  # type: ignore[union-attr]


@pytest.mark.parametrize("note", ["paused", "managed"])
async def test_a_cluster_that_is_left_alone_is_still_used(note: str) -> None:
    clock = Clock()
    server = ApiServer(closed())
    await reconcile(server, cluster_keys(clock))
    written = list(server.written)
    server.change(CLUSTER, annotations={f"heliograph.dev/{note}": "true" if note == "paused" else "false"})
    held = tokens(clock)
    await reconcile(server, ClusterKeys(held, clock))
    assert held.token(url_of(server.objects[CLUSTER]))
    if note == "paused":
        assert server.written == written
    else:
        assert server.objects[PRIVATE]["metadata"].get("ownerReferences") is None, "it stays with its brokers"


@pytest.mark.parametrize("note", ["deleted", "managed"])
async def test_a_secret_of_another_owner_does_not_hold_brokers_that_stay(note: str) -> None:
    server = ApiServer(closed() | {"spec": {**CLOSED, "deletionPolicy": "Retain"}})
    await reconcile(server, cluster_keys())
    # As that of a User whose secretName is this.
    server.objects[PUBLISHED] = body("Secret", PUBLISHED.name, uid="theirs") | {"data": {}}
    leave(server, note)
    await reconcile(server, cluster_keys())
    assert not server.objects[CLUSTER]["metadata"]["finalizers"]
    assert server.objects[PRIVATE]["metadata"].get("ownerReferences") is None
    assert server.objects[PUBLISHED]["metadata"]["uid"] == "theirs"


@pytest.mark.parametrize("note", ["deleted", "managed"])
async def test_an_operator_that_may_not_keep_the_secrets_of_brokers_that_stay_says_so(note: str) -> None:
    class Forbidding(ApiServer):
        refuses_secrets = False

        async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
            if self.refuses_secrets and kind.name == "Secret":
                raise KubeRefused(403, "Forbidden", "secrets is forbidden")
            return await super().find(kind, namespace, name)

    server = Forbidding(closed() | {"spec": {**CLOSED, "deletionPolicy": "Retain"}})
    await reconcile(server, cluster_keys())
    server.refuses_secrets = True
    leave(server, note)
    await reconcile(server, cluster_keys())
    assert server.objects[CLUSTER]["metadata"]["finalizers"], "its Secrets would be deleted with it"
    found = condition(server.objects[CLUSTER]["status"], READY)
    assert found["reason"] == "Forbidden"
    assert "authentication.namespaces" in found["message"]
    server.refuses_secrets = False
    await reconcile(server, cluster_keys())
    assert not server.objects[CLUSTER]["metadata"]["finalizers"]


def leave(server: ApiServer, note: str) -> None:
    if note == "deleted":
        server.change(CLUSTER, deletionTimestamp="2026-01-02T00:00:00Z")
    else:
        server.change(CLUSTER, annotations={"heliograph.dev/managed": "false"})


async def test_the_check_of_the_secrets_comes_in_time() -> None:
    clock = Clock()
    keys = cluster_keys(clock)
    server = ApiServer(closed())
    context = server.context()
    reconciler = cluster_reconciler(keys=keys)
    outcome = await reconciler.reconcile(context, resource_of(context, CLUSTER))
    assert outcome.requeue_s is not None
    assert outcome.requeue_s <= CHECK_S


async def test_secrets_never_come_into_texts() -> None:
    clock = Clock()
    held = tokens(clock)
    server = ApiServer(closed())
    await reconcile(server, ClusterKeys(held, clock))
    signer = held.signer(CLUSTER)
    assert isinstance(signer, Signer)
    private = decoded(server.objects[PRIVATE])["keys.json"]
    shown = repr(signer) + repr(held) + repr(server.events) + repr(replace(signer))
    assert "PRIVATE" in private
    assert "PRIVATE" not in shown
    assert held.token(url_of(server.objects[CLUSTER])) not in shown
    assert issubclass(ObjectRefused, Exception)
