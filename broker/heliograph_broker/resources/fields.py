"""The types of the fields of a ``spec``: sizes, durations, counts, names; what they check, and in which words."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from .durations import VALID as VALID_DURATIONS
from .durations import format_duration, parse_duration
from .names import TopicName, check_part
from .quoting import quoted
from .sizes import VALID as VALID_SIZES
from .sizes import parse_size


def above_zero(value: int) -> int:
    """Raises :class:`ValueError` for a limit that nothing could keep to."""
    if value == 0:
        raise ValueError("0 would let nothing through; valid: above 0, or -1 or infinite for none")
    return value


def _unused_for(duration_ms: int) -> int:
    if duration_ms == 0:
        raise ValueError("0 would delete it before anybody came to use it; valid: above 0, or -1 or infinite for never")
    return duration_ms


def _whole_seconds(duration_ms: int) -> int:
    if duration_ms < 1000 or duration_ms % 1000:
        raise ValueError(f"{format_duration(duration_ms)} cannot be counted in; valid: whole seconds, 1s or more")
    return duration_ms


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
UnusedFor = Annotated[Duration, AfterValidator(_unused_for)]
"""Milliseconds after which something nobody uses is deleted; -1 never."""
Period = Annotated[Duration, AfterValidator(_whole_seconds)]
"""Milliseconds, whole seconds of them, that a rate counts in."""
OptionalTopic = Annotated[str, AfterValidator(_topic)]
"""The full name of a topic, or the empty text for none."""
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


def unique(texts: list[str]) -> list[str]:
    """Raises :class:`ValueError` when a text is there twice."""
    twice = sorted({text for text in texts if texts.count(text) > 1})
    if twice:
        raise ValueError(f"{', '.join(quoted(text) for text in twice)} is there more than once; valid: each name once")
    return texts
