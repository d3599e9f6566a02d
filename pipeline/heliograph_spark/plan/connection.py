"""The two doors of a broker: the official client's, and the REST API for what the client cannot ask."""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

import pulsar

from .credentials import presented, tls_context, tls_failure, with_named_files
from .errors import OptionError, PulsarSourceError, named
from .handshake import check_welcome
from .kept_http import KeptHandler
from .oauth2 import ClientCredentials
from .options import Connection, auth_files, auth_kind, auth_token, basic_user

ADMIN_WITHIN_S = 30.0
#: Most bytes of a refusal that are read.
_LONGEST_REASON = 4096
_kept = KeptHandler()
_plain = urllib.request.build_opener(_kept)


def _authentication(settings: Mapping[str, Any]) -> pulsar.Authentication | None:
    plugin, params = settings.get("auth_plugin"), settings.get("auth_params", "")
    if plugin is None:
        return None
    kind = auth_kind(settings)
    if kind == "AuthenticationToken":
        return pulsar.AuthenticationToken(_Tokens(params))
    if kind == "AuthenticationBasic":
        user, _, password = basic_user("pulsar.client.authParams", params).partition(":")
        return pulsar.AuthenticationBasic(user, password)
    if kind == "AuthenticationTls":
        files = auth_files(params)
        if not {"tlsCertFile", "tlsKeyFile"} <= files.keys():
            raise OptionError("pulsar.client.authParams: AuthenticationTls needs tlsCertFile:…,tlsKeyFile:…")
        return pulsar.AuthenticationTLS(files["tlsCertFile"], files["tlsKeyFile"])
    if kind == "AuthenticationOAuth2":
        return pulsar.AuthenticationOauth2(ClientCredentials.parse(params).for_official_client())
    raise AssertionError(f"an authentication that the options do not know: {plugin}")


class _Tokens:
    """Gives the official client the token of ``authParams`` whenever it asks, which a file may have been renewed in."""

    def __init__(self, params: str) -> None:
        self._params = params
        self._last = auth_token(params)

    def __call__(self) -> str:
        # The client asks on a thread of its own, where an error would end the process.
        with suppress(OptionError):
            self._last = auth_token(self._params)
        return self._last


@contextmanager
def connected(connection: Connection) -> Iterator[pulsar.Client]:
    """Yield a client of the broker for the time of the ``with``; nothing is sent before its first use."""
    client = open_client(connection)
    try:
        yield client
    finally:
        client.close()


def open_client(connection: Connection) -> pulsar.Client:
    """Return a client that the caller closes.

    Raises :class:`PulsarSourceError` for an address it cannot use, and if the broker refuses the credentials.
    """
    settings = {name: value for name, value in connection.client.items() if not name.startswith("auth_")}
    if (of_system := ssl.get_default_verify_paths().cafile) is not None:
        # The client's own default is a copy of public authorities, without those that were added to the system.
        settings.setdefault("tls_trust_certs_file_path", of_system)
    with named(f"connecting to {connection.service_url}"):
        authentication = _authentication(connection.client)
        check_welcome(connection)
        try:
            return pulsar.Client(
                connection.service_url,
                authentication=authentication,
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
                **settings,
            )
        except (ValueError, RuntimeError) as error:
            raise PulsarSourceError(f"connecting to {connection.service_url}: {error}") from error


def check_admin(connection: Connection) -> None:
    """Raise :class:`OptionError` if it is not said where the REST API is, or that is no address."""
    url = connection.admin_url
    if url is None:
        raise OptionError("admin.url (--admin-url): is missing, such as http://localhost:8080")
    if not re.match(r"(?i)https?://[^\s/]", url):
        raise OptionError(f"admin.url (--admin-url): {url!r} is not an address such as http://localhost:8080")


def ask_admin(connection: Connection, path: str) -> Any:
    """GET ``/admin/v2/<path>`` and decode it; None if there is no such thing.

    Raises :class:`PulsarSourceError`, naming the address, if the answer is another refusal or there is none, and
    :class:`OptionError` if the address is not said or the credentials cannot be understood.
    """
    check_admin(connection)
    url = f"{connection.admin_url}/admin/v2/{path}"
    request = urllib.request.Request(url, headers=_headers(connection.admin))
    try:
        with _opener(connection).open(request, timeout=ADMIN_WITHIN_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        options = "pulsar.client.authPluginClassName and .authParams, or those of pulsar.admin"
        hint = f" ({options})" if error.code in (401, 403) else ""
        raise PulsarSourceError(f"{url}: was refused with {error.code} {error.reason}{hint}{_why(error)}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise PulsarSourceError(f"{url}: no answer that can be used (admin.url): {_failure(error)}") from error


def _why(refusal: urllib.error.HTTPError) -> str:
    """Return what a broker says about its refusal; empty if that is nothing a person can read."""
    try:
        with refusal:
            text = json.loads(refusal.read(_LONGEST_REASON))["reason"]
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    return f": {text}" if isinstance(text, str) and text else ""


def _failure(error: Exception) -> str:
    """Return why there was no answer; what a server that is none of HTTP has sent is not part of it."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, http.client.HTTPException) and not isinstance(reason, OSError):
        return "the server does not speak HTTP; admin.url is the REST API, such as http://localhost:8080"
    return tls_failure(reason) if isinstance(reason, ssl.SSLError) else str(reason)


def topic_path(name: str) -> str:
    """Return a topic's whole name as a path of the REST API."""
    domain, rest = name.split("://", 1)
    tenant, namespace, local = rest.split("/", 2)
    return f"{domain}/{tenant}/{namespace}/{quote(local, safe='')}"


def _headers(settings: Mapping[str, Any]) -> dict[str, str]:
    method, shown = presented(settings, "admin")
    if method == "token":
        return {"Authorization": "Bearer " + shown.decode("ascii")}
    if method == "basic":
        return {"Authorization": "Basic " + base64.b64encode(shown).decode("ascii")}
    # A certificate is shown by TLS.
    return {}


def _opener(connection: Connection) -> urllib.request.OpenerDirector:
    if not str(connection.admin_url).startswith("https"):
        return _plain
    # The files of certificates may have changed since the last question.
    context = tls_context(with_named_files(connection.admin), "admin")
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
