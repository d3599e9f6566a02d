"""Retention, sentence by sentence: what is kept of messages that nobody has in a backlog."""

from __future__ import annotations

from heliograph_api.policies.policies import BacklogQuota, Policies, Retention, contradictions
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.delivery.subscription import AckId

from tests.support.core import Client, Core
from tests.support.policy_cases import (
    HOUR,
    MINUTE,
    NAMESPACE,
    SECOND,
    acknowledge_all,
    backlog,
    set_policies,
    stored,
)
from tests.support.subscription_types import EXCLUSIVE


def retain(core: Core, time_ms: int, size_bytes: int) -> None:
    set_policies(core, Policies(retention=Retention(time_ms, size_bytes)))


def settle(core: Core) -> None:
    """Let a second pass, after which nothing that was due is left."""
    core.advance(SECOND)


def test_by_default_a_message_is_kept_while_any_subscription_has_it_in_its_backlog(core: Core) -> None:
    topic = core.topic()
    quick, slow = topic.create_subscription("quick"), topic.create_subscription("slow")
    core.publish_all(topic, "a", "b")
    acknowledge_all(core, quick)
    core.advance(30 * 24 * HOUR)
    assert stored(core, topic) == ["a", "b"]
    assert backlog(core, slow) == ["a", "b"]


def test_every_subscription_has_a_backlog_of_its_own(core: Core) -> None:
    topic = core.topic()
    one, other = topic.create_subscription("one"), topic.create_subscription("other")
    core.publish_all(topic, "a", "b", "c")
    one.acks.acknowledge_up_to(1, None)
    core.commit()
    assert (one.acks.backlog_messages, other.acks.backlog_messages) == (1, 3)


def test_by_default_what_all_subscriptions_have_acknowledged_goes_with_its_ledger(core: Core) -> None:
    topic = core.topic()
    one, other = topic.create_subscription("one"), topic.create_subscription("other")
    core.publish_all(topic, "a", "b", "c")
    acknowledge_all(core, one)
    other.acks.acknowledge_up_to(1, None)
    core.advance(4 * HOUR)
    assert stored(core, topic) == ["a", "b", "c"]
    acknowledge_all(core, other)
    settle(core)
    assert stored(core, topic) == []


def test_by_default_a_topic_without_subscriptions_keeps_messages_as_long_as_their_ledger(core: Core) -> None:
    topic = core.topic()
    core.publish_all(topic, "a")
    core.advance(4 * HOUR - 1)
    assert stored(core, topic) == ["a"]
    settle(core)
    assert stored(core, topic) == []
    assert topic.statistics.stored_bytes == 0


def test_what_is_let_go_cannot_be_read_though_its_ledger_is_still_open(core: Core) -> None:
    retain(core, 0, 0)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a", "b")
    subscription.acks.acknowledge_up_to(0, None)
    settle(core)
    assert len(topic.log.ledgers) == 1
    assert topic.log.offset_of(topic.log.ledgers[0].ledger_id, 0) is None
    assert stored(core, topic) == ["b"]


def test_acknowledged_messages_are_kept_for_the_retention_time(core: Core) -> None:
    retain(core, 3 * HOUR, -1)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    acknowledge_all(core, subscription)
    core.advance(3 * HOUR - 1)
    assert stored(core, topic) == ["a"]
    settle(core)
    assert stored(core, topic) == []


def test_messages_of_a_topic_without_subscriptions_are_kept_for_the_retention_time(core: Core) -> None:
    retain(core, 3 * HOUR, -1)
    topic = core.topic()
    core.publish_all(topic, "a")
    core.advance(2 * HOUR)
    core.publish_all(topic, "b")
    core.advance(HOUR + SECOND)
    assert stored(core, topic) == ["b"]


def test_infinite_retention_keeps_everything(core: Core) -> None:
    retain(core, -1, -1)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a", "b", size=10_000)
    acknowledge_all(core, subscription)
    core.advance(1000 * 24 * HOUR)
    assert stored(core, topic) == ["a", "b"]


def test_retention_by_size_alone_keeps_the_newest_that_fit_for_ever(core: Core) -> None:
    retain(core, -1, 1000)
    topic = core.topic()
    core.publish_all(topic, *"abcde", size=300)
    settle(core)
    assert stored(core, topic) == ["c", "d", "e"]
    core.advance(1000 * 24 * HOUR)
    assert stored(core, topic) == ["c", "d", "e"]


