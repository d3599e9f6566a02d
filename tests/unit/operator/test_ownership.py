"""No message of a resource that stays is lost to another: after restarts, in any order, by any way to name a parent."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from heliograph_api.admin.admin_client import AdminRefused
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.broker_state import NamespaceState
from heliograph_operator.act.broker_sessions import Listing
from heliograph_operator.objects.conditions import POLICIES_APPLIED, condition
from heliograph_operator.objects.kinds import FINALIZER, Key, is_held, owned
from heliograph_operator.policies import policy_deletion

from .bodies import body, cluster, namespace, tenant, topic
from .installation import Installation, Operator

ORDERS = "persistent://shop/payments/orders"
CLUSTER = Key("BrokerCluster", "team", "main")
SHOP = Key("Tenant", "team", "shop")
PAYMENTS = Key("Namespace", "team", "payments")
OWNER = Key("Topic", "team", "orders")
DELETE = "delete one of the two resources"
UNMANAGED = "annotation heliograph.dev/managed is false"
WEEK_MS, MINUTE_MS = 7 * 24 * 3_600_000, 60_000


def old(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return body(kind, name, spec)


def young(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return body(kind, name, spec, creationTimestamp="2026-02-01T00:00:00Z")


async def standing_conflict(loser: str) -> tuple[Installation, Key]:
    """Return an installation where Topic ``orders`` has the topic, and a younger one wants it with a shorter TTL."""
    world = Installation(cluster(), tenant(), namespace(), topic(messageTTL="7d"))
    await world.started().settle()
    spec = {"namespaceRef": {"name": "payments"}, "name": "orders", "messageTTL": "1m"}
    world.apply(young("Topic", loser, spec))
    await world.started().settle()
    world.broker.publish(ORDERS, 1_000_000)
    assert world.ready(OWNER) == ("Reconciled", "")
    return world, Key("Topic", "team", loser)


# Listed in the order of their names, the loser comes before or after the owner.
@pytest.mark.parametrize("loser", ["again", "zagain"])
async def test_after_a_restart_the_owner_is_the_same(loser: str) -> None:
    world, key = await standing_conflict(loser)
    assert world.ready(key) == ("Conflict", f"Topic orders already describes {ORDERS}; {DELETE}")
    for order in permutations(world.server.objects):
        await world.started(order).settle()
        assert world.broker.topics[ORDERS].policies.message_ttl_ms == WEEK_MS
        assert (world.ready(key)[0], world.ready(OWNER)[0]) == ("Conflict", "Reconciled")
        assert not is_held(world.body(key))


@pytest.mark.parametrize("loser", ["again", "zagain"])
async def test_the_loser_that_an_older_operator_held_deletes_nothing(loser: str) -> None:
    world, key = await standing_conflict(loser)
    held = world.body(OWNER)["metadata"]
    world.server.change(key, finalizers=held["finalizers"], annotations=held["annotations"])
    world.delete(key)
    await world.started(sorted(world.server.objects, key=lambda each: (each.kind, each.name))).settle()
    assert key not in world.server.objects
    assert world.broker.topics[ORDERS].backlog_messages == 1_000_000
    assert world.server.events[-1] == ("DataRetained", f"{ORDERS} stays in the broker: it belongs to Topic orders")


async def test_an_older_resource_does_not_take_the_object_that_another_one_has() -> None:
    world = Installation(cluster(), tenant(), namespace())
    world.apply(young("Topic", "again", {"namespaceRef": {"name": "payments"}, "name": "orders", "messageTTL": "7d"}))
    await world.started().settle()
    world.apply(old("Topic", "orders", {"namespaceRef": {"name": "payments"}, "messageTTL": "1m"}))
    await world.started().settle()
    assert world.ready(OWNER) == ("Conflict", f"Topic again already describes {ORDERS}; {DELETE}")
    assert world.broker.topics[ORDERS].policies.message_ttl_ms == WEEK_MS


async def test_the_present_owner_and_all_rivals_are_looked_at_when_a_claim_changes() -> None:
    world, key = await standing_conflict("again")
    operator = world.started()
    await operator.settle()
    world.annotate(OWNER, managed="false")
    await operator.settle()
    assert (world.ready(OWNER)[0], world.ready(key)[0]) == ("Unmanaged", "Reconciled")
    assert world.broker.topics[ORDERS].policies.message_ttl_ms == MINUTE_MS
    # It comes too late now, though it is the older one.
    world.annotate(OWNER, managed=None)
    await operator.settle()
    assert (world.ready(OWNER)[0], world.ready(key)[0]) == ("Conflict", "Reconciled")


async def test_the_policies_of_one_that_has_nothing_are_not_applied() -> None:
    world, key = await standing_conflict("again")
    operator = world.started()

    def applied(key: Key) -> tuple[str, str]:
        found = condition(world.body(key)["status"], POLICIES_APPLIED)
        return found["status"], found["reason"]

    assert (applied(OWNER), applied(key)) == (("True", "Reconciled"), ("False", "Conflict"))
    world.annotate(OWNER, managed="false")
    await operator.settle()
    assert applied(OWNER) == ("Unknown", "Unmanaged")
    world.annotate(OWNER, managed=None)
    await operator.settle()
    assert applied(OWNER) == ("False", "Conflict")


async def test_a_younger_resource_takes_over_without_losing_a_message() -> None:
    world, key = await standing_conflict("again")
    operator = world.started()
    world.delete(OWNER)
    await operator.settle()
    assert OWNER not in world.server.objects
    assert world.ready(key)[0] == "Reconciled"
    assert world.broker.topics[ORDERS].backlog_messages == 1_000_000


async def test_what_another_one_took_during_the_listing_is_not_taken_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Installation(cluster(), tenant(), namespace())
    operator = world.started()
    await operator.settle()
    younger = Key("Topic", "team", "zagain")
    world.apply(young("Topic", "zagain", {"namespaceRef": {"name": "payments"}, "name": "orders", "messageTTL": "7d"}))
    listing = world.broker.listing

    async def listing_after_the_younger_one(since: float, role: str | None = None) -> Listing:
        if not is_held(world.body(younger)):
            notes = {"heliograph.dev/cluster": "main", "heliograph.dev/broker-object": ORDERS}
            world.server.change(younger, finalizers=[FINALIZER], annotations=notes)
            operator.watcher.seen(world.body(younger))
        return await listing(since)

    world.apply(topic(messageTTL="1m"))
    monkeypatch.setattr(world.broker, "listing", listing_after_the_younger_one)
    await operator.settle()
    await operator.resync()
    assert (world.ready(younger)[0], world.ready(OWNER)[0]) == ("Reconciled", "Conflict")
    assert world.broker.topics[ORDERS].policies.message_ttl_ms == WEEK_MS


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
async def test_a_topic_that_names_its_namespace_in_full_keeps_it(policy: str) -> None:
    own = body("Topic", "full", {"namespaceRef": {"name": "public/default"}, "deletionPolicy": policy})
    parents = [tenant("public"), body("Namespace", "dflt", {"tenantRef": {"name": "public"}, "name": "default"})]
    world = Installation(cluster(), *parents, own)
    operator = world.started()
    await operator.settle()
    name, dflt, public = (
        "persistent://public/default/full",
        Key("Namespace", "team", "dflt"),
        SHOP._replace(name="public"),
    )
    world.broker.publish(name, 5)
    for key in (dflt, public):
        world.delete(key)
        await operator.settle()
    assert world.ready(dflt) == (
        "ChildrenExist",
        "waiting for Topic full to be deleted; valid: delete topics.heliograph.dev/full, or set spec.deletionPolicy to"
        " Retain",
    )
    assert world.broker.topics[name].backlog_messages == 5
    world.delete(Key("Topic", "team", "full"))
    await operator.settle()
    await operator.resync()
    assert (dflt in world.server.objects, public in world.server.objects) == (False, False)
    # The retained topic is noted on its namespace and tenant, by whatever name it referred to them.
    assert (name in world.broker.topics) is (policy == "Retain")


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_topic_that_is_not_managed_is_not_deleted_with_its_namespace(restarted: bool) -> None:
    world = Installation(cluster(), tenant(), namespace(), topic())
    operator = world.started()
    await operator.settle()
    world.broker.publish(ORDERS, 3)
    world.annotate(OWNER, managed="false")
    await operator.settle()
    assert not is_held(world.body(OWNER))
    if restarted:
        operator = world.started()
    world.delete(PAYMENTS)
    await operator.settle()
    reason, message = world.ready(PAYMENTS)
    assert (reason, message.partition(";")[0]) == (
        "ChildrenExist",
        "waiting for Topic orders (not managed) to be deleted",
    )
    world.delete(OWNER)
    await operator.settle()
    await operator.resync()
    assert PAYMENTS not in world.server.objects
    assert world.broker.topics[ORDERS].backlog_messages == 3


async def test_what_nothing_was_recorded_for_yet_is_not_deleted_with_its_namespace() -> None:
    world = Installation(cluster(), tenant(), namespace())
    await world.started().settle()
    world.broker.publish(ORDERS, 3)
    world.broker.publish("persistent://shop/payments/of-nobody", 1)
    world.delete(PAYMENTS)
    world.apply(topic())
    operator = world.started()
    await operator.settle()
    assert world.ready(PAYMENTS)[0] == "ChildrenExist"
    assert ORDERS in world.broker.topics
    # One that the broker does not have yet is no reason to wait.
    world.delete(OWNER)
    world.apply(topic("new"))
    await operator.settle()
    await operator.resync()
    assert PAYMENTS not in world.server.objects
    assert world.broker.topics == {}


@pytest.mark.parametrize("key", [PAYMENTS, SHOP])
async def test_what_appears_while_its_parent_is_deleted_is_not_deleted_with_it(
    key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = [tenant()] if key == SHOP else [tenant(), namespace()]
    world = Installation(cluster(), *above)
    await world.started().settle()
    for body_below in (namespace(), topic(namespaceRef={"name": "shop/payments"})):
        world.apply(body_below)
    world.delete(key)
    listing = world.broker.listing

    async def then_a_client_publishes(since: float) -> Listing:
        found = await listing(since)
        world.broker.namespaces.setdefault("shop/payments", NamespaceState(4, Policies()))
        world.broker.publish(ORDERS, 3)
        return found

    operator = world.started()
    monkeypatch.setattr(world.broker, "listing", then_a_client_publishes)
    deleted = operator.context.resource(key)
    assert deleted is not None
    await operator.reconcile(deleted)
    assert world.broker.topics[ORDERS].backlog_messages == 3
    assert world.ready(key)[0] == "ChildrenExist"


async def test_of_two_that_are_deleted_together_the_owner_decides() -> None:
    world, key = await standing_conflict("again")
    held = world.body(OWNER)["metadata"]
    world.server.change(key, finalizers=held["finalizers"], annotations=held["annotations"])
    world.apply(topic(messageTTL="7d", deletionPolicy="Retain"))
    world.delete(OWNER)
    world.delete(key)
    operator = world.started([CLUSTER, SHOP, PAYMENTS, OWNER, key])
    await operator.settle()
    await operator.resync()
    assert {OWNER, key} & set(world.server.objects) == set()
    assert world.broker.topics[ORDERS].backlog_messages == 1_000_000


@pytest.mark.parametrize("second", ["another", "default"])
async def test_a_second_cluster_changes_nothing_for_what_has_one(second: str) -> None:
    own = body("Topic", "full", {"namespaceRef": {"name": "public/default"}})
    world = Installation(cluster(), tenant(), namespace(), topic(), own)
    await world.started().settle()
    world.apply(cluster(second, http="http://another"))
    world.apply(topic("new"))
    keys = [OWNER, Key("Topic", "team", "full"), PAYMENTS, SHOP, Key("Topic", "team", "new")]
    for _ in range(2):
        operator = world.started()
        await operator.settle()
        await operator.resync()
        assert [world.ready(key)[0] for key in keys] == ["Reconciled"] * 5


@pytest.mark.parametrize("note", [{"heliograph.dev/paused": "true"}, {"heliograph.dev/managed": "false"}])
@pytest.mark.parametrize("second", ["another", "default"])
async def test_with_a_second_cluster_no_message_of_an_untouched_topic_is_lost(
    note: dict[str, str], second: str
) -> None:
    world = Installation(cluster(), tenant(), namespace())
    operator = world.started()
    await operator.settle()
    name = "persistent://shop/payments/full"
    world.broker.publish(name, 7)
    world.apply(body("Topic", "full", {"namespaceRef": {"name": "shop/payments"}}, annotations=note))
    await operator.settle()
    world.apply(cluster(second, http="http://another"))
    await operator.settle()
    world.delete(PAYMENTS)
    for restarted in (operator, world.started()):
        await restarted.settle()
        await restarted.resync()
        assert world.ready(PAYMENTS)[0] == "ChildrenExist"
    assert world.broker.topics[name].backlog_messages == 7


async def test_one_that_is_managed_again_keeps_its_cluster() -> None:
    world = Installation(cluster(), tenant(), namespace(), topic())
    operator = world.started()
    await operator.settle()
    world.annotate(SHOP, managed="false")
    await operator.settle()
    world.apply(cluster("default", http="http://another"))
    await operator.settle()
    world.annotate(SHOP, managed=None)
    for restarted in (operator, world.started()):
        await restarted.settle()
        await restarted.resync()
        assert [world.ready(key)[0] for key in (SHOP, PAYMENTS, OWNER)] == ["Reconciled"] * 3
        assert owned(world.body(SHOP)) == ("main", "shop")


async def deletion_under_way(**spec: Any) -> tuple[Installation, Operator]:
    """Return an installation whose topic with a message is being deleted, and its operator."""
    world = Installation(cluster(), tenant(), namespace(), topic(**spec))
    operator = world.started()
    await operator.settle()
    world.delete(OWNER)
    return world, operator


@pytest.mark.parametrize("policy", ["Delete", "DeleteIfEmpty"])
async def test_one_that_was_created_again_keeps_what_it_finds(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, operator = await deletion_under_way(deletionPolicy=policy)
    operator.watcher.seen(world.body(OWNER))
    resource = operator.context.resource(OWNER)
    assert resource is not None

    def created_again() -> None:
        world.server.objects[OWNER] = {
            **topic(),
            "metadata": topic()["metadata"] | {"uid": "2", "resourceVersion": "99"},
        }
        operator.watcher.deleted(OWNER)
        operator.watcher.seen(world.body(OWNER))

    listing = world.broker.listing

    async def listing_late(since: float, role: str | None = None) -> Listing:
        created_again()
        return await listing(since)

    async def find_late(*_: object) -> bool:
        created_again()
        return False

    monkeypatch.setattr(world.broker, "listing", listing_late)
    if policy == "Delete":
        monkeypatch.setattr(policy_deletion, "ends_archive", find_late)
    await operator.reconcile(resource)
    assert ORDERS in world.broker.topics


async def test_late_news_of_an_object_do_not_replace_the_next_one_of_its_name() -> None:
    world, operator = await deletion_under_way()
    late = {**world.body(OWNER), "metadata": world.body(OWNER)["metadata"] | {"resourceVersion": "40"}}
    again = {**topic(), "metadata": topic()["metadata"] | {"uid": "2", "resourceVersion": "50"}}
    world.server.objects[OWNER] = again
    operator.watcher.seen(again)
    operator.watcher.seen(late)
    resource = operator.context.resource(OWNER)
    assert resource is not None
    await operator.reconcile(resource)
    assert ORDERS in world.broker.topics


@pytest.mark.parametrize("kind", ["Topic", "Namespace"])
async def test_a_broker_in_trouble_does_not_end_a_deletion(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Installation(cluster(), tenant(), namespace(deletionPolicy="DeleteIfEmpty"))
    world.apply(topic(deletionPolicy="DeleteIfEmpty"))
    operator = world.started()
    await operator.settle()
    key = OWNER if kind == "Topic" else PAYMENTS
    if kind == "Namespace":
        world.delete(OWNER)
        await operator.settle()

    async def unavailable(kind: str, name: str, *, force: bool) -> None:
        raise AdminRefused(503, "overloaded")

    with monkeypatch.context() as patched:
        patched.setattr(world.broker, "delete", unavailable)
        world.delete(key)
        await operator.settle()
    assert world.ready(key) == ("Refused", "overloaded")
    await operator.resync()
    assert (key in world.server.objects, world.broker.topics) == (False, {})


async def test_a_namespace_that_is_retained_need_not_wait_for_its_topics() -> None:
    world = Installation(cluster(), tenant(), namespace(), topic())
    operator = world.started()
    await operator.settle()
    world.delete(PAYMENTS)
    await operator.settle()
    assert "or set spec.deletionPolicy to Retain" in world.ready(PAYMENTS)[1]
    world.apply(namespace(deletionPolicy="Retain"))
    await operator.settle()
    assert PAYMENTS not in world.server.objects
    assert ORDERS in world.broker.topics


@pytest.mark.parametrize("when", ["Wait", "Orphan"])
async def test_a_deletion_waits_for_a_broker_that_is_away_unless_the_resource_says_otherwise(
    when: str,
) -> None:
    world = Installation(cluster(), tenant(), namespace(), topic(deletionWhenUnreachable=when))
    await world.started().settle()
    world.broker.publish(ORDERS, 3)
    world.broker.unreachable = True
    world.delete(OWNER)
    operator = world.started(deletion_wait_s=600)
    await operator.settle()
    outcome = {
        "Wait": "is deleted when the broker answers; annotation heliograph.dev/managed=false leaves it",
        "Orphan": "is left after 10m without an answer",
    }
    message = f"connection refused; spec.deletionWhenUnreachable is {when}: {ORDERS} {outcome[when]}"
    assert world.ready(OWNER) == ("BrokerUnreachable", message)
    await world.started(deletion_wait_s=0).settle()
    assert (OWNER in world.server.objects) is (when == "Wait")
    if when == "Wait":
        world.broker.unreachable = False
        await world.started(deletion_wait_s=0).settle()
        assert (OWNER in world.server.objects, world.broker.topics) == (False, {})


@pytest.mark.parametrize("stays", [True, False])
async def test_a_deletion_waits_for_a_broker_that_stays_when_its_cluster_goes(stays: bool) -> None:
    world = Installation(cluster(finalizers=[FINALIZER]), tenant(), namespace(), topic())
    await world.started().settle()
    if stays:
        world.annotate(CLUSTER, paused="true")
    world.broker.unreachable = True
    for key in (CLUSTER, OWNER):
        world.delete(key)
    operator = world.started()
    await operator.settle()
    assert (OWNER in world.server.objects) is stays
    if stays:
        world.server.change(CLUSTER, finalizers=[])
        await operator.settle()
        await operator.resync()
        assert OWNER not in world.server.objects
        gone = f"{ORDERS} was not deleted in the broker: BrokerCluster main is gone"
        assert world.server.events[-1] == ("DataRetained", gone)


async def test_an_annotation_ends_a_deletion_without_its_broker() -> None:
    world = Installation(cluster(), tenant(), namespace(), topic())
    operator = world.started()
    await operator.settle()
    world.broker.unreachable = True
    world.delete(OWNER)
    await operator.settle()
    world.annotate(OWNER, managed="false")
    await operator.settle()
    assert OWNER not in world.server.objects
    assert world.server.events[-1] == ("DataRetained", f"{ORDERS} stays in the broker: {UNMANAGED}")
