"""Quantities as Kubernetes writes them, in more than one form for one value: 1, 1000m; 1Gi, 1024Mi, 1073741824."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Final

_UNITS: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def value_of(quantity: object) -> Decimal:
    """Return the value of a quantity: 10Gi, 1500M, 2e9, 0.5, 500m. Raises :class:`ValueError`."""
    text = str(quantity)
    number = text.rstrip("numkKMGTPEi")
    try:
        value = Decimal(number) * _UNITS[text[len(number) :]]
    except (InvalidOperation, KeyError) as error:
        raise ValueError(f"{quantity!r} is not a quantity") from error
    if not value.is_finite():
        raise ValueError(f"{quantity!r} is not a quantity")
    return value


def bytes_of(quantity: str) -> int:
    """Return the bytes of a quantity. Raises :class:`ValueError`."""
    return int(value_of(quantity))


def same_quantity(one: object, other: object) -> bool:
    """Whether two quantities have the same value; what is none is the same as itself only."""
    try:
        return value_of(one) == value_of(other)
    except ValueError:
        return one == other
