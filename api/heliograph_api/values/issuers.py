"""Issuers of tokens (OpenID Connect), by their URLs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from .comma_separated import comma_separated
from .listeners import is_loopback
from .quoting import quoted

KUBERNETES: Final = "kubernetes"
"""Names the Kubernetes around the broker among issuers: its URL is known in its pods only."""

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


def parse_audiences(text: str, issuers: Iterable[str]) -> dict[str, list[str]]:
    """Return the audiences in ``text`` by their issuer: entries ``ISSUER=AUDIENCE``, which are separated by commas.

    Raises :class:`ValueError` naming an entry that is not of one of the ``issuers``.
    """
    found: dict[str, list[str]] = {}
    # Names and audiences may have a = of their own: the longest name that fits is meant.
    names = sorted(issuers, key=len, reverse=True)
    for entry in comma_separated(text):
        issuer = next((name for name in names if entry.startswith(f"{name}=")), "")
        audience = entry.removeprefix(f"{issuer}=").strip()
        if not issuer or not audience:
            # It may be a password.
            shown = "an entry" if "@" in entry else quoted(entry)
            raise ValueError(
                f"{shown} is no audience of an issuer that is trusted; valid: ISSUER=AUDIENCE with a URL of"
                f" oidc_issuer, or {KUBERNETES}=AUDIENCE with oidc_kubernetes"
            )
        found.setdefault(issuer, []).append(audience)
    return found


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
