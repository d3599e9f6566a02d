"""Rules in CEL, which the API server checks by itself, written beside the validators that check the same here.

A rule is part of the type or the model it holds for, and goes from there into the custom resource definitions. CEL has
no sizes and durations as people write them: the expressions for them are made here, from the units of :mod:`.sizes`
and :mod:`.durations`, and read exactly what those modules read. All lengths are limited, or the API server would
refuse the rules as too costly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from heliograph_api.values import durations, sizes

RULES: Final = "x-kubernetes-validations"
MAX_QUANTITY_LENGTH: Final = 31
"""Characters of the longest size or duration: 19 digits, a point, 9 digits, and a unit of two letters."""

_WHOLE = 19
_FRACTION = 9
_SCALE = 10**_FRACTION


@dataclass(frozen=True, slots=True)
class Rule:
    """``cel`` holds, or the resource is refused with ``message``, at ``field`` below where the rule is (``.size``)."""

    cel: str
    message: str
    field: str = ""

    def schema(self) -> dict[str, str]:
        """Return the rule as a definition has it."""
        rule = {"rule": self.cel, "message": self.message}
        return {**rule, "fieldPath": self.field} if self.field else rule

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        # Types share their schemas: nothing is added in place.
        return {**schema, RULES: [*schema.get(RULES, []), self.schema()]}


@dataclass(frozen=True, eq=False)
class InSchema:
    """Keys a definition has beside what follows from the type."""

    keys: Mapping[str, Any]

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core), **self.keys}


def _with(name: str, value: str, condition: str) -> str:
    """Return an expression: the condition, in which ``name`` stands for the value."""
    return f"[{value}].exists({name}, {condition})"


def _numbers(first: int, last: int) -> str:
    return f"[{','.join(str(number) for number in range(first, last + 1))}]"


def _digits(numbers: str, condition: str, place: str, weight: str) -> str:
    """Return the sum of digits, for each ``i`` of the numbers the one at ``place``, as far as the condition holds.

    A digit counts ``10 ** (weight - 1)``.
    """
    digit = f"uint(x.charAt({place})) * uint('{10 ** (_WHOLE - 1)}'.substring(0, {weight}))"
    return f"{numbers}.map(i, {condition} ? {digit} : 0u).sum()"


# A 0 comes before another digit nowhere but behind a point. A point is between digits, and there is a unit then.
_NUMBER: Final = (
    f"(n > d ? n - p > 1 && n - p <= {_FRACTION + 1} && size(x) > n : p >= d) && (p == 1 || !x.startsWith('0'))"
)
_DIGITS: Final = (
    f"{_numbers(0, _WHOLE + _FRACTION)}.filter(i, i < size(x) && '0123456789'.indexOf(x.charAt(i)) >= 0).size()"
)
_BEFORE_POINT: Final = _digits(_numbers(0, _WHOLE - 1), "i < p", "i", "p - i")
_BEHIND_POINT: Final = _digits(_numbers(1, _FRACTION), "p + i < n", "p + i", f"{_FRACTION + 1} - i")


@dataclass(frozen=True, slots=True)
class Quantity:
    """Reads a kind of quantity in CEL.

    Kubernetes before 1.34 takes every int-or-string for 3 MB long, whatever its ``maxLength`` is. There, each of
    ``matches``, ``find``, ``substring`` and ``+``, and ``==`` of two names, costs at least 300,000 of the 10,000,000
    that a rule may cost, times the items of the list it is in. So a quantity is read character by character: each
    costs 1.

    In the expressions, ``x`` is the text, ``d`` the number of its digits, ``p`` of those before a point, ``n`` of all
    characters before the unit ``u``, which counts ``f``; and ``w`` is the number before the point.
    """

    unit: str
    """Finds the unit, as it is in ``units``; another text where there is none that is valid."""
    units: Mapping[str, int]
    divisor: int
    """Divides the factor of a unit, and ``10**9``, without a rest: so that no fraction overflows 64 bits."""

    def has(self, text: str, condition: str, value: str = "v") -> str:
        """Return an expression: ``text`` is valid (and not too large), and the condition holds for its ``value``.

        The value is -1 where there is no limit. The condition may use no other name that stands for something here.
        """
        number = f"w * f + {_BEHIND_POINT} * (f / {self.divisor}u) / {_SCALE // self.divisor}u"
        small = _with(value, number, f"{value} <= {sizes.MAX_SIZE}u && {_with(value, f'int({value})', condition)}")
        whole = _with("w", _BEFORE_POINT, f"w <= {sizes.MAX_SIZE}u / f && {small}")
        units = ", ".join(f"'{unit}': {factor}u" for unit, factor in self.units.items())
        known = _with("m", f"{{{units}}}", f"u in m && {_with('f', 'm[u]', whole)}")
        split = _with("n", "x.charAt(p) == '.' ? d + 1 : d", f"{_NUMBER} && {_with('u', self.unit, known)}")
        limited = _with("d", _DIGITS, f"{_numbers(1, _WHOLE)}.exists(p, p <= d && {split})")
        either = f"x in ['infinite', '-1'] ? {_with(value, '-1', condition)} : {limited}"
        return _with("x", f"type({text}) in [int] ? string(int({text})) : {text}", either)

    def valid(self, text: str) -> str:
        """Return an expression that is true if ``text`` is a quantity (and not too large)."""
        return self.has(text, "true")

    def where(self, text: str, condition: str) -> str:
        """Return an expression for a condition on ``text``'s value ``v``; true where ``text`` is refused anyway."""
        return f"!{self.has(text, f'!({condition})')}"


SIZE: Final = Quantity(
    unit="size(x) < n + 2 || (size(x) == n + 2 && x.endsWith('i')) ? x.charAt(n) : '?'",
    units={**sizes.UNITS, **{unit.lower(): factor for unit, factor in sizes.UNITS.items()}},
    divisor=512,
)
"""Bytes."""
DURATION: Final = Quantity(
    unit="size(x) == n + 1 || x == '0' ? x.charAt(n) : size(x) == n + 2 && x.endsWith('ms') ? 'ms' : '?'",
    units={"": 1, **durations.UNITS},
    divisor=1,
)
"""Milliseconds."""


def where_both(first: Quantity, text: str, second: Quantity, other: str, condition: str) -> str:
    """Return an expression for a condition on the values of two quantities, which it calls ``v`` and ``other``.

    It is true where one of them is refused anyway.
    """
    return f"!{first.has(text, second.has(other, f'!({condition})', 'other'))}"
