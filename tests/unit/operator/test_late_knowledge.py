"""Data is deleted once, and by what the API server says at that time, not by what a watch has shown until then."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_operator.act.controller import Outcome
from heliograph_operator.kube.client import KubeError, KubeRefused
from heliograph_operator.objects.kinds import TOPIC, Body, Key, Kind, is_deleted

from .bodies import body, cluster, namespace, subscription, tenant, topic
from .installation import Installation, Operator

ORDERS = "persistent://shop/payments/orders"
OWNER = Key("Topic", "team", "orders")
PAYMENTS = Key("Namespace", "team", "payments")
POLICIES = ["Delete", "DeleteIfEmpty", None]


async def deletion_begun(**spec: Any) -> tuple[Installation, Operator]:
    """Return an installation whose empty topic is being deleted, and its operator, which knows of that."""
    world = Installation(cluster(), tenant(), namespace(), topic(**spec))
    operator = world.started()
    await operator.settle()
    world.delete(OWNER)
    operator.watcher.seen(world.body(OWNER))
    return world, operator


async def reconcile(operator: Operator, key: Key = OWNER) -> Outcome:
    resource = operator.context.resource(key)
    assert resource is not None
    return await operator.reconcile(resource)


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_client_creates_the_topic_again_before_the_watch_shows_that_its_resource_is_gone(
    policy: str | None,
) -> None:
    world, operator = await deletion_begun(deletionPolicy=policy)
    await reconcile(operator)
    assert ORDERS not in world.broker.topics
    assert not world.body(OWNER)["metadata"]["finalizers"]
    del world.server.objects[OWNER]
    world.broker.publish(ORDERS, 0)
    # Someone changed the resource just before, so it is queued once more.
    await reconcile(operator)
    assert ORDERS in world.broker.topics


async def test_a_person_ended_the_deletion_by_hand() -> None:
    world, operator = await deletion_begun()
    del world.server.objects[OWNER]
    world.broker.publish(ORDERS, 3)
    await reconcile(operator)
    assert ORDERS in world.broker.topics


@pytest.mark.parametrize("effect", [True, False])
async def test_the_resource_cannot_be_released_at_once(effect: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world, operator = await deletion_begun(deletionPolicy="Delete")
    patch = world.server.patch

    async def no_answer(kind: Kind, namespace: str, name: str, body: Body, **options: Any) -> dict[str, Any]:
        if effect:
            await patch(kind, namespace, name, body, **options)
        raise KubeError("the API server does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(world.server, "patch", no_answer)
        with pytest.raises(KubeError):
            await reconcile(operator)
    assert ORDERS not in world.broker.topics
    world.broker.publish(ORDERS, 3)
    await reconcile(operator)
    await operator.settle()
    assert OWNER not in world.server.objects
    assert ORDERS in world.broker.topics


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("note", ["paused", "managed"])
async def test_the_watch_is_late_with_an_annotation_that_keeps_the_data(policy: str | None, note: str) -> None:
    world, operator = await deletion_begun(deletionPolicy=policy)
    world.annotate(OWNER, **{note: "true" if note == "paused" else "false"})
    await reconcile(operator)
    assert ORDERS in world.broker.topics
    await operator.settle()
    assert OWNER not in world.server.objects
    assert ORDERS in world.broker.topics


async def test_the_watch_is_late_with_a_policy_that_keeps_the_data() -> None:
    world, operator = await deletion_begun(deletionPolicy="Delete")
    world.apply(topic(deletionPolicy="Retain"))
    world.server.change(OWNER)
    await reconcile(operator)
    await operator.settle()
    assert OWNER not in world.server.objects
    assert ORDERS in world.broker.topics


@pytest.mark.parametrize("policy", POLICIES)
async def test_another_writer_does_not_keep_a_resource_from_being_deleted(
    policy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, operator = await deletion_begun(deletionPolicy=policy)
    find = world.server.find

    async def after_another_change(kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        if kind is TOPIC:
            world.server.change(OWNER, annotations={"example.org/seen": str(len(world.server.patches))})
            world.server.change(OWNER, labels={"seen": str(len(world.server.patches))})
        return await find(kind, namespace, name)

    monkeypatch.setattr(world.server, "find", after_another_change)
    await reconcile(operator)
    assert ORDERS not in world.broker.topics


async def test_an_api_server_that_was_set_back_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world, operator = await deletion_begun()
    find = world.server.find

    async def before_the_deletion(kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        found = await find(kind, namespace, name)
        if found is None or kind is not TOPIC:
            return found
        metadata = {name: value for name, value in found["metadata"].items() if name != "deletionTimestamp"}
        return {**found, "metadata": {**metadata, "resourceVersion": "1"}}

    monkeypatch.setattr(world.server, "find", before_the_deletion)
    outcome = await reconcile(operator)
    assert (outcome.result, bool(outcome.requeue_s)) == ("waiting", True)
    assert ORDERS in world.broker.topics


async def test_a_finalizer_that_cannot_be_removed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    world, operator = await deletion_begun()
    patch = world.server.patch

    async def refused(kind: Kind, namespace: str, name: str, change: Any, **more: Any) -> Any:
        if "finalizers" in change.get("metadata", {}):
            raise KubeRefused(403, "Forbidden", "webhook denies it")
        return await patch(kind, namespace, name, change, **more)

    monkeypatch.setattr(world.server, "patch", refused)
    await reconcile(operator)
    assert ORDERS not in world.broker.topics
    reason, message = world.ready(OWNER)
    assert reason == "Deleting"
    assert "is deleted in the broker, but finalizer heliograph.dev/broker-data stays: webhook denies it" in message


@pytest.mark.parametrize("policy", POLICIES)
async def test_another_resource_claims_the_topic_while_the_api_server_is_asked(
    policy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, operator = await deletion_begun(deletionPolicy=policy)
    find = world.server.find

    async def then_another_comes(kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        found = await find(kind, namespace, name)
        operator.watcher.seen(body("Topic", "heir", {"namespaceRef": {"name": "payments"}, "name": "orders"}))
        return found

    monkeypatch.setattr(world.server, "find", then_another_comes)
    await reconcile(operator)
    assert ORDERS in world.broker.topics
    assert world.server.events[-1] == ("DataRetained", f"ownership of {ORDERS} passes to Topic heir")


@pytest.mark.parametrize("policy", POLICIES)
async def test_what_is_below_comes_while_the_api_server_is_asked(
    policy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, operator = await deletion_begun(deletionPolicy=policy)
    world.broker.subscribe(ORDERS, "billing")
    find = world.server.find

    async def then_a_subscription_comes(kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        found = await find(kind, namespace, name)
        if found is not None and is_deleted(found):
            operator.watcher.seen(subscription())
        return found

    monkeypatch.setattr(world.server, "find", then_a_subscription_comes)
    await reconcile(operator)
    assert world.ready(OWNER)[0] == "ChildrenExist"
    assert ORDERS in world.broker.topics
