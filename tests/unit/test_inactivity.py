"""Unused topics and subscriptions on virtual time: never early, at most a tick late, renewed by the right events."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from heliograph_api.manifests.manifest_reader import parse
from heliograph_api.policies.policies import InactiveTopic, Policies, Retention
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import Conflict
from heliograph_broker.messaging.broker import inactivity
from heliograph_broker.messaging.broker.applied_policies import CONFIGURED_AT_ONCE
from heliograph_broker.messaging.broker.inactivity import InactivityWatch
from heliograph_broker.messaging.clients.access_mode import AccessMode
from heliograph_broker.messaging.log.entry_log import EntryLog
from heliograph_broker.messaging.topic.directory import AnyTopic
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.usecases.apply import apply_resources

from tests.support.core import Client, Core
from tests.support.subscription_types import EXCLUSIVE, SHARED

SECOND = 1000
HOUR = 3_600_000
PERIOD_MS = 60_000
NAME = TopicName.parse("t")
CAUGHT_UP = "delete_when_subscriptions_caught_up"


def policy(core: Core, **policies: object) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(**policies))  # type: ignore[arg-type]


def there(core: Core, name: TopicName = NAME) -> bool:
    return core.broker.directory.exists(name)


def goes_after(core: Core, ms: int, name: TopicName = NAME) -> None:
    """Assert that the topic is there for ``ms`` from now and no longer."""
    core.advance(ms - 1)
    assert there(core, name)
    core.advance(1)
    assert not there(core, name)


# -- expires -------------------------------------------------------------------------------------------------


def test_an_unused_topic_expires_with_its_data_to_the_millisecond(core: Core) -> None:
    policy(core, expires_ms=PERIOD_MS)
    topic = core.topic()
    topic.create_subscription("s")
    producer = core.producer(topic)
    core.publish(producer)
    core.commit()
    topic.producer_registry.remove(producer)
    goes_after(core, PERIOD_MS)
    core.restart()
    assert not there(core)
    assert not list(core.store.metadata.scan(b"cursor/"))


def test_a_topic_in_use_does_not_expire_and_its_period_begins_when_the_last_client_leaves(core: Core) -> None:
    policy(core, expires_ms=PERIOD_MS)
    topic = core.topic()
    producer = core.producer(topic)
    core.advance(10 * PERIOD_MS)
    consumer = core.consumer(topic.create_subscription("s"), SHARED, Client())
    topic.producer_registry.remove(producer)
    core.advance(10 * PERIOD_MS)
    assert there(core)
    core.advance(777)
    consumer.subscription.remove_consumer(consumer)
    goes_after(core, PERIOD_MS)


def test_a_producer_that_waits_for_exclusive_access_uses_the_topic(core: Core) -> None:
    policy(core, expires_ms=PERIOD_MS)
    topic = core.topic()
    core.producer(topic, name="first", access_mode=AccessMode.EXCLUSIVE)
    core.producer(topic, name="second", access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)
    topic.producer_registry.connected.clear()
    core.advance(2 * PERIOD_MS)
    assert there(core)


def test_a_topic_that_is_unloaded_keeps_its_whole_period_for_its_clients_to_return(core: Core) -> None:
    policy(core, expires_ms=PERIOD_MS)
    topic = core.topic()
    core.producer(topic)
    core.advance(10 * PERIOD_MS + 777)
    core.broker.topics.unload(NAME)
    goes_after(core, PERIOD_MS)


def test_declaring_a_topic_again_renews_its_lease_although_it_is_refused(core: Core) -> None:
    policy(core, expires_ms=PERIOD_MS)
    core.topic()
    for _ in range(5):
        core.advance(PERIOD_MS - 1)
        with pytest.raises(Conflict):
            core.broker.topics.create(NAME)
    goes_after(core, PERIOD_MS)


def test_applying_a_topics_manifest_renews_its_lease(core: Core) -> None:
    manifest = """
apiVersion: heliograph.dev/v1alpha1
kind: Topic
metadata: {name: t}
spec: {namespaceRef: {name: default}, expires: 60s}
"""
    namespace = """
