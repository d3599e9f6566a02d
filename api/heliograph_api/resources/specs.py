"""The policies in a ``spec``, and their conversion to the core's policies.

The fields are the rows of :mod:`.policy_table`.
"""

from __future__ import annotations

from inspect import cleandoc
from typing import Any, ClassVar, Final, Self

from pydantic import Field, model_validator
from pydantic.alias_generators import to_snake

from heliograph_api.policies import policy_kinds as kinds
from heliograph_api.policies.policies import SchemaCompatibility, SubscriptionType, contradictions
from heliograph_api.policies.policy_field import Level, PolicyField, manifest_name
from heliograph_api.policies.policy_table import POLICY_FIELDS, Policies

from .cel import DURATION, SIZE, Quantity, Rule, where_both
from .fields import (
    Contradiction,
    Count,
    Duration,
    DurationLimit,
    Model,
    OptionalTopic,
    Size,
    SizeLimit,
    SubscriptionText,
    Unique,
    UnusedFor,
)
from .policy_parts import (
    AutoTopicCreationSpec,
    BacklogQuotaSpec,
    InactiveTopicSpec,
    PolicyDocument,
    RateSpec,
    RetentionSpec,
    SubscribeRateSpec,
)

#: The types of the kinds in manifests. Documents of their own have a ``core()``.
_TYPES: Final[dict[kinds.Kind, Any]] = {
    kinds.SWITCH: bool,
    kinds.COUNT: Count,
    kinds.SIZE_LIMIT: SizeLimit,
    kinds.THRESHOLD: Size,
    kinds.DURATION: Duration,
    kinds.DURATION_LIMIT: DurationLimit,
    kinds.UNUSED_FOR: UnusedFor,
    kinds.UNUSED_FOR_OR_ZERO: UnusedFor,
    kinds.RETENTION: RetentionSpec,
    kinds.SIZE_QUOTA: BacklogQuotaSpec,
    kinds.AGE_QUOTA: BacklogQuotaSpec,
    kinds.RATE: RateSpec,
    kinds.SUBSCRIBE_RATE: SubscribeRateSpec,
    kinds.INACTIVE_TOPIC: InactiveTopicSpec,
    kinds.AUTO_TOPIC_CREATION: AutoTopicCreationSpec,
    kinds.TOPIC_NAME: OptionalTopic,
    kinds.SUBSCRIPTION_TYPES: Unique[SubscriptionType],
    kinds.SCHEMA_COMPATIBILITY: SchemaCompatibility,
}


def _place(field: str, row: PolicyField, level: Level) -> tuple[str, str, list[str]]:
    """Return a row's field in manifests and its attribute, and the attributes that lead to it inside a document."""
    name, *inner = manifest_name(field, row, of_subscription=level is Level.SUBSCRIPTION).split(".")
    return name, to_snake(name) if inner else field.removesuffix("_ms"), [to_snake(part) for part in inner]


class PolicyModel(Model):
    """A part of a manifest whose fields are rows of the table of policies."""

    #: A class that names levels has the rows that can be set at one of them, besides those it inherits.
    levels: ClassVar[Level] = Level.NONE

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "levels" not in vars(cls):
            return
        for field, row in POLICY_FIELDS.items():
            name, attribute, _ = _place(field, row, cls.levels)
            if row.levels & cls.levels and attribute not in cls.__annotations__ | cls.model_fields:
                cls.__annotations__[attribute] = _TYPES[row.kind] | None
                setattr(cls, attribute, Field(default=None, alias=name, description=cleandoc(row.doc)))

    def policies(self) -> Policies:
        """Return the policies in the core's units (ms, bytes)."""
        policies = Policies()
        for field, row in POLICY_FIELDS.items():
            if not row.levels:
                continue
            _, attribute, inner = _place(field, row, self.levels)
            value = getattr(self, attribute, None)
            for part in inner:
                value = getattr(value, part, None)
            if value is not None:
                setattr(policies, field, value.core() if isinstance(value, PolicyDocument) else value)
        return policies

    @property
    def fields_for_stored(self) -> list[str]:
        """The fields that are set although they are of no meaning where nothing is stored."""
        found = []
        for field, row in POLICY_FIELDS.items():
            name, attribute, _ = _place(field, row, self.levels)
            if row.for_stored and getattr(self, attribute) not in (None, row.idle_value) and name not in found:
                found.append(name)
        return found


def _not_below(read: Quantity, quantity: str, quota: str) -> Rule:
    """Return the rule that the retention's ``quantity`` is not below the backlog ``quota``."""
    retention, limit = f"self.retention.{quantity}", f"self.backlogQuota.{quota}.limit"
    fits = where_both(read, retention, read, limit, "v <= 0 || v >= other")
    return Rule(
        f"!has(self.retention) || !has(self.backlogQuota) || !has(self.backlogQuota.{quota}) || {fits}",
        f"the retention is below backlogQuota.{quota}.limit; valid: at least the quota, or infinite",
        f".retention.{quantity}",
    )


class SubscriptionPolicySpec(PolicyModel):
    """The policies of one subscription. A field that is left out is inherited from the topic."""

    levels = Level.SUBSCRIPTION
    name: SubscriptionText
    """Name of the subscription. It may be created later."""


class LimitsSpec(PolicyModel):
    """The policies that tenant and cluster can limit. A field that is left out is inherited, or not limited."""

    levels = Level.LIMIT
    cel_rules: ClassVar[tuple[Rule, ...]] = (
        _not_below(SIZE, "size", "destinationStorage"),
        _not_below(DURATION, "time", "messageAge"),
    )

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        if found := list(contradictions(self.policies())):
            raise Contradiction(found)
        return self


class PolicySpec(LimitsSpec):
    """The policies that a Topic, a Namespace or a cluster's defaults may set. A field that is left out is inherited."""

    levels = Level.TOPIC


class NamespacePolicySpec(PolicySpec):
    """The policies of a Namespace: those of topics, and two that only a namespace has."""

    levels = Level.NAMESPACE
