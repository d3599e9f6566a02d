"""Dynamic settings as policies of all topics: what they leave open, and values without a meaning."""

from __future__ import annotations

import pytest
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.policies.policies import AutoTopicCreation, InactiveTopic, Policies, Rate, Retention
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.messaging.broker.dynamic_policies import EFFECTIVE, check_dynamic, dynamic_policies

from tests.support.core import Core

CONFIG = BrokerConfig()


def test_no_setting_sets_no_policy() -> None:
    assert dynamic_policies({}, CONFIG) == Policies()


def test_a_value_without_a_meaning_sets_nothing() -> None:
    """A release that only kept a setting took any value for it."""
    texts = dict.fromkeys(EFFECTIVE, "nonsense")
    assert dynamic_policies(texts, CONFIG) == Policies()
    for name in EFFECTIVE:
        with pytest.raises(PreconditionFailed, match=f"{name} should be "):
            check_dynamic(name, "nonsense")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"allowAutoTopicCreation": "false"}, AutoTopicCreation(False)),
        ({"allowAutoTopicCreationType": "partitioned"}, AutoTopicCreation(True, 1)),
        ({"allowAutoTopicCreationType": "partitioned", "defaultNumPartitions": "4"}, AutoTopicCreation(True, 4)),
        ({"defaultNumPartitions": "4"}, AutoTopicCreation(True)),
    ],
)
def test_automatic_creation_takes_the_rest_from_the_brokers_settings(
    texts: dict[str, str], expected: AutoTopicCreation
) -> None:
    assert dynamic_policies(texts, CONFIG).auto_topic_creation == expected


def test_a_partitioned_default_stays_one() -> None:
    policies = dynamic_policies({"allowAutoTopicCreation": "true"}, BrokerConfig(default_partitions=3))
    assert policies.auto_topic_creation == AutoTopicCreation(True, 3)


def test_they_come_before_the_brokers_defaults_and_below_namespaces(core: Core) -> None:
    levels = core.broker.policies
    topic = core.topic("t")
    levels.set_broker(Policies(publish_rate=Rate(1), retention=Retention(5, 5)), Policies(publish_rate=Rate(8)))
    levels.set_dynamic("maxPublishRatePerTopicInMessages", "7")
    levels.set_dynamic("brokerDeleteInactiveTopicsEnabled", "true")
    assert topic.effective.publish_rate == Rate(7)
    assert topic.effective.retention == Retention(5, 5)
    assert levels.effective(topic.name).inactive_topic == InactiveTopic(60_000)
    core.broker.namespaces.set_policies("public/default", Policies(publish_rate=Rate(9)))
    assert levels.effective(topic.name).publish_rate == Rate(8)
    core.broker.namespaces.set_policies("public/default", Policies())
    core.commit()
    core.restart()
    assert core.broker.policies.effective(topic.name).publish_rate == Rate(7)
    core.broker.policies.set_dynamic("maxPublishRatePerTopicInMessages", None)
    assert core.broker.policies.effective(topic.name).publish_rate == Rate(1)
