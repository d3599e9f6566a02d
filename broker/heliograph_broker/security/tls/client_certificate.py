"""The certificate by which a client has authenticated itself."""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple

from .contexts import ServerContext


class ClientCertificate(NamedTuple):
    """The verified certificate of a client (DER), and when it expires (s since the epoch); empty and 0: none.

    ``context`` is the one that verified it.
    """

    der: bytes = b""
    expires_at_s: float = 0.0
    context: ServerContext | None = None

    def why_over(self, now_ms: int) -> str:
        """Return why the certificate does not hold any more, empty if it does or if there is none."""
        if self.der and now_ms >= self.expires_at_s * 1000:
            return "the client's certificate has expired"
        if self.context is not None and self.context.withdrawn:
            return "an authority of clients' certificates was removed"
        return ""


NO_CERTIFICATE = ClientCertificate()


def client_certificate(transport: asyncio.BaseTransport) -> ClientCertificate:
    """Return the certificate by which a client has authenticated itself, if it has."""
    tls = transport.get_extra_info("ssl_object")
    # Unless authorities are given, none is asked for; it would not be verified.
    if tls is None or tls.context.verify_mode == ssl.CERT_NONE:
        return NO_CERTIFICATE
    der, fields = tls.getpeercert(binary_form=True), tls.getpeercert()
    if not der:
        return NO_CERTIFICATE
    context = tls.context if isinstance(tls.context, ServerContext) else None
    return ClientCertificate(der, ssl.cert_time_to_seconds(fields["notAfter"]), context)
