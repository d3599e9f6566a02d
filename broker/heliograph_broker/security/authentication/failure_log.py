"""Logs why clients were not authenticated: the first ones of a while, so that a flood does not fill the log."""

from __future__ import annotations

from typing import Final

import structlog

from heliograph_broker.clock import Clock

log = structlog.get_logger(__name__)

_WHILE_S: Final = 10.0
_MOST: Final = 10


class FailureLog:
    """Failures of all ports; the metrics count every one."""

    __slots__ = ("_began", "_clock", "_noted")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._noted = 0

    def note(self, client: str, detail: str) -> None:
        """Log that the client at this address was not authenticated, unless there were many just now."""
        now = self._clock.monotonic()
        if now - self._began >= _WHILE_S:
            if self._noted > _MOST:
                log.warning("further clients were not authenticated", number=self._noted - _MOST)
            self._began, self._noted = now, 0
        self._noted += 1
        if self._noted <= _MOST:
            log.warning("client not authenticated", client=client, reason=detail)
