"""Texts that match a pattern, checked here and by the API server alike."""

from __future__ import annotations

import re
from typing import Final

from pydantic import AfterValidator, Field

from heliograph_api.values.quoting import quoted

from .cel import InSchema, Rule


def matching(pattern: str, problem: str, most: int) -> tuple[object, ...]:
    """Return the checks of a text of at most so many characters by a pattern, which is written as in CEL."""
    compiled = re.compile(pattern.replace("\\\\", "\\"))

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"{quoted(text)} is {problem}")
        return text

    return (
        AfterValidator(check),
        Field(max_length=most),
        InSchema({"maxLength": most}),
        Rule(f"self.matches('^({pattern})$')", problem),
    )


_DOTS: Final = "(^|/)[.][.]?(/|$)"
_NO_DOTS: Final = "has the name . or .., which no request can have; valid: other names"


def _without_dots(text: str) -> str:
    if re.search(_DOTS, text):
        raise ValueError(f"{quoted(text)} {_NO_DOTS}")
    return text


WITHOUT_DOTS: Final = (AfterValidator(_without_dots), Rule(f"!self.matches('{_DOTS}')", _NO_DOTS))
"""The check that no part of a name is ``.`` or ``..``: paths of requests to a broker would lead elsewhere."""