def test_retention_by_time_alone_has_no_limit_of_size(core: Core) -> None:
    retain(core, HOUR, -1)
    topic = core.topic()
    core.publish_all(topic, *"abcde", size=1_000_000)
    core.advance(HOUR - 1)
    assert stored(core, topic) == list("abcde")
    settle(core)
    assert stored(core, topic) == []


def test_retention_zero_and_zero_keeps_nothing(core: Core) -> None:
    retain(core, 0, 0)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a", "b")
    subscription.acks.acknowledge_up_to(0, None)
    settle(core)
    assert stored(core, topic) == ["b"]


def test_with_both_limits_the_size_ends_retention_before_the_time_does(core: Core) -> None:
    retain(core, 3 * HOUR, 1000)
    topic = core.topic()
    core.publish_all(topic, *"abcde", size=300)
    settle(core)
    assert stored(core, topic) == ["c", "d", "e"]


def test_with_both_limits_the_time_ends_retention_before_the_size_does(core: Core) -> None:
    retain(core, 3 * HOUR, 1_000_000)
    topic = core.topic()
    core.publish_all(topic, "a", size=300)
    core.advance(HOUR)
    core.publish_all(topic, "b", size=300)
    core.advance(2 * HOUR)
    assert stored(core, topic) == ["b"]


def test_retention_does_not_touch_what_is_not_acknowledged(core: Core) -> None:
    retain(core, MINUTE, 1000)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, *"abcdefgh", size=300)
    core.advance(HOUR)
    assert stored(core, topic) == list("abcdefgh")
    assert subscription.acks.backlog_messages == 8


def test_the_oldest_go_first_and_only_until_the_rest_is_within_the_limit(core: Core) -> None:
    retain(core, -1, 900)
    topic = core.topic()
    core.publish_all(topic, *"abcd", size=300)
    settle(core)
    assert stored(core, topic) == list("bcd")
    core.publish_all(topic, "e", size=500)
    settle(core)
    assert stored(core, topic) == list("de")


def test_retention_is_exact_to_the_entry_in_the_open_ledger_of_an_idle_topic(core: Core) -> None:
    retain(core, MINUTE, -1)
    topic = core.topic()
    for text in "abc":
        core.publish_all(topic, text)
        core.advance(10 * SECOND)
    core.advance(30 * SECOND)
    assert stored(core, topic) == ["b", "c"]
    core.advance(10 * SECOND)
    assert stored(core, topic) == ["c"]
    assert len(topic.log.ledgers) == 1


def test_a_new_retention_applies_to_what_is_stored_already(core: Core) -> None:
    retain(core, -1, -1)
    topic = core.topic()
    core.publish_all(topic, *"abcd", size=300)
    core.advance(HOUR)
    retain(core, -1, 600)
    settle(core)
    assert stored(core, topic) == ["c", "d"]
    retain(core, 0, 0)
    settle(core)
    assert stored(core, topic) == []


def test_one_limit_zero_and_the_other_not_contradict_each_other() -> None:
    for retention in (Retention(0, -1), Retention(0, 100), Retention(MINUTE, 0), Retention(-1, 0)):
        assert [field for field, _ in contradictions(Policies(retention=retention))] == ["retention"]
    for retention in (Retention(0, 0), Retention(-1, -1), Retention(MINUTE, 100)):
        assert list(contradictions(Policies(retention=retention))) == []


def test_a_topics_own_retention_counts_before_its_namespaces(core: Core) -> None:
    retain(core, -1, -1)
    kept, dropped = core.topic("kept"), core.topic("dropped")
    core.broker.policies.set_topic(TopicName.parse("dropped"), Policies(retention=Retention(0, 0)))
    for topic in (kept, dropped):
        core.publish_all(topic, "a")
    settle(core)
    assert (stored(core, kept), stored(core, dropped)) == (["a"], [])


def test_the_brokers_default_retention_holds_where_nobody_sets_one(core: Core) -> None:
    core.broker.policies.set_broker(Policies(retention=Retention(-1, 600)), Policies())
    topic = core.topic()
    core.publish_all(topic, *"abc", size=300)
    settle(core)
    assert stored(core, topic) == ["b", "c"]


