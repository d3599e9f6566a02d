"""Sets up logging to stderr: JSON for machines, columns for a person at a terminal.

The broker's and the operator's are the same, so that one query finds both. A log that cannot be written, as on a full
disk, loses lines and nothing else.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor

if TYPE_CHECKING:
    from typing_extensions import Buffer

FORMATS = ("json", "console")
LEVELS = ("debug", "info", "warning", "error")


class LoggingError(ValueError):
    """``HELIOGRAPH_LOG_FORMAT`` or ``HELIOGRAPH_LOG_LEVEL`` is unknown; the message names the valid values."""


class _LogFile(io.TextIOBase):
    """Takes whole lines for ``file``, and counts those that it does not take; the next one is written after the count.

    Nearly everything logs, at times before it does its work: an error of the log must not keep a connection open whose
    credentials have expired, or answer a change that was made as one that failed.
    """

    def __init__(self, file: TextIO, lost_lines: Callable[[int], str]) -> None:
        """``lost_lines`` returns the line about a number of lost ones."""
        self._file = file
        self._lost_lines = lost_lines
        self._lost = 0

    def write(self, text: str) -> int:
        try:
            if self._lost:
                self._file.write(self._lost_lines(self._lost))
                self._file.flush()
                self._lost = 0
            self._file.write(text)
            self._file.flush()
        except (OSError, ValueError):
            # ValueError: the file is closed.
            self._lost += 1
        return len(text)


class _Descriptor(io.FileIO):
    """Writes all of a text or fails, and keeps nothing of what it could not write for later, as Python's stderr does.

    What follows a text that was written in part begins a new line.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self._torn = False

    def write(self, data: Buffer, /) -> int:
        text = b"\n" + bytes(data) if self._torn else bytes(data)
        left = text
        try:
            while left:
                written = super().write(left)
                if written is None:
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
                left = left[written:]
        except OSError:
            self._torn = self._torn or len(left) < len(text)
            raise
        self._torn = False
        return len(text)


def _unbuffered(file: TextIO) -> TextIO:
    """Return a file that writes to the descriptor of ``file``; or itself, if it has none."""
    try:
        number = file.fileno()
    except (OSError, ValueError):
        return file
    return io.TextIOWrapper(
        cast(BinaryIO, _Descriptor(number)), file.encoding, "backslashreplace", newline="", write_through=True
    )


def configure_logging(form: str | None = None, level_name: str | None = None) -> None:
    """Set up structlog and the standard library's logging, once per process.

    ``HELIOGRAPH_LOG_FORMAT`` is ``json`` or ``console`` (default: console on a terminal), ``HELIOGRAPH_LOG_LEVEL``
    one of debug, info, warning, error (default: info); arguments go before them. Raises :class:`LoggingError`.
    """
    form = _choice("HELIOGRAPH_LOG_FORMAT", form, FORMATS, "console" if sys.stderr.isatty() else "json")
    level = logging.getLevelNamesMapping()[_choice("HELIOGRAPH_LOG_LEVEL", level_name, LEVELS, "info").upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    ending: list[Processor]
    if form == "json":
        ending = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # Its own tracebacks show the values of variables, such as passwords.
        plain = structlog.dev.plain_traceback
        ending = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]

    def lost_lines(number: int) -> str:
        line: EventDict = {"event": "lines of the log were lost", "number": number}
        for processor in (*shared, *ending):
            line = cast(EventDict, processor(None, "warning", line))
        return f"{line}\n"

    # Both classes that are given it call nothing but its methods for writing.
    file = cast(TextIO, _LogFile(_unbuffered(sys.stderr), lost_lines))
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file),
        cache_logger_on_first_use=True,
    )
    # Libraries (aiohttp, asyncio) log through the standard library: the same lines, from warnings up.
    handler = logging.StreamHandler(file)
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[remove_meta, *ending])
    )
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING), force=True)


def _choice(variable: str, given: str | None, allowed: tuple[str, ...], default: str) -> str:
    value = given or os.environ.get(variable, "") or default
    if value not in allowed:
        raise LoggingError(f"{variable} is {value!r}: it should be one of {', '.join(allowed)}")
    return value
