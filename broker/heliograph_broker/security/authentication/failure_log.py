"""Logs why clients were not authenticated: the first ones of a while, so that a flood does not fill the log."""

from __future__ import annotations

import structlog

from heliograph_broker.clock import Clock
from heliograph_broker.security.event_floods import EventFlood

log = structlog.get_logger(__name__)


class FailureLog:
    """Failures of all ports; the metrics count every one."""

    __slots__ = ("_flood",)

    def __init__(self, clock: Clock) -> None:
        self._flood = EventFlood(clock.monotonic)

    def note(self, client: str, detail: str) -> None:
        """Log that the client at this address was not authenticated, unless there were many just now."""
        self._flood.log(
            log.warning,
            "client not authenticated",
            "further clients were not authenticated",
            client=client,
            reason=detail,
        )
