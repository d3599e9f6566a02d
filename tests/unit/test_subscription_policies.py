"""Policies of single subscriptions: message TTL, dead-letter topic and expiry, on virtual time."""

from __future__ import annotations

import pytest
from heliograph_api.policies.policies import DEFAULTS, Policies, Retention, of_subscription, resolve
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core
from tests.support.entries import open_entry
from tests.support.subscription_types import EXCLUSIVE, SHARED

SECOND = 1000
HOUR = 3_600_000
DEAD = "persistent://public/default/dead"


def _own(**of_each: Policies) -> Policies:
    return Policies(subscription_policies=of_each)


def _backlog(topic: Topic) -> dict[str, int]:
    return {name: subscription.acks.backlog_messages for name, subscription in topic.subscriptions.items()}


def _subscriptions_of(core: Core, dead: str) -> list[str]:
    """Return the subscriptions that the letters in a topic come from."""
    letters = [letter for entry in core.read_all(core.topic(dead)) for letter in open_entry(entry.frame)]
    return [properties["x-death-subscription"] for properties, _ in letters]


# -- how the levels combine ----------------------------------------------------------------------------------------


def test_a_subscription_counts_then_its_topic_then_the_namespace_then_the_broker() -> None:
    topic = Policies(
        dead_letter_topic="t", subscription_policies={"own": Policies(message_ttl_ms=1), "other": Policies()}
    )
    namespace = Policies(message_ttl_ms=2, dead_letter_topic="n")
    effective = resolve(topic, namespace, Policies(subscription_expiration_ms=3))
    own = of_subscription(effective, "own")
    assert (own.message_ttl_ms, own.dead_letter_topic, own.subscription_expiration_ms) == (1, "t", 3)
    assert of_subscription(effective, "other").message_ttl_ms == 2
    # One without an entry shares the topic's object: it costs nothing.
    assert of_subscription(effective, "third") is effective
    assert resolve(Policies(), namespace, DEFAULTS).subscription_policies is None


@pytest.mark.parametrize(
    ("own", "limit", "outcome"),
    [(5, 10, 5), (10, 5, 5), (-1, 5, 5), (None, 5, 5), (5, -1, 5), (-1, None, None), (0, 5, 0)],
)
def test_limits_cap_the_ttl_of_a_subscription(own: int | None, limit: int | None, outcome: int | None) -> None:
    effective = resolve(_own(s=Policies(message_ttl_ms=own)), None, DEFAULTS, [Policies(message_ttl_ms=limit)])
    assert of_subscription(effective, "s").message_ttl_ms == outcome


def test_a_subscription_takes_back_what_its_topic_sets() -> None:
    nothing = Policies(message_ttl_ms=-1, dead_letter_topic="", subscription_expiration_ms=-1)
    topic = Policies(
        message_ttl_ms=1, dead_letter_topic="d", subscription_expiration_ms=1, subscription_policies={"s": nothing}
    )
    assert of_subscription(resolve(topic, None, DEFAULTS), "s") == Policies()


# -- message TTL ---------------------------------------------------------------------------------------------------


def test_subscriptions_of_one_topic_expire_at_times_of_their_own(core: Core) -> None:
    topic = core.topic()
    for name in ("fast", "slow", "never", "topics"):
        topic.create_subscription(name)
    policies = _own(
        fast=Policies(message_ttl_ms=SECOND),
        slow=Policies(message_ttl_ms=9 * SECOND),
        never=Policies(message_ttl_ms=-1),
    )
    policies.message_ttl_ms = 5 * SECOND
    core.broker.policies.set_topic(topic.name, policies)
    core.publish_all(topic)
    core.advance(SECOND - 1)
    assert _backlog(topic) == {"fast": 1, "slow": 1, "never": 1, "topics": 1}
    core.advance(SECOND)
    assert _backlog(topic) == {"fast": 0, "slow": 1, "never": 1, "topics": 1}
    core.advance(4 * SECOND)
    assert _backlog(topic) == {"fast": 0, "slow": 1, "never": 1, "topics": 0}
    core.advance(4 * SECOND)
    assert _backlog(topic) == {"fast": 0, "slow": 0, "never": 1, "topics": 0}
    core.advance(24 * HOUR)
    assert _backlog(topic)["never"] == 1


def test_the_lower_of_the_subscription_s_ttl_and_the_message_s_own_counts(core: Core) -> None:
    topic = core.topic()
    for name in ("short", "long"):
        topic.create_subscription(name)
    core.broker.policies.set_topic(
        topic.name, _own(short=Policies(message_ttl_ms=SECOND), long=Policies(message_ttl_ms=9 * SECOND))
    )
    core.publish_all(topic, ttl=str(5 * SECOND))
    core.advance(SECOND)
    assert _backlog(topic) == {"short": 0, "long": 1}
    core.advance(4 * SECOND)
    assert _backlog(topic) == {"short": 0, "long": 0}


def test_a_ttl_holds_at_once_for_what_is_stored_and_for_a_consumer(core: Core) -> None:
    topic = core.topic()
    for name in ("s", "t"):
        topic.create_subscription(name)
    core.publish_all(topic)
    core.advance(HOUR)
    core.broker.policies.set_topic(topic.name, _own(s=Policies(message_ttl_ms=HOUR)))
    got: dict[str, int] = {}
    for name in ("s", "t"):
        client = Client()
        core.consumer(topic.subscription(name), SHARED, client, permits=5)
        got[name] = len(client.take())
    assert got == {"s": 0, "t": 1}


