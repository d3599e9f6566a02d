"""The broker's log while a target runs: an exception that was only logged is a finding as well."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from .target import Finding


@contextmanager
def no_unhandled_errors() -> Iterator[None]:
    """Log nothing meanwhile. Raises :class:`Finding`, with the first exception as its cause, if one was logged."""
    logged: list[tuple[str, BaseException | None]] = []

    def watch(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if event.get("exc_info"):
            logged.append((f"{event.get('event')}: {event}", sys.exc_info()[1]))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[watch])
    try:
        yield
    finally:
        structlog.configure(**before)
    for what, error in logged:
        raise Finding(f"the broker logged {what}") from error
