"""Combination of levels, caps by limits, and policies that contradict each other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from heliograph_api.policies.policies import (
    DEFAULTS,
    NO_RETENTION_SET,
    BacklogQuota,
    Policies,
    Retention,
    RetentionByLedger,
    contradictions,
    resolve,
)

NOTHING = Policies()


def test_the_topic_counts_then_the_namespace_then_the_broker() -> None:
    topic = Policies(message_ttl_ms=1, deduplication=False)
    namespace = Policies(message_ttl_ms=2, expires_ms=2, deduplication=True)
    broker = Policies(message_ttl_ms=3, expires_ms=3, max_producers=3)
    resolved = resolve(topic, namespace, broker)
    assert resolved == Policies(message_ttl_ms=1, expires_ms=2, max_producers=3, deduplication=False)


def test_levels_may_be_missing() -> None:
    resolved = resolve(None, None, DEFAULTS)
    assert resolved.retention == NO_RETENTION_SET
    assert resolved.deduplication is False
    assert resolved.delayed_delivery is True


def test_limits_cap_what_ledgers_keep_where_no_level_sets_a_retention() -> None:
    limits = [Policies(retention=Retention(-1, 5)), Policies(retention=Retention(7, 9))]
    assert resolve(None, None, DEFAULTS, limits).retention == RetentionByLedger(7, 5)
    assert resolve(Policies(retention=Retention(8, 8)), None, DEFAULTS, limits).retention == Retention(7, 5)


def test_the_levels_are_not_changed() -> None:
    before = msgspec.structs.replace(DEFAULTS)
    topic = Policies(message_ttl_ms=-1, max_producers=9)
    resolve(topic, None, DEFAULTS, [Policies(max_producers=1, retention=Retention(1, 1))])
    assert before == DEFAULTS
    assert topic == Policies(message_ttl_ms=-1, max_producers=9)


@pytest.mark.parametrize("field", ["message_ttl_ms", "expires_ms", "max_message_size", "max_producers"])
def test_minus_one_takes_back_what_a_level_above_sets(field: str) -> None:
    assert getattr(resolve(Policies(**_only(field, -1)), Policies(**_only(field, 5)), NOTHING), field) is None


def test_a_quota_and_a_dead_letter_topic_can_be_taken_back() -> None:
    namespace = Policies(backlog_quota_size=BacklogQuota(5, "producer_exception"), dead_letter_topic="dead")
    topic = Policies(backlog_quota_size=BacklogQuota(-1, "producer_exception"), dead_letter_topic="")
    assert resolve(topic, namespace, NOTHING) == NOTHING


def test_a_maximum_of_0_is_none_as_in_pulsar_and_a_ttl_of_0_is_0() -> None:
    resolved = resolve(Policies(max_consumers=0, message_ttl_ms=0), Policies(max_consumers=4), NOTHING)
    assert (resolved.max_consumers, resolved.message_ttl_ms) == (None, 0)


@pytest.mark.parametrize(
    ("own", "limit", "outcome"),
    [
        (Retention(5, 50), Retention(10, 10), Retention(5, 10)),
        (Retention(-1, -1), Retention(10, 10), Retention(10, 10)),
        (Retention(-1, 50), Retention(10, -1), Retention(10, 50)),
        (Retention(0, 0), Retention(10, 10), Retention(0, 0)),
        (Retention(5, 50), Retention(0, 0), Retention(0, 0)),
        (Retention(5, 50), Retention(-1, -1), Retention(5, 50)),
    ],
)
def test_retention_is_capped_figure_by_figure(own: Retention, limit: Retention, outcome: Retention) -> None:
    assert resolve(Policies(retention=own), None, NOTHING, [Policies(retention=limit)]).retention == outcome


@pytest.mark.parametrize(
    ("own", "limit", "outcome"),
    [(5, 10, 5), (10, 5, 5), (None, 5, 5), (-1, 5, 5), (5, None, 5), (5, -1, 5), (0, 5, 0), (None, -1, None)],
)
@pytest.mark.parametrize("field", ["message_ttl_ms", "expires_ms"])
def test_the_lower_duration_wins(field: str, own: int | None, limit: int | None, outcome: int | None) -> None:
    resolved = resolve(Policies(**_only(field, own)), None, NOTHING, [Policies(**_only(field, limit))])
    assert getattr(resolved, field) == outcome


@pytest.mark.parametrize(("own", "limit", "outcome"), [(5, 10, 5), (10, 5, 5), (None, 5, 5), (0, 5, 5), (5, 0, 5)])
@pytest.mark.parametrize("field", ["max_producers", "max_consumers", "max_subscriptions", "max_message_size"])
def test_the_lower_maximum_wins(field: str, own: int | None, limit: int | None, outcome: int | None) -> None:
    resolved = resolve(Policies(**_only(field, own)), None, NOTHING, [Policies(**_only(field, limit))])
    assert getattr(resolved, field) == outcome


def test_the_lowest_of_several_limits_wins() -> None:
    limits = [Policies(message_ttl_ms=7), Policies(message_ttl_ms=3), Policies(message_ttl_ms=5)]
    assert resolve(None, None, NOTHING, limits).message_ttl_ms == 3


def test_a_lower_quota_comes_with_its_action_and_an_equal_one_does_not() -> None:
    own = Policies(backlog_quota_age=BacklogQuota(10, "producer_exception"))
    lower = Policies(backlog_quota_age=BacklogQuota(9, "consumer_backlog_eviction"))
    equal = Policies(backlog_quota_age=BacklogQuota(10, "consumer_backlog_eviction"))
    assert resolve(own, None, NOTHING, [lower]) == lower
    assert resolve(own, None, NOTHING, [equal]) == own


def test_limits_do_not_switch_on_what_is_no_limit() -> None:
    limit = Policies(deduplication=True, delayed_delivery=False, dead_letter_topic="dead")
    assert resolve(None, None, NOTHING, [limit]) == NOTHING


@pytest.mark.parametrize(
    ("retention", "size", "age"),
    [
        (None, 10, 10),
        (Retention(0, 0), 10, 10),
        (Retention(-1, -1), 10, 10),
        (Retention(10, 10), 10, 10),
        (Retention(10, 10), -1, -1),
    ],
)
def test_policies_that_go_together(retention: Retention | None, size: int, age: int) -> None:
    assert list(contradictions(_with_quotas(retention, size, age))) == []


@pytest.mark.parametrize(
    ("retention", "words"),
    [
        (Retention(0, 1024), "retention: time 0 and size 1Ki contradict each other"),
        (Retention(1000, 0), "retention: time 1s and size 0 contradict each other"),
        (Retention(-1, 9), "retention.size: 9 is below backlogQuota.destinationStorage.limit 10;"),
        (Retention(9, -1), "retention.time: 9ms is below backlogQuota.messageAge.limit 10ms;"),
    ],
)
def test_policies_that_contradict_each_other(retention: Retention, words: str) -> None:
    found = [f"{field}: {problem}" for field, problem in contradictions(_with_quotas(retention, 10, 10))]
    assert any(problem.startswith(words) for problem in found)


def test_every_contradiction_is_named() -> None:
    found = dict(contradictions(_with_quotas(Retention(6, 5), 10, 10)))
    assert found["retention.size"].startswith("5 ")
    assert found["retention.time"].startswith("6ms ")


def test_records_of_policies_read_back() -> None:
    policies = _with_quotas(Retention(6, -1), 10, 10)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(policies), type=Policies) == policies
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Policies())) == {}


def _with_quotas(retention: Retention | None, size: int, age: int) -> Policies:
    return Policies(
        retention=retention,
        backlog_quota_size=BacklogQuota(size, "producer_exception"),
        backlog_quota_age=BacklogQuota(age, "producer_exception"),
    )


def _only(field: str, value: int | None) -> dict[str, Any]:
    return {} if value is None else {field: value}
