"""The policies that dynamic settings set for all topics, by Pulsar's names: above those of a BrokerCluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from heliograph_api.broker_config import BrokerConfig
from heliograph_api.policies.policies import (
    INACTIVE_TOPIC_MODES,
    MAX_PARTITIONS,
    SUBSCRIPTION_TYPES,
    AutoTopicCreation,
    InactiveTopic,
    Policies,
    Rate,
    SubscribeRate,
)

from heliograph_broker.messaging.base.errors import PreconditionFailed

_TOPIC_TYPES: Final = ("partitioned", "non-partitioned")
_PERIOD_S: Final = 30
_INACTIVE_S: Final = 60


def _whole(most: int = 2**31 - 1, least: int = 0) -> Callable[[str], int]:
    def read(text: str) -> int:
        if len(text) <= 20 and text.isascii() and text.removeprefix("-").isdigit() and least <= int(text) <= most:
            return int(text)
        raise ValueError(f"a whole number from {least} to {most}")

    return read


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _choice(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return text

    return read


def _types(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if any(name not in SUBSCRIPTION_TYPES for name in names):
        raise ValueError(f"names from {', '.join(SUBSCRIPTION_TYPES)}, separated by commas")
    return sorted(set(names))


_BYTES: Final = _whole(2**63 - 1)
_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "allowAutoSubscriptionCreation": _switch,
    "allowAutoTopicCreation": _switch,
    "allowAutoTopicCreationType": _choice(*_TOPIC_TYPES),
    "brokerDeleteInactiveTopicsEnabled": _switch,
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": _whole(least=1),
    "brokerDeleteInactiveTopicsMode": _choice(*INACTIVE_TOPIC_MODES),
    "defaultNumPartitions": _whole(MAX_PARTITIONS, 1),
    "dispatchThrottlingRatePerSubscriptionInByte": _BYTES,
    "dispatchThrottlingRatePerSubscriptionInMsg": _whole(),
    "dispatchThrottlingRatePerTopicInByte": _BYTES,
    "dispatchThrottlingRatePerTopicInMsg": _whole(),
    "isAllowAutoUpdateSchemaEnabled": _switch,
    "maxPublishRatePerTopicInBytes": _BYTES,
    "maxPublishRatePerTopicInMessages": _whole(),
    "maxTopicsPerNamespace": _whole(),
    "subscribeRatePeriodPerConsumerInSecond": _whole(least=1),
    "subscribeThrottlingRatePerConsumer": _whole(),
    "subscriptionTypesEnabled": _types,
}
EFFECTIVE: Final = frozenset(_READERS)
"""The names of the dynamic settings that have an effect."""


def check_dynamic(name: str, text: str) -> None:
    """Check the value of a setting that has an effect. Raises :class:`PreconditionFailed` with what would be right."""
    try:
        _READERS[name](text)
    except ValueError as error:
        raise PreconditionFailed(f"{name} should be {error}, not '{text}'") from None


def dynamic_policies(texts: Mapping[str, str], config: BrokerConfig) -> Policies:
    """Return the policies that settings set for all topics; ``config`` has what they leave open.

    A value without a meaning, of a release that only kept the setting, sets nothing.
    """
    values: dict[str, Any] = {}
    for name, read in _READERS.items():
        if name in texts:
            with suppress(ValueError):
                values[name] = read(texts[name])
    return Policies(
        publish_rate=_rate(values, "maxPublishRatePerTopicInMessages", "maxPublishRatePerTopicInBytes"),
        dispatch_rate=_rate(values, "dispatchThrottlingRatePerTopicInMsg", "dispatchThrottlingRatePerTopicInByte"),
        subscription_dispatch_rate=_rate(
            values, "dispatchThrottlingRatePerSubscriptionInMsg", "dispatchThrottlingRatePerSubscriptionInByte"
        ),
        subscribe_rate=_subscribe_rate(values),
        max_topics=values.get("maxTopicsPerNamespace"),
        auto_topic_creation=_auto_topic_creation(values, config),
        auto_subscription_creation=values.get("allowAutoSubscriptionCreation"),
        auto_update_schema=values.get("isAllowAutoUpdateSchemaEnabled"),
        subscription_types=values.get("subscriptionTypesEnabled"),
        inactive_topic=_inactive_topic(values),
    )


def _rate(values: Mapping[str, Any], messages: str, size: str) -> Rate | None:
    if messages not in values and size not in values:
        return None
    return Rate(values.get(messages) or -1, values.get(size) or -1)


def _subscribe_rate(values: Mapping[str, Any]) -> SubscribeRate | None:
    rate = values.get("subscribeThrottlingRatePerConsumer")
    if rate is None:
        return None
    return SubscribeRate(rate, values.get("subscribeRatePeriodPerConsumerInSecond", _PERIOD_S))


def _auto_topic_creation(values: Mapping[str, Any], config: BrokerConfig) -> AutoTopicCreation | None:
    names = ("allowAutoTopicCreation", "allowAutoTopicCreationType", "defaultNumPartitions")
    if not any(name in values for name in names):
        return None
    default = _TOPIC_TYPES[0] if config.default_partitions else _TOPIC_TYPES[1]
    partitioned = values.get("allowAutoTopicCreationType", default) == _TOPIC_TYPES[0]
    partitions = values.get("defaultNumPartitions", config.default_partitions or 1)
    allowed = values.get("allowAutoTopicCreation", config.allow_auto_topic_creation)
    return AutoTopicCreation(allowed, partitions if partitioned else 0)


def _inactive_topic(values: Mapping[str, Any]) -> InactiveTopic | None:
    delete = values.get("brokerDeleteInactiveTopicsEnabled")
    if delete is None:
        return None
    seconds = values.get("brokerDeleteInactiveTopicsMaxInactiveDurationSeconds", _INACTIVE_S)
    return InactiveTopic(seconds * 1000, values.get("brokerDeleteInactiveTopicsMode", INACTIVE_TOPIC_MODES[0]), delete)
