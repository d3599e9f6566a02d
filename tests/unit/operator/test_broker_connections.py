"""Resources on a BrokerConnection: how they name it, who owns what, and what becomes of them when it goes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from heliograph_api.admin.admin_client import AdminUnreachable
from heliograph_api.resources.references import ClusterReference
from heliograph_api.resources.subscription_spec import SubscriptionSpec
from heliograph_operator.act.broker_sessions import BrokerSessions
from heliograph_operator.objects.conditions import QUOTA_EXCEEDED, condition
from heliograph_operator.objects.kinds import FINALIZER, Key, Kind, cluster_key, cluster_note
from heliograph_operator.objects.resource_cache import ResourceCache
from heliograph_operator.objects.targets import Target, Waiting, broker_address, target_of

from .bodies import body, cluster, namespace, subscription, tenant, topic
from .installation import Installation, OneBroker, Operator, Server

CONNECTION = Key("BrokerConnection", "team", "external")
ORDERS = "persistent://shop/payments/orders"
TENANT, TOPIC = Key("Tenant", "team", "shop"), Key("Topic", "team", "orders")
ON: dict[str, Any] = {"clusterRef": {"name": "external", "kind": "BrokerConnection"}}


def connection(name: str = "external", **spec: Any) -> dict[str, Any]:
    return body("BrokerConnection", name, {"adminUrl": "http://pulsar:8080", **spec})


def family(**of_tenant: Any) -> list[dict[str, Any]]:
    return [tenant(**(of_tenant or ON)), namespace(), topic()]


def found(body_: dict[str, Any], *others: dict[str, Any]) -> Target | Waiting:
    cache = ResourceCache()
    for each in (*others, body_):
        cache.put(each)
    return target_of(cache, body_)


async def connected(installation: Installation, **settings: Any) -> Operator:
    """Return an operator that has a session with the brokers of the connection."""
    sessions = OneBroker(installation.broker)
    await sessions.connect(broker_address(connection()), installation.broker)
    return installation.started(sessions=sessions, **settings)


def test_a_resource_is_on_the_connection_that_its_tenant_names() -> None:
    there = found(topic(), connection(), tenant(**ON), namespace())
    assert there == Target(CONNECTION, "Topic", "persistent://shop/payments/orders", "shop/payments")
    named = topic(namespace_name="public/default", **ON)
    assert found(named, connection()) == Target(
        CONNECTION, "Topic", "persistent://public/default/orders", "public/default"
    )


async def test_a_subscription_of_a_topic_without_a_resource_names_the_connection() -> None:
    named = subscription(topic_name="public/default/clicks", **ON)
    # The API server drops what the schema lacks.
    reference = SubscriptionSpec.model_validate(named["spec"]).cluster_ref
    assert reference == ClusterReference.model_validate(ON["clusterRef"])
    installation = Installation(connection(), named)
    installation.broker.publish("persistent://public/default/clicks", 3)
    operator = await connected(installation)
    await operator.settle_policies()
    assert installation.ready(Key("Subscription", "team", "billing")) == ("Reconciled", "")
    assert installation.broker.topics["persistent://public/default/clicks"].subscriptions == ["billing"]


def test_a_wrong_cluster_of_a_subscription_is_named_with_the_right_one() -> None:
    named = subscription(clusterRef={"name": "main"})
    waiting = found(named, cluster(), connection(), *family())
    assert isinstance(waiting, Waiting)
    message = "spec.clusterRef.name: main is not the BrokerCluster of its Topic orders"
    assert waiting.message == f"{message}; valid: BrokerConnection external, or leave it out"


def test_a_connection_is_not_chosen_by_itself() -> None:
    waiting = found(tenant(), connection())
    assert isinstance(waiting, Waiting)
    assert (
        waiting.message == "there is no BrokerCluster in Kubernetes namespace team; create one, or set spec.clusterRef"
    )
    # Beside a BrokerCluster it makes nothing ambiguous.
    target = found(tenant(), connection(), connection("default"), cluster("main"))
    assert isinstance(target, Target)
    assert target.cluster == Key("BrokerCluster", "team", "main")


def test_a_connection_and_a_cluster_of_one_name_are_two() -> None:
    waiting = found(tenant(**ON), cluster("external"))
    assert isinstance(waiting, Waiting)
    assert waiting.message.startswith("spec.clusterRef.name: there is no BrokerConnection 'external'")
    here = found(namespace(clusterRef={"name": "external"}), cluster("external"), connection(), tenant(**ON))
    assert isinstance(here, Waiting)
    assert "external is not the BrokerCluster of its Tenant shop; valid: BrokerConnection external" in here.message


@pytest.mark.parametrize("where", ["team", "other"])
@pytest.mark.parametrize("kind", ["BrokerCluster", "BrokerConnection"])
def test_the_annotation_of_a_resource_names_what_it_is_on(kind: str, where: str) -> None:
    key = Key(kind, where, "main")
    note = cluster_note(key, tenant())
    assert cluster_key(tenant(), note) == key
    assert note.startswith("BrokerConnection:") == (kind == "BrokerConnection")


async def test_resources_are_applied_over_the_session_of_their_connection() -> None:
    installation = Installation(connection(), *family())
    operator = await connected(installation)
    await operator.settle_policies()
    assert installation.ready(TOPIC) == ("Reconciled", "")
    assert "persistent://shop/payments/orders" in installation.broker.topics
    note = installation.body(TOPIC)["metadata"]["annotations"]["heliograph.dev/cluster"]
    assert note == "BrokerConnection:external"


async def test_one_owner_of_two_that_name_the_same_object_by_the_same_connection() -> None:
    rival = {**topic(), "metadata": {**topic()["metadata"], "name": "again", "uid": "again"}}
    rival["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    rival["spec"] = {**rival["spec"], "name": "orders"}
    installation = Installation(connection(), *family(), rival)
    await (await connected(installation)).settle_policies()
    assert installation.ready(TOPIC)[0] == "Reconciled"
    assert installation.ready(Key("Topic", "team", "again"))[0] == "Conflict"


async def test_resources_of_other_kubernetes_namespaces_need_the_consent_of_the_connection() -> None:
    on = {"name": "external", "kind": "BrokerConnection", "namespace": "team"}
    spec = {"tenantRef": {"name": "shop"}, "clusterRef": on}
    other = body("Namespace", "payments", spec, namespace="other", uid="other")
    key = Key("Namespace", "other", "payments")
    installation = Installation(connection(), tenant(**ON), other)
    operator = await connected(installation)
    await operator.settle_policies()
    reason, message = installation.ready(key)
    assert reason == "NotAllowed"
    assert message.startswith("BrokerConnection team/external does not let a Namespace")
    consents = [{"kubernetesNamespaces": ["other"], "tenants": ["shop"]}]
    installation.apply(connection(consents=consents))
    await operator.settle_policies()
    assert installation.ready(key) == ("Reconciled", "")


async def test_resources_say_why_there_is_no_connection() -> None:
    status = {
        "conditions": [{"type": "Ready", "status": "False", "reason": "Unauthorized", "message": "401 at pulsar"}]
    }
    installation = Installation({**connection(), "status": status}, *family())
    await installation.started(sessions=BrokerSessions(0.0)).settle_policies()
    message = "BrokerConnection external has not reached its broker: 401 at pulsar"
    assert installation.ready(TENANT) == ("ClusterNotReady", message)


class EndingServer(Server):
    """An API server on which every Kubernetes namespace is being deleted."""

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        if kind.api_version == "v1" and kind.plural == "namespaces":
            return {"metadata": {"name": name, "deletionTimestamp": "2026-01-01T00:00:00Z"}}
        return await super().find(kind, namespace, name)


async def test_brokers_that_are_away_do_not_end_with_the_kubernetes_namespace_of_their_connection() -> None:
    held = {**connection(), "metadata": {**connection()["metadata"], "finalizers": [FINALIZER]}}
    installation = Installation(held, *family())
    operator = await connected(installation)
    await operator.settle_policies()
    installation.server.__class__ = EndingServer
    installation.broker.unreachable = True
    installation.delete(CONNECTION)
    installation.delete(TOPIC)
    await operator.settle_policies()
    assert installation.ready(TOPIC)[0] == "BrokerUnreachable"
    installation.broker.unreachable = False
    await operator.resync_policies()
    assert TOPIC not in installation.server.objects
    assert "persistent://shop/payments/orders" not in installation.broker.topics


async def test_orphans_wait_until_this_operator_has_tried_to_connect() -> None:
    installation = Installation(connection(), *family())
    await (await connected(installation)).settle_policies()
    spec = {**topic()["spec"], "deletionWhenUnreachable": "Orphan"}
    installation.apply({**topic(), "spec": spec})
    installation.delete(TOPIC)
    sessions = BrokerSessions(0.0)
    restarted = installation.started(sessions=sessions, deletion_wait_s=0.001)
    await restarted.settle_policies()
    assert TOPIC in installation.server.objects
    assert installation.ready(TOPIC)[0] == "BrokerUnreachable"
    await sessions.disconnect(broker_address(connection()))
    async with asyncio.timeout(60):
        while TOPIC in installation.server.objects:
            await restarted.resync_policies()
    assert "persistent://shop/payments/orders" in installation.broker.topics


async def test_resources_whose_connection_is_gone_leave_their_data() -> None:
    installation = Installation(connection(), *family())
    operator = await connected(installation)
    await operator.settle_policies()
    # Somebody removed its finalizer.
    del installation.server.objects[CONNECTION]
    installation.delete(TOPIC)
    await operator.settle_policies()
    assert TOPIC not in installation.server.objects
    assert "persistent://shop/payments/orders" in installation.broker.topics
    assert any(reason == "DataRetained" for reason, _ in installation.server.events)


async def test_the_quota_is_unknown_after_a_restart_until_the_connection_answers() -> None:
    installation = Installation(connection(), *family())
    await (await connected(installation)).settle_policies()
    installation.broker.topics[ORDERS].size_limit = 10
    installation.broker.topics[ORDERS].size_exceeded = True
    await (await connected(installation)).resync_policies()
    assert condition(installation.body(TOPIC)["status"], QUOTA_EXCEEDED)["status"] == "True"
    await installation.started(sessions=BrokerSessions(0.0)).settle_policies()
    assert installation.ready(TOPIC)[0] == "ClusterNotReady"
    quota = condition(installation.body(TOPIC)["status"], QUOTA_EXCEEDED)
    assert (quota["status"], quota["reason"]) == ("Unknown", "ClusterNotReady")
    await (await connected(installation)).settle_policies()
    assert condition(installation.body(TOPIC)["status"], QUOTA_EXCEEDED)["status"] == "True"


async def test_an_archive_is_refused_and_its_subscription_not_made() -> None:
    archive = {"schedule": "@daily", "path": "s3a://bucket/orders"}
    installation = Installation(connection(), tenant(**ON), namespace(), topic(archive=archive))
    await (await connected(installation)).settle_policies()
    assert installation.ready(TOPIC)[0] == "NotSupported"
    assert installation.broker.topics == {}


async def test_a_session_that_ends_while_a_config_map_is_read_is_not_replaced_by_one_with_no_url() -> None:
    reference = {"configMapKeyRef": {"name": "schemas", "key": "orders"}}
    definition = '{"type": "record", "name": "R", "fields": []}'
    config_map = {**body("ConfigMap", "schemas"), "data": {"orders": definition}}
    orders = topic(schema={"type": "JSON", "definitionFrom": reference})
    installation = Installation(connection(), tenant(**ON), namespace(), orders, config_map)
    sessions, address = BrokerSessions(0.0), broker_address(connection())
    await sessions.connect(address, installation.broker)
    operator = installation.started(sessions=sessions)
    await operator.settle_policies()
    assert installation.ready(TOPIC)[0] == "Reconciled"
    find = installation.server.find

    async def find_late(kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        found = await find(kind, namespace, name)
        if kind.name == "ConfigMap":
            await sessions.disconnect(address)
        return found

    installation.server.find = find_late  # type: ignore[method-assign]
    operator.context.queue.add(TOPIC)
    await operator.settle_policies()
    assert installation.ready(TOPIC)[0] == "ClusterNotReady"
    assert not sessions.has(address)
    with pytest.raises(AdminUnreachable, match="no session"):
        sessions.at(address)
    await sessions.close()
