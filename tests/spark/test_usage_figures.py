"""The usage statistics from the broker's answers and from counts, without Spark and without a broker."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_spark.jobs.plan.broker_stats import read_stats
from heliograph_spark.jobs.plan.usage_statistics import (
    BiggestKey,
    Counted,
    PartitionUsage,
    group_usage,
    partition_usage,
    topic_usage,
)

HOUR_MS = 3_600_000
TOPIC = "persistent://sales/eu/orders"


def answer(
    backlogs: dict[str, int], limit: int | None = 10_000, out: float = 0.0, stored: int = 4_000
) -> dict[str, Any]:
    """Return the fields of ``…/stats`` that matter here."""
    return {
        "storageSize": stored,
        "backlogSize": max(backlogs.values(), default=0),
        "backlogQuotaLimitSize": -1 if limit is None else limit,
        "oldestBacklogMessageAgeSeconds": -1,
        "subscriptions": {
            name: {"msgBacklog": size // 10, "backlogSize": size, "msgThroughputOut": out, "consumers": []}
            for name, size in backlogs.items()
        },
    }


def used(partition: str, given: dict[str, Any], series: tuple[int, ...] = (100,) * 40) -> PartitionUsage:
    counted = Counted(sum(series) // 10, sum(series), 0, (len(series) - 1) * HOUR_MS, 3600, series)
    return partition_usage(read_stats(partition, given), counted, len(series) * HOUR_MS)[0]


def test_the_slowest_subscription_meets_the_quota_and_what_it_is_given_puts_that_off() -> None:
    stopped = used(TOPIC, answer({"fast": 0, "slow": 4_000}))
    assert (stopped.tenant, stopped.namespace, stopped.topic) == ("sales", "sales/eu", TOPIC)
    assert (stopped.quota_use, stopped.backlog_bytes, stopped.bytes_per_hour) == (0.4, 4_000, 100)
    assert stopped.seconds_to_quota == pytest.approx(60 * 3600)
    given = used(TOPIC, answer({"fast": 0, "slow": 4_000}, out=50 / 3600))
    assert given.seconds_to_quota == pytest.approx(120 * 3600)
    assert used(TOPIC, answer({"slow": 4_000}, out=100 / 3600)).seconds_to_quota is None


def test_what_is_stored_in_twice_the_bytes_meets_the_quota_in_half_the_time() -> None:
    twice = used(TOPIC, answer({"slow": 4_000}, stored=8_000))
    assert twice.seconds_to_quota == pytest.approx(30 * 3600)


def test_without_a_quota_or_a_subscription_there_is_no_time_and_beyond_it_none_is_left() -> None:
    assert used(TOPIC, answer({"slow": 4_000}, limit=None)).seconds_to_quota is None
    assert used(TOPIC, answer({})).seconds_to_quota is None
    assert used(TOPIC, answer({"slow": 10_000})).seconds_to_quota == 0
    short = used(TOPIC, answer({"slow": 1}), series=(100,) * 5)
    assert (short.seconds_to_quota, short.forecast_model, short.forecast_error) == (None, None, None)


def test_an_answer_of_a_pulsar_without_sizes_of_subscriptions_is_understood() -> None:
    given = answer({"s": 100})
    del given["subscriptions"]["s"]["backlogSize"], given["oldestBacklogMessageAgeSeconds"]
    found = read_stats(TOPIC, given)
    assert (found.lags[0].bytes, found.lags[0].messages, found.backlog_age_s) == (0, 10, None)


def test_a_topic_is_its_partitions_together_and_its_quota_is_that_of_the_first_to_meet_it() -> None:
    parts = [
        used(f"{TOPIC}-partition-0", answer({"slow": 2_000})),
        used(f"{TOPIC}-partition-1", answer({"slow": 7_000}), series=(300,) * 40),
        used(f"{TOPIC}-partition-2", answer({}), series=()),
    ]
    other = used("persistent://sales/us/orders", answer({"slow": 10_000}))
    topics = topic_usage([*parts, other], {TOPIC: BiggestKey(7, "k", 400)}, {TOPIC: (9, 90)})
    (orders, us) = topics
    assert (orders.topic, orders.partitions, orders.messages, orders.bytes) == (TOPIC, 3, 1_600, 16_000)
    assert (orders.partition_skew, orders.key_skew, orders.keys) == (0.75, 0.25, 7)
    assert (orders.quota_use, orders.seconds_to_quota) == (0.7, parts[1].seconds_to_quota)
    assert (orders.archived_messages, orders.archived_bytes, us.archived_messages) == (9, 90, None)
    assert (us.key_skew, us.biggest_key) == (None, None)
    eu, us_namespace = group_usage(topics, "namespace")
    assert (eu.name, eu.bytes, eu.quota_use, us_namespace.seconds_to_quota) == ("sales/eu", 16_000, 0.7, 0)
    (tenant,) = group_usage(topics, "tenant")
    assert (tenant.name, tenant.topics, tenant.bytes, tenant.quota_use) == ("sales", 2, 20_000, 1)
    assert (tenant.topic_skew, tenant.seconds_to_quota) == (0.8, 0)
