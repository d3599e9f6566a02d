"""Who of several operators works. One that is alone always does; a Lease decides among several."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Leadership(Protocol):
    """What :mod:`.running` asks: nothing is watched or changed before :meth:`wait` returns."""

    async def wait(self) -> None:
        """Return when this operator leads."""

    async def lost(self) -> str:
        """Return why it leads no longer; the process ends then, as what it knows may be old."""

    async def release(self) -> None:
        """Let another one lead at once; called when the operator ends in good order."""


class Alone:
    """Leads from the start and for good."""

    async def wait(self) -> None:
        return

    async def lost(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError("never set")

    async def release(self) -> None:
        return
