"""The credentials that a client shows a broker: the method and data of CONNECT, and its side of TLS."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from .errors import OptionError
from .oauth2 import access_token
from .options import auth_files, auth_kind, auth_token, basic_user

#: The beginning of an error about credentials that a broker does not accept.
REFUSED = "the credentials were refused (pulsar.client.authPluginClassName, .authParams)"


def presented(settings: Mapping[str, Any], whose: str = "client") -> tuple[str, bytes]:
    """Return the name of the method by which the ``client`` or ``admin`` authenticates and its data, as they are now.

    A token is read from its file, or asked for, each time: it may have been renewed. Raises :class:`OptionError` for
    settings that cannot be understood, and :class:`PulsarSourceError` if an issuer of tokens gives none.
    """
    kind, params = auth_kind(settings), str(settings.get("auth_params", ""))
    if kind == "AuthenticationToken":
        return "token", auth_token(params).encode()
    if kind == "AuthenticationOAuth2":
        return "token", access_token(params).encode()
    if kind == "AuthenticationBasic":
        return "basic", basic_user(f"pulsar.{whose}.authParams", params).encode()
    if kind == "AuthenticationTls":
        return "tls", b""
    assert not kind, f"an authentication that the options do not know: {kind}"
    return "none", b""


def tls_context(settings: Mapping[str, Any], whose: str) -> ssl.SSLContext:
    """Return the TLS context of these settings of the ``client`` or the ``admin``.

    Raises :class:`OptionError` for their files.
    """
    try:
        context = ssl.create_default_context(cafile=settings.get("tls_trust_certs_file_path"))
        if settings.get("tls_certificate_file_path"):
            context.load_cert_chain(settings["tls_certificate_file_path"], settings.get("tls_private_key_file_path"))
    except (OSError, ssl.SSLError) as error:
        raise OptionError(
            f"pulsar.{whose}.tlsTrustCertsFilePath: these certificates cannot be used: {error}"
        ) from error
    if not settings.get("tls_validate_hostname", True):
        context.check_hostname = False
    if settings.get("tls_allow_insecure_connection"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def tls_failure(error: ssl.SSLError) -> str:
    """Return why a handshake failed, in words where OpenSSL's say little."""
    return "the server does not speak TLS on this port" if error.reason == "WRONG_VERSION_NUMBER" else str(error)


def with_named_files(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the client's settings with the certificate that ``AuthenticationTls`` names, as any other."""
    if auth_kind(settings) != "AuthenticationTls":
        return settings
    named = auth_files(settings.get("auth_params", ""))
    own = {
        "tls_certificate_file_path": named.get("tlsCertFile"),
        "tls_private_key_file_path": named.get("tlsKeyFile"),
    }
    return {**settings, **own}
