"""An object that existed before its resource: no setting is lost unseen, and it is not the resource's to delete."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.broker_state import NamespaceState, TenantState, TopicState
from heliograph_operator.act.broker_sessions import FRESH_S, Listing
from heliograph_operator.objects.conditions import condition
from heliograph_operator.objects.kinds import FINALIZER, Key, is_adopted, owned

from .bodies import body, cluster, namespace, tenant, topic
from .installation import Broker, Installation

ORDERS = "persistent://shop/payments/orders"
TOPIC = Key("Topic", "team", "orders")
HOUR_MS = 3_600_000


async def existing(topic_body: dict[str, Any], policies: Policies, **state: Any) -> Installation:
    """Return an installation whose broker has the topic, with messages, before there is a resource for it."""
    world = Installation(cluster(), tenant(), namespace())
    await world.started().settle()
    world.broker.topics[ORDERS] = TopicState(0, policies, **state)
    world.broker.publish(ORDERS, 7)
    world.apply(topic_body)
    await world.started().settle()
    return world


def adopted(world: Installation) -> tuple[str, str, str]:
    found = condition(world.body(TOPIC)["status"], "Adopted")
    return found["status"], found["reason"], found["message"]


async def test_the_changes_are_shown_and_the_topic_stays_when_its_resource_goes() -> None:
    world = await existing(topic(messageTTL="1h"), Policies(message_ttl_ms=60_000))
    message = (
        f"{ORDERS} existed before this resource; changes: messageTTL was 1m, is 1h; spec.deletionPolicy is not set:"
        " it stays when the resource is deleted"
    )
    assert adopted(world) == ("True", "ExistedBefore", message)
    assert ("Adopted", message) in world.server.events
    assert world.ready(TOPIC)[0] == "Reconciled"
    assert world.broker.topics[ORDERS].policies.message_ttl_ms == HOUR_MS
    # It stays the same when the resource is reconciled again.
    await world.started().resync()
    assert adopted(world)[2] == message
    world.delete(TOPIC)
    await world.started().settle()
    assert TOPIC not in world.server.objects
    assert world.broker.topics[ORDERS].backlog_messages == 7
    assert world.server.events[-1] == ("DataRetained", f"{ORDERS} stays in the broker: it existed before its resource")


async def test_a_deletion_policy_that_is_stated_wins() -> None:
    world = await existing(topic(deletionPolicy="Delete"), Policies())
    assert adopted(world)[2].endswith("changes: none; spec.deletionPolicy is Delete")
    world.delete(TOPIC)
    await world.started().settle()
    assert world.broker.topics == {}


@pytest.mark.parametrize("answer", [{"adoptionPolicy": "Replace"}, {"maxProducers": 5, "properties": {"team": "a"}}])
async def test_settings_that_the_resource_does_not_name_are_kept_until_it_does_or_says_otherwise(
    answer: dict[str, Any],
) -> None:
    before = Policies(message_ttl_ms=60_000, max_producers=5)
    world = await existing(topic(messageTTL="1h"), before, properties={"team": "a"})
    message = (
        f"{ORDERS} existed before this resource and has settings that it does not name: properties.team a;"
        " maxProducers 5; valid: add them to the spec, or remove them with spec.adoptionPolicy: Replace."
        " It would change: messageTTL was 1m, is 1h"
    )
    assert world.ready(TOPIC) == ("AdoptionPending", message)
    assert adopted(world) == ("False", "AdoptionPending", message)
    assert world.broker.topics[ORDERS].policies == before
    await world.started().resync()
    assert world.broker.topics[ORDERS].policies == before
    world.apply(topic(messageTTL="1h", **answer))
    await world.started().settle()
    assert world.ready(TOPIC)[0] == "Reconciled"
    assert adopted(world)[0] == "True"
    policies = world.broker.topics[ORDERS].policies
    assert (policies.message_ttl_ms, policies.max_producers) == (HOUR_MS, answer.get("maxProducers"))
    # From then on, the resource is all there is: a field that is removed from it is removed from the broker.
    world.apply(topic(**answer))
    await world.started().settle()
    assert world.broker.topics[ORDERS].policies.message_ttl_ms is None


async def test_what_the_operator_created_is_not_adopted_after_a_restart() -> None:
    world = Installation(cluster(), tenant(), namespace(), topic())
    await world.started().settle()
    await world.started().resync()
    assert not is_adopted(world.body(TOPIC))
    assert condition(world.body(TOPIC)["status"], "Adopted") == {}
    world.delete(TOPIC)
    await world.started().settle()
    assert world.broker.topics == {}


async def test_one_that_is_managed_again_is_adopted_as_at_first() -> None:
    world = await existing(topic(), Policies())
    assert adopted(world)[0] == "True"
    operator = world.started()
    world.annotate(TOPIC, managed="false")
    await operator.settle()
    assert condition(world.body(TOPIC)["status"], "Adopted") == {}
    world.broker.topics[ORDERS] = TopicState(0, Policies(max_producers=5))
    world.annotate(TOPIC, managed=None)
    await operator.settle()
    assert (world.ready(TOPIC)[0], adopted(world)[0]) == ("AdoptionPending", "False")
    assert world.broker.topics[ORDERS].policies.max_producers == 5


async def test_a_finalizer_without_annotations_says_nothing_about_the_owner() -> None:
    held = topic()
    held["metadata"]["finalizers"] = [FINALIZER]
    world = await existing(held, Policies(max_producers=5))
    assert world.ready(TOPIC)[0] == "AdoptionPending"
    assert owned(world.body(TOPIC)) == ("main", ORDERS)
    assert world.body(TOPIC)["metadata"]["finalizers"] == [FINALIZER]


async def test_tenants_and_namespaces_are_adopted_likewise() -> None:
    world = Installation(cluster(), tenant(), namespace())
    world.broker.tenants["shop"] = TenantState(["admin"], ["standalone"], Policies())
    world.broker.namespaces["shop/payments"] = NamespaceState(4, Policies(message_ttl_ms=60_000))
    await world.started().settle()
    shop, payments = Key("Tenant", "team", "shop"), Key("Namespace", "team", "payments")
    assert "does not name: adminRoles admin;" in world.ready(shop)[1]
    assert "does not name: messageTTL 1m;" in world.ready(payments)[1]
    world.broker.publish(ORDERS, 7)
    for key in (payments, shop):
        world.delete(key)
        await world.started().settle()
    assert world.broker.topics[ORDERS].backlog_messages == 7


@pytest.mark.parametrize(
    ("spec", "reason", "bundles"),
    [({"bundles": 4}, "AdoptionPending", 16), ({"bundles": 32}, "Reconciled", 32), ({"bundles": 16}, "Reconciled", 16)],
)
async def test_bundles_that_the_resource_does_not_name_are_kept(spec: Any, reason: str, bundles: int) -> None:
    world = Installation(cluster(), tenant())
    await world.started().settle()
    world.broker.namespaces["shop/payments"] = NamespaceState(16, Policies())
    world.apply(namespace(**spec))
    await world.started().settle()
    assert world.ready(Key("Namespace", "team", "payments"))[0] == reason
    assert world.broker.namespaces["shop/payments"].bundles == bundles


async def test_a_paused_resource_shows_the_differences_before_it_holds_anything() -> None:
    paused = body("Topic", "orders", topic()["spec"], annotations={"heliograph.dev/paused": "true"})
    world = await existing(paused, Policies(message_ttl_ms=60_000))
    assert world.ready(TOPIC)[1] == "paused by annotation, nothing is changed: messageTTL was 1m, is not set"
    world.delete(TOPIC)
    assert TOPIC not in world.server.objects


async def test_an_old_listing_does_not_decide_whether_the_object_exists() -> None:
    class Session(Broker):
        asked: float = -1.0

        async def listing(self, since: float, role: str | None = None) -> Listing:
            self.asked = since
            return await super().listing(since)

    session, now = Session(), asyncio.get_running_loop().time()
    # A resource that was seen just now needs a listing of now; one that waited for long, a recent one all the same.
    for seen_at, oldest in ((now, now), (now - 600, now - FRESH_S)):
        await session.recent_listing(seen_at)
        assert session.asked >= oldest
