"""The operator's modules manage tenants, namespaces and topics in brokers that they did not make.

The API server is in memory; the brokers are real ones: Heliograph's, and an Apache Pulsar where it has been fetched.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from heliograph_api.admin.admin_client import AdminClient, AdminRefused
from heliograph_api.policies.policy_field import Level
from heliograph_api.policies.policy_values import RetentionByLedger
from heliograph_api.resources.model import KINDS, Namespace, Topic
from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions
from heliograph_operator.act.pulsar_session import PulsarSession
from heliograph_operator.connection.connection_reconciler import HELIOGRAPH, PULSAR
from heliograph_operator.decide.broker_differences import differences
from heliograph_operator.decide.pulsar_policies import fields_of
from heliograph_operator.objects.conditions import condition
from heliograph_operator.objects.kinds import Key

from tests.support import real_pulsar as pulsar
from tests.support.broker_process import BrokerProcess
from tests.unit.operator.bodies import body
from tests.unit.operator.installation import Installation, Operator

CONNECTION = Key("BrokerConnection", "team", "external")
TENANT, NAMESPACE, TOPIC = (Key(kind, "team", "x") for kind in ("Tenant", "Namespace", "Topic"))
WITHIN_S = 60.0
_NUMBERS = count()


class External(NamedTuple):
    """Brokers that somebody else runs."""

    http_url: str
    service_url: str
    product: str


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pulsar.RealPulsar]:
    """An Apache Pulsar that deletes no namespace with its topics, as most do not."""
    if (reason := pulsar.missing()) is not None:
        pytest.skip(reason)
    with pulsar.real_pulsar(tmp_path_factory.mktemp("pulsar"), "forceDeleteNamespaceAllowed=false") as running:
        yield running


@pytest.fixture(params=[HELIOGRAPH, PULSAR])
def external(request: pytest.FixtureRequest) -> External:
    if request.param == HELIOGRAPH:
        broker: BrokerProcess = request.getfixturevalue("broker")
        return External(broker.http_url, broker.service_url, HELIOGRAPH)
    running: pulsar.RealPulsar = request.getfixturevalue("real")
    return External(running.http_url, running.service_url, PULSAR)


@pytest.fixture
async def sessions() -> AsyncIterator[BrokerSessions]:
    found = BrokerSessions(0.0)
    yield found
    await found.close()


class World:
    """Resources of a tenant of its own, on a connection; the operator reconciles until nothing is left to do."""

    def __init__(self, external: External, sessions: BrokerSessions, tenant: str) -> None:
        self.external, self.tenant = external, tenant
        connection = body("BrokerConnection", "external", self.spec(external.http_url))
        self.installation = Installation(connection)
        self.sessions = sessions
        self.operator: Operator = self.installation.started(sessions=sessions)

    def spec(self, http_url: str, **fields: Any) -> dict[str, Any]:
        return {"adminUrl": http_url, "serviceUrl": self.external.service_url, **fields}

    def apply(self, *, topic: dict[str, Any], **namespace: Any) -> None:
        on = {"name": "external", "kind": "BrokerConnection"}
        self.installation.apply(body("Tenant", "x", {"name": self.tenant, "clusterRef": on}))
        spec = {"tenantRef": {"name": "x"}, "name": "payments", **namespace}
        self.installation.apply(body("Namespace", "x", spec))
        self.installation.apply(body("Topic", "x", {"namespaceRef": {"name": "x"}, "name": "orders", **topic}))

    async def settled(self) -> None:
        await self.operator.resync()

    async def until_ready(self, key: Key, reason: str = "Reconciled") -> str:
        """Reconcile until a resource has this reason; return the message."""
        async with asyncio.timeout(WITHIN_S):
            while self.installation.ready(key)[0] != reason:
                await self.settled()
                await asyncio.sleep(0.1)
        return self.installation.ready(key)[1]

    async def until_gone(self, *keys: Key) -> None:
        async with asyncio.timeout(WITHIN_S):
            while any(key in self.installation.server.objects for key in keys):
                await self.settled()
                await asyncio.sleep(0.1)

    async def get(self, path: str) -> Any:
        async with AdminClient(self.external.http_url) as client:
            return await client.request("GET", f"/admin/v2/{path.format(self.tenant)}")

    async def call(self, method: str, path: str, **given: Any) -> None:
        async with AdminClient(self.external.http_url) as client:
            await client.request(method, f"/admin/v2/{path.format(self.tenant)}", **given)


@pytest.fixture
async def world(external: External, sessions: BrokerSessions) -> World:
    return World(external, sessions, f"t{next(_NUMBERS)}")


TOPIC_PATH = "persistent/{}/payments/orders"
NAMESPACE_PATH = "namespaces/{}/payments"


async def test_the_connection_says_what_answers_and_its_resources_reach_it(world: World) -> None:
    world.apply(
        topic={
            "retention": {"time": "2h", "size": "64Mi"},
            "messageTTL": "1h",
            "backlogQuota": {"destinationStorage": {"limit": "32Mi", "policy": "producer_exception"}},
            "properties": {"owner": "payments"},
            "subscriptions": ["billing"],
        },
        messageTTL="3h",
    )
    await world.until_ready(TOPIC)
    status = world.installation.body(CONNECTION)["status"]
    assert status["product"] == world.external.product
    assert status["version"] == await world.get("brokers/version")
    assert status["endpoints"] == {"http": world.external.http_url, "broker": world.external.service_url}
    assert world.installation.ready(CONNECTION)[0] == "Reconciled"
    assert await world.get(f"{TOPIC_PATH}/retention") == {"retentionTimeInMinutes": 120, "retentionSizeInMB": 64}
    assert await world.get(f"{TOPIC_PATH}/messageTTL") == 3600
    quotas = await world.get(f"{TOPIC_PATH}/backlogQuotaMap")
    assert quotas["destination_storage"]["limitSize"] == 32 * 1024 * 1024
    assert await world.get(f"{TOPIC_PATH}/properties") == {"owner": "payments"}
    assert list((await world.get(f"{TOPIC_PATH}/stats"))["subscriptions"]) == ["billing"]
    assert (await world.get(NAMESPACE_PATH))["message_ttl_in_seconds"] == 10_800
    topic = world.installation.body(TOPIC)
    assert topic["status"]["name"] == f"persistent://{world.tenant}/payments/orders"
    assert topic["metadata"]["annotations"]["heliograph.dev/cluster"] == "BrokerConnection:external"
    assert condition(topic["status"], "QuotaExceeded")["reason"] == "QuotaWithinLimits"


async def test_children_that_come_before_their_parents_do_not_wait_for_the_next_refresh(world: World) -> None:
    world.apply(topic={})
    objects = world.installation.server.objects
    for key in (TOPIC, NAMESPACE, TENANT):
        objects[key] = objects.pop(key)
    await world.operator.settle()
    assert [world.installation.ready(key)[0] for key in (TENANT, NAMESPACE, TOPIC)] == ["Reconciled"] * 3


async def test_changes_and_drift_are_applied_and_what_matches_is_left_alone(world: World) -> None:
    quota = {"destinationStorage": {"limit": "32Mi", "policy": "producer_exception"}}
    world.apply(topic={"partitions": 2, "retention": {"time": "2h", "size": "64Mi"}, "backlogQuota": quota})
    await world.until_ready(TOPIC)
    quota["destinationStorage"]["limit"] = "8Mi"
    world.apply(
        topic={"partitions": 3, "retention": {"time": "1h", "size": "16Mi"}, "backlogQuota": quota, "maxProducers": 4},
        schemaValidationEnforced=True,
        encryptionRequired=False,
        autoTopicCreation={"allow": False},
    )
    for key in (NAMESPACE, TOPIC):
        await world.until_ready(key)
    await world.settled()
    assert (await world.get(f"{TOPIC_PATH}/partitions"))["partitions"] == 3
    assert await world.get(f"{TOPIC_PATH}/retention") == {"retentionTimeInMinutes": 60, "retentionSizeInMB": 16}
    assert await world.get(f"{TOPIC_PATH}/maxProducers") == 4
    assert (await world.get(NAMESPACE_PATH))["schema_validation_enforced"] is True
    await world.call("POST", f"{TOPIC_PATH}/maxProducers", body=9)
    await world.call("POST", f"{NAMESPACE_PATH}/messageTTL", body=60)
    async with asyncio.timeout(WITHIN_S):
        while await world.get(f"{TOPIC_PATH}/maxProducers") != 4 or await world.get(f"{NAMESPACE_PATH}/messageTTL"):
            await world.settled()
            await asyncio.sleep(0.1)
    drift = [message for reason, message in world.installation.server.events if reason == "DriftRepaired"]
    assert "maxProducers was 9, is 4" in drift
    # A field that is taken out of the spec is taken out of the broker.
    world.apply(topic={"partitions": 3})
    await world.settled()
    await world.until_ready(TOPIC)
    assert await world.get(f"{TOPIC_PATH}/maxProducers") is None
    assert await world.get(f"{TOPIC_PATH}/backlogQuotaMap") in ({}, None)
    assert (await world.get(NAMESPACE_PATH))["schema_validation_enforced"] is False
    written = len(world.installation.server.patches)
    await world.settled()
    assert len(world.installation.server.patches) == written


async def test_deletion_deletes_in_the_broker_what_the_policies_say(world: World) -> None:
    world.apply(topic={"partitions": 2}, deletionPolicy="Delete")
    await world.until_ready(TOPIC)
    await world.call("PUT", "persistent/{}/payments/by-a-client")
    for key in (TOPIC, NAMESPACE, TENANT, CONNECTION):
        world.installation.delete(key)
    await world.settled()
    await world.until_gone(TOPIC, NAMESPACE, TENANT, CONNECTION)
    with pytest.raises(AdminRefused) as refused:
        await world.get("tenants/{}")
    assert refused.value.status == 404


async def test_the_deletion_of_a_connection_waits_for_its_resources_and_deletes_nothing(world: World) -> None:
    world.apply(topic={})
    await world.until_ready(TOPIC)
    world.installation.delete(CONNECTION)
    await world.settled()
    reason, message = world.installation.ready(CONNECTION)
    assert reason == "ChildrenExist"
    assert "Tenant x" in message
    for key in (TOPIC, NAMESPACE, TENANT):
        world.installation.annotate(key, managed="false")
    await world.until_gone(CONNECTION)
    assert (await world.get(f"{TOPIC_PATH}/partitions"))["partitions"] == 0


async def test_what_existed_before_is_shown_before_it_is_changed(world: World) -> None:
    world.apply(topic={})
    del world.installation.server.objects[TOPIC]
    await world.until_ready(NAMESPACE)
    await world.call("PUT", TOPIC_PATH)
    await world.call("POST", f"{TOPIC_PATH}/maxConsumers", body=7)
    world.apply(topic={"messageTTL": "1h"})
    message = await world.until_ready(TOPIC, "AdoptionPending")
    assert "maxConsumers 7" in message
    assert await world.get(f"{TOPIC_PATH}/messageTTL") is None
    world.apply(topic={"messageTTL": "1h", "maxConsumers": 7})
    await world.settled()
    await world.until_ready(TOPIC)
    world.installation.delete(TOPIC)
    await world.until_gone(TOPIC)
    # One that was adopted stays.
    assert (await world.get(f"{TOPIC_PATH}/partitions"))["partitions"] == 0


async def test_an_archive_is_refused_by_name(world: World) -> None:
    world.apply(topic={"archive": {"schedule": "@daily", "path": "s3a://archive/orders"}})
    message = await world.until_ready(TOPIC, "NotSupported")
    assert message.startswith("spec.archive: an archive needs a BrokerCluster")


class OneAway:
    """A place where no broker answers."""

    url = "http://127.0.0.1:9"


async def test_a_deletion_waits_for_brokers_that_are_away(world: World) -> None:
    world.apply(topic={})
    await world.until_ready(TOPIC)
    world.installation.apply(body("BrokerConnection", "external", world.spec(OneAway.url)))
    await world.until_ready(CONNECTION, "BrokerUnreachable")
    world.installation.delete(TOPIC)
    message = await world.until_ready(TOPIC, "BrokerUnreachable")
    assert "is deleted when the broker answers" in message
    # Also of an operator that has just started and has no session.
    again = BrokerSessions(0.0)
    world.operator = world.installation.started(sessions=again, deletion_wait_s=0.0)
    await world.settled()
    assert TOPIC in world.installation.server.objects
    await again.close()
    world.operator = world.installation.started(sessions=world.sessions)
    world.installation.apply(body("BrokerConnection", "external", world.spec(world.external.http_url)))
    await world.settled()
    await world.until_gone(TOPIC)
    with pytest.raises(AdminRefused, match="not found"):
        await world.get(f"{TOPIC_PATH}/partitions")


async def _made_by_somebody_else(brokers: BrokerProcess, tenant: str) -> dict[str, Any]:
    """Make a topic of the World's name in other brokers; return its policies there."""
    topic = f"/admin/v2/persistent/{tenant}/payments/orders"
    async with AdminClient(brokers.http_url) as client:
        tenant_info = {"adminRoles": ["somebody-else"], "allowedClusters": ["standalone"]}
        await client.request("PUT", f"/admin/v2/tenants/{tenant}", body=tenant_info)
        await client.request("PUT", f"/admin/v2/namespaces/{tenant}/payments")
        await client.request("PUT", topic)
        await client.request("POST", f"{topic}/messageTTL", body=7)
    return await _policies_there(brokers, tenant)


