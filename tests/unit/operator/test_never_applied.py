"""Objects that clients created while a resource could not be applied stay, and a deletion names what stays."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_api.admin.admin_client import AdminRefused
from heliograph_operator.objects.conditions import ADOPTED, POLICIES_APPLIED, condition
from heliograph_operator.objects.kinds import Key, is_adopted, is_held

from .bodies import cluster, namespace, tenant, topic
from .installation import Installation, Operator

ORDERS = "persistent://shop/payments/orders"
OWNER = Key("Topic", "team", "orders")
PAYMENTS = Key("Namespace", "team", "payments")
CLUSTER = Key("BrokerCluster", "team", "main")


async def refused_topic(monkeypatch: pytest.MonkeyPatch, **spec: Any) -> tuple[Installation, Operator]:
    """Return an installation whose Topic is held and was refused by the broker."""
    world = Installation(cluster(), tenant(), namespace())
    operator = world.started()
    await operator.settle()

    async def full(manifest: Any) -> None:
        raise AdminRefused(412, "Exceed maximum number of topics in namespace.")

    with monkeypatch.context() as patched:
        patched.setattr(world.broker, "apply", full)
        world.apply(topic(**spec))
        await operator.settle()
    assert world.ready(OWNER)[0] == "Refused"
    assert is_held(world.body(OWNER))
    return world, operator


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("seen", [False, True])
async def test_what_a_client_created_meanwhile_stays(
    seen: bool, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, operator = await refused_topic(monkeypatch)
    world.broker.publish(ORDERS, 7)
    if restarted:
        operator = world.started()
    if seen:
        # It can be applied now, and takes over what is there.
        await operator.resync()
        assert world.ready(OWNER)[0] == "Reconciled"
        assert is_adopted(world.body(OWNER))
        assert condition(world.body(OWNER)["status"], ADOPTED)["status"] == "True"
    world.delete(OWNER)
    await operator.settle()
    assert OWNER not in world.server.objects
    assert world.broker.topics[ORDERS].backlog_messages == 7
    assert "DataRetained" in [reason for reason, _ in world.server.events]


async def test_it_is_deleted_if_the_resource_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    world, operator = await refused_topic(monkeypatch, deletionPolicy="Delete")
    world.broker.publish(ORDERS, 7)
    world.delete(OWNER)
    await operator.settle()
    assert (OWNER in world.server.objects, world.broker.topics) == (False, {})


async def test_what_the_resource_created_after_a_refusal_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    world, operator = await refused_topic(monkeypatch)
    await operator.resync()
    assert world.ready(OWNER)[0] == "Reconciled"
    world.broker.publish(ORDERS, 7)
    for restarted in (operator, world.started()):
        await restarted.resync()
        assert not is_adopted(world.body(OWNER))
    # A later refusal changes nothing about that.
    world.server.change(OWNER, resourceVersion=world.body(OWNER)["metadata"]["resourceVersion"])
    world.delete(OWNER)
    await operator.settle()
    assert (OWNER in world.server.objects, world.broker.topics) == (False, {})


async def test_an_operator_killed_before_it_reported_keeps_what_it_created() -> None:
    world = Installation(cluster(), tenant(), namespace(), topic(messageTTL="1h"))
    operator = world.started()
    await operator.settle()
    # As if it had never reported on the Topic.
    world.body(OWNER).pop("status")
    operator = world.started()
    await operator.settle()
    assert not is_adopted(world.body(OWNER))
    # Somebody's topic with other policies is not what it would have created.
    world.body(OWNER).pop("status")
    world.broker.topics.pop(ORDERS)
    world.broker.publish(ORDERS, 3)
    operator = world.started()
    await operator.settle()
    assert is_adopted(world.body(OWNER))


async def test_a_resource_that_is_not_held_has_no_name_in_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Installation(cluster(), tenant(), namespace(), topic())
    operator = world.started()
    await operator.settle()
    assert world.body(OWNER)["status"]["name"] == ORDERS
    world.annotate(OWNER, managed="false")
    await operator.settle()
    assert "name" not in world.body(OWNER)["status"]
    world.broker.topics.pop(ORDERS)

    async def full(manifest: Any) -> None:
        raise AdminRefused(412, "full")

    monkeypatch.setattr(world.broker, "apply", full)
    world.annotate(OWNER, managed=None)
    await operator.settle()
    assert condition(world.body(OWNER)["status"], POLICIES_APPLIED)["status"] == "False"
    world.broker.publish(ORDERS, 3)
    world.delete(OWNER)
    await operator.settle()
    assert world.broker.topics[ORDERS].backlog_messages == 3


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_a_refusal_that_says_nothing_about_the_content_is_tried_again(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Installation(cluster(), tenant(), namespace(), topic(deletionPolicy="DeleteIfEmpty"))
    operator = world.started()
    await operator.settle()

    async def refuse(kind: str, name: str, *, force: bool) -> None:
        raise AdminRefused(status, "not now")

    with monkeypatch.context() as patched:
        patched.setattr(world.broker, "delete", refuse)
        world.delete(OWNER)
        await operator.settle()
    assert world.ready(OWNER) == ("Refused", "not now")
    await operator.resync()
    assert (OWNER in world.server.objects, world.broker.topics) == (False, {})


@pytest.mark.parametrize("status", [409, 412])
async def test_a_refusal_because_of_the_content_leaves_it(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Installation(cluster(), tenant(), namespace(), topic(deletionPolicy="DeleteIfEmpty"))
    operator = world.started()
    await operator.settle()

    async def refuse(kind: str, name: str, *, force: bool) -> None:
        raise AdminRefused(status, "Topic has active producers")

    monkeypatch.setattr(world.broker, "delete", refuse)
    world.delete(OWNER)
    await operator.settle()
    assert OWNER not in world.server.objects
    kept = f"{ORDERS} stays in the broker: Topic has active producers"
    assert world.server.events[-1] == ("DataRetained", kept)


async def test_a_resource_whose_annotations_were_removed_says_what_it_leaves() -> None:
    world = Installation(cluster(), tenant(), namespace(), topic())
    operator = world.started()
    await operator.settle()
    world.broker.publish(ORDERS, 3)
    notes = {"heliograph.dev/broker-object": None, "heliograph.dev/cluster": None}
    world.server.change(OWNER, annotations=notes)
    world.delete(OWNER)
    await operator.settle()
    assert OWNER not in world.server.objects
    kept = f"{ORDERS} stays in the broker: annotation heliograph.dev/broker-object, by which it is deleted, was removed"
    assert world.server.events[-1] == ("DataRetained", kept)
    world.delete(PAYMENTS)
    await operator.settle()
    assert world.broker.topics[ORDERS].backlog_messages == 3


async def test_what_was_left_with_a_cluster_that_is_gone_is_there_when_it_is_created_again() -> None:
    world = Installation(cluster(), tenant(), namespace(), topic(deletionPolicy="DeleteIfEmpty"))
    operator = world.started()
    await operator.settle()
    world.broker.publish(ORDERS, 3)
    # It was kept running: its brokers and their messages are still there.
    world.delete(CLUSTER)
    await operator.settle()
    world.delete(OWNER)
    await operator.settle()
    assert OWNER not in world.server.objects
    assert world.server.events[-1][0] == "DataRetained"
    again = cluster()
    again["metadata"] |= {"uid": "again", "resourceVersion": "1000"}
    world.apply(again)
    await operator.settle()
    world.delete(PAYMENTS)
    await operator.settle()
    await operator.resync()
    assert world.broker.topics[ORDERS].backlog_messages == 3