def test_each_topic_of_a_namespace_has_the_whole_retention_for_itself(core: Core) -> None:
    retain(core, -1, 600)
    one, other = core.topic("one"), core.topic("other")
    core.publish_all(one, *"abc", size=300)
    core.publish_all(other, *"xyz", size=300)
    settle(core)
    assert (stored(core, one), stored(core, other)) == (["b", "c"], ["y", "z"])


def test_a_reader_reads_what_retention_keeps_and_keeps_nothing_itself(core: Core) -> None:
    retain(core, HOUR, -1)
    topic = core.topic()
    core.publish_all(topic, "a", "b")
    reader = topic.create_subscription("reader", "earliest", durable=False)
    core.consumer(reader, EXCLUSIVE, Client())
    assert stored(core, topic) == ["a", "b"]
    core.advance(HOUR + SECOND)
    assert stored(core, topic) == []
    assert topic.statistics.backlog_size() == 0
    assert reader.acks.backlog_messages == 0


def test_retention_survives_a_restart(core: Core) -> None:
    retain(core, HOUR, -1)
    core.publish_all(core.topic(), "a")
    core.advance(30 * MINUTE)
    core.restart()
    assert stored(core, core.topic()) == ["a"]
    core.advance(30 * MINUTE)
    assert stored(core, core.topic()) == []


def test_a_slow_subscriptions_backlog_leaves_the_retained_size_as_it_is(core: Core) -> None:
    retain(core, -1, 10_000)
    topic = core.topic()
    slow, quick = topic.create_subscription("slow"), topic.create_subscription("quick")
    core.publish_all(topic, *(f"acked {number}" for number in range(15)), size=1000)
    acknowledge_all(core, slow)
    core.publish_all(topic, *(f"waiting {number}" for number in range(15)), size=1000)
    acknowledge_all(core, quick)
    settle(core)
    # The newest 10 kB of what all have acknowledged, beside the 15 kB that one of them has not.
    assert slow.acks.backlog_bytes == 15_000
    assert stored(core, topic)[:10] == [f"acked {number}" for number in range(5, 15)]
    assert topic.statistics.stored_bytes == 10_000 + 15_000


def test_what_the_slowest_subscription_acknowledges_takes_the_place_of_older_data(core: Core) -> None:
    retain(core, -1, 900)
    topic = core.topic()
    slow = topic.create_subscription("slow")
    core.publish_all(topic, *"abcdefgh", size=300)
    slow.acks.acknowledge_up_to(2, None)
    settle(core)
    assert stored(core, topic) == list("abcdefgh")
    # Acknowledged out of order: "e" is behind the backlog's oldest message and counts with the backlog.
    slow.acks.acknowledge(None, [AckId(*topic.log.position(4))], None)
    settle(core)
    assert stored(core, topic) == list("abcdefgh")
    slow.acks.acknowledge(None, [AckId(*topic.log.position(3))], None)
    settle(core)
    assert stored(core, topic) == list("cdefgh")


def test_what_a_topic_stores_is_bounded_by_its_quota_and_its_retention_together(core: Core) -> None:
    set_policies(
        core,
        Policies(retention=Retention(-1, 3000), backlog_quota_size=BacklogQuota(2000, "consumer_backlog_eviction")),
    )
    topic = core.topic()
    slow, quick = topic.create_subscription("slow"), topic.create_subscription("quick")
    for number in range(40):
        core.publish_all(topic, str(number), size=250)
        acknowledge_all(core, quick)
        settle(core)
        assert slow.acks.backlog_bytes <= 2000
        assert topic.statistics.stored_bytes <= 2000 + 3000


def test_a_limit_of_the_tenant_caps_the_retention_of_its_topics(core: Core) -> None:
    retain(core, -1, -1)
    tenant = core.broker.directory.tenants["public"]
    tenant.limits = Policies(retention=Retention(HOUR, 600))
    core.broker.tenants.update("public", tenant)
    topic = core.topic()
    core.publish_all(topic, *"abc", size=300)
    settle(core)
    assert stored(core, topic) == ["b", "c"]
    core.advance(HOUR)
    assert stored(core, topic) == []
    assert core.broker.directory.namespaces[NAMESPACE].policies.retention == Retention(-1, -1)