async def _policies_there(brokers: BrokerProcess, tenant: str) -> dict[str, Any]:
    async with AdminClient(brokers.http_url) as client:
        state = await client.state(f"{tenant}/payments")
    return {**state.tenants, **state.namespaces, **{name: topic.policies for name, topic in state.topics.items()}}


async def test_other_brokers_behind_the_url_keep_what_they_have(
    world: World, broker_factory: Callable[..., BrokerProcess]
) -> None:
    world.apply(topic={"messageTTL": "1h"})
    await world.until_ready(TOPIC)
    with broker_factory() as others:
        before = await _made_by_somebody_else(others, world.tenant)
        world.installation.apply(body("BrokerConnection", "external", world.spec(others.http_url)))
        message = await world.until_ready(CONNECTION, "BrokersChanged")
        assert world.external.http_url in message
        assert others.http_url in message
        for key in (TENANT, NAMESPACE, TOPIC):
            await world.until_ready(key, "BrokersChanged")
        world.apply(topic={"messageTTL": "2h"})
        await world.settled()
        world.installation.delete(TOPIC)
        await world.settled()
        assert "is deleted when its own broker answers again" in await world.until_ready(TOPIC, "BrokersChanged")
        assert await _policies_there(others, world.tenant) == before
        world.installation.apply(body("BrokerConnection", "external", world.spec(world.external.http_url)))
        await world.settled()
        await world.until_gone(TOPIC)
        with pytest.raises(AdminRefused, match="not found"):
            await world.get(f"{TOPIC_PATH}/partitions")
        # A person says that they are the same.
        world.installation.annotate(CONNECTION, **{"same-brokers": others.http_url})
        world.installation.apply(body("BrokerConnection", "external", world.spec(others.http_url)))
        await world.settled()
        await world.until_ready(CONNECTION)
        await world.until_ready(NAMESPACE)
        assert world.installation.body(CONNECTION)["status"]["endpoints"]["http"] == others.http_url
        assert (await _policies_there(others, world.tenant))[world.tenant].admin_roles == []


