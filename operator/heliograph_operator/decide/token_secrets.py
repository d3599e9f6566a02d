"""The Secrets with the keys of a BrokerCluster with authentication, and the entries of Secrets."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final

from heliograph_operator.objects.kinds import Body, Kind

SECRET: Final = Kind("Secret", "secrets", "v1")


def private_name(cluster: str) -> str:
    """Return the name of the Secret with the private halves, which only the operator reads."""
    return f"{cluster}-token-signing-key"


def public_name(cluster: str) -> str:
    """Return the name of the Secret with the public halves, which is mounted into the brokers."""
    return f"{cluster}-token-keys"


def decoded(secret: Body | None) -> dict[str, str]:
    """Return the entries of a Secret that are texts."""
    found = {}
    for name, text in ((secret or {}).get("data") or {}).items():
        try:
            found[name] = base64.b64decode(str(text)).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue
    return found


def encoded(entries: Mapping[str, str]) -> dict[str, str]:
    """Return texts as a Secret has them."""
    return {name: base64.b64encode(text.encode()).decode() for name, text in entries.items()}
