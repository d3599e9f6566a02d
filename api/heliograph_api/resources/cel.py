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


@dataclass(frozen=True, slots=True)
class Quantity:
    """Reads a kind of quantity in CEL."""

    numbers: str
    """Matches the numbers ``{x}`` that are valid quantities."""
    grammar: str
    """Matches the texts that are valid quantities."""
    unit: str
    """Finds the unit in ``{x}``; the empty text where there is none."""
    units: Mapping[str, int]
    divisor: int
    """Divides the factor of a unit, and ``10**9``, without a rest: so that no fraction overflows 64 bits."""

    def valid(self, x: str) -> str:
        """Return an expression that is true if ``x`` is a quantity (and not too large)."""
        largest = self._by_unit(x, {unit: self._largest(factor) for unit, factor in self.units.items()})
        whole = f"({_text('0' * _WHOLE)} + {_whole(x)}).substring(size({_whole(x)}))"
        return (
            f"(type({x}) == int ? {self.numbers.format(x=x)} : {x} in ['infinite', '-1'] ||"
            f" ({x}.matches({_text(self.grammar)}) && {whole} + {_fraction(x)} <= {largest}))"
        )

    def value(self, x: str) -> str:
        """Return an expression for the value (-1: without limit) of ``x``, which is valid."""
        whole = self._by_unit(x, {unit: str(factor) for unit, factor in self.units.items()})
        part = self._by_unit(x, {unit: str(factor // self.divisor) for unit, factor in self.units.items()})
        return (
            f"(type({x}) == int ? int({x}) : {x} in ['infinite', '-1'] ? -1 :"
            f" int({_whole(x)}) * {whole} + int({_fraction(x)}) * {part} / {_SCALE // self.divisor})"
        )

    def where(self, x: str, condition: str) -> str:
        """Return an expression for ``condition`` on ``{value}`` of ``x``; true where ``x`` is refused anyway."""
        return f"!{self.valid(x)} || {condition.format(value=self.value(x))}"

    def _by_unit(self, x: str, values: Mapping[str, str]) -> str:
        return "{" + ", ".join(f"'{unit}': {value}" for unit, value in values.items()) + f"}}[{self.unit.format(x=x)}]"

    @staticmethod
    def _largest(factor: int) -> str:
        """Return the most there may be of a unit: 19 digits, and 9 after the point."""
        return _text(str(((sizes.MAX_SIZE + 1) * _SCALE - 1) // factor).zfill(_WHOLE + _FRACTION))


def _whole(x: str) -> str:
    return f"{x}.find('^[0-9]+')"


def _fraction(x: str) -> str:
    return f"({x}.find('[.][0-9]+').replace('.', '') + {_text('0' * _FRACTION)}).substring(0, {_FRACTION})"


def _text(text: str) -> str:
    return f"'{text}'"


_NUMBER = "(0|[1-9][0-9]{0,18})"
SIZE: Final = Quantity(
    numbers="{x} >= -1",
    grammar=f"^{_NUMBER}(([.][0-9]{{1,9}})?[KMGTkmgt]i?)?$",
    unit="{x}.lowerAscii().find('[kmgt]')",
    units={unit.lower(): factor for unit, factor in sizes.UNITS.items()},
    divisor=512,
)
"""Bytes."""
DURATION: Final = Quantity(
    numbers="{x} in [0, -1]",
    grammar=f"^(0|{_NUMBER}([.][0-9]{{1,9}})?({'|'.join(durations.UNITS)}))$",
    unit="{x}.find('[a-z]+')",
    units={"": 1, **durations.UNITS},
    divisor=1,
)
"""Milliseconds."""


def in_order(quantity: Quantity, lower: str, upper: str) -> str:
    """Return an expression: ``lower`` is 0, without limit, or not below ``upper``; true where one is refused anyway."""
    low, up = quantity.value(lower), quantity.value(upper)
    return f"!{quantity.valid(lower)} || !{quantity.valid(upper)} || {low} <= 0 || {low} >= {up}"
