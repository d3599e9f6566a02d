"""Tokens of OAuth2 by client credentials: what the ``authParams`` say, and the issuer's answer."""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from .errors import OptionError, PulsarSourceError

_OPTION = "authParams of AuthenticationOAuth2"
_WITHIN_S = 30.0
#: A token is renewed when so little of its life is left: a share of it, and at most this time (s).
_LAST_SHARE = 0.1
_LAST_S = 60.0
#: Life of a token (s) whose issuer does not say it.
_LIFE_S = 3600.0


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """The issuer of tokens, and a client's id and secret there."""

    issuer_url: str
    client_id: str
    client_secret: str
    audience: str = ""
    scope: str = ""
    #: File of the authorities (PEM) of the issuer's certificate; empty: those of the system.
    trusted: str = ""

    @classmethod
    def parse(cls, params: str) -> ClientCredentials:
        """Read the JSON of ``authParams`` and the private key that it names.

        Raises :class:`OptionError`, which repeats no secret.
        """
        given = _json_object(params, _OPTION)
        if given.get("type", "client_credentials") != "client_credentials":
            raise OptionError(f"{_OPTION}: type {given['type']!r} is not known here; there is client_credentials")
        key = given if "client_id" in given else _private_key(_text(given, _OPTION, "privateKey", "private_key"))
        return cls(
            _text(given, _OPTION, "issuerUrl", "issuer_url").rstrip("/"),
            _text(key, "the private key of OAuth2", "client_id"),
            _text(key, "the private key of OAuth2", "client_secret"),
            str(given.get("audience") or ""),
            str(given.get("scope") or ""),
            str(given.get("trustCertsFilePath") or ""),
        )

    def for_official_client(self) -> str:
        """Return them as ``authParams`` of the client in C++, which has other names for them than Java's.

        It verifies the issuer by the authorities that the client has for the broker.
        """
        given = {"type": "client_credentials", "issuer_url": self.issuer_url}
        given |= {"client_id": self.client_id, "client_secret": self.client_secret}
        given |= {name: each for name, each in (("audience", self.audience), ("scope", self.scope)) if each}
        return json.dumps(given)


def _json_object(text: str | bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        # The error would repeat a part of what may be a secret.
        raise OptionError(f"{what}: this is not JSON") from None
    if not isinstance(value, dict):
        raise OptionError(f"{what}: this JSON is not an object")
    return value


def _text(given: dict[str, Any], what: str, *names: str) -> str:
    for name in names:
        value = given.get(name)
        if isinstance(value, str) and value:
            return value
    raise OptionError(f"{what}: {names[0]} is missing")


def _private_key(place: str) -> dict[str, Any]:
    """Return the JSON behind ``data:…``, ``file:…`` or a path."""
    if place.startswith("data:"):
        kind, comma, content = place.removeprefix("data:").partition(",")
        if not comma:
            raise OptionError(f"{_OPTION}: privateKey is not a data: URL such as data:application/json;base64,…")
        try:
            raw = base64.b64decode(content, validate=True) if kind.endswith(";base64") else content.encode()
        except (binascii.Error, ValueError):
            raise OptionError(f"{_OPTION}: the base64 of privateKey cannot be decoded") from None
        return _json_object(raw if kind.endswith(";base64") else urllib.parse.unquote_to_bytes(raw), "privateKey")
    path = place.removeprefix("file:")
    # file:/a/b, file:///a/b and file://a/b are all in use.
    path = path.removeprefix("//") if place.startswith("file:") else path
    try:
        with open(path, "rb") as file:
            return _json_object(file.read(), f"the private key in {path}")
    except OSError as error:
        raise OptionError(f"{_OPTION}: the private key cannot be read: {error}") from error


_tokens: dict[ClientCredentials, tuple[str, float]] = {}
_asking = threading.Lock()


def access_token(params: str) -> str:
    """Return a token that is valid for a while: the one of before until shortly before it expires, else a new one.

    Raises :class:`OptionError` for ``params``, and :class:`PulsarSourceError` if the issuer gives no token.
    """
    credentials = ClientCredentials.parse(params)
    with _asking:
        known = _tokens.get(credentials)
        if known is not None and time.monotonic() < known[1]:
            return known[0]
        token, life_s = _asked_token(credentials)
        _tokens[credentials] = token, time.monotonic() + life_s - min(_LAST_S, life_s * _LAST_SHARE)
        return token


def _asked_token(credentials: ClientCredentials) -> tuple[str, float]:
    """Return a new token and its life in seconds."""
    tls = _tls(credentials.trusted) if credentials.trusted else None
    found = _asked(f"{credentials.issuer_url}/.well-known/openid-configuration", None, tls)
    endpoint = found.get("token_endpoint")
    if not isinstance(endpoint, str):
        raise PulsarSourceError(f"{credentials.issuer_url}: this issuer names no token_endpoint (issuerUrl)")
    form = {
        "grant_type": "client_credentials",
        "client_id": credentials.client_id,
        "client_secret": credentials.client_secret,
        "audience": credentials.audience,
        "scope": credentials.scope,
    }
    content = urllib.parse.urlencode({name: each for name, each in form.items() if each}).encode()
    answer = _asked(endpoint, content, tls)
    token, life_s = answer.get("access_token"), answer.get("expires_in")
    if not isinstance(token, str):
        raise PulsarSourceError(f"{endpoint}: the answer holds no access_token")
    try:
        return token, _LIFE_S if life_s is None else float(life_s)
    except (TypeError, ValueError) as error:
        raise PulsarSourceError(f"{endpoint}: expires_in is {life_s!r}, which is no number of seconds") from error


def _asked(url: str, form: bytes | None, tls: ssl.SSLContext | None) -> dict[str, Any]:
    request = urllib.request.Request(url, data=form, headers={"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_WITHIN_S, context=tls) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            text = error.read(500).decode(errors="replace")
        raise PulsarSourceError(f"{url}: no token was given: {error.code} {error.reason} {text}".rstrip()) from error
    except (OSError, ValueError) as error:
        raise PulsarSourceError(f"{url}: no answer of OAuth2 that can be used (issuerUrl): {error}") from error
    if not isinstance(found, dict):
        raise PulsarSourceError(f"{url}: no answer of OAuth2 that can be used (issuerUrl)")
    return found


def _tls(trusted: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=trusted)
    except OSError as error:
        raise OptionError(f"{_OPTION}: trustCertsFilePath {trusted} cannot be used: {error}") from error


def _forget() -> None:
    global _asking
    _asking = threading.Lock()


# The child of a process that forks while another thread asks would wait forever.
os.register_at_fork(after_in_child=_forget)
