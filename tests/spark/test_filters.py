"""Filters that are pushed down: less is read, and the rows are the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pulsar
import pytest
from heliograph_spark.run.pruning import PUBLISH_TIME, TOPIC, Pruning
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from tests.support.broker_process import BrokerProcess
from tests.support.clients import fresh_name, publish

_NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
_NOON_MS = 1_767_355_200_000


def filtered(spark: SparkSession, broker: BrokerProcess, topics: str, condition: str, **options: str) -> DataFrame:
    reader = spark.read.format("pulsar").option("service.url", broker.service_url).option("topics", topics)
    return reader.options(pushDownFilters="true", **options).load().filter(condition)


def values(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("__topic = '{}-a'", [b"a"]),
        ("__topic IN ('{}-b', '{}-c')", [b"b", b"c"]),
        ("__topic LIKE '%-c' AND value IS NOT NULL", [b"c"]),
        ("__topic = '{}-d'", []),
    ],
)
def test_only_the_topics_that_a_filter_names_are_read(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, condition: str, left: list[bytes]
) -> None:
    prefix = fresh_name("filtered")
    for name in "abc":
        publish(client, f"{prefix}-{name}", [name.encode()])
    topics = ",".join(f"{prefix}-{name}" for name in "abc")
    condition = condition.replace("{}", f"persistent://public/default/{prefix}")
    frame = filtered(spark, broker, topics, condition)
    assert values(frame) == left
    assert frame.rdd.getNumPartitions() == max(1, len(left))


@pytest.mark.long
def test_only_the_times_that_a_filter_asks_for_are_read(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, [b"%02d" % number for number in range(40)])
    parts = {"maxEntriesPerSplit": "1", "publishTimeSkewMs": "0"}
    whole = filtered(spark, broker, topic, "value IS NOT NULL", **parts)
    assert whole.rdd.getNumPartitions() == 40
    times = sorted(whole.selectExpr("unix_micros(__publishTime) AS at", "value").collect())
    begin, end = times[10].at, times[29].at
    between = f"__publishTime >= timestamp_micros({begin}) AND __publishTime <= timestamp_micros({end})"
    expected = [bytes(row.value) for row in times if begin <= row.at <= end]
    frame = filtered(spark, broker, topic, between, **parts)
    assert len(expected) <= frame.rdd.getNumPartitions() < 40
    assert values(frame) == expected
    # Published messages may be received later: within ten minutes, unless told otherwise.
    patient = filtered(spark, broker, topic, between, maxEntriesPerSplit="1")
    assert patient.rdd.getNumPartitions() == 40
    assert values(patient) == expected
    assert values(filtered(spark, broker, topic, f"__publishTime < timestamp_micros({times[0].at})", **parts)) == []


def test_without_sparks_own_switch_nobody_believes_that_filters_are_pushed_down(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, [b"1"])
    switch = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(switch, "false")
    try:
        with pytest.raises(Exception, match=switch):
            filtered(spark, broker, topic, "__topic LIKE '%x'").collect()
    finally:
        spark.conf.set(switch, "true")


@pytest.mark.parametrize(
    ("filters", "earliest_ms", "latest_ms"),
    [
        ([GreaterThan(PUBLISH_TIME, _NOON)], _NOON_MS, None),
        ([GreaterThanOrEqual(PUBLISH_TIME, _NOON), GreaterThan(PUBLISH_TIME, _NOON - timedelta(1))], _NOON_MS, None),
        ([LessThan(PUBLISH_TIME, _NOON), LessThanOrEqual(PUBLISH_TIME, _NOON + timedelta(1))], None, _NOON_MS + 1),
        ([EqualTo(PUBLISH_TIME, _NOON + timedelta(microseconds=999))], _NOON_MS, _NOON_MS + 1),
        ([In(PUBLISH_TIME, (_NOON, _NOON + timedelta(seconds=1)))], _NOON_MS, _NOON_MS + 1001),
        ([In(PUBLISH_TIME, ())], None, None),
        ([EqualTo(("__eventTime",), _NOON), Not(GreaterThan(PUBLISH_TIME, _NOON))], None, None),
    ],
)
def test_times_are_bounded_by_what_the_filters_say_together(
    filters: list[Filter], earliest_ms: int | None, latest_ms: int | None
) -> None:
    found = Pruning.of(filters)
    assert (found.earliest_ms, found.latest_ms) == (earliest_ms, latest_ms)


@pytest.mark.parametrize(
    ("one", "names"),
    [
        (EqualTo(TOPIC, "ab"), ["ab"]),
        (EqualNullSafe(TOPIC, "ab"), ["ab"]),
        (In(TOPIC, ("ab", "b")), ["ab", "b"]),
        (StringStartsWith(TOPIC, "a"), ["a", "ab"]),
        (StringEndsWith(TOPIC, "b"), ["ab", "b"]),
        (StringContains(TOPIC, "a"), ["a", "ab"]),
        (Not(EqualTo(TOPIC, "ab")), ["a", "ab", "b"]),
    ],
)
def test_a_filter_of_the_topic_leaves_the_names_it_means(one: Filter, names: list[str]) -> None:
    assert [name for name in ("a", "ab", "b") if Pruning.of([one]).reads(name)] == names
