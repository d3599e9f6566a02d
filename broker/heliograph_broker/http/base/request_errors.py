"""The logger of the HTTP library: malformed requests and clients that leave do not fill the log, nor show there.

The library would log each with a traceback, and a malformed request with its bytes, which may be those of a token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import structlog
from aiohttp.http_exceptions import HttpProcessingError

from heliograph_broker.security.event_floods import EventFlood

log = structlog.get_logger(__name__)

#: The record's only argument is the client's address.
_WITH_ADDRESS: Final = "Error handling request from %s"


class RequestErrors(logging.Logger):
    """The logger of one port. ``now`` returns seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__("heliograph.http", logging.ERROR)
        self._malformed = EventFlood(now)
        self._left = EventFlood(now)

    def handle(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        client = record.args[0] if record.msg == _WITH_ADDRESS and isinstance(record.args, tuple) else ""
        if isinstance(error, HttpProcessingError):
            self._malformed.log(
                log.info, "malformed request", "further malformed requests", client=client, kind=type(error).__name__
            )
        elif isinstance(error, ConnectionError):
            self._left.log(
                log.info,
                "client left during its request",
                "further clients left during their requests",
                client=client,
                error=str(error) or type(error).__name__,
            )
        else:
            log.error(record.getMessage(), exc_info=record.exc_info)
