"""TLS of clients: the authorities they trust, the certificate they show, and what was wrong with a connection.

Certificates of servers are always verified, and always for the host name of the URL.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

import aiohttp


class ClientCertificate(NamedTuple):
    """Files in PEM: a client's certificate, with those of intermediate authorities below it, and its private key."""

    certificate: str
    key: str


class ClientCertificateUnusable(ValueError):
    """The certificate of a client or its key cannot be read, or they do not belong together."""


class TlsMistake(StrEnum):
    """A mistake in the settings of a connection that TLS shows, by what would have to be corrected."""

    #: The server's certificate is not by an authority that the client trusts.
    AUTHORITY = "authority"
    #: The server's certificate is for other hosts.
    HOST = "host"
    #: The server's certificate is not valid yet, or not any more.
    TIME = "time"
    #: The server's port does not speak TLS.
    PLAIN_PORT = "plain port"
    #: The server ended a connection without TLS before it answered: its port may expect TLS.
    TLS_PORT = "TLS port"
    #: The server wants a certificate of the client, or another one; or it ended a connection with TLS before it
    #: answered, as TLS 1.3 asks for certificates last.
    CLIENT_CERTIFICATE = "client certificate"


#: OpenSSL's codes (X509_V_ERR_…) of certificates that do not pass.
_TIME: Final = (9, 10)
_AUTHORITY: Final = (2, 7, 18, 19, 20, 21, 24, 27)
_HOST: Final = (62, 63, 64)
#: OpenSSL's reasons if bytes are no TLS.
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
#: Parts of OpenSSL's reasons for alerts of a server about the client's certificate.
_CLIENT: Final = ("ALERT_CERTIFICATE_", "ALERT_BAD_CERTIFICATE", "ALERT_UNKNOWN_CA", "ALERT_UNSUPPORTED_CERTIFICATE")


def client_tls(trusted: str, certificate: ClientCertificate | None = None) -> ssl.SSLContext:
    """Return the TLS of a client that trusts the authorities ``trusted`` (PEM; empty: those of the system).

    Raises :class:`ValueError` if they cannot be read, as :class:`ClientCertificateUnusable` if the files of
    ``certificate`` cannot be used.
    """
    # OpenSSL takes a certificate's text in ASCII only; the comments around it may be in any script.
    pem = "\n".join(line for line in trusted.splitlines() if line.isascii())
    if trusted and not pem.strip():
        # Without any, Python would trust those of the system.
        raise ValueError("the certificates cannot be read: there are none")
    try:
        context = ssl.create_default_context(cadata=pem or None)
    except ssl.SSLError as error:
        raise ValueError(f"the certificates cannot be read: {error.reason or 'none is in PEM'}") from error
    if certificate is not None:
        _show(context, certificate)
    return context


def _show(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    for file in certificate:
        try:
            with open(file, "rb"):
                pass
        except OSError as error:
            raise ClientCertificateUnusable(f"cannot read {file}: {error.strerror}") from error
    try:
        # An empty passphrase, where OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate.certificate, certificate.key, password="")
    except ssl.SSLError as error:
        reason = error.reason or "they should be in PEM, and the key without a passphrase"
        raise ClientCertificateUnusable(
            f"the client's certificate {certificate.certificate} and key {certificate.key} cannot be used: {reason}"
        ) from error


def tls_mistake(error: BaseException, *, encrypted: bool) -> TlsMistake | None:
    """Return the mistake that made a connection fail with ``error``; None if it is none of TLS.

    ``encrypted`` is whether the client spoke TLS.
    """
    for cause in _causes(error):
        if isinstance(cause, aiohttp.ClientError):
            # Some are ssl's by inheritance, but have nothing of them.
            continue
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _of_certificate(cause.verify_code)
        if isinstance(cause, ssl.SSLError):
            reason = cause.reason or ""
            if reason in _NO_TLS:
                return TlsMistake.PLAIN_PORT
            return TlsMistake.CLIENT_CERTIFICATE if any(part in reason for part in _CLIENT) else None
    if any(map(_ended_unanswered, _causes(error))):
        return TlsMistake.CLIENT_CERTIFICATE if encrypted else TlsMistake.TLS_PORT
    return None


def tls_reason(error: BaseException) -> str:
    """Return OpenSSL's reason why a connection failed with ``error``, for people; empty if TLS did not fail."""
    for cause in _causes(error):
        if isinstance(cause, aiohttp.ClientError):
            continue
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"certificate verify failed: {cause.verify_message.rstrip('.')}"
        if isinstance(cause, ssl.SSLError):
            return cause.reason.replace("_", " ").lower() if cause.reason else str(cause)
    return ""


def is_no_http(error: BaseException) -> bool:
    """Return whether a connection failed because the answer was of another protocol than HTTP."""
    return any(isinstance(cause, aiohttp.http_exceptions.BadHttpMessage) for cause in _causes(error))


def _of_certificate(code: int) -> TlsMistake | None:
    if code in _HOST:
        return TlsMistake.HOST
    if code in _TIME:
        return TlsMistake.TIME
    return TlsMistake.AUTHORITY if code in _AUTHORITY else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the ones that it was raised for: aiohttp keeps these in attributes."""
    following: object = error
    while isinstance(following, BaseException):
        yield following
        following = next(
            (
                cause
                for name in ("certificate_error", "os_error", "__cause__")
                if isinstance(cause := getattr(following, name, None), BaseException) and cause is not following
            ),
            None,
        )


def _ended_unanswered(error: BaseException) -> bool:
    # An alert of TLS, which some servers send, is no line of HTTP.
    ended = (aiohttp.ServerDisconnectedError, ConnectionResetError, aiohttp.http_exceptions.BadHttpMessage, EOFError)
    return isinstance(error, ended)
