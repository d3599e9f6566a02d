"""Policies as Apache Pulsar's admin API keeps them: its documents, the requests that change them, what it has not.

Unlike the broker's own API, nothing is rounded: a value that Pulsar's units cannot hold is refused, because what the
broker then has would always differ from the resource.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from heliograph_api.policies import policy_kinds as kinds
from heliograph_api.policies.policy_field import Level, manifest_name
from heliograph_api.policies.policy_table import POLICY_FIELDS, Policies
from heliograph_api.policies.policy_values import (
    SUBSCRIPTION_TYPES,
    AutoTopicCreation,
    BacklogQuota,
    InactiveTopic,
    Rate,
    Retention,
    SubscribeRate,
)
from heliograph_api.resources.model import OfBroker, Subscription, Tenant, Topic

_SECOND_MS: Final = 1000
_MINUTE_MS: Final = 60_000
_MB: Final = 1024 * 1024
#: What Pulsar's own tools set where nobody asks for a tick.
_TICK_MS: Final = 1000
_QUOTAS: Final = {"backlog_quota_size": "destination_storage", "backlog_quota_age": "message_age"}
#: The policies that Pulsar has at neither level, and those that it has at one level only.
_NOWHERE: Final = frozenset(
    {
        "expires_ms",
        "dead_letter_topic",
        "ttl_in_batches",
        "ttl_counts_delay",
        "max_delivery_delay_ms",
        "subscription_dispatch_rates",
        "subscription_policies",
        "delayed_delivery_tick_ms",
        "kept",
    }
)
_NOT_OF_NAMESPACES: Final = frozenset({"max_message_size"})
_NOT_OF_TOPICS: Final = frozenset({"encryption_required", "auto_update_schema"})
#: Those that cannot be removed: they are set to the value that a level without them shows.
_STAYING: Final = {
    Level.NAMESPACE: frozenset(
        {"encryption_required", "schema_compatibility", "auto_update_schema", "schema_validation_enforced"}
    ),
    Level.TOPIC: frozenset({"schema_validation_enforced"}),
}
#: Those whose value where nothing is set may also be set: the two look the same.
_ALIKE: Final = frozenset({*_STAYING[Level.NAMESPACE], "subscription_types"})


class NotHeld(ValueError):
    """A value that Pulsar's units cannot hold; the text says what is valid."""


class Change(NamedTuple):
    """A request that changes a policy: the end of its path below the namespace or topic."""

    method: str
    path: str
    body: Any = None
    params: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class _Codec:
    """The conversion between values of a kind and Pulsar's documents."""

    document: Callable[[Any], Any]
    value: Callable[[Any], Any]


def _whole(value: int, unit: int, valid: str) -> int:
    """Return how many ``unit`` a value is; values below 0 stay. Raises :class:`NotHeld`."""
    if value > 0 and value % unit:
        raise NotHeld(valid)
    return value // unit if value > 0 else value


def _scaled(number: int, unit: int) -> int:
    return number * unit if number > 0 else number


def _above_zero(ms: int, unit: int, valid: str) -> int:
    """Return a time whose 0 is "never" for Pulsar and "at once" for a resource. Raises :class:`NotHeld`."""
    if ms == 0:
        raise NotHeld(valid)
    return max(0, _whole(ms, unit, valid))


def _never_below_one(number: int, unit: int) -> int:
    return number * unit if number > 0 else -1


def _retention(value: Retention) -> dict[str, int]:
    return {
        "retentionTimeInMinutes": _whole(value.time_ms, _MINUTE_MS, "whole minutes"),
        "retentionSizeInMB": _whole(value.size_bytes, _MB, "whole Mi"),
    }


def _publish_rate(rate: Rate) -> dict[str, int]:
    if rate.period_s != 1:
        raise NotHeld("a period of 1s")
    return {"publishThrottlingRateInMsg": rate.messages, "publishThrottlingRateInByte": rate.bytes}


def _dispatch_rate(rate: Rate) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": rate.messages,
        "dispatchThrottlingRateInByte": rate.bytes,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": rate.period_s,
    }


def _inactive(value: InactiveTopic) -> dict[str, Any]:
    return {
        "inactiveTopicDeleteMode": value.mode,
        "maxInactiveDurationSeconds": _whole(value.max_inactive_ms, _SECOND_MS, "whole seconds"),
        "deleteWhileInactive": value.delete,
    }