def test_a_ttl_taken_away_spares_what_is_stored(core: Core) -> None:
    topic = core.topic()
    topic.create_subscription("s")
    core.broker.policies.set_topic(topic.name, _own(s=Policies(message_ttl_ms=SECOND)))
    core.publish_all(topic)
    core.broker.policies.set_topic(topic.name, Policies())
    core.advance(HOUR)
    assert _backlog(topic) == {"s": 1}


# -- dead letters --------------------------------------------------------------------------------------------------


def test_each_subscription_has_a_dead_letter_topic_of_its_own(core: Core) -> None:
    kept = Policies(retention=Retention(-1, -1))
    for name in ("dead", "bin"):
        core.broker.policies.set_topic(core.topic(name).name, kept)
    topic = core.topic()
    for name in ("own", "none", "topics"):
        topic.create_subscription(name)
    policies = _own(
        own=Policies(dead_letter_topic="persistent://public/default/bin"), none=Policies(dead_letter_topic="")
    )
    policies.message_ttl_ms = SECOND
    policies.dead_letter_topic = DEAD
    core.broker.policies.set_topic(topic.name, policies)
    core.publish_all(topic)
    core.advance(SECOND)
    assert _backlog(topic) == {"own": 0, "none": 0, "topics": 0}
    assert _subscriptions_of(core, "bin") == ["own"]
    assert _subscriptions_of(core, "dead") == ["topics"]


def test_what_is_expired_by_hand_goes_to_the_subscription_s_dead_letter_topic(core: Core) -> None:
    core.broker.policies.set_topic(core.topic("dead").name, Policies(retention=Retention(-1, -1)))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.broker.policies.set_topic(topic.name, _own(s=Policies(dead_letter_topic=DEAD)))
    core.publish_all(topic)
    core.advance(SECOND)
    subscription.expiry.expire_older_than(1, lambda error: None)
    core.commit()
    assert _backlog(topic) == {"s": 0}
    assert _subscriptions_of(core, "dead") == ["s"]


# -- expiry of subscriptions ---------------------------------------------------------------------------------------


def test_a_subscription_that_nobody_uses_is_deleted_after_its_own_time(core: Core) -> None:
    topic = core.topic()
    for name in ("short", "topics", "never"):
        topic.create_subscription(name)
    policies = _own(short=Policies(subscription_expiration_ms=HOUR), never=Policies(subscription_expiration_ms=-1))
    policies.subscription_expiration_ms = 2 * HOUR
    core.broker.policies.set_topic(topic.name, policies)
    core.advance(HOUR - 1)
    assert set(topic.subscriptions) == {"short", "topics", "never"}
    core.advance(1)
    assert set(topic.subscriptions) == {"topics", "never"}
    core.advance(HOUR)
    assert set(topic.subscriptions) == {"never"}
    core.advance(1000 * HOUR)
    assert set(topic.subscriptions) == {"never"}


def test_a_subscription_in_use_is_never_deleted(core: Core) -> None:
    topic = core.topic()
    topic.create_subscription("s")
    core.broker.policies.set_topic(topic.name, _own(s=Policies(subscription_expiration_ms=HOUR)))
    core.advance(HOUR - 1)
    # It connects in the last moment.
    consumer = core.consumer(topic.subscription("s"), EXCLUSIVE, Client())
    core.advance(100 * HOUR)
    assert set(topic.subscriptions) == {"s"}
    topic.subscription("s").remove_consumer(consumer)
    core.advance(HOUR - 1)
    assert set(topic.subscriptions) == {"s"}
    core.advance(1)
    assert not topic.subscriptions


def test_a_setting_waits_for_its_subscription_and_outlives_it(core: Core) -> None:
    topic = core.topic()
    core.broker.policies.set_topic(topic.name, _own(s=Policies(message_ttl_ms=SECOND, subscription_expiration_ms=HOUR)))
    for _ in range(2):
        core.advance(24 * HOUR)
        topic.create_subscription("s")
        core.publish_all(topic)
        core.advance(SECOND)
        assert _backlog(topic) == {"s": 0}
        core.advance(HOUR - SECOND)
        assert not topic.subscriptions


# -- what is kept --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [0, 2])
def test_settings_survive_a_restart(core: Core, partitions: int) -> None:
    name = TopicName.parse("t")
    if partitions:
        core.broker.partitioned.create(name, partitions)
    else:
        core.topic()
    own = _own(s=Policies(message_ttl_ms=SECOND, dead_letter_topic=DEAD, subscription_expiration_ms=HOUR))
    core.broker.policies.set_topic(name, own)
    core.commit()
    core.restart()
    assert core.broker.policies.of_topic(name) == own
    topic = core.broker.directory.get_topic(name.with_partition(0) if partitions else name)
    assert isinstance(topic, Topic)
    topic.create_subscription("s")
    core.publish_all(topic)
    core.advance(SECOND)
    assert _backlog(topic) == {"s": 0}


def test_a_topic_without_settings_of_subscriptions_keeps_nothing_of_them() -> None:
    assert b"subscription_policies" not in records.encode(Policies(message_ttl_ms=1))
