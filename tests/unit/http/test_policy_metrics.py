"""Metrics show quotas, expiry, dead letters and rates to the message; on virtual time."""

from __future__ import annotations

import pytest
from heliograph_api.policies.policies import BacklogQuota, Policies, Rate, Retention
from heliograph_broker.http.base.rates import RateSampler
from heliograph_broker.http.metrics.exposition import Value
from heliograph_broker.http.metrics.scrape import Scrape
from heliograph_broker.http.stats.stats import topic_stats

from tests.support.core import Client, Core
from tests.support.subscription_types import SHARED

_SIZE, _TIME = ',quota_type="size"', ',quota_type="time"'


class Seen:
    """One scrape of one topic ``t`` and its subscription ``s``, by name of the family and further labels."""

    def __init__(self, core: Core) -> None:
        scrape = Scrape(core.broker, RateSampler(core.broker, core.clock))
        scrape.read_topics([core.topic()])
        self._values: dict[tuple[str, str], Value | None] = {}
        for table in (scrape.topics, scrape.subscriptions):
            for row in table.rows:
                for column, value in zip(table.columns, row, strict=True):
                    self._values[column.name, column.more] = value
        self.whole = scrape.broker()

    def __call__(self, name: str, more: str = "") -> Value | None:
        return self._values[name, more]


def _set(core: Core, **policies: object) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(**policies))  # type: ignore[arg-type]


def _publish(core: Core, count: int, size: int = 100, messages: int = 1) -> int:
    """Publish and return the bytes of one entry."""
    producer = core.producer(core.topic(), name=f"p{core.broker.producer_names.generate()}")
    for _ in range(count):
        core.publish_all(producer, b"x" * size, messages=messages)
    return core.topic().log.total_bytes // max(1, core.topic().log.end_offset)


def test_without_quotas_there_are_no_ratios_and_the_limits_say_so(core: Core) -> None:
    core.topic().create_subscription("s")
    seen = Seen(core)
    assert seen("pulsar_storage_backlog_quota_limit") == -1
    assert seen("pulsar_storage_backlog_quota_limit_time") == -1
    for name in ("heliograph_backlog_quota_usage_ratio", "heliograph_backlog_quota_exceeded"):
        assert seen(name, _SIZE) is None
        assert seen(name, _TIME) is None


def test_the_message_ttl_is_that_which_holds_for_the_subscription(core: Core) -> None:
    core.topic().create_subscription("s")
    assert Seen(core)("heliograph_subscription_message_ttl_seconds") == -1
    _set(core, message_ttl_ms=90_500)
    assert Seen(core)("heliograph_subscription_message_ttl_seconds") == 90.5
    _set(core, message_ttl_ms=90_500, subscription_policies={"s": Policies(message_ttl_ms=5_000)})
    assert Seen(core)("heliograph_subscription_message_ttl_seconds") == 5
    _set(core, message_ttl_ms=90_500, subscription_policies={"other": Policies(message_ttl_ms=5_000)})
    assert Seen(core)("heliograph_subscription_message_ttl_seconds") == 90.5


