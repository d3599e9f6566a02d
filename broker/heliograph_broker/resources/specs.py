"""What a ``spec`` may say about policies: the types of its fields, and the way to the core's policies."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from .durations import VALID as VALID_DURATIONS
from .durations import parse_duration
from .names import TopicName, check_part
from .policies import BacklogQuota, Policies, Retention, contradictions
from .quoting import quoted
from .sizes import VALID as VALID_SIZES
from .sizes import parse_size


def _above_zero(value: int) -> int:
    if value == 0:
        raise ValueError("0 would let nothing through; valid: above 0, or -1 or infinite for none")
    return value


def _topic(text: str) -> str:
    # The empty text takes back what the level above sets.
    return str(TopicName.parse(text)) if text else text


def _part(text: str) -> str:
    check_part("tenant or namespace", text)
    return text


_INT_OR_STRING = {"x-kubernetes-int-or-string": True}
Size = Annotated[int, BeforeValidator(parse_size), WithJsonSchema({**_INT_OR_STRING, "description": VALID_SIZES})]
"""Bytes; -1 without limit."""
Duration = Annotated[
    int, BeforeValidator(parse_duration), WithJsonSchema({**_INT_OR_STRING, "description": VALID_DURATIONS})
]
"""Milliseconds; -1 without limit."""
Part = Annotated[str, AfterValidator(_part)]
"""The name of a tenant, or a namespace's own name."""
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""How many there may be; 0 without limit."""
QuotaPolicy = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]
DeletionPolicy = Literal["Delete", "DeleteIfEmpty", "Retain"]


class Contradiction(PydanticCustomError):
    """Fields that are right one by one and wrong together: ``found`` holds (path of a field, what is wrong) pairs."""

    def __new__(cls, found: list[tuple[str, str]]) -> Self:
        text = "; ".join(f"{path}: {problem}" for path, problem in found)
        # The text may hold braces, which a message template gives a meaning.
        return super().__new__(cls, "contradiction", "{text}", {"found": found, "text": text})


class Model(BaseModel):
    """camelCase in manifests, types as they are (no number for a text), no unknown field."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True, frozen=True)


class Reference(Model):
    """Another resource, by its ``metadata.name`` in the same Kubernetes namespace."""

    name: str = Field(min_length=1)


class RetentionSpec(Model):
    """What is kept of acknowledged data: until it is older than ``time`` or more than ``size``, whichever is first.

    Both -1 keeps everything, both 0 nothing; one of them 0 and the other not is refused.
    """

    time: Duration
    size: Size


class SizeQuotaSpec(Model):
    """Bytes a topic's slowest subscription may be behind, and what happens then."""

    limit: Annotated[Size, AfterValidator(_above_zero)]
    policy: QuotaPolicy = "producer_request_hold"


class AgeQuotaSpec(Model):
    """Age the oldest message not acknowledged may reach, and what happens then."""

    limit: Annotated[Duration, AfterValidator(_above_zero)]
    policy: QuotaPolicy = "producer_request_hold"


class BacklogQuotaSpec(Model):
    """Limits of what is not acknowledged yet, by size and by age; either may be left out."""

    destination_storage: SizeQuotaSpec | None = None
    message_age: AgeQuotaSpec | None = None


class LimitsSpec(Model):
    """The policies that can be capped from above. What is left out is inherited, or not limited."""

    retention: RetentionSpec | None = None
    backlog_quota: BacklogQuotaSpec | None = None
    message_ttl: Duration | None = Field(default=None, alias="messageTTL")
    expires: Duration | None = None
    max_producers: Count | None = None
    max_consumers: Count | None = None
    max_subscriptions: Count | None = None
    max_message_size: Annotated[Size, AfterValidator(_above_zero)] | None = None

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        if found := list(contradictions(self.policies())):
            raise Contradiction(found)
        return self

    def policies(self) -> Policies:
        """Return the policies in the core's units (ms, bytes)."""
        quota = self.backlog_quota or BacklogQuotaSpec()
        size, age = quota.destination_storage, quota.message_age
        return Policies(
            retention=Retention(self.retention.time, self.retention.size) if self.retention else None,
            backlog_quota_size=BacklogQuota(size.limit, size.policy) if size else None,
            backlog_quota_age=BacklogQuota(age.limit, age.policy) if age else None,
            message_ttl_ms=self.message_ttl,
            expires_ms=self.expires,
            max_producers=self.max_producers,
            max_consumers=self.max_consumers,
            max_subscriptions=self.max_subscriptions,
            max_message_size=self.max_message_size,
        )


class PolicySpec(LimitsSpec):
    """The policies a Topic, a Namespace or a cluster's defaults may set. What is left out is inherited."""

    dead_letter_topic: Annotated[str, AfterValidator(_topic)] | None = None
    deduplication: bool | None = None
    delayed_delivery: bool | None = None

    def policies(self) -> Policies:
        policies = super().policies()
        policies.dead_letter_topic = self.dead_letter_topic
        policies.deduplication = self.deduplication
        policies.delayed_delivery = self.delayed_delivery
        return policies


def unique(texts: list[str]) -> list[str]:
    """Raises :class:`ValueError` when a text is there twice."""
    twice = sorted({text for text in texts if texts.count(text) > 1})
    if twice:
        raise ValueError(f"{', '.join(quoted(text) for text in twice)} is there more than once; valid: each name once")
    return texts
