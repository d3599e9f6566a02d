"""Defects put back into the broker, each by replacing what keeps it away, to see that the simulation finds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from . import containing, serving, storing
from .patches import Defect

DEFECTS: dict[str, Defect] = {**storing.DEFECTS, **containing.DEFECTS, **serving.DEFECTS}


@contextmanager
def put_back(name: str) -> Iterator[None]:
    """Run with a defect. Raises :class:`AttributeError` if what it replaces is not there any more."""
    with ExitStack() as stack:
        for one in DEFECTS[name].patches:
            stack.enter_context(patch.object(one.owner, one.name, one.broken))
        yield
