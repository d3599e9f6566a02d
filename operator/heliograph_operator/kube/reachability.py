"""Tells whether the API server answers: by any request or, when there was none for a while, by one of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from .client import KubeError

log = structlog.get_logger(__name__)

#: Time (s) without an answer after which the API server is asked for its version, and the time it has to answer.
ASK_AFTER_S: Final = 5.0
#: Time (s) without an answer after which the API server counts as unreachable.
SILENT_S: Final = 15.0


class Answering(Protocol):
    """The part of :class:`.client.Kube` that is needed."""

    #: When (s, of ``time.monotonic``) the API server last answered any request; None: never.
    answered_at: float | None

    async def version(self) -> str:
        """Return the API server's version."""


class Reachability:
    """Watches one connection to the API server."""

    def __init__(self, kube: Answering, *, now: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._now = now
        self._error = ""

    @property
    def problem(self) -> str:
        """Why the API server counts as unreachable; empty if it answered lately."""
        detail = f": {self._error}" if self._error else ""
        at = self._kube.answered_at
        if at is None:
            return f"the API server has not answered yet{detail}"
        silent_s = self._now() - at
        return f"the API server has not answered for {silent_s:.0f} s{detail}" if silent_s > SILENT_S else ""

    async def run(self) -> None:
        """Ask whenever there was no answer for a while, until cancelled."""
        while True:
            at = self._kube.answered_at
            if at is None or self._now() - at >= ASK_AFTER_S:
                await self._ask()
            await asyncio.sleep(ASK_AFTER_S / 2)

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(ASK_AFTER_S):
                await self._kube.version()
            self._error = ""
        except TimeoutError:
            self._error = f"no answer within {ASK_AFTER_S:g} s"
        except KubeError as error:
            self._error = str(error)
        if self._error and self.problem:
            log.warning("the API server is not reachable", error=self._error)
