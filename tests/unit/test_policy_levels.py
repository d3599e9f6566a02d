"""The levels of policies on stored data: topic, namespace, broker; capped by tenant and broker."""

from __future__ import annotations

import pytest
from heliograph_api.manifests.manifest_reader import parse
from heliograph_api.policies.policies import BacklogQuota, Policies, Rate, resolve
from heliograph_api.policies.policy_values import (
    COMPATIBILITIES_OF_AUTO_UPDATES,
    SCHEMA_AUTO_UPDATE,
    SCHEMA_COMPATIBILITIES,
)
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.messaging.base.records import NamespaceRecord, TenantRecord
from heliograph_broker.messaging.broker.applied_policies import CONFIGURED_AT_ONCE
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.usecases.apply import apply_resources

from tests.support.core import Core

CLUSTER = """
apiVersion: heliograph.dev/v1alpha1
kind: BrokerCluster
metadata: {name: main}
spec:
  brokerDefaults: {messageTTL: 10s}
  limits: {messageTTL: 60s, maxProducers: 5}
"""


def _topic(core: Core) -> Topic:
    core.broker.tenants.create("shop", TenantRecord())
    core.broker.namespaces.create("shop/web", NamespaceRecord())
    return core.topic("shop/web/orders")


def _ttl(core: Core) -> int | None:
    return core.topic("shop/web/orders").effective.message_ttl_ms


def test_the_nearest_level_that_says_something_counts(core: Core) -> None:
    topic = _topic(core)
    assert _ttl(core) is None
    core.broker.policies.set_broker(Policies(message_ttl_ms=3), Policies())
    assert _ttl(core) == 3
    core.broker.namespaces.set_policies("shop/web", Policies(message_ttl_ms=20))
    assert _ttl(core) == 20
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=100))
    assert _ttl(core) == 100
    core.broker.policies.set_topic(topic.name, Policies())
    assert _ttl(core) == 20
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=-1))
    assert _ttl(core) is None


def test_limits_of_tenant_and_broker_cap_every_level_and_the_lower_wins(core: Core) -> None:
    topic = _topic(core)
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=1000))
    core.broker.tenants.update("shop", TenantRecord(limits=Policies(message_ttl_ms=500)))
    assert _ttl(core) == 500
    core.broker.policies.set_broker(Policies(), Policies(message_ttl_ms=200))
    assert _ttl(core) == 200
    core.broker.policies.set_broker(Policies(), Policies(message_ttl_ms=700))
    assert _ttl(core) == 500
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=-1))
    assert _ttl(core) == 500


def test_broker_policies_and_limits_survive_a_restart(core: Core) -> None:
    _topic(core)
    core.broker.policies.set_broker(Policies(message_ttl_ms=3000), Policies(max_producers=7))
    core.restart()
    effective = core.topic("shop/web/orders").effective
    assert (effective.message_ttl_ms, effective.max_producers) == (3000, 7)
    assert effective.retention is not None


def test_a_lowered_default_lets_stored_messages_expire(core: Core) -> None:
    topic = _topic(core)
    subscription = topic.create_subscription("s")
    core.publish(core.producer(topic))
    core.commit()
    core.advance(60_000)
    assert subscription.acks.backlog_messages == 1
    core.broker.policies.set_broker(Policies(message_ttl_ms=30_000), Policies())
    core.advance(300)
    assert subscription.acks.backlog_messages == 0


def test_a_broker_cluster_says_what_holds_for_everything(core: Core) -> None:
    _topic(core)
    resources = parse(CLUSTER, "cluster.yaml")
    assert [applied.action for applied in apply_resources(core.broker, resources)] == ["configured"]
    effective = core.topic("shop/web/orders").effective
    assert (effective.message_ttl_ms, effective.max_producers) == (10_000, 5)
    assert [applied.action for applied in apply_resources(core.broker, resources)] == ["unchanged"]
    core.restart()
    assert [applied.action for applied in apply_resources(core.broker, resources)] == ["unchanged"]


def test_a_broker_belongs_to_one_cluster(core: Core) -> None:
    other = CLUSTER.replace("name: main", "name: other")
    with pytest.raises(PreconditionFailed, match="a broker belongs to one cluster, and main is applied with it"):
        apply_resources(core.broker, [*parse(CLUSTER, "a.yaml"), *parse(other, "b.yaml")])


def test_of_two_rates_each_figure_counts_that_lets_less_through() -> None:
    own = Policies(publish_rate=Rate(messages=100, bytes=-1, period_s=10))
    limits = Policies(publish_rate=Rate(messages=5, bytes=1000, period_s=1))
    assert resolve(own, None, Policies(), [limits]).publish_rate == Rate(messages=50, bytes=10_000, period_s=10)
    assert resolve(None, None, Policies(), [limits]).publish_rate == Rate(messages=5, bytes=1000, period_s=1)


def test_the_setting_for_updates_of_schemas_counts_where_neither_topic_nor_namespace_has_a_strategy() -> None:
    def strategy(topic: str | None, namespace: str | None, of_updates: str, broker: str | None) -> str | None:
        own = Policies(schema_compatibility=namespace, kept={SCHEMA_AUTO_UPDATE: of_updates})
        levels = Policies(schema_compatibility=topic), own, Policies(schema_compatibility=broker)
        return resolve(*levels).schema_compatibility

    assert strategy(None, None, "Backward", "FORWARD") == "BACKWARD"
    assert strategy(None, None, "AutoUpdateDisabled", None) == "ALWAYS_INCOMPATIBLE"
    assert strategy(None, "FULL", "Backward", None) == "FULL"
    assert strategy("FORWARD", None, "Backward", None) == "FORWARD"
    own = Policies(kept={SCHEMA_AUTO_UPDATE: "FullTransitive"})
    assert resolve(None, own, Policies()).schema_compatibility == "FULL_TRANSITIVE"
    assert resolve(None, Policies(kept={"other": 1}), Policies(schema_compatibility="FORWARD")) == Policies(
        schema_compatibility="FORWARD"
    )


def test_every_value_of_the_setting_for_updates_of_schemas_is_a_strategy() -> None:
    assert sorted(COMPATIBILITIES_OF_AUTO_UPDATES.values()) == sorted(SCHEMA_COMPATIBILITIES)


def test_a_quota_nobody_set_comes_from_the_limits() -> None:
    quota = BacklogQuota(1000, "producer_exception")
    assert resolve(None, None, Policies(), [Policies(backlog_quota_size=quota)]).backlog_quota_size == quota


def test_a_change_reaches_thousands_of_topics_some_at_a_time(core: Core) -> None:
    topics = [core.topic(f"t{index}") for index in range(2 * CONFIGURED_AT_ONCE + 1)]
    core.broker.namespaces.set_policies("public/default", Policies(message_ttl_ms=1000))
    assert sum(topic.timing.ttl_ms == 1000 for topic in topics) == CONFIGURED_AT_ONCE
    assert core.broker.ticks.run() is True
    while core.broker.ticks.run():
        pass
    assert all(topic.timing.ttl_ms == 1000 for topic in topics)
