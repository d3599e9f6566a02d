"""Errors of this package as Spark passes them on: in the traceback of a Python process, which Java's message quotes."""

from __future__ import annotations

import re
from typing import NamedTuple

import heliograph_spark

_QUOTED = re.compile(rf"^({heliograph_spark.__name__}(?:\.\w+)+)(?:: (.+))?$", re.MULTILINE)


class QuotedError(NamedTuple):
    """The whole name of an error's class, and its text, which may be empty."""

    name: str
    text: str

    def is_of(self, kind: type[Exception]) -> bool:
        """Whether its class is this one."""
        return self.name == f"{kind.__module__}.{kind.__qualname__}"


def quoted_error(text: str) -> QuotedError | None:
    """Return the error of this package that a text of Spark's quotes, the last of several; None if there is none."""
    found = _QUOTED.findall(text)
    return QuotedError(*found[-1]) if found else None
