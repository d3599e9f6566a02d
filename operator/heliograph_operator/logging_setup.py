"""The operator's log lines: JSON on stderr, as the broker's; kopf's and aiohttp's among them from warnings up."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("json", "console")


def configure_logging(form: str, level_name: str) -> None:
    """Set up structlog and the standard library's logging, once per process."""
    level = logging.getLevelNamesMapping()[level_name.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    ending: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    if form == "console":
        ending = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[remove_meta, *ending])
    )
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING), force=True)
