"""ResourceStats are shown as people read them, and written when they would see a difference."""

from __future__ import annotations

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.broker_state import BrokerState, NamespaceState, TenantState, TopicState
from heliograph_operator.decide.resource_stats import (
    SMALL_CHANGE_S,
    ResourceStats,
    quota_verdict,
    stats_of,
    totals_of,
    worth_writing,
)
from heliograph_operator.objects.conditions import Reason

BASE = ResourceStats(1000, 1 << 20, 60_000, 1 << 21, 50, 4, 2, oldest_received_ms=1000)


def topic(**stats: object) -> TopicState:
    return TopicState(0, Policies(), subscriptions=["billing"], **stats)  # type: ignore[arg-type]


def test_a_topics_figures_are_shown_in_units_and_whole_seconds() -> None:
    has = topic(
        backlog_messages=12,
        backlog_bytes=1_300_000,
        oldest_age_ms=42_900,
        oldest_received_ms=1_767_225_600_700,
        storage_bytes=5 << 30,
        size_used=0.159,
    )
    state = BrokerState("1", Policies(), Policies(), {}, {}, {"persistent://a/b/c": has})
    found = stats_of("Topic", "persistent://a/b/c", state, {})
    assert found is not None
    assert found.shown() == {
        "backlog": {"messages": 12, "bytes": "1.2Mi", "oldestAge": "42s", "oldestTime": "2026-01-01T00:00:00Z"},
        "storage": {"bytes": "5Gi"},
        "quotaUsed": "15%",
        "quotaUsedPercent": 15,
        "partitions": 0,
        "subscriptions": 1,
    }
    assert stats_of("Topic", "persistent://a/b/d", state, {}) is None


def test_namespaces_and_tenants_add_up_what_they_hold() -> None:
    topics = {
        "persistent://shop/pay/a": topic(
            backlog_messages=1, backlog_bytes=10, storage_bytes=100, oldest_age_ms=5000, oldest_received_ms=9000
        ),
        "non-persistent://shop/pay/b": topic(),
        "persistent://shop/other/c": topic(
            backlog_messages=2, backlog_bytes=20, storage_bytes=200, oldest_age_ms=9000, oldest_received_ms=5000
        ),
        "persistent://shopping/pay/d": topic(backlog_messages=1000),
    }
    tenants = {name: TenantState([], [], Policies()) for name in ("shop", "shopping", "idle")}
    namespaces = {name: NamespaceState(4, Policies()) for name in ("shop/pay", "shop/other", "shopping/pay")}
    totals = totals_of(BrokerState("1", Policies(), Policies(), tenants, namespaces, topics))
    assert totals["shop/pay"] == ResourceStats(1, 10, 5000, 100, topics=2, oldest_received_ms=9000)
    assert totals["shop"] == ResourceStats(3, 30, 9000, 300, topics=3, namespaces=2, oldest_received_ms=5000)
    assert totals["idle"] == ResourceStats(topics=0, namespaces=0)


@pytest.mark.parametrize(
    ("now", "since_s", "write"),
    [
        (BASE, 1e9, False),
        (BASE._replace(messages=1010), 1, False),
        (BASE._replace(messages=1010), SMALL_CHANGE_S, True),
        (BASE._replace(messages=1050), 1, True),
        (BASE._replace(messages=0), 1, True),
        (BASE._replace(bytes=(1 << 20) + 1), 1e9, False),
        (BASE._replace(bytes=1 << 19), 1, True),
        (BASE._replace(oldest_age_ms=65_000), 1e9, False),
        (BASE._replace(oldest_age_ms=67_000), 1, True),
        (BASE._replace(oldest_received_ms=2000), 1, False),
        (BASE._replace(oldest_received_ms=2000), SMALL_CHANGE_S, True),
        (BASE._replace(oldest_age_ms=-1), 1, True),
        (BASE._replace(used_percent=52), 1, False),
        (BASE._replace(used_percent=55), 1, True),
        (BASE._replace(used_percent=-1), 1, True),
        (BASE._replace(partitions=5), 1, True),
        (BASE._replace(subscriptions=3), 1, True),
        (BASE._replace(storage_bytes=1 << 22), 1, True),
    ],
)
def test_small_movements_wait_and_ages_are_written_in_growing_steps(
    now: ResourceStats, since_s: float, write: bool
) -> None:
    assert worth_writing(BASE, now, since_s) is write


def test_an_age_that_grows_for_a_day_is_written_some_dozens_of_times() -> None:
    written, writes = BASE._replace(oldest_age_ms=1000), 0
    for seconds in range(15, 86_400, 15):
        now = written._replace(oldest_age_ms=seconds * 1000)
        if worth_writing(written, now, 1e9):
            written, writes = now, writes + 1
    assert writes < 100


def test_the_quota_condition_names_the_limit_that_is_reached() -> None:
    assert quota_verdict(topic()).reason is Reason.NO_QUOTA
    within = quota_verdict(topic(size_limit=10))
    assert (within.status, within.reason) == ("False", Reason.QUOTA_WITHIN_LIMITS)
    size = quota_verdict(topic(size_limit=1 << 30, size_exceeded=True))
    assert (size.status, size.message) == ("True", "the backlog has reached its limit of 1Gi")
    age = quota_verdict(topic(age_limit_ms=3_600_000, age_exceeded=True))
    assert (age.reason, age.message) == (
        Reason.AGE_QUOTA_EXCEEDED,
        "the oldest unacknowledged message is older than 1h",
    )
