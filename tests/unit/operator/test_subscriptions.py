"""A Subscription creates, keeps and deletes a subscription of a topic, and nothing takes one from another resource."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.broker_state import SubscriptionState, TopicState
from heliograph_operator.objects.conditions import ADOPTED, POLICIES_APPLIED, condition, timestamp
from heliograph_operator.objects.kinds import Key, is_held, owned

from .bodies import body, cluster, namespace, subscription, tenant, topic
from .installation import Installation

ORDERS = "persistent://shop/payments/orders"
CLICKS = "persistent://public/default/clicks"
BILLING = f"{ORDERS}/subscription/billing"
TOPIC = Key("Topic", "team", "orders")
OWNER = Key("Subscription", "team", "billing")
RIVAL = Key("Subscription", "team", "rival")
WEEK_MS, MINUTE_MS = 7 * 24 * 3_600_000, 60_000


def installed(*more: dict[str, Any]) -> Installation:
    return Installation(cluster(), tenant(), namespace(), topic(), *more)


def rival(**spec: Any) -> dict[str, Any]:
    wanted = {"topicRef": {"name": "orders"}, "name": "billing", **spec}
    return body("Subscription", "rival", wanted, creationTimestamp="2026-02-01T00:00:00Z")


def own_policies(world: Installation, name: str = "billing") -> Policies:
    return (world.broker.topics[ORDERS].policies.subscription_policies or {}).get(name, Policies())


def subscriptions(world: Installation) -> list[str]:
    return world.broker.topics[ORDERS].subscriptions


async def test_a_subscription_gets_its_position_properties_and_policies() -> None:
    spec: dict[str, Any] = {
        "position": "earliest",
        "properties": {"owner": "finance"},
        "messageTTL": "7d",
        "expires": "30d",
    }
    world = installed(subscription(**spec))
    await world.started().settle()
    assert world.ready(OWNER) == ("Reconciled", "")
    assert owned(world.body(OWNER)) == ("main", BILLING)
    assert world.broker.positions == {BILLING: "earliest"}
    assert world.broker.topics[ORDERS].subscription_states["billing"].properties == {"owner": "finance"}
    assert own_policies(world) == Policies(message_ttl_ms=WEEK_MS, subscription_expiration_ms=30 * 24 * 3_600_000)
    # The Topic does not take them for drift.
    await world.started().resync()
    assert own_policies(world).message_ttl_ms == WEEK_MS
    assert world.ready(TOPIC) == ("Reconciled", "")
    assert not [event for event in world.server.events if event[0] == "DriftRepaired"]


async def test_a_change_of_the_spec_is_applied_and_the_position_stays() -> None:
    world = installed(subscription(position="earliest", messageTTL="1m", properties={"a": "1"}))
    await world.started().settle()
    world.apply(subscription(position="latest", messageTTL="7d", properties={"b": "2"}))
    await world.started().settle()
    assert own_policies(world).message_ttl_ms == WEEK_MS
    assert world.broker.topics[ORDERS].subscription_states["billing"].properties == {"b": "2"}
    assert world.broker.positions == {BILLING: "earliest"}
    ready = world.body(OWNER)["status"]["conditions"][0]
    assert (ready["observedGeneration"], ready["status"]) == (2, "True")


async def test_a_topic_of_clients_is_named_in_full() -> None:
    spec = {"topicRef": {"name": "public/default/clicks"}, "name": "a/b c"}
    world = Installation(cluster(), body("Subscription", "billing", spec))
    await world.started().settle()
    assert world.ready(OWNER)[0] == "ParentNotReady"
    world.broker.publish("persistent://public/default/clicks", 5)
    await world.started().resync()
    assert world.ready(OWNER)[0] == "Reconciled"
    assert world.broker.topics["persistent://public/default/clicks"].subscriptions == ["a/b c"]
    assert owned(world.body(OWNER))[1] == "persistent://public/default/clicks/subscription/a%2Fb%20c"


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        ({"topicRef": {"name": "gone"}}, "ParentMissing", "there is no Topic 'gone' (topics.heliograph.dev)"),
        ({"topicRef": {"name": "non-persistent://a/b/c"}}, "Invalid", "stores no messages; valid: a persistent topic"),
        ({"topicRef": {"name": "a/b/c-partition-1"}}, "Invalid", "is a partition; valid: persistent://a/b/c"),
        ({"topicRef": {"name": "a/b"}}, "Invalid", "spec.topicRef.name: Invalid short topic name 'a/b'"),
        ({"name": "__compaction"}, "Invalid", "'__compaction' is the broker's own"),
        ({"name": ".."}, "Invalid", "no URL can have it"),
    ],
)
async def test_what_cannot_be_is_refused_with_its_reason(spec: dict[str, Any], reason: str, message: str) -> None:
    world = installed(body("Subscription", "billing", {"topicRef": {"name": "orders"}, **spec}))
    await world.started().settle()
    assert world.ready(OWNER)[0] == reason
    assert message in world.ready(OWNER)[1]
    assert not is_held(world.body(OWNER))


async def test_the_status_has_the_backlog_and_the_consumers() -> None:
    world = installed(subscription())
    await world.started().settle()
    world.broker.subscribe(ORDERS, "billing", SubscriptionState(True, {}, 12, 4096, 60_000, 1_750_000_000_000, 3))
    await world.started().resync()
    status = world.body(OWNER)["status"]
    assert (status["name"], status["consumers"]) == (BILLING, 3)
    wanted = {"messages": 12, "bytes": "4Ki", "oldestAge": "1m", "oldestTime": "2025-06-15T15:06:40Z"}
    assert status["backlog"] == wanted
    assert "storage" not in status


async def test_an_existing_subscription_is_adopted_and_stays_after_the_resource() -> None:
    world = installed()
    await world.started().settle()
    world.broker.subscribe(ORDERS, "billing", SubscriptionState(messages=7, properties={"by": "hand"}))
    world.apply(subscription(messageTTL="7d"))
    await world.started().settle()
    assert world.ready(OWNER)[0] == "AdoptionPending"
    assert "properties.by hand" in world.ready(OWNER)[1]
    assert own_policies(world) == Policies()
    world.apply(subscription(messageTTL="7d", properties={"by": "hand"}))
    await world.started().settle()
    assert world.ready(OWNER)[0] == "Reconciled"
    assert condition(world.body(OWNER)["status"], ADOPTED)["status"] == "True"
    # It was there: nothing was created, so no position counts.
    assert world.broker.positions == {}
    world.delete(OWNER)
    await world.started().settle()
    assert OWNER not in world.server.objects
    assert world.broker.topics[ORDERS].subscription_states["billing"].messages == 7
    assert world.server.events[-1] == ("DataRetained", f"{BILLING} stays in the broker: it existed before its resource")


@pytest.mark.parametrize("order", list(permutations([TOPIC, OWNER, RIVAL])))
async def test_of_two_resources_the_owner_stays_the_owner(order: tuple[Key, ...]) -> None:
    world = installed(subscription(messageTTL="7d"))
    await world.started().settle()
    world.broker.subscribe(ORDERS, "billing", SubscriptionState(messages=100))
    world.apply(rival(messageTTL="1m"))
    others = [key for key in world.server.objects if key not in order]
    await world.started([*order, *others]).settle()
    assert world.ready(OWNER)[0] == "Reconciled"
    assert world.ready(RIVAL) == (
        "Conflict",
        f"Subscription billing already describes {BILLING}; delete one of the two resources",
    )
    assert own_policies(world).message_ttl_ms == WEEK_MS
    world.delete(RIVAL)
    await world.started().settle()
    assert RIVAL not in world.server.objects
    assert world.broker.topics[ORDERS].subscription_states["billing"].messages == 100


async def test_the_owners_deletion_hands_the_subscription_over() -> None:
    world = installed(subscription(messageTTL="7d"), rival(messageTTL="1m", adoptionPolicy="Replace"))
    await world.started().settle()
    world.broker.subscribe(ORDERS, "billing", SubscriptionState(messages=100))
    world.delete(OWNER)
    await world.started().settle()
    assert OWNER not in world.server.objects
    assert world.ready(RIVAL)[0] == "Reconciled"
    assert own_policies(world).message_ttl_ms == MINUTE_MS
    assert world.broker.topics[ORDERS].subscription_states["billing"].messages == 100


@pytest.mark.parametrize(
    "named", [{"subscriptions": ["billing"]}, {"subscriptionPolicies": [{"name": "billing", "messageTTL": "7d"}]}]
)
async def test_a_subscription_that_the_topic_names_belongs_to_the_topic(named: dict[str, Any]) -> None:
    world = Installation(cluster(), tenant(), namespace(), topic(**named), subscription(messageTTL="1m"))
    operator = world.started([*map(_key, ("BrokerCluster main", "Subscription billing")), *_others(world)])
    await operator.settle()
    assert world.ready(TOPIC)[0] == "Reconciled"
    assert world.ready(OWNER)[0] == "Conflict"
    assert world.ready(OWNER)[1].startswith("Topic orders names the subscription in its spec")
    assert own_policies(world).message_ttl_ms != MINUTE_MS
    assert not is_held(world.body(OWNER))
    # A Topic that does not name it any more leaves it to the Subscription at once.
    world.apply(topic())
    await operator.settle()
    assert world.ready(OWNER)[0] == "Reconciled"
    assert own_policies(world).message_ttl_ms == MINUTE_MS


def _key(text: str) -> Key:
    kind, _, name = text.partition(" ")
    return Key(kind, "team", name)


def _others(world: Installation) -> list[Key]:
    return [key for key in world.server.objects if key.kind in ("Tenant", "Namespace", "Topic")]


@pytest.mark.parametrize(
    ("named", "applied"),
    [
        ({"subscriptions": ["billing"]}, "True"),
        ({"subscriptionPolicies": [{"name": "billing", "messageTTL": "1m"}]}, "False"),
    ],
)
async def test_a_topic_that_names_it_later_says_whose_it_is(named: dict[str, Any], applied: str) -> None:
    world = installed(subscription(messageTTL="7d"))
    operator = world.started()
    await operator.settle()
    world.apply(topic(messageTTL="1h", **named))
    await operator.settle()
    reason, message = world.ready(TOPIC)
    assert reason == "SubscriptionOwned"
    assert "billing in the spec belongs to Subscription team/billing" in message
    assert condition(world.body(TOPIC)["status"], POLICIES_APPLIED)["status"] == applied
    # All else of the Topic is applied.
    assert world.broker.topics[ORDERS].policies.message_ttl_ms == 3_600_000
    assert own_policies(world).message_ttl_ms == WEEK_MS
    await world.started().settle()
    assert (world.ready(TOPIC)[0], world.ready(OWNER)[0]) == ("SubscriptionOwned", "Reconciled")
    # Its deletion leaves the subscription to the Topic.
    world.broker.subscribe(ORDERS, "billing", SubscriptionState(messages=9))
    operator = world.started()
    world.delete(OWNER)
    await operator.settle()
    assert OWNER not in world.server.objects
    assert ("DataRetained", f"ownership of {BILLING} passes to Topic orders") in world.server.events
    assert world.broker.topics[ORDERS].subscription_states["billing"].messages == 9
    assert world.ready(TOPIC)[0] == "Reconciled"


async def test_a_topic_that_is_not_managed_keeps_the_subscription_that_it_names() -> None:
    world = installed(subscription())
    operator = world.started()
    await operator.settle()
    world.apply(topic(subscriptions=["billing"]))
    world.annotate(TOPIC, managed="false")
    await operator.settle()
    assert world.ready(TOPIC)[0] == "Unmanaged"
    world.broker.subscribe(ORDERS, "billing", SubscriptionState(messages=9))
    world.delete(OWNER)
    await operator.settle()
    assert OWNER not in world.server.objects
    assert world.broker.topics[ORDERS].subscription_states["billing"].messages == 9
    why = f"{BILLING} stays in the broker: Topic orders, which is not managed, describes it too"
    assert world.server.events[-1] == ("DataRetained", why)


async def test_a_topic_that_is_not_managed_takes_no_subscription_from_a_new_resource() -> None:
    world = installed()
    world.apply(topic(subscriptions=["billing"]))
    world.annotate(TOPIC, managed="false")
    world.broker.publish(ORDERS, 0)
    world.apply(subscription())
    await world.started().settle()
    assert world.ready(OWNER)[0] == "Reconciled"


async def test_a_deletion_disconnects_consumers_and_takes_the_policies_along() -> None:
    world = installed(subscription(messageTTL="7d"))
    await world.started().settle()
    world.broker.subscribe(ORDERS, "billing", SubscriptionState(messages=5, consumers=2))
    world.delete(OWNER)
    await world.started().settle()
    assert OWNER not in world.server.objects
    assert subscriptions(world) == []
    assert own_policies(world) == Policies()


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (SubscriptionState(messages=5), "5 messages are not acknowledged"),
        (SubscriptionState(consumers=1), "Subscription has active connected consumers"),
        (SubscriptionState(), ""),
    ],
)
async def test_delete_if_empty_leaves_a_backlog_and_consumers(state: SubscriptionState, why: str) -> None:
    world = installed(subscription(deletionPolicy="DeleteIfEmpty"))
    await world.started().settle()
    world.broker.subscribe(ORDERS, "billing", state)
    world.delete(OWNER)
    await world.started().settle()
    assert OWNER not in world.server.objects
    assert subscriptions(world) == (["billing"] if why else [])
    if why:
        assert world.server.events[-1] == ("DataRetained", f"{BILLING} stays in the broker: {why}")


async def test_a_retained_subscription_keeps_its_policies_and_its_topic() -> None:
    world = installed(subscription(messageTTL="7d", deletionPolicy="Retain"))
    await world.started().settle()
    world.delete(OWNER)
    await world.started().settle()
    await world.started().resync()
    assert OWNER not in world.server.objects
    assert own_policies(world).message_ttl_ms == WEEK_MS
    world.delete(TOPIC)
    await world.started().settle()
    assert TOPIC not in world.server.objects
    assert subscriptions(world) == ["billing"]
    kept = f"{ORDERS} stays in the broker: it has subscriptions that were retained: billing"
    assert world.server.events[-1] == ("DataRetained", kept)


async def test_a_topic_waits_for_the_subscriptions_of_other_resources() -> None:
    world = installed(subscription(topic_name="shop/payments/orders"))
    await world.started().settle()
    world.broker.subscribe(ORDERS, "billing", SubscriptionState(messages=3))
    world.delete(TOPIC)
    operator = world.started()
    await operator.settle()
    reason, message = world.ready(TOPIC)
    assert reason == "ChildrenExist"
    assert "waiting for Subscription billing to be deleted" in message
    assert "delete subscriptions.heliograph.dev/billing" in message
    assert world.broker.topics[ORDERS].subscription_states["billing"].messages == 3
    world.delete(OWNER)
    await operator.resync()
    assert TOPIC not in world.server.objects
    assert ORDERS not in world.broker.topics


async def test_nothing_is_created_in_a_topic_that_is_being_deleted() -> None:
    world = installed(subscription("other"))
    await world.started().settle()
    world.delete(TOPIC)
    world.apply(subscription())
    await world.started().settle()
    assert world.ready(OWNER)[0] == "ParentDeleting"
    assert subscriptions(world) == ["other"]


async def test_a_broker_that_is_away_is_waited_for() -> None:
    world = installed(subscription())
    await world.started().settle()
    world.broker.unreachable = True
    world.delete(OWNER)
    await world.started().settle()
    assert world.ready(OWNER)[0] == "BrokerUnreachable"
    world.annotate(OWNER, managed="false")
    await world.started().settle()
    assert OWNER not in world.server.objects
    assert subscriptions(world) == ["billing"]


async def test_drift_is_repaired_and_named() -> None:
    world = installed(subscription(messageTTL="7d", position="earliest"))
    await world.started().settle()
    policies = world.broker.topics[ORDERS].policies
    policies.subscription_policies = {"billing": Policies(message_ttl_ms=MINUTE_MS)}
    await world.started().resync()
    assert own_policies(world).message_ttl_ms == WEEK_MS
    assert ("DriftRepaired", "messageTTL was 1m, is 7d") in world.server.events
    world.broker.unsubscribe(ORDERS, "billing")
    await world.started().resync()
    assert subscriptions(world) == ["billing"]
    assert ("DriftRepaired", f"subscription {BILLING} was missing, is there") in world.server.events


def known_for(world: Installation, key: Key, age: timedelta) -> None:
    """Let the policies of a resource have been applied for a time, by its status."""
    applied = condition(world.body(key)["status"], POLICIES_APPLIED)
    assert isinstance(applied, dict)
    applied["lastTransitionTime"] = timestamp(datetime.now(UTC) - age)


async def test_a_subscription_cannot_have_expired_before_its_time() -> None:
    world = installed(subscription(expires="1h", position="earliest"))
    operator = world.started()
    await operator.settle()
    known_for(world, OWNER, timedelta(minutes=59))
    world.broker.unsubscribe(ORDERS, "billing")
    await operator.resync()
    assert (world.ready(OWNER)[0], subscriptions(world)) == ("Reconciled", ["billing"])
    assert ("DriftRepaired", f"subscription {BILLING} was missing, is there") in world.server.events


@pytest.mark.parametrize("order", list(permutations([TOPIC, OWNER])))
async def test_a_subscription_did_not_expire_if_its_topic_is_another_one(order: tuple[Key, ...]) -> None:
    world = installed(subscription(expires="1h", position="earliest"))
    await world.started().settle()
    known_for(world, OWNER, timedelta(days=30))
    del world.broker.topics[ORDERS]
    others = [key for key in world.server.objects if key not in order]
    operator = world.started([*order, *others])
    await operator.settle()
    await operator.resync()
    assert (world.ready(OWNER)[0], subscriptions(world)) == ("Reconciled", ["billing"])
    assert own_policies(world).subscription_expiration_ms == 3_600_000


async def test_a_subscription_that_expired_is_not_created_again() -> None:
    world = installed(subscription(expires="1h", messageTTL="7d"))
    operator = world.started()
    await operator.settle()
    known_for(world, OWNER, timedelta(hours=1))
    world.broker.unsubscribe(ORDERS, "billing")
    await operator.resync()
    assert world.ready(OWNER)[0] == "Expired"
    assert "expires when nobody uses it for 1h" in world.ready(OWNER)[1]
    # It stays so in another life of the operator, until a consumer comes back.
    await world.started().resync()
    assert (world.ready(OWNER)[0], subscriptions(world)) == ("Expired", [])
    world.broker.subscribe(ORDERS, "billing")
    await world.started().resync()
    assert world.ready(OWNER)[0] == "Reconciled"
    known_for(world, OWNER, timedelta(hours=1))
    world.broker.unsubscribe(ORDERS, "billing")
    await world.started().resync()
    assert world.ready(OWNER)[0] == "Expired"
    world.apply(subscription(expires="2h", messageTTL="7d"))
    await world.started().settle()
    assert (world.ready(OWNER)[0], subscriptions(world)) == ("Reconciled", ["billing"])


def partial(state: SubscriptionState, **spec: Any) -> Installation:
    """A topic of clients with two partitions, of which one has the subscription."""
    world = Installation(cluster(), subscription(topic_name=CLICKS, **spec))
    topic = TopicState(2, Policies(), subscription_states={"billing": state})
    world.broker.topics[CLICKS] = topic
    return world


async def test_a_subscription_that_some_partitions_have_is_adopted() -> None:
    world = partial(SubscriptionState(messages=5))
    await world.started().settle()
    assert world.ready(OWNER)[0] == "Reconciled"
    assert condition(world.body(OWNER)["status"], ADOPTED)["status"] == "True"
    assert world.broker.topics[CLICKS].subscriptions == ["billing"]
    world.delete(OWNER)
    await world.started().settle()
    assert OWNER not in world.server.objects
    assert world.broker.topics[CLICKS].subscription_states["billing"].messages == 5


async def test_what_a_subscription_on_some_partitions_would_lose_is_named_first() -> None:
    world = partial(SubscriptionState(properties={"by": "client"}))
    await world.started().settle()
    reason, message = world.ready(OWNER)
    assert reason == "AdoptionPending"
    assert "properties.by client" in message
    assert f"subscription {CLICKS}/subscription/billing was missing on some partitions, is there" in message
    assert world.broker.topics[CLICKS].subscriptions == []


async def test_delete_if_empty_leaves_the_backlog_of_some_partitions() -> None:
    world = Installation(cluster(), subscription(topic_name=CLICKS, deletionPolicy="DeleteIfEmpty"))
    world.broker.topics[CLICKS] = TopicState(2, Policies())
    operator = world.started()
    await operator.settle()
    # One partition loses it just before the deletion.
    world.broker.topics[CLICKS].subscriptions = []
    world.broker.topics[CLICKS].subscription_states["billing"].messages = 5
    world.delete(OWNER)
    await operator.settle()
    assert OWNER not in world.server.objects
    assert world.broker.topics[CLICKS].subscription_states["billing"].messages == 5
    why = f"{CLICKS}/subscription/billing stays in the broker: 5 messages are not acknowledged"
    assert world.server.events[-1] == ("DataRetained", why)


async def test_the_status_has_the_backlog_that_some_partitions_have() -> None:
    world = partial(SubscriptionState(messages=5, consumers=1))
    world.annotate(OWNER, paused="true")
    await world.started().settle()
    assert world.ready(OWNER)[0] == "Paused"
    status = world.body(OWNER)["status"]
    assert (status["backlog"]["messages"], status["consumers"]) == (5, 1)


@pytest.mark.parametrize(
    ("age", "consumers", "reason"), [(59, 0, "Reconciled"), (60, 1, "Reconciled"), (60, 0, "Expired")]
)
async def test_one_that_some_partitions_lose_is_repaired_unless_it_is_expiring(
    age: int, consumers: int, reason: str
) -> None:
    world = partial(SubscriptionState(), expires="1h")
    operator = world.started()
    await operator.settle()
    known_for(world, OWNER, timedelta(minutes=age))
    world.broker.topics[CLICKS].subscriptions = []
    world.broker.topics[CLICKS].subscription_states["billing"].consumers = consumers
    await operator.resync()
    assert world.ready(OWNER)[0] == reason
    assert world.broker.topics[CLICKS].subscriptions == (["billing"] if reason == "Reconciled" else [])


async def test_a_topic_stays_for_a_retained_subscription_that_some_partitions_have() -> None:
    world = installed(subscription(deletionPolicy="Retain"))
    operator = world.started()
    await operator.settle()
    world.delete(OWNER)
    await operator.settle()
    world.broker.topics[ORDERS].subscriptions = []
    world.delete(TOPIC)
    await operator.settle()
    assert TOPIC not in world.server.objects
    assert ORDERS in world.broker.topics


async def test_a_readers_subscription_is_not_taken_for_a_durable_one() -> None:
    world = installed()
    await world.started().settle()
    world.broker.subscribe(ORDERS, "billing", SubscriptionState(durable=False))
    world.apply(subscription())
    await world.started().settle()
    assert world.ready(OWNER)[0] == "NotApplied"
    assert not condition(world.body(OWNER)["status"], ADOPTED)


async def test_a_paused_subscription_is_left_alone_by_all() -> None:
    world = installed(body("Subscription", "billing", subscription(messageTTL="1m")["spec"]))
    await world.started().settle()
    world.annotate(OWNER, paused="true")
    world.broker.topics[ORDERS].policies.subscription_policies = {"billing": Policies(message_ttl_ms=WEEK_MS)}
    await world.started().resync()
    assert world.ready(OWNER)[0] == "Paused"
    assert own_policies(world).message_ttl_ms == WEEK_MS
