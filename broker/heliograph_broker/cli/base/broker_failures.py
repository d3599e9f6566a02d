"""Advice about a broker that cannot be reached or refuses credentials: one line for each failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from heliograph_api.admin.client_tls import TlsMistake

    from .access import Credentials

START_HINT = "start one with 'heliograph standalone', or name another with"
#: For each scheme: the one that differs in TLS only, and the usual port of that.
_COUNTERPARTS: Final = {
    "http": ("https", 8443),
    "https": ("http", 8080),
    "pulsar": ("pulsar+ssl", 6651),
    "pulsar+ssl": ("pulsar", 6650),
}
#: The schemes without TLS.
_PLAIN: Final = ("http", "pulsar")
#: What a broker of Heliograph puts before the methods that are switched on, at the end of a reason.
_VALID: Final = "valid here: "
#: How to give a command credentials of these methods.
_WAYS: Final = (
    ({"token", "oidc"}, "a token with --token-file FILE or HELIOGRAPH_TOKEN_FILE"),
    ({"tls"}, "a certificate with --client-cert FILE --client-key FILE"),
)
_PASSWORDS: Final = "basic"


def refused_credentials(url: str, reason: str, credentials: Credentials) -> str:
    """Return the line for a broker that does not accept the credentials, for its ``reason``, or that requires some."""
    scheme = urlsplit(url).scheme
    if credentials.token is None and credentials.certificate is not None and scheme in _PLAIN:
        other, port = _COUNTERPARTS[scheme]
        return (
            f"the broker at {url} requires credentials, and {credentials.described} is shown by TLS only; "
            f"begin the URL with {other}:// (usual port: {port})"
        )
    if shown := credentials.described:
        return f"the broker at {url} does not accept {shown}: {reason}"
    return f"the broker at {url} requires credentials, and this command has none; {_what_to_show(reason)}"


def _what_to_show(reason: str) -> str:
    """Return which credentials to give, by the methods that the broker's ``reason`` names; a token if it names none."""
    listed = reason.partition(_VALID)[2].split(", ")
    # Over HTTP, each method is followed by how a request shows it.
    methods = {each.partition(" ")[0] for each in listed}
    ways = [way for names, way in _WAYS if methods & names]
    if not ways and _PASSWORDS in methods:
        return (
            f"the broker takes passwords only ({_PASSWORDS}), and the command line none: "
            "switch on another method as well, such as --auth token"
        )
    return f"give {' or '.join(ways or [_WAYS[0][1]])}, or name a context with --context"


def unreachable(text: str, mistake: TlsMistake | None, url: str, option: str, credentials: Credentials) -> str:
    """Return the line for a broker that is not reached, as ``text`` states, with what would help.

    ``option`` names the broker's address.
    """
    if mistake is None:
        return f"{text}; {START_HINT} {option}"
    return f"{text}; {_what_helps(mistake, url, credentials)}"


def _what_helps(mistake: TlsMistake, url: str, credentials: Credentials) -> str:
    # Here, because aiohttp takes longer to load than all the rest of the command line.
    from heliograph_api.admin.client_tls import TlsMistake

    parts = urlsplit(url)
    scheme, port = _COUNTERPARTS[parts.scheme]
    match mistake:
        case TlsMistake.AUTHORITY if credentials.tls_ca:
            return f"{credentials.tls_ca} does not have the authority of its certificate; name another with --tls-ca"
        case TlsMistake.AUTHORITY:
            return (
                "this machine does not trust the authority of its certificate; "
                "name the authority's certificate with --tls-ca FILE or HELIOGRAPH_TLS_CA"
            )
        case TlsMistake.HOST:
            return f"its certificate is not for {parts.hostname!r}; use a host name of the certificate in the URL"
        case TlsMistake.TIME:
            return "its certificate has expired or is not valid yet; renew it, or correct the clock of this machine"
        case TlsMistake.PLAIN_PORT:
            return f"this port does not speak TLS; begin the URL with {scheme}://, or name the port for TLS"
        case TlsMistake.TLS_PORT:
            return f"if this port expects TLS, begin the URL with {scheme}:// (usual port: {port})"
        case TlsMistake.CLIENT_CERTIFICATE if credentials.certificate is not None:
            return f"it may not accept the certificate {credentials.certificate.certificate}"
        case TlsMistake.CLIENT_CERTIFICATE:
            return "it may require a certificate of the client: give --client-cert FILE --client-key FILE"