async def test_a_broker_is_known_by_its_store_at_any_address(
    sessions: BrokerSessions, broker_factory: Callable[..., BrokerProcess]
) -> None:
    first = broker_factory("data")
    first.start()
    world = World(External(first.http_url, first.service_url, HELIOGRAPH), sessions, "shop")
    world.apply(topic={"messageTTL": "1h"})
    await world.until_ready(TOPIC)
    store_id = world.installation.body(CONNECTION)["status"]["storeId"]
    assert store_id in (first.data_dir / "FORMAT").read_text()
    first.terminate()
    first.data_dir.rename(first.data_dir.with_name("elsewhere"))
    with broker_factory("elsewhere") as second:
        assert second.http_url != first.http_url
        world.installation.apply(body("BrokerConnection", "external", world.spec(second.http_url)))
        await world.settled()
        await world.until_ready(CONNECTION)
        await world.until_ready(TOPIC)
        assert world.installation.body(CONNECTION)["status"]["endpoints"]["http"] == second.http_url
        # Its store is lost: there is another one at the same URL, and nothing of anybody else's in it.
        second.terminate()
        shutil.rmtree(second.data_dir)
        second.start()
        async with asyncio.timeout(WITHIN_S):
            while world.installation.body(CONNECTION)["status"]["storeId"] == store_id:
                await world.settled()
                await asyncio.sleep(0.1)
        world.external = External(second.http_url, second.service_url, HELIOGRAPH)
        await world.until_ready(TOPIC)
        assert await world.get(f"{TOPIC_PATH}/messageTTL") == 3600