apiVersion: heliograph.dev/v1alpha1
kind: Tenant
metadata: {name: public}
---
apiVersion: heliograph.dev/v1alpha1
kind: Namespace
metadata: {name: default}
spec: {tenantRef: {name: public}}
---
"""
    resources = parse(namespace + manifest, "t.yaml")
    for _ in range(5):
        apply_resources(core.broker, resources)
        core.commit()
        core.advance(PERIOD_MS - 1)
    assert there(core)
    core.advance(1)
    assert not there(core)


def test_publishing_by_the_broker_and_an_idle_subscription_are_no_use(core: Core) -> None:
    policy(core, expires_ms=PERIOD_MS)
    topic = core.topic()
    core.advance(PERIOD_MS // 2)
    topic.create_subscription("s")
    goes_after(core, PERIOD_MS // 2)


def test_setting_the_machines_clock_deletes_nothing(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    policy(core, expires_ms=PERIOD_MS, subscription_expiration_ms=PERIOD_MS)
    topic = core.topic()
    topic.create_subscription("s")
    wall = core.clock.now_ms
    monkeypatch.setattr(type(core.clock), "now_ms", lambda clock: wall() + 1000 * PERIOD_MS)
    core.advance(PERIOD_MS - 1)
    assert there(core)
    assert topic.subscriptions
    core.advance(1)
    assert not there(core)


def test_the_period_begins_anew_at_a_start(core: Core) -> None:
    policy(core, expires_ms=PERIOD_MS)
    core.topic()
    core.advance(PERIOD_MS - 1)
    core.restart()
    goes_after(core, PERIOD_MS)


def test_a_policy_that_is_set_changed_or_lifted_holds_at_once(core: Core) -> None:
    core.topic()
    core.advance(PERIOD_MS)
    policy(core, expires_ms=2 * PERIOD_MS)
    core.advance(PERIOD_MS - 1)
    policy(core)
    core.advance(PERIOD_MS)
    assert there(core)
    policy(core, expires_ms=PERIOD_MS)
    core.advance(0)
    core.advance(1)
    assert not there(core)


def test_a_partitioned_topic_expires_as_a_whole(core: Core) -> None:
    policy(core, expires_ms=PERIOD_MS)
    core.broker.partitioned.create(NAME, 3)
    core.advance(PERIOD_MS // 2)
    part = core.broker.directory.topics[str(NAME.with_partition(2))]
    assert isinstance(part, Topic)
    producer = core.producer(part)
    core.advance(3 * PERIOD_MS)
    assert core.broker.directory.partitions_of(NAME) == 3
    part.producer_registry.remove(producer)
    core.advance(PERIOD_MS - 1)
    assert len(core.broker.directory.topics) == 3
    core.advance(1)
    assert not core.broker.directory.topics
    assert not there(core)


def test_declaring_a_partitioned_topic_again_renews_all_of_it(core: Core) -> None:
    policy(core, expires_ms=PERIOD_MS)
    core.broker.partitioned.create(NAME, 3)
    core.advance(PERIOD_MS - 1)
    with pytest.raises(Conflict):
        core.broker.partitioned.create(NAME, 3)
    goes_after(core, PERIOD_MS)


def test_an_expiry_set_when_it_has_passed_for_a_partitioned_topic_is_applied_to_all_topics(core: Core) -> None:
    core.broker.partitioned.create(NAME, 3)
    core.topic("other")
    core.advance(PERIOD_MS)
    policy(core, expires_ms=PERIOD_MS)
    assert {topic.effective.expires_ms for topic in core.broker.directory.topics.values()} == {PERIOD_MS}
    core.advance(1)
    assert not core.broker.directory.topics


def test_topics_that_are_not_persistent_expire_too(core: Core) -> None:
    policy(core, expires_ms=PERIOD_MS)
    name = TopicName.parse("non-persistent://public/default/t")
    core.broker.topics.get_or_create(name)
    goes_after(core, PERIOD_MS, name)


# -- inactive topics -----------------------------------------------------------------------------------------


def test_an_inactive_topic_goes_when_it_has_no_subscriptions(core: Core) -> None:
    policy(core, inactive_topic=InactiveTopic(PERIOD_MS))
    topic = core.topic()
    topic.create_subscription("s")
    core.advance(5 * PERIOD_MS)
    assert there(core)
    topic.delete_subscription("s")
    goes_after(core, PERIOD_MS)


def test_an_inactive_topic_goes_when_its_subscriptions_are_caught_up(core: Core) -> None:
    policy(core, inactive_topic=InactiveTopic(PERIOD_MS, CAUGHT_UP))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    producer = core.producer(topic)
    core.publish(producer)
    core.commit()
    topic.producer_registry.remove(producer)
    core.advance(5 * PERIOD_MS)
    assert there(core)
    subscription.acks.acknowledge_up_to(0, None)
    core.commit()
    goes_after(core, PERIOD_MS)


def test_connected_clients_keep_an_inactive_topic(core: Core) -> None:
    policy(core, inactive_topic=InactiveTopic(PERIOD_MS, CAUGHT_UP))
    topic = core.topic()
    consumer = core.consumer(topic.create_subscription("s"), SHARED, Client())
    core.advance(5 * PERIOD_MS)
    assert there(core)
    consumer.subscription.remove_consumer(consumer)
    goes_after(core, PERIOD_MS)


@pytest.mark.parametrize("time_ms", [3 * PERIOD_MS, -1])
def test_retention_keeps_an_inactive_topic_as_in_pulsar(core: Core, time_ms: int) -> None:
    policy(core, inactive_topic=InactiveTopic(PERIOD_MS), retention=Retention(time_ms, -1))
    core.topic()
    if time_ms < 0:
        core.advance(1000 * PERIOD_MS)
        assert there(core)
    else:
        goes_after(core, time_ms)


def test_an_inactive_topic_policy_that_does_not_delete_deletes_nothing(core: Core) -> None:
    policy(core, inactive_topic=InactiveTopic(PERIOD_MS, delete=False))
    core.topic()
    core.advance(10 * PERIOD_MS)
    assert there(core)


# -- subscriptions -------------------------------------------------------------------------------------------


def test_a_subscription_without_consumers_expires_and_others_stay(core: Core) -> None:
    policy(core, subscription_expiration_ms=PERIOD_MS)
    topic = core.topic()
    topic.create_subscription("idle")
    consumer = core.consumer(topic.create_subscription("used"), SHARED, Client())
    core.advance(PERIOD_MS - 1)
    assert set(topic.subscriptions) == {"idle", "used"}
    core.advance(1)
    assert set(topic.subscriptions) == {"used"}
    core.advance(500)
    consumer.subscription.remove_consumer(consumer)
    core.advance(PERIOD_MS - 1)
    assert set(topic.subscriptions) == {"used"}
    core.advance(1)
    assert not topic.subscriptions
    assert there(core)
    core.restart()
    assert not core.topic().subscriptions


def test_a_subscription_made_later_has_its_whole_period(core: Core) -> None:
    policy(core, subscription_expiration_ms=PERIOD_MS)
    topic = core.topic()
    core.advance(PERIOD_MS // 3)
    topic.create_subscription("s")
    core.advance(PERIOD_MS - 1)
    assert topic.subscriptions
    core.advance(1)
    assert not topic.subscriptions


def test_a_subscription_that_is_moved_by_hand_is_used(core: Core) -> None:
    policy(core, subscription_expiration_ms=PERIOD_MS)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.advance(PERIOD_MS - 1)
    subscription.seek(0, None, lambda error: None)
    core.commit()
    core.advance(PERIOD_MS - 1)
    assert topic.subscriptions
    core.advance(1)
    assert not topic.subscriptions


def test_messages_that_expire_do_not_keep_a_subscription(core: Core) -> None:
    policy(core, subscription_expiration_ms=PERIOD_MS, message_ttl_ms=1000)
    topic = core.topic()
    topic.create_subscription("s")
    producer = core.producer(topic)
    for _ in range(PERIOD_MS // 1000 - 1):
        core.publish(producer)
        core.advance(1000)
    assert topic.subscriptions
    core.publish(producer)
    core.advance(1000)
    assert not topic.subscriptions


def test_a_subscriptions_period_begins_anew_at_a_start(core: Core) -> None:
    policy(core, subscription_expiration_ms=PERIOD_MS)
    core.topic().create_subscription("s")
    core.advance(PERIOD_MS - 1)
    core.restart()
    core.advance(PERIOD_MS - 1)
    assert core.topic().subscriptions
    core.advance(1)
    assert not core.topic().subscriptions


def test_looking_after_unused_topics_costs_nothing_between_the_times_they_may_be_due(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy(core, expires_ms=PERIOD_MS, subscription_expiration_ms=PERIOD_MS)
    for at in range(50):
        core.producer(core.topic(f"t{at}"))
    checks = 0
    real = InactivityWatch.next_due_ms

    def counting(watch: InactivityWatch, topic: AnyTopic, now_ms: int) -> int | None:
        nonlocal checks
        checks += 1
        return real(watch, topic, now_ms)

    monkeypatch.setattr(InactivityWatch, "next_due_ms", counting)
    for _ in range(10 * PERIOD_MS // 1000):
        core.advance(1000)
    assert checks <= 11 * 50


def test_changes_of_policies_leave_nothing_behind(core: Core) -> None:
    core.topic()
    for number in range(2_000):
        policy(core, expires_ms=10_000 + number)
    assert len(core.broker.inactivity._queue) == 1
    assert len(core.broker.inactivity._queue._heap) < 100


# -- readers that do not return ------------------------------------------------------------------------------


def test_a_reader_that_does_not_return_after_a_seek_leaves_nothing(core: Core) -> None:
    topic = core.topic()
    reader = topic.create_subscription("r", durable=False)
    core.consumer(reader, EXCLUSIVE, Client())
    reader.seek(0, None, lambda error: None)
    core.advance(inactivity.RETURN_WITHIN_MS - 1)
    assert set(topic.subscriptions) == {"r"}
    core.advance(1)
    assert not topic.subscriptions


def test_a_reader_that_returns_after_a_seek_stays_until_it_leaves(core: Core) -> None:
    topic = core.topic()
    reader = topic.create_subscription("r", durable=False)
    core.consumer(reader, EXCLUSIVE, Client())
    reader.seek(0, None, lambda error: None)
    core.advance(inactivity.RETURN_WITHIN_MS // 2)
    again = core.consumer(reader, EXCLUSIVE, Client())
    core.advance(2 * inactivity.RETURN_WITHIN_MS)
    assert set(topic.subscriptions) == {"r"}
    reader.remove_consumer(again)
    assert not topic.subscriptions


# -- policies that were just taken away, and seeks ------------------------------------------------------------


def test_what_an_expiry_taken_away_spares_is_spared_on_every_partition(core: Core) -> None:
    count = 2 * CONFIGURED_AT_ONCE + 20
    name = TopicName.parse("many")
    core.broker.partitioned.create(name, count)
    core.broker.policies.set_topic(name, Policies(subscription_expiration_ms=HOUR))
    while core.broker.ticks.run():
        core.commit()
    for number in range(count):
        core.broker.directory.get_topic(name.with_partition(number)).create_subscription("s")
    core.commit()
    core.advance(HOUR - 1)
    core.broker.policies.set_topic(name, Policies())
    core.commit()
    core.advance(1)
    assert all(
        "s" in core.broker.directory.get_topic(name.with_partition(number)).subscriptions for number in range(count)
    )


def test_topics_whose_namespace_lets_them_stay_stay(core: Core) -> None:
    count = 2 * CONFIGURED_AT_ONCE + 20
    core.broker.namespaces.set_policies("public/default", Policies(expires_ms=HOUR))
    for number in range(count):
        core.topic(f"t{number}")
    core.advance(HOUR - 1)
    core.broker.namespaces.set_policies("public/default", Policies())
    core.commit()
    core.advance(1)
    assert len(core.broker.directory.topics) == count


def test_a_subscription_stays_while_a_seek_is_under_way(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    policy(core, subscription_expiration_ms=SECOND)
    core.publish(core.producer(topic))
    core.commit()
    reads: list[tuple[int, Callable[..., None]]] = []
    with monkeypatch.context() as slow_disk:
        slow_disk.setattr(EntryLog, "totals_before", lambda self, *asked: reads.append(asked))
        subscription.seek(0, None, lambda error: None)
        core.advance(2 * SECOND)
        assert "s" in topic.subscriptions
    topic.log.totals_before(*reads[0])
    core.commit()
    core.advance(SECOND - 1)
    assert "s" in topic.subscriptions
    core.advance(1)
    assert "s" not in topic.subscriptions
