"""Leadership: of several operators, only the leader reconciles. A single one always leads."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Leadership(Protocol):
    """Decides when this operator leads; it watches and changes nothing before :meth:`wait` returns."""

    async def wait(self) -> None:
        """Return when this operator leads."""

    async def lost(self) -> str:
        """Return the reason when leadership is lost; the process ends then, as its cache may be stale."""

    def deposed(self) -> bool:
        """Whether this operator led and another may lead by now: it must not change anything any more."""

    @property
    def problem(self) -> str:
        """Why this operator can neither lead nor tell who does; empty if it can."""

    async def release(self) -> None:
        """Give up leadership, so that another operator can take it at once; called at a clean shutdown."""


class Alone:
    """The leadership of a single operator, which is never lost."""

    async def wait(self) -> None:
        """Return at once."""

    async def lost(self) -> str:
        """Never return."""
        await asyncio.Event().wait()
        raise AssertionError("never set")

    def deposed(self) -> bool:
        """Return that it is not: nobody else can lead."""
        return False

    @property
    def problem(self) -> str:
        """Return an empty text: nobody else can lead."""
        return ""

    async def release(self) -> None:
        """Do nothing: nobody waits for it."""
