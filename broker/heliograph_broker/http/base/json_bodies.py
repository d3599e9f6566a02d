"""Reads JSON bodies as tolerantly as Pulsar's library for JSON (Jackson) does: the one place where a body is decoded.

Numbers and booleans may be texts, texts may be numbers, and the fraction of what should be a whole number is cut off.
Null stands for a field that is left out. Fields that a type has not are ignored and named to the caller.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")

_BOOLEANS: Final = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBERS: Final = (inspect.IntType, inspect.FloatType)
_SCALARS: Final = (*_NUMBERS, inspect.BoolType)
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_FRACTION: Final = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{0,19})?([eE][+-]?[0-9]{1,3})?", re.ASCII)


def decode(body: bytes, kind: type[T]) -> tuple[T | None, list[str]]:
    """Return the value, None for no body, null or an empty text, and the paths of the fields that were ignored.

    An empty text is a value where ``kind`` is a text. Raises :class:`ValueError`, which is a
    :class:`msgspec.ValidationError` if the body is JSON of another type.
    """
    if not body.strip():
        return None, []
    value = msgspec.json.decode(body)
    described = type_of(kind)
    if value is None or (value == "" and not _takes_text(described)):
        return None, []
    ignored: list[str] = []
    return msgspec.convert(_tolerant(value, described, "", ignored), kind), ignored


@cache
def _type_of(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def type_of(kind: Any) -> inspect.Type:
    """Return the description of a type; not every annotation can be hashed."""
    try:
        return _type_of(kind)
    except TypeError:
        return inspect.type_info(kind)


def is_scalar(kind: Any) -> bool:
    """Whether values of a type are numbers or booleans; where Pulsar wants one, a body must not be missing."""
    return all(isinstance(each, (*_SCALARS, inspect.NoneType)) for each in _alternatives(type_of(kind)))


def _alternatives(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    """Return the types that a value may have, without descriptions and limits around them."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        return tuple(found for each in kind.types for found in _alternatives(each))
    return (kind,)


def _takes_text(kind: inspect.Type) -> bool:
    return any(isinstance(each, inspect.StrType | inspect.AnyType) for each in _alternatives(kind))


def _tolerant(value: Any, kind: inspect.Type, path: str, ignored: list[str]) -> Any:
    """Return ``value`` in the form that ``kind`` has it, as far as that is known; the conversion checks the rest."""
    kinds = _alternatives(kind)
    if isinstance(value, dict):
        for each in kinds:
            if isinstance(each, inspect.StructType):
                return _fields(value, each, path, ignored)
            if isinstance(each, inspect.DictType):
                return {
                    key: _tolerant(inner, each.value_type, f"{path}{key}.", ignored) for key, inner in value.items()
                }
    elif isinstance(value, list):
        for each in kinds:
            if isinstance(each, inspect.ListType):
                return [_tolerant(inner, each.item_type, path, ignored) for inner in value]
    elif kinds and not any(isinstance(each, inspect.AnyType) for each in kinds):
        return _scalar(value, kinds)
    return value


def _fields(value: dict[str, Any], kind: inspect.StructType, path: str, ignored: list[str]) -> dict[str, Any]:
    fields = {field.encode_name: field for field in kind.fields}
    read: dict[str, Any] = {}
    for name, inner in value.items():
        field = fields.get(name)
        if field is None:
            ignored.append(f"{path}{name}")
        elif _is_left_out(inner, field):
            continue
        else:
            read[name] = _tolerant(inner, field.type, f"{path}{name}.", ignored)
    return read


def _is_left_out(value: Any, field: inspect.Field) -> bool:
    """Whether a field's value says nothing: null, or an empty text in place of a number."""
    if field.required:
        return False
    return value is None or (value == "" and not _takes_text(field.type))


def _scalar(value: Any, kinds: tuple[inspect.Type, ...]) -> Any:
    """Convert between texts, numbers and booleans, if ``kinds`` has no type of the value's own."""
    wanted = {type(each) for each in kinds}
    if isinstance(value, bool):
        if inspect.StrType in wanted and inspect.BoolType not in wanted:
            return "true" if value else "false"
    elif isinstance(value, str):
        if inspect.StrType not in wanted:
            return _from_text(value.strip(), wanted)
    elif isinstance(value, int | float):
        if isinstance(value, int) and inspect.IntType not in wanted and inspect.BoolType in wanted:
            return value != 0
        if isinstance(value, float) and inspect.IntType in wanted and inspect.FloatType not in wanted:
            return _whole(value)
        if inspect.StrType in wanted and not wanted & set(_NUMBERS):
            return msgspec.json.encode(value).decode()
    return value


def _from_text(text: str, wanted: set[type[inspect.Type]]) -> Any:
    if inspect.BoolType in wanted and text in _BOOLEANS:
        return _BOOLEANS[text]
    if inspect.IntType in wanted and _WHOLE.fullmatch(text):
        return int(text)
    if inspect.FloatType in wanted and _FRACTION.fullmatch(text):
        return float(text)
    return text


def _whole(value: float) -> Any:
    # Beyond this a float is no longer exact, and infinity is no number at all.
    return int(value) if abs(value) < 2**53 else value