def test_what_only_ledgers_keep_is_counted_beside_the_backlog(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    entry = _publish(core, 3, messages=2)
    subscription.acks.acknowledge_up_to(1, None)
    core.commit()
    seen = Seen(core)
    assert seen("heliograph_kept_by_ledger_messages") == 4
    assert seen("heliograph_kept_by_ledger_bytes") == 2 * entry
    assert seen.whole.topics.of("heliograph_kept_by_ledger_bytes") == 2 * entry
    assert seen("pulsar_storage_size") == 3 * entry
    assert seen("pulsar_msg_backlog") == 2
    stats = topic_stats(topic, RateSampler(core.broker, core.clock), "here")
    assert (stats.kept_by_ledger_messages, stats.kept_by_ledger_size) == (4, 2 * entry)
    _set(core, retention=Retention(60_000, -1))
    core.advance(1000)
    seen = Seen(core)
    assert seen("heliograph_kept_by_ledger_messages") == seen("heliograph_kept_by_ledger_bytes") == 0
    assert seen("pulsar_storage_size") == 3 * entry


def test_a_size_quota_is_used_exceeded_and_refuses(core: Core) -> None:
    core.topic().create_subscription("s")
    entry = _publish(core, 1)
    _set(core, backlog_quota_size=BacklogQuota(4 * entry, "producer_exception"))
    seen = Seen(core)
    assert seen("heliograph_backlog_quota_usage_ratio", _SIZE) == 0.25
    assert seen("heliograph_backlog_quota_exceeded", _SIZE) == 0
    assert seen("pulsar_storage_backlog_quota_limit") == 4 * entry
    _publish(core, 5)
    seen = Seen(core)
    assert seen("heliograph_backlog_quota_usage_ratio", _SIZE) == 1.0
    assert seen("heliograph_backlog_quota_exceeded", _SIZE) == 1
    assert seen("heliograph_backlog_quota_exceeded", _TIME) is None
    assert seen("heliograph_backlog_quota_refused_publishes_total", _SIZE) == 2
    assert seen("heliograph_backlog_quota_refused_publishes_total", _TIME) == 0
    assert seen("pulsar_msg_backlog") == 4
    assert seen.whole.topics.of("heliograph_backlog_quota_exceeded", _SIZE) == 1
    assert seen.whole.topics.of("heliograph_backlog_quota_usage_ratio", _SIZE) == 1.0


def test_evictions_count_how_often_and_how_many_messages(core: Core) -> None:
    core.topic().create_subscription("s")
    entry = _publish(core, 1, messages=3)
    _set(core, backlog_quota_size=BacklogQuota(2 * entry, "consumer_backlog_eviction"))
    _publish(core, 4, messages=3)
    core.advance(1000)
    seen = Seen(core)
    assert seen("pulsar_msg_backlog") == 6
    assert seen("heliograph_backlog_quota_evicted_messages_total", _SIZE) == 9
    times = seen("pulsar_storage_backlog_quota_exceeded_evictions_total", _SIZE)
    assert times is not None
    assert times >= 1
    assert seen("pulsar_storage_backlog_quota_exceeded_evictions_total", _TIME) == 0
    _set(core, backlog_quota_age=BacklogQuota(60_000, "consumer_backlog_eviction"))
    core.advance(30_000)
    seen = Seen(core)
    assert seen("heliograph_backlog_quota_usage_ratio", _TIME) == pytest.approx(31_000 / 60_000, abs=1e-6)
    assert seen("pulsar_storage_backlog_quota_limit_time") == 60
    for _ in range(3):
        core.advance(30_000)
    seen = Seen(core)
    assert seen("pulsar_msg_backlog") == 0
    assert seen("heliograph_backlog_quota_evicted_messages_total", _TIME) == 6
    assert seen("heliograph_backlog_quota_evicted_messages_total", _SIZE) == 9


def test_an_age_is_from_the_brokers_receive_time_on(core: Core) -> None:
    topic = core.topic()
    topic.create_subscription("s")
    producer = core.producer(topic)
    # The client's clock is wrong by an hour.
    core.publish(producer, publish_time=core.clock.now_ms() - 3_600_000)
    core.commit()
    assert Seen(core)("pulsar_storage_backlog_age_seconds") == 0
    core.clock.advance_ms(12_345)
    seen = Seen(core)
    assert seen("pulsar_storage_backlog_age_seconds") == 12
    assert seen("heliograph_subscription_backlog_age_seconds") == 12.345
    stats = topic_stats(topic, RateSampler(core.broker, core.clock), "here")
    assert stats.oldest_backlog_message_age_seconds == 12
    assert stats.oldest_backlog_message_subscription_name == "s"
    topic.subscription("s").acks.acknowledge_up_to(0, None)
    core.commit()
    assert Seen(core)("pulsar_storage_backlog_age_seconds") == -1


def test_expired_and_dead_lettered_messages_are_counted(core: Core) -> None:
    core.topic().create_subscription("s")
    core.topic("dead").create_subscription("watch")
    _set(core, message_ttl_ms=5_000, dead_letter_topic="persistent://public/default/dead")
    _publish(core, 3)
    for _ in range(10):
        core.advance(1_000)
    seen = Seen(core)
    assert seen("pulsar_subscription_back_log") == 0
    assert seen("heliograph_expired_messages_total") == 3
    assert seen("pulsar_subscription_total_msg_expired") == 3
    assert seen("heliograph_dead_lettered_messages_total") == 3
    assert seen("heliograph_dead_letter_loops_total") == 0
    assert seen("heliograph_dead_letter_failures_total") == 0
    # Dead letters are messages of their topic, and that has a TTL too: where they would go, they have been.
    stats = topic_stats(core.topic("dead"), RateSampler(core.broker, core.clock), "here")
    assert stats.msg_in_counter == 3


@pytest.mark.parametrize("by_topic", [False, True])
def test_throttled_dispatches_are_counted_by_the_level_of_the_rate(core: Core, by_topic: bool) -> None:
    rate = Rate(messages=2)
    _set(core, **{"dispatch_rate" if by_topic else "subscription_dispatch_rate": rate})
    subscription = core.topic().create_subscription("s")
    _publish(core, 3)
    core.consumer(subscription, SHARED, Client(), permits=100)
    seen = Seen(core)
    name = "pulsar_subscription_dispatch_throttled_msg_events"
    assert seen(name, ',reason="topic"') == int(by_topic)
    assert seen(name, ',reason="subscription"') == int(not by_topic)
    assert seen("pulsar_subscription_dispatch_throttled_bytes_events", ',reason="topic"') == 0


def test_delayed_messages_are_backlog_that_is_not_due(core: Core) -> None:
    subscription = core.topic().create_subscription("s")
    producer = core.producer(core.topic())
    for delay_ms in (0, 60_000, 60_000):
        core.publish(producer, deliver_at=core.clock.now_ms() + delay_ms)
    core.commit()
    core.consumer(subscription, SHARED, Client(), permits=100)
    seen = Seen(core)
    assert seen("pulsar_subscription_back_log") == 3
    assert seen("pulsar_subscription_delayed") == 2
    assert seen("pulsar_subscription_back_log_no_delayed") == 1
    index_bytes = seen("pulsar_delayed_message_index_size_bytes")
    assert index_bytes == seen("pulsar_subscription_delayed_message_index_size_bytes")
    assert index_bytes is not None
    assert index_bytes > 0
