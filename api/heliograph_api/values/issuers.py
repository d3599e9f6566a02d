"""Issuers of tokens (OpenID Connect), by their URLs."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from .comma_separated import comma_separated
from .listeners import is_loopback
from .quoting import quoted

_VALID: Final = "https://host[:port][/path], or http:// for a host of this machine"


def parse_issuers(text: str) -> list[str]:
    """Return the issuers in ``text``, which are separated by commas, as they are written.

    Raises :class:`ValueError` naming the one that is wrong.
    """
    issuers = comma_separated(text)
    for issuer in issuers:
        if "@" in issuer:
            # It may be a password.
            raise ValueError(f"one of them has an @, as before a host; valid: {_VALID}")
        if not is_trustworthy_url(issuer) or "?" in issuer or "#" in issuer:
            raise ValueError(f"{quoted(issuer)} is no URL of an issuer; valid: {_VALID}")
    return issuers


def is_trustworthy_url(url: object) -> bool:
    """Return whether an answer from ``url`` can be trusted: it is encrypted, or does not leave this machine."""
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or "@" in parts.netloc:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
