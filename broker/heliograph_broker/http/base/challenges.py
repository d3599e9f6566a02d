"""The methods of authentication that are switched on, as a client without credentials gets to know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

#: The methods that are switched on, by the names that Pulsar's clients have for them.
METHODS: Final[web.AppKey[tuple[str, ...]]] = web.AppKey("methods", tuple)
#: How a request shows the credentials of each method.
_WAYS: Final[Mapping[str, str]] = {
    "token": "Authorization: Bearer TOKEN",
    "tls": "a client certificate",
    "basic": "Authorization: Basic, USER:PASSWORD in base64",
}
#: The challenge of each method. No scheme is registered for certificates, but an answer with 401 has to name one, and
#: clients ignore those that they do not know.
_CHALLENGES: Final[Mapping[str, str]] = {
    "token": "Bearer",
    "tls": "TLS",
    "basic": 'Basic realm="heliograph", charset="UTF-8"',
}


def valid_here(request: web.Request) -> str:
    """Return the methods with the ways to show their credentials, for the end of a reason."""
    return "valid here: " + ", ".join(f"{method} ({_WAYS[method]})" for method in request.app.get(METHODS, ()))


def challenge(request: web.Request, answer: web.StreamResponse) -> None:
    """Ask for credentials of each method, as HTTP requires of an answer with 401."""
    for method in request.app.get(METHODS, ()):
        answer.headers.add("WWW-Authenticate", _CHALLENGES[method])
