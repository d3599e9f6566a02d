"""The parts of a defect: names in the broker that are replaced while it is there."""

from __future__ import annotations

from typing import Any, NamedTuple


class Patch(NamedTuple):
    """``owner.name`` is replaced by ``broken``; :func:`unittest.mock.patch` refuses a name that is not there."""

    owner: Any
    name: str
    broken: Any


class Defect(NamedTuple):
    """``number`` is how the table of docs/simulation.md calls it, ``what`` says it in words."""

    number: str
    what: str
    patches: tuple[Patch, ...]
