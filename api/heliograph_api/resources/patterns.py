"""Texts that match a pattern, checked here and by the API server alike."""

from __future__ import annotations

import re

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
