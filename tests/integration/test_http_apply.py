"""Manifests posted to a running broker."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from heliograph_api.admin.admin_client import AdminClient
from heliograph_api.policies.policy_values import MAX_SUBSCRIPTION_POLICIES
from heliograph_api.values.names import SubscriptionName, TopicName
from heliograph_api.values.schema_digest import schema_digest
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client
from tests.support.entries import make_frame

from .http_api import HttpApi, running_api

MANIFESTS = """
apiVersion: heliograph.dev/v1alpha1
kind: Topic
metadata: {name: orders}
spec:
  namespaceRef: {name: payments}
  partitions: PARTITIONS
  messageTTL: 2h
  subscriptions: [billing]
---
apiVersion: heliograph.dev/v1alpha1
kind: Tenant
metadata: {name: shop}
spec: {limits: {messageTTL: 1h}}
---
apiVersion: heliograph.dev/v1alpha1
kind: Namespace
metadata: {name: payments}
spec:
  tenantRef: {name: shop}
  retention: {time: 1d, size: 1Gi}
"""


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with running_api(tmp_path / "data") as running:
        yield running


async def _actions(api: HttpApi, text: str) -> list[tuple[str, str, str]]:
    answer = await api.request("POST", "/heliograph/v1/apply", text)
    assert answer.status == 200, answer
    return [(one["kind"], one["name"], one["action"]) for one in answer.body["results"]]


async def test_resources_are_created_then_unchanged_then_configured(api: HttpApi) -> None:
    names = [("Tenant", "shop"), ("Namespace", "shop/payments"), ("Topic", "persistent://shop/payments/orders")]
    two = MANIFESTS.replace("PARTITIONS", "2")
    assert await _actions(api, two) == [(*name, "created") for name in names]
    assert await _actions(api, two) == [(*name, "unchanged") for name in names]
    grown = await _actions(api, MANIFESTS.replace("PARTITIONS", "3"))
    assert [action for _, _, action in grown] == ["unchanged", "unchanged", "configured"]
    topic = "/admin/v2/persistent/shop/payments/orders"
    assert (await api.get(f"{topic}/partitions"))["partitions"] == 3
    assert await api.get(f"{topic}-partition-2/subscriptions") == ["billing"]
    retention = await api.get("/admin/v2/namespaces/shop/payments/retention")
    assert retention == {"retentionTimeInMinutes": 1440, "retentionSizeInMB": 1024}


async def test_a_connection_is_left_to_the_operator(api: HttpApi) -> None:
    connection = (
        "{apiVersion: heliograph.dev/v1alpha1, kind: BrokerConnection, metadata: {name: other},"
        " spec: {adminUrl: 'http://other:8080'}}"
    )
    assert await _actions(api, connection) == [("BrokerConnection", "other", "unchanged")]


async def test_a_retention_that_is_left_out_is_not_one_of_nothing(api: HttpApi) -> None:
    manifests = MANIFESTS.replace("PARTITIONS", "2")
    path = "/admin/v2/namespaces/shop/payments/retention"
    for written, output in (
        ("", None),
        ("retention: {time: 0, size: 0}", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
        ("", None),
    ):
        text = manifests.replace("retention: {time: 1d, size: 1Gi}", written)
        assert [action for *_, action in await _actions(api, text)] in (
            ["created"] * 3,
            ["unchanged", "configured", "unchanged"],
        )
        assert (await api.request("GET", path)).body == output
        assert [action for *_, action in await _actions(api, text)] == ["unchanged"] * 3


@pytest.mark.parametrize(
    ("text", "status", "part"),
    [
        ("kind: Topic", 422, "apiVersion"),
        ("{", 422, "YAML"),
        (
            MANIFESTS.replace("PARTITIONS", "2").replace("tenantRef: {name: shop}", "tenantRef: {name: gone}"),
            412,
            "gone",
        ),
        (
            MANIFESTS.replace("PARTITIONS", "2").replace("{name: payments}\n  part", "{name: x}\n  part"),
            412,
            "Namespace 'x'",
        ),
    ],
)
async def test_anything_wrong_changes_nothing(api: HttpApi, text: str, status: int, part: str) -> None:
    answer = await api.request("POST", "/heliograph/v1/apply", text)
    assert answer.status == status, answer
    assert part in answer.body["reason"]
    assert await api.get("/admin/v2/tenants") == ["public"]


async def test_partitions_never_shrink(api: HttpApi) -> None:
    await _actions(api, MANIFESTS.replace("PARTITIONS", "3"))
    answer = await api.request("POST", "/heliograph/v1/apply", MANIFESTS.replace("PARTITIONS", "2"))
    assert answer.status == 412
    assert "3 or more" in answer.body["reason"]


async def test_a_partition_that_was_deleted_is_made_again_with_the_subscriptions_of_the_others(api: HttpApi) -> None:
    text = MANIFESTS.replace("PARTITIONS", "3")
    await _actions(api, text)
    topic = "/admin/v2/persistent/shop/payments/orders"
    await api.request("PUT", f"{topic}/subscription/audit")
    for partition in (0, 2):
        assert (await api.request("DELETE", f"{topic}-partition-{partition}")).status == 204
    assert [action for _, _, action in await _actions(api, text)] == ["unchanged", "unchanged", "configured"]
    for partition in range(3):
        assert sorted(await api.get(f"{topic}-partition-{partition}/subscriptions")) == ["audit", "billing"]
    assert [action for _, _, action in await _actions(api, text)] == ["unchanged"] * 3


async def test_a_topics_properties_and_a_namespaces_bundles_are_those_of_the_manifest(api: HttpApi) -> None:
    text = MANIFESTS.replace("PARTITIONS", "2")
    await _actions(api, text)
    changed = text.replace("{name: shop}\n  ret", "{name: shop}\n  bundles: 8\n  ret")
    changed = changed.replace("  messageTTL: 2h", "  properties: {owner: ann, tier: gold}")
    assert [action for _, _, action in await _actions(api, changed)] == ["unchanged", "configured", "configured"]
    topic = "/admin/v2/persistent/shop/payments/orders"
    assert await api.get(f"{topic}/properties") == {"owner": "ann", "tier": "gold"}
    assert (await api.get("/admin/v2/namespaces/shop/payments/bundles"))["numBundles"] == 8
    await _actions(api, changed.replace(", tier: gold", ""))
    assert await api.get(f"{topic}/properties") == {"owner": "ann"}


_FLIGHT = '{"type":"record","name":"Flight","fields":[{"name":"carrier","type":"string"}]}'
_OTHER = '{"type":"record","name":"Flight","fields":[{"name":"distance","type":"int"}]}'


def _with_schema(definition: str, kind: str = "AVRO", more: str = "") -> str:
    schema = f"schema: {{type: {kind}, definition: '{definition}'{more}}}" if definition else ""
    return MANIFESTS.replace("PARTITIONS", "2").replace("messageTTL: 2h", f"messageTTL: 2h\n  {schema}")


async def test_a_schema_of_a_resource_is_stored_once_and_one_that_clients_could_not_read_is_refused(
    api: HttpApi,
) -> None:
    path = "/admin/v2/schemas/shop/payments/orders"
    await _actions(api, _with_schema(_FLIGHT, more=", properties: {owner: ann}"))
    stored = await api.get(f"{path}/schema")
    assert (stored["version"], stored["type"], stored["data"]) == (0, "AVRO", _FLIGHT)
    assert stored["properties"] == {"owner": "ann"}
    for same in (_with_schema(_FLIGHT), _with_schema("")):
        assert [action for _, _, action in await _actions(api, same)] == ["unchanged"] * 3
    refused = await api.request("POST", "/heliograph/v1/apply", _with_schema(_OTHER))
    assert refused.status == 412
    assert (
        "Topic orders: spec.schema: Schema of topic persistent://shop/payments/orders is incompatible"
        in (refused.body["reason"])
    )
    # A strategy that is applied with it counts.
    allowed = _with_schema(_OTHER).replace(
        "  messageTTL: 2h", "  messageTTL: 2h\n  schemaCompatibility: ALWAYS_COMPATIBLE"
    )
    assert [action for _, _, action in await _actions(api, allowed)] == ["unchanged", "unchanged", "configured"]
    topics = (await api.get("/heliograph/v1/status"))["topics"]
    own = [schema_digest("AVRO", definition.encode()) for definition in (_FLIGHT, _OTHER)]
    assert topics["persistent://shop/payments/orders"]["schemas"] == own
    # Deleted by somebody, it is stored again.
    await api.request("DELETE", f"{path}/schema")
    assert [action for _, _, action in await _actions(api, allowed)] == ["unchanged", "unchanged", "configured"]
    assert (await api.get(f"{path}/schema"))["data"] == _OTHER


SUBSCRIPTION = """
apiVersion: heliograph.dev/v1alpha1
kind: Subscription
metadata: {name: warehouse}
spec:
  topicRef: {name: orders}
  position: earliest
  properties: {owner: logistics}
  messageTTL: 30m
  expires: 7d
