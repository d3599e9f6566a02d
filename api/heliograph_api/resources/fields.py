"""The types of the fields of a ``spec``: sizes, durations, counts, names; their checks, and the words of these.

Each has its checks twice, side by side: in Python, and in CEL for the API server.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from heliograph_api.values.durations import VALID as VALID_DURATIONS
from heliograph_api.values.durations import format_duration, parse_duration
from heliograph_api.values.names import (
    MAX_SUBSCRIPTION_NAME_BYTES,
    MAX_TOPIC_NAME_BYTES,
    TopicName,
    check_part,
    check_subscription,
)
from heliograph_api.values.quoting import quoted
from heliograph_api.values.sizes import VALID as VALID_SIZES
from heliograph_api.values.sizes import parse_size

from .cel import DURATION, MAX_QUANTITY_LENGTH, RULES, SIZE, InSchema, Rule

SIZE_FORMAT = "heliograph-size"
DURATION_FORMAT = "heliograph-duration"
"""Format of sizes and durations in the schema of the model; the definitions do not have it."""
MAX_SUBSCRIPTIONS = 1000
MAX_REFERENCE = 253

_ABOVE_ZERO = "0 would block every message; valid: above 0, or -1 or infinite for no limit"
_UNUSED = "0 would delete it before its first use; valid: above 0, or -1 or infinite for never"
# The names that names.check_local refuses, as a pattern of RE2.
_UNPRINTABLE = r"[\\p{Cc}\\p{Zl}\\p{Zp}]"
UNFIT = rf"^\\p{{Z}}|\\p{{Z}}$|{_UNPRINTABLE}"
PARTITION = "-partition-(0|[1-9][0-9]{0,8})$"


def above_zero(value: int) -> int:
    """Check a limit. Raises :class:`ValueError` for one that nothing could keep to."""
    if value == 0:
        raise ValueError(_ABOVE_ZERO)
    return value


def _unused_for(duration_ms: int) -> int:
    if duration_ms == 0:
        raise ValueError(_UNUSED)
    return duration_ms


def _whole_seconds(duration_ms: int) -> int:
    if duration_ms < 1000 or duration_ms % 1000:
        raise ValueError(f"{format_duration(duration_ms)} is not a period; valid: whole seconds, 1s or more")
    return duration_ms


def _topic(text: str) -> str:
    # The empty text removes the setting of the level above.
    return str(TopicName.parse(text)) if text else text


def _part(text: str) -> str:
    check_part("tenant or namespace", text)
    return text


def _subscription(text: str) -> str:
    check_subscription(text)
    return text


def unique(texts: list[Any]) -> list[Any]:
    """Check a list. Raises :class:`ValueError` if a text is there twice."""
    twice = sorted({text for text in texts if texts.count(text) > 1})
    if twice:
        raise ValueError(f"{', '.join(quoted(text) for text in twice)} occurs more than once; valid: each name once")
    return texts


def named_once(items: list[Any]) -> list[Any]:
    """Check a list of objects. Raises :class:`ValueError` if a name is there twice."""
    unique([item.name for item in items])
    return items


def _completed(x: str) -> str:
    """Return an expression for the full name of the topic a text names, without the suffix of a partition."""
    full = f"({x}.contains('://') ? {x} : ({x}.contains('/') ? 'persistent://' : 'persistent://public/default/') + {x})"
    return f"{full}.substring(0, size({full}) - size({x}.find('{PARTITION}')))"


_INT_OR_STRING = {"x-kubernetes-int-or-string": True, "maxLength": MAX_QUANTITY_LENGTH}
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({**_INT_OR_STRING, "format": SIZE_FORMAT}),
    Rule(SIZE.valid("self"), f"not a size; valid: {VALID_SIZES}"),
]
"""Bytes; -1 without limit."""
SizeLimit = Annotated[Size, AfterValidator(above_zero), Rule(SIZE.where("self", "v != 0"), _ABOVE_ZERO)]
"""Bytes, more than 0; -1 without limit."""
Duration = Annotated[
    int,
    BeforeValidator(parse_duration),
    WithJsonSchema({**_INT_OR_STRING, "format": DURATION_FORMAT}),
    Rule(DURATION.valid("self"), f"not a duration; valid: {VALID_DURATIONS}"),
]
"""Milliseconds; -1 without limit."""
DurationLimit = Annotated[Duration, AfterValidator(above_zero), Rule(DURATION.where("self", "v != 0"), _ABOVE_ZERO)]
"""Milliseconds, more than 0; -1 without limit."""
UnusedFor = Annotated[Duration, AfterValidator(_unused_for), Rule(DURATION.where("self", "v != 0"), _UNUSED)]
"""Milliseconds after which something nobody uses is deleted; -1 never."""
Period = Annotated[
    Duration,
    AfterValidator(_whole_seconds),
    Rule(
        DURATION.where("self", "v >= 1000 && v % 1000 == 0"),
        "is not a period; valid: whole seconds, 1s or more",
    ),
]
"""Milliseconds, whole seconds of them, that a rate counts in."""
OptionalTopic = Annotated[
    str,
    AfterValidator(_topic),
    InSchema({"maxLength": MAX_TOPIC_NAME_BYTES + len("-partition-999999999")}),
    Rule(
        r"self.matches('^([^/]+|[-=:.0-9A-Za-z_]+/[-=:.0-9A-Za-z_]+/[^/]+"
        r"|(non-)?persistent://[-=:.0-9A-Za-z_]+/[-=:.0-9A-Za-z_]+/(?s:.+))?$')",
        "not the name of a topic; valid: topic, tenant/namespace/topic or persistent://tenant/namespace/topic",
    ),
    Rule(
        rf"!self.matches('{UNFIT}|/\\p{{Z}}[^/]*$|\\p{{Z}}{PARTITION}')",
        "the topic's own name begins or ends with white space, or has characters that cannot be printed",
    ),
    Rule(
        f"size(bytes({_completed('self')})) <= {MAX_TOPIC_NAME_BYTES}",
        f"the full name is too long; valid: at most {MAX_TOPIC_NAME_BYTES} bytes",
    ),
]
"""The full name of a topic, or the empty text for none."""
Part = Annotated[
    str,
    AfterValidator(_part),
    Field(max_length=MAX_TOPIC_NAME_BYTES),
    Rule("self.matches('^[-=:.0-9A-Za-z_]+$')", "not a name; valid: letters, digits and the characters - = : . _"),
]
"""The name of a tenant, or a namespace's own name."""
SubscriptionText = Annotated[
    str,
    AfterValidator(_subscription),
    InSchema({"maxLength": MAX_SUBSCRIPTION_NAME_BYTES, "minLength": 1}),
    Rule(
        f"!self.matches('{UNFIT}')",
        "not a subscription's name: it begins or ends with white space, or has characters that cannot be printed",
    ),
    Rule(
        f"size(bytes(self)) <= {MAX_SUBSCRIPTION_NAME_BYTES}",
        f"the name is too long; valid: at most {MAX_SUBSCRIPTION_NAME_BYTES} bytes",
    ),
]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""A maximum number; 0: no limit."""
DeletionPolicy = Literal["Delete", "DeleteIfEmpty", "Retain"]
WhenUnreachable = Literal["Wait", "Orphan"]
AdoptionPolicy = Literal["Review", "Replace"]
_Item = TypeVar("_Item")
Unique = Annotated[list[_Item], AfterValidator(unique), InSchema({"x-kubernetes-list-type": "set"})]
"""A list in which nothing is twice."""


class Contradiction(PydanticCustomError):
    """Fields that are right one by one and wrong together: ``found`` holds (path of a field, problem) pairs."""

    def __new__(cls, found: list[tuple[str, str]]) -> Self:
        """Create the error from what contradicts what."""
        text = "; ".join(f"{path}: {problem}" for path, problem in found)
        # The text may hold braces, which a message template gives a meaning.
        return super().__new__(cls, "contradiction", "{text}", {"found": found, "text": text})


class Model(BaseModel):
    """camelCase in manifests, types as they are (no number for a text), no unknown field.

    A field of null is one that is left out, as it is for the API server. ``cel_rules`` hold for the whole of it.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )
    cel_rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, value: Any) -> Any:
        if not isinstance(value, dict) or None not in value.values():
            return value
        optional = {field.alias for field in cls.model_fields.values() if not field.is_required()}
        return {name: item for name, item in value.items() if item is not None or name not in optional}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core))
        rules = [rule for base in reversed(cls.__mro__) for rule in vars(base).get("cel_rules", ())]
        if rules:
            schema[RULES] = [rule.schema() for rule in rules]
        return schema


class Reference(Model):
    """A reference to another object in the same Kubernetes namespace."""

    name: str = Field(min_length=1, max_length=MAX_REFERENCE)
    """Its `metadata.name`."""
