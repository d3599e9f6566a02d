"""Words for why a TLS handshake failed: OpenSSL's own name neither the side that is wrong nor what would be right."""

from __future__ import annotations

import ssl
from typing import Final

_NO_TLS: Final = "the client does not speak TLS, and this port takes nothing else: its URL begins with {schemes}"
#: By the reason of OpenSSL, which names it differently by its version and by what the client sends.
_WORDS: Final[dict[str, str]] = {
    "HTTP_REQUEST": _NO_TLS.format(schemes="https://"),
    "WRONG_VERSION_NUMBER": _NO_TLS.format(schemes="pulsar+ssl:// or https://"),
    "PACKET_LENGTH_TOO_LONG": _NO_TLS.format(schemes="pulsar+ssl:// or https://"),
    "UNSUPPORTED_PROTOCOL": "the client has neither TLS 1.2 nor 1.3",
    "NO_SHARED_CIPHER": "the client has none of the ciphers that this broker accepts",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has shown no certificate, and this port requires one",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the authority of this broker's certificate",
    # The client trusts an authority with the same name and another key.
    "TLSV1_ALERT_DECRYPT_ERROR": "the client does not trust the authority of this broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept this broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept this broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this broker's certificate has expired by the client's clock",
}


def handshake_failure(error: OSError) -> str:
    """Return what is wrong for a person who reads the log, followed by OpenSSL's words if it is one of its errors."""
    if isinstance(error, TimeoutError):
        return "the TLS handshake was not completed in time"
    text = str(error) or type(error).__name__
    words = _WORDS.get(error.reason or "") if isinstance(error, ssl.SSLError) else None
    return f"{words} ({text})" if words else text
