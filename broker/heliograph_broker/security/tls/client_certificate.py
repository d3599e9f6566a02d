"""The certificate by which a client has authenticated itself."""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple


class ClientCertificate(NamedTuple):
    """The verified certificate of a client (DER), and when it expires (s since the epoch); empty and 0: none."""

    der: bytes = b""
    expires_at_s: float = 0.0

    def has_expired(self, now_ms: int) -> bool:
        return bool(self.der) and now_ms >= self.expires_at_s * 1000


NO_CERTIFICATE = ClientCertificate()


def client_certificate(transport: asyncio.BaseTransport) -> ClientCertificate:
    """Return the certificate by which a client has authenticated itself, if it has."""
    tls = transport.get_extra_info("ssl_object")
    # Unless authorities are given, none is asked for; it would not be verified.
    if tls is None or tls.context.verify_mode == ssl.CERT_NONE:
        return NO_CERTIFICATE
    der, fields = tls.getpeercert(binary_form=True), tls.getpeercert()
    return ClientCertificate(der, ssl.cert_time_to_seconds(fields["notAfter"])) if der else NO_CERTIFICATE