"""
ORDERS = "persistent://shop/payments/orders"
WAREHOUSE = f"{ORDERS}/subscription/warehouse"


async def test_a_subscription_is_created_on_all_partitions_and_its_policies_stay(api: HttpApi) -> None:
    both = f"{MANIFESTS.replace('PARTITIONS', '2')}---{SUBSCRIPTION}"
    assert (await _actions(api, both))[-1] == ("Subscription", WAREHOUSE, "created")
    assert [action for _, _, action in await _actions(api, both)] == ["unchanged"] * 4
    topic = "/admin/v2/persistent/shop/payments/orders"
    for part in range(2):
        assert "warehouse" in await api.get(f"{topic}-partition-{part}/subscriptions")
    assert await api.get(f"{topic}/subscription/warehouse/properties") == {"owner": "logistics"}
    own = "/heliograph/v1/persistent/shop/payments/orders/subscription/warehouse"
    assert await api.get(f"{own}/messageTTL") == 1800
    changed = await _actions(api, f"{both.replace('30m', '40m').replace('logistics', 'stock')}")
    assert [action for _, _, action in changed] == ["unchanged", "unchanged", "unchanged", "configured"]
    assert await api.get(f"{own}/messageTTL") == 2400
    assert await api.get(f"{topic}/subscription/warehouse/properties") == {"owner": "stock"}
    # A Topic that is applied by itself says all of its subscriptions' policies, unless it names the others.
    alone = MANIFESTS.replace("PARTITIONS", "2").split("---")[0]
    notes = """{name: orders, annotations: {heliograph.dev/other-subscriptions: '["warehouse"]'}}"""
    assert [action for *_, action in await _actions(api, alone.replace("{name: orders}", notes))] == ["unchanged"]
    assert [action for *_, action in await _actions(api, alone)] == ["configured"]


async def _publish(api: HttpApi, ages_ms: Sequence[int]) -> list[str]:
    """Publish a message of each age to the topic; return their ids."""
    topic = api.broker.directory.get_topic(TopicName.parse(ORDERS))
    assert isinstance(topic, Topic)
    now = time.time_ns() // 1_000_000
    for number, age_ms in enumerate(ages_ms):
        metadata, frame = make_frame(b"value", publish_time=now - age_ms)
        topic.publish(Producer(topic, Client(), number, f"p{number}"), 0, 0, metadata, frame)
    # It answers once they are durable.
    await api.request("GET", "/health/ready")
    return ["{}:{}".format(*topic.log.position(topic.log.first_offset + number)) for number in range(len(ages_ms))]


@pytest.mark.parametrize(
    ("position", "backlog"),
    [("earliest", 3), ("latest", 0), ("ID", 2), ("TIME", 1), ("2026-01-01T00:00:00Z", 3)],
)
async def test_a_subscription_begins_at_its_position_and_is_not_moved(
    api: HttpApi, position: str, backlog: int
) -> None:
    await _actions(api, MANIFESTS.replace("PARTITIONS", "0"))
    ids = await _publish(api, [600_000, 400_000, 200_000])
    moment = datetime.fromtimestamp(time.time() - 300, UTC)
    wanted = position.replace("ID", ids[1]).replace("TIME", f"{moment:%Y-%m-%dT%H:%M:%SZ}")
    text = SUBSCRIPTION.replace("name: orders", "name: shop/payments/orders").replace("earliest", f"'{wanted}'")
    assert [action for *_, action in await _actions(api, text)] == ["created"]
    stats = "/admin/v2/persistent/shop/payments/orders/stats"
    assert (await api.get(stats))["subscriptions"]["warehouse"]["msgBacklog"] == backlog
    again = text.replace(f"'{wanted}'", "latest" if backlog else "earliest")
    assert [action for *_, action in await _actions(api, again)] == ["unchanged"]
    assert (await api.get(stats))["subscriptions"]["warehouse"]["msgBacklog"] == backlog
    state = (await api.get("/heliograph/v1/status"))["topics"][ORDERS]["subscriptionStates"]["warehouse"]
    assert state.get("messages", 0) == backlog
    assert (state.get("oldestAgeMs", -1) >= 0) is (backlog > 0)


@pytest.mark.parametrize(
    ("partitions", "text", "reason"),
    [
        ("2", SUBSCRIPTION.replace("earliest", "'3:0'"), "a message id is of one partition; valid: earliest, latest"),
        ("0", SUBSCRIPTION.replace("logistics", "x" * 70_000), "spec.properties: Invalid properties"),
        ("0", SUBSCRIPTION.replace("name: orders", "name: shop/payments/none"), "there is no Topic"),
    ],
)
async def test_a_subscription_that_cannot_be_changes_nothing(
    api: HttpApi, partitions: str, text: str, reason: str
) -> None:
    manifests = MANIFESTS.replace("PARTITIONS", partitions)
    answer = await api.request("POST", "/heliograph/v1/apply", f"{manifests}---{text}")
    assert answer.status == 412, answer
    assert reason in answer.body["reason"]
    assert await api.get("/admin/v2/tenants") == ["public"]


async def test_subscriptions_are_counted_for_the_maximum_and_a_readers_name_is_taken(api: HttpApi) -> None:
    limited = MANIFESTS.replace("PARTITIONS", "0").replace("messageTTL: 2h", "maxSubscriptions: 1")
    answer = await api.request("POST", "/heliograph/v1/apply", f"{limited}---{SUBSCRIPTION}")
    assert "there would be 2 subscriptions, maxSubscriptions is 1" in answer.body["reason"]
    await _actions(api, MANIFESTS.replace("PARTITIONS", "0"))
    topic = api.broker.directory.get_topic(TopicName.parse(ORDERS))
    assert isinstance(topic, Topic)
    topic.create_subscription("warehouse", durable=False)
    text = SUBSCRIPTION.replace("name: orders", "name: shop/payments/orders")
    answer = await api.request("POST", "/heliograph/v1/apply", text)
    assert f"a reader is connected to {ORDERS} as 'warehouse'" in answer.body["reason"]
    state = (await api.get("/heliograph/v1/status"))["topics"][ORDERS]["subscriptionStates"]["warehouse"]
    assert state["durable"] is False


def _of_orders(*names: str) -> str:
    """Return Subscriptions, each with a policy."""
    head = "apiVersion: heliograph.dev/v1alpha1\nkind: Subscription\n"
    spec = "spec: {topicRef: {name: shop/payments/orders}, messageTTL: 30m}\n"
    return "---\n".join(f"{head}metadata: {{name: {name}}}\n{spec}" for name in names)


async def test_policies_of_subscriptions_are_counted_with_those_of_the_same_request(api: HttpApi) -> None:
    await _actions(api, MANIFESTS.replace("PARTITIONS", "0"))
    names = [f"s{at:03}" for at in range(MAX_SUBSCRIPTION_POLICIES + 1)]
    answer = await api.request("POST", "/heliograph/v1/apply", _of_orders(*names))
    assert answer.status == 412
    why = f"Subscription {names[-1]}: {ORDERS} would have policies of 101 subscriptions; valid: at most 100"
    assert answer.body["reason"] == why
    await _actions(api, _of_orders(*names[:-1]))
    answer = await api.request("POST", "/heliograph/v1/apply", _of_orders(names[-1]))
    assert why in answer.body["reason"]
    # One that has them already counts once, also if its topic is applied with it.
    topic = f"{MANIFESTS.replace('PARTITIONS', '0')}---\n"
    assert (await _actions(api, topic + _of_orders(*names[:-1])))[-1][-1] == "unchanged"


async def test_policies_of_subscriptions_are_counted_with_those_of_their_topic(api: HttpApi) -> None:
    own = ", ".join(f"{{name: s{at:03}, messageTTL: 1h}}" for at in range(MAX_SUBSCRIPTION_POLICIES))
    topic = MANIFESTS.replace("PARTITIONS", "0").replace("messageTTL: 2h", f"subscriptionPolicies: [{own}]")
    answer = await api.request("POST", "/heliograph/v1/apply", f"{topic}---{SUBSCRIPTION}")
    assert "would have policies of 101 subscriptions; valid: at most 100" in answer.body["reason"]


@pytest.mark.parametrize("partitions", ["0", "2"])
async def test_the_admin_client_deletes_a_subscription_with_its_policies(api: HttpApi, partitions: str) -> None:
    await _actions(api, f"{MANIFESTS.replace('PARTITIONS', partitions)}---{SUBSCRIPTION}")
    name = SubscriptionName.parse(WAREHOUSE)
    async with AdminClient(api.url) as client:
        await client.delete_subscription(name)
        topic = (await client.state()).topics[ORDERS]
        assert (topic.subscriptions, topic.policies.subscription_policies) == (["billing"], None)
        # Again, and for a topic that is gone: there is nothing left to do.
        await client.delete_subscription(name)
        await client.delete_subscription(SubscriptionName(TopicName.parse("none"), "warehouse"))
