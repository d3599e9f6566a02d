"""The logger of the HTTP library: a flood of malformed requests does not fill the log, and none is shown there.

The library would log each with a traceback and with bytes of the request, which may be the beginning of a token.
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

    def handle(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            log.error(record.getMessage(), exc_info=record.exc_info)
            return
        logged, left_out = self._malformed.count()
        if left_out:
            log.info("further malformed requests", number=left_out)
        if logged:
            client = record.args[0] if record.msg == _WITH_ADDRESS and isinstance(record.args, tuple) else ""
            log.info("malformed request", client=client, kind=type(error).__name__)