def _auto_topic_creation(value: AutoTopicCreation) -> dict[str, Any]:
    if not value.allow:
        return {"allowAutoTopicCreation": False}
    if not value.partitions:
        return {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}
    partitions = value.partitions
    return {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": partitions}


def _created(document: Mapping[str, Any]) -> AutoTopicCreation:
    allow = bool(document["allowAutoTopicCreation"])
    return AutoTopicCreation(allow, int(document.get("defaultNumPartitions") or 0) if allow else 0)


def _quota_document(field: str, quota: BacklogQuota) -> dict[str, Any]:
    size, age = (quota.limit, -1) if field == "backlog_quota_size" else (-1, quota.limit)
    return {"limitSize": size, "limitTime": _whole(age, _SECOND_MS, "whole seconds"), "policy": quota.policy}


def _quota(field: str, document: Mapping[str, Any]) -> BacklogQuota:
    if field == "backlog_quota_size":
        # Older versions have the first name only.
        return BacklogQuota(int(document.get("limitSize", document.get("limit", -1))), document["policy"])
    return BacklogQuota(_scaled(int(document.get("limitTime", -1)), _SECOND_MS), document["policy"])


def _in_order(types: Collection[str]) -> list[str]:
    """Return subscription types in the order in which both sides list them: theirs says nothing."""
    return [each for each in SUBSCRIPTION_TYPES if each in types]


_PLAIN: Final = _Codec(lambda value: value, lambda document: document)
_OR_NONE: Final = _Codec(lambda value: max(value, 0), lambda document: document if document > 0 else -1)
_BY_KIND: Final = {
    kinds.SWITCH: _PLAIN,
    kinds.COUNT: _PLAIN,
    kinds.THRESHOLD: _PLAIN,
    kinds.SIZE_LIMIT: _OR_NONE,
    kinds.DURATION: _Codec(
        lambda value: _above_zero(value, _SECOND_MS, "whole seconds, at least 1s, or -1"),
        lambda document: _never_below_one(document, _SECOND_MS),
    ),
    kinds.UNUSED_FOR_OR_ZERO: _Codec(
        lambda value: max(0, _whole(value, _MINUTE_MS, "whole minutes, or -1")),
        lambda document: _never_below_one(document, _MINUTE_MS),
    ),
    kinds.RETENTION: _Codec(
        _retention,
        lambda document: Retention(
            _scaled(int(document["retentionTimeInMinutes"]), _MINUTE_MS),
            _scaled(int(document["retentionSizeInMB"]), _MB),
        ),
    ),
    kinds.RATE: _Codec(
        _dispatch_rate,
        lambda document: Rate(
            document["dispatchThrottlingRateInMsg"],
            document["dispatchThrottlingRateInByte"],
            document["ratePeriodInSecond"],
        ),
    ),
    kinds.SUBSCRIBE_RATE: _Codec(
        lambda rate: {"subscribeThrottlingRatePerConsumer": rate.per_consumer, "ratePeriodInSecond": rate.period_s},
        lambda document: SubscribeRate(document["subscribeThrottlingRatePerConsumer"], document["ratePeriodInSecond"]),
    ),
    kinds.INACTIVE_TOPIC: _Codec(
        _inactive,
        lambda document: InactiveTopic(
            document["maxInactiveDurationSeconds"] * _SECOND_MS,
            document["inactiveTopicDeleteMode"],
            document["deleteWhileInactive"],
        ),
    ),
    kinds.AUTO_TOPIC_CREATION: _Codec(_auto_topic_creation, _created),
    kinds.SUBSCRIPTION_TYPES: _Codec(list, _in_order),
    kinds.SCHEMA_COMPATIBILITY: _PLAIN,
}
#: The policies whose documents are not those of their kind.
_OWN: Final = {
    "publish_rate": _Codec(
        _publish_rate,
        lambda document: Rate(document["publishThrottlingRateInMsg"], document["publishThrottlingRateInByte"]),
    ),
    "auto_subscription_creation": _Codec(
        lambda value: {"allowAutoSubscriptionCreation": value},
        lambda document: bool(document["allowAutoSubscriptionCreation"]),
    ),
    "delayed_delivery": _Codec(
        lambda value: {"active": value, "tickTime": _TICK_MS, "maxDeliveryDelayInMillis": 0},
        lambda document: bool(document["active"]),
    ),
}


def fields_of(level: Level) -> Iterator[str]:
    """Yield the core's names of the policies that Pulsar has at a level, backlog quotas among them."""
    missing = _NOWHERE | (_NOT_OF_NAMESPACES if level is Level.NAMESPACE else _NOT_OF_TOPICS)
    for field, row in POLICY_FIELDS.items():
        if row.levels & level and field not in missing:
            yield field


def topic_paths() -> Iterator[tuple[str, str]]:
    """Yield the policies of a topic, each with the end of the path that shows it; backlog quotas have one for both."""
    for field in fields_of(Level.TOPIC):
        row = POLICY_FIELDS[field]
        if row.rest is not None:
            yield field, row.rest.topic[0]


def topic_policies(documents: Mapping[str, Any], quotas: Mapping[str, Any]) -> Policies:
    """Return a topic's policies from the answers to :func:`topic_paths` and the map of its backlog quotas."""
    policies = Policies()
    for field, document in documents.items():
        setattr(policies, field, _value(Level.TOPIC, field, document))
    return _with_quotas(policies, quotas)


def namespace_policies(document: Mapping[str, Any]) -> Policies:
    """Return a namespace's policies from its own document."""
    policies = Policies()
    for field in fields_of(Level.NAMESPACE):
        rest = POLICY_FIELDS[field].rest
        if rest is None:
            continue
        given = document.get(rest.key)
        if rest.per_cluster:
            # Pulsar sets them for the cluster that is asked.
            given = next(iter((given or {}).values()), None)
        setattr(policies, field, _value(Level.NAMESPACE, field, given))
    return _with_quotas(policies, document.get("backlog_quota_map") or {})


def changes(level: Level, was: Policies, wanted: Policies) -> Iterator[Change]:
    """Yield the requests that make the policies of a namespace or topic from what they were.

    Pulsar refuses a retention below the backlog quota at each step: where both change, the quota is removed first.
    """
    fields = [field for field in fields_of(level) if getattr(was, field) != getattr(wanted, field)]
    quotas = [field for field in fields if field in _QUOTAS]
    for field in quotas:
        if getattr(was, field) is not None and (getattr(wanted, field) is None or "retention" in fields):
            yield _change(level, field, None)
    for field in fields:
        if field not in quotas:
            yield _change(level, field, getattr(wanted, field))
    for field in quotas:
        if getattr(wanted, field) is not None:
            yield _change(level, field, getattr(wanted, field))


def unsupported(resource: OfBroker) -> list[str]:
    """Return the fields of a resource that Pulsar does not have, or not with this value, each with what is valid."""
    if isinstance(resource, Subscription):
        return [
            "the operator manages no Subscription on Apache Pulsar; valid: delete this resource, and name the"
            " subscription in spec.subscriptions of its Topic"
        ]
    if isinstance(resource, Tenant):
        limits = resource.spec.limits.policies()
        return [_missing(f"limits.{name}") for field, name in _names() if getattr(limits, field) is not None]
    found = []
    level = Level.TOPIC if isinstance(resource, Topic) else Level.NAMESPACE
    if isinstance(resource, Topic):
        if not resource.spec.persistent:
            found.append("spec.persistent: the operator manages persistent topics only on Apache Pulsar; valid: true")
        if resource.spec.schema_ is not None:
            found.append(_missing("schema"))
    if resource.spec.permissions is not None:
        found.append(_missing("permissions"))
    policies, held = resource.spec.policies(), set(fields_of(level))
    for field, name in _names():
        value = getattr(policies, field)
        if value is None:
            continue
        if field not in held:
            found.append(_missing(name))
            continue
        try:
            _document(field, value)
        except NotHeld as error:
            found.append(f"spec.{name}: Apache Pulsar does not have this value; valid: {error}")
    return found


def fitted(resource: OfBroker) -> OfBroker:
    """Return a resource as Pulsar shows it: without values that look as if they were not set, types in one order."""
    if isinstance(resource, Tenant | Subscription):
        return resource
    level = Level.TOPIC if isinstance(resource, Topic) else Level.NAMESPACE
    policies = resource.spec.policies()
    shown: dict[str, Any] = {field: None for field in _ALIKE if getattr(policies, field) == _unset(level, field)}
    if policies.subscription_types:
        shown["subscription_types"] = _in_order(policies.subscription_types)
    return resource.model_copy(update={"spec": resource.spec.model_copy(update=shown)})


def _names() -> Iterator[tuple[str, str]]:
    for field, row in POLICY_FIELDS.items():
        yield field, manifest_name(field, row)


def _missing(name: str) -> str:
    return f"spec.{name}: the operator cannot set it on Apache Pulsar; valid: leave it out"


def _unset(level: Level, field: str) -> Any:
    """Return what a level shows that does not set a policy."""
    rest = POLICY_FIELDS[field].rest
    return rest.unset[0 if level is Level.NAMESPACE else 1] if rest is not None else None


def _document(field: str, value: Any) -> Any:
    """Return Pulsar's document of a value. Raises :class:`NotHeld`."""
    if field in _QUOTAS:
        return _quota_document(field, value)
    return (_OWN.get(field) or _BY_KIND[POLICY_FIELDS[field].kind]).document(value)


def _value(level: Level, field: str, document: Any) -> Any:
    if document is None or (field in _ALIKE and document == _unset(level, field)):
        return None
    return (_OWN.get(field) or _BY_KIND[POLICY_FIELDS[field].kind]).value(document)


def _with_quotas(policies: Policies, quotas: Mapping[str, Any]) -> Policies:
    for field, name in _QUOTAS.items():
        if quotas.get(name) is not None:
            setattr(policies, field, _quota(field, quotas[name]))
    return policies


def _change(level: Level, field: str, value: Any) -> Change:
    if field in _QUOTAS:
        kind = {"backlogQuotaType": _QUOTAS[field]}
        if value is None:
            return Change("DELETE", "backlogQuota", params=kind)
        return Change("POST", "backlogQuota", _document(field, value), kind)
    rest = POLICY_FIELDS[field].rest
    assert rest is not None
    of_topic = level is Level.TOPIC
    path = rest.topic[0] if of_topic else rest.namespace or ""
    if value is None and field not in _STAYING[level]:
        return Change("DELETE", path)
    document = _unset(level, field) if value is None else _document(field, value)
    method = rest.methods[1 if of_topic else 0]
    if of_topic and rest.topic_query:
        return Change(method, path, params={rest.topic_query: str(document)})
    return Change(method, path, document)
