"""Advertised listeners of a broker by name, and the addresses bound for them, as Pulsar's settings write them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from .quoting import quoted

PLAIN: Final = "pulsar://"
ENCRYPTED: Final = "pulsar+ssl://"
_SCHEMES: Final = (PLAIN, ENCRYPTED)
_VALID: Final = "name:pulsar://host:port or name:pulsar+ssl://host:port, several separated by commas"
#: The host is greedy, so that an IPv6 address is one without brackets, too: Kubernetes gives it to pods like that.
_ENTRY = re.compile(r"(?P<name>[^:,\s]+):(?P<scheme>[a-z+]+://)(?P<host>[^/?#@,\s]+):(?P<port>[0-9]{1,5})/?", re.ASCII)


class ServiceUrls(NamedTuple):
    """The URLs at which clients reach a broker: ``pulsar://…`` and, encrypted, ``pulsar+ssl://…``; empty: not so."""

    plain: str = ""
    encrypted: str = ""

    @property
    def first(self) -> str:
        """The plain one, if there is one."""
        return self.plain or self.encrypted


class BindAddress(NamedTuple):
    """An address bound for the listener ``name``."""

    name: str
    host: str
    port: int
    encrypted: bool = False


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
def parse_advertised_listeners(text: str) -> Mapping[str, ServiceUrls]:
    """Return the URLs of every listener by its name, in the order of ``text``, such as ``internal:pulsar://b:6650``.

    A listener may have a URL of each scheme. Raises :class:`ValueError` naming the entry that is wrong.
    """
    urls: dict[str, ServiceUrls] = {}
    owners: dict[str, str] = {}
    for name, host, port, encrypted in _entries(text):
        of_name = urls.get(name, ServiceUrls())
        if of_name[encrypted]:
            raise ValueError(
                f"{quoted(name)} occurs more than once with {_SCHEMES[encrypted]}; valid: each name once for a scheme"
            )
        address = f"{bracketed(host)}:{port}"
        url = f"{_SCHEMES[encrypted]}{address}"
        if address in owners:
            raise ValueError(f"{quoted(url)} is the address of two listeners; valid: an address for each")
        owners[address] = name
        urls[name] = of_name._replace(encrypted=url) if encrypted else of_name._replace(plain=url)
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
        if match["scheme"] not in _SCHEMES:
            raise ValueError(
                f"{quoted(entry)} is of the scheme {match['scheme']}, which listeners do not have; valid: {_VALID}"
            )
        host = match["host"].removeprefix("[").removesuffix("]")
        port = int(match["port"])
        if not 1 <= port <= 65535:
            raise ValueError(f"{quoted(entry)}: port {port} is out of range; valid: 1 to 65535")
        found.append(BindAddress(match["name"], host, port, match["scheme"] == ENCRYPTED))
    return found
