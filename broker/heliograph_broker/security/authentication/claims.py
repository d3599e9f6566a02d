"""Claims of tokens of issuers: which issuer one names, and its times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from heliograph_api.tokens.parts import NotAToken, take_apart

#: The last second of the year 9999; later ends have no date.
_LAST_S: Final = 253_402_300_799


def claimed_issuer(token: bytes) -> str:
    """Return the issuer that a token names, unverified; empty: none, or the bytes are no token."""
    try:
        issuer = take_apart(token.strip()).claims().get("iss")
    except NotAToken:
        return ""
    return issuer if isinstance(issuer, str) else ""


def time_ms(claims: Mapping[str, Any], name: str) -> int | None:
    """Return a claim of seconds since the Unix epoch as ms; None: the token does not have it.

    Raises :class:`ValueError` for a value that is no time.
    """
    seconds = claims.get(name)
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ValueError(f"the token's claim {name} is not a number of seconds")
    return int(max(0, min(seconds, _LAST_S)) * 1000)