def _every_policy(level: Level) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two specs with each policy that Pulsar has at a level, all different."""
    rate = {"messages": 100, "bytes": "1Mi"}
    one: dict[str, Any] = {
        "retention": {"time": "2h", "size": "64Mi"},
        "backlogQuota": {
            "destinationStorage": {"limit": "32Mi", "policy": "producer_exception"},
            "messageAge": {"limit": "90m", "policy": "consumer_backlog_eviction"},
        },
        "messageTTL": "90s",
        "maxProducers": 3,
        "maxConsumers": 4,
        "maxSubscriptions": 5,
        "maxConsumersPerSubscription": 6,
        "maxUnackedPerConsumer": 7,
        "maxUnackedPerSubscription": 8,
        "subscriptionExpiration": "3h",
        "publishRate": rate,
        "dispatchRate": {**rate, "period": "2s"},
        "subscriptionDispatchRate": {**rate, "period": "3s"},
        "deduplication": True,
        "delayedDelivery": False,
        "inactiveTopic": {"maxInactive": "10m"},
        "subscribeRate": {"perConsumer": 5, "period": "10s"},
        "compactionThreshold": "1Mi",
        "autoSubscriptionCreation": False,
        "subscriptionTypes": ["Shared", "Exclusive"],
        "schemaCompatibility": "BACKWARD",
        "schemaValidationEnforced": True,
    }
    other = {
        **one,
        "retention": {"time": "infinite", "size": "infinite"},
        "backlogQuota": {"messageAge": {"limit": "2h", "policy": "producer_request_hold"}},
        "messageTTL": -1,
        "maxProducers": 0,
        "subscriptionExpiration": -1,
        "publishRate": {"messages": 9},
        "delayedDelivery": True,
        "deduplication": False,
        "compactionThreshold": 0,
        "subscriptionTypes": ["Key_Shared"],
        "schemaCompatibility": "FULL",
    }
    if level is Level.TOPIC:
        return one | {"maxMessageSize": "1Mi"}, other | {"maxMessageSize": "2Mi"}
    of_namespace: dict[str, Any] = {
        "encryptionRequired": True,
        "autoUpdateSchema": False,
        "maxTopics": 10,
        "autoTopicCreation": {"allow": True, "partitions": 3},
    }
    return one | of_namespace, other | of_namespace | {"maxTopics": 20, "autoTopicCreation": {"allow": False}}


async def _differences(session: BrokerSession, kind: str, manifest: dict[str, Any], name: str) -> list[Any]:
    model = KINDS[kind].model_validate(manifest)
    assert isinstance(model, Namespace | Topic)
    assert session.unsupported(model) == []
    await session.apply(manifest)
    state = (await session.listing_of(kind, name, asyncio.get_running_loop().time())).state
    return differences(session.fitted(model), name, state)


class OfEither(PulsarSession):
    """A session for Pulsar that a Heliograph may answer."""

    async def check_store(self) -> None:
        """Find nothing wrong with what answers."""


@pytest.mark.parametrize("level", [Level.NAMESPACE, Level.TOPIC], ids=["namespace", "topic"])
async def test_every_policy_is_set_changed_and_removed_over_pulsars_own_api(external: External, level: Level) -> None:
    """Heliograph has the same paths, so the session for Pulsar works with it, too."""
    tenant = f"every{next(_NUMBERS)}"
    client = AdminClient(external.http_url)
    session = OfEither(external.http_url, 0.0, lambda: False, client)
    head = {"apiVersion": "heliograph.dev/v1alpha1", "metadata": {"name": "x"}}
    kind = "Topic" if level is Level.TOPIC else "Namespace"
    try:
        await session.apply({**head, "kind": "Tenant", "spec": {"name": tenant}})
        space = {"tenantRef": {"name": tenant}, "name": "payments"}
        await session.apply({**head, "kind": "Namespace", "spec": space})
        named: dict[str, Any] = space
        name = f"{tenant}/payments"
        if level is Level.TOPIC:
            named, name = {"namespaceRef": {"name": name}, "name": "orders"}, f"persistent://{name}/orders"
        one, other = _every_policy(level)
        model: Any = {"Topic": Topic, "Namespace": Namespace}[kind]
        set_ = model.model_validate({**head, "kind": kind, "spec": {**named, **one}}).spec.policies()
        assert not isinstance(set_.retention, RetentionByLedger)
        unset = [field for field in fields_of(level) if getattr(set_, field) is None]
        assert unset == [], "every policy is tried"
        for spec in (one, other, one, {}):
            assert await _differences(session, kind, {**head, "kind": kind, "spec": {**named, **spec}}, name) == []
        await session.delete("Tenant", tenant, force=True)
    finally:
        await session.close()


def _secret(name: str, **entries: str) -> dict[str, Any]:
    return {
        **body("Secret", name),
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in entries.items()},
    }


async def test_a_token_is_taken_from_a_secret_and_a_wrong_one_is_shown(
    tmp_path: Path, sessions: BrokerSessions
) -> None:
    if (reason := pulsar.missing()) is not None:
        pytest.skip(reason)
    with pulsar.real_pulsar(tmp_path / "pulsar", tokens=True) as running:
        token = (running.directory / "token").read_text()
        world = World(External(running.http_url, running.service_url, PULSAR), sessions, "shop")
        world.apply(topic={"messageTTL": "1h"})
        await world.until_ready(CONNECTION, "Unauthorized")
        await world.until_ready(TENANT, "ClusterNotReady")
        auth = {"secretRef": {"name": "pulsar"}}
        world.installation.apply(body("BrokerConnection", "external", world.spec(running.http_url, auth=auth)))
        assert "there is no Secret pulsar" in await world.until_ready(CONNECTION, "CredentialsMissing")
        server = world.installation.server
        server.objects[Key("Secret", "team", "pulsar")] = _secret("pulsar", token="wrong")
        message = await world.until_ready(CONNECTION, "Unauthorized")
        assert "wrong" not in message
        server.objects[Key("Secret", "team", "pulsar")] = _secret("pulsar", token=f"{token}\n")
        await world.until_ready(TOPIC)
        # A token that is taken back is not used any more.
        del server.objects[Key("Secret", "team", "pulsar")]
        await world.until_ready(CONNECTION, "CredentialsMissing")
        await world.until_ready(TOPIC, "ClusterNotReady")
        assert token.strip() not in str(server.objects)
