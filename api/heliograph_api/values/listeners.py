"""Advertised listeners of a broker by name, and the addresses bound for them, as Pulsar's settings write them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from .quoting import quoted

_SCHEME: Final = "pulsar://"
_VALID: Final = "name:pulsar://host:port, several separated by commas"
#: The host is greedy, so that an IPv6 address is one without brackets, too: Kubernetes gives it to pods like that.
_ENTRY = re.compile(r"(?P<name>[^:,\s]+):(?P<scheme>[a-z+]+://)(?P<host>[^/?#@,\s]+):(?P<port>[0-9]{1,5})/?", re.ASCII)


class BindAddress(NamedTuple):
    """An address bound for the listener ``name``."""

    name: str
    host: str
    port: int


def bracketed(host: str) -> str:
    """Return a host as URLs have it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches what listens on ``host``; another name than localhost may be any."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@lru_cache(maxsize=16)
def parse_advertised_listeners(text: str) -> Mapping[str, str]:
    """Return the URL of every listener by its name, in the order of ``text``, such as ``internal:pulsar://b:6650``.

    Raises :class:`ValueError` naming the entry that is wrong.
    """
    urls: dict[str, str] = {}
    for name, host, port in _entries(text):
        if name in urls:
            raise ValueError(f"{quoted(name)} occurs more than once; valid: each name once")
        url = f"{_SCHEME}{bracketed(host)}:{port}"
        if url in urls.values():
            raise ValueError(f"{quoted(url)} is the address of two listeners; valid: an address for each")
        urls[name] = url
    return urls


def parse_bind_addresses(text: str) -> list[BindAddress]:
    """Return what ``text`` binds, such as ``external:pulsar://0.0.0.0:6652``; host ``*``: all addresses.

    Raises :class:`ValueError` naming the entry that is wrong.
    """
    return _entries(text)


def _entries(text: str) -> list[BindAddress]:
    found = []
    for entry in filter(None, map(str.strip, text.split(","))):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(f"{quoted(entry)} is no address with a listener's name; valid: {_VALID}")
        if match["scheme"] != _SCHEME:
            raise ValueError(
                f"{quoted(entry)} is not of the scheme {_SCHEME}, the only one of this broker; valid: {_VALID}"
            )
        host = match["host"].removeprefix("[").removesuffix("]")
        port = int(match["port"])
        if not 1 <= port <= 65535:
            raise ValueError(f"{quoted(entry)}: port {port} is out of range; valid: 1 to 65535")
        found.append(BindAddress(match["name"], host, port))
    return found
