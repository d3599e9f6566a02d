"""Authentication by the client's certificate, which TLS has verified."""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from heliograph_broker.clock import Clock
from heliograph_broker.security.identity import Identity

from .provider import Credentials, Provider, Unauthenticated
from .roles import stated_role

_NONE: Final = "the connection has no client certificate: connect to a TLS port with one that this broker trusts"


class CertificateProvider(Provider):
    """Method ``tls``: the role is the common name (CN) of the certificate's subject, as in Pulsar.

    The certificate's chain is the matter of TLS. Its validity is checked here again, since a connection may outlast it.
    """

    method = "tls"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def authenticate(self, credentials: Credentials) -> Identity:
        if not credentials.certificate:
            raise Unauthenticated(_NONE)
        try:
            certificate = x509.load_der_x509_certificate(credentials.certificate)
            with warnings.catch_warnings():
                # A common name of more than 64 characters is not as the standard has it, and usual.
                warnings.simplefilter("ignore")
                names = [each.value for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
            begins_ms, ends_ms = _ms(certificate.not_valid_before_utc), _ms(certificate.not_valid_after_utc)
        except Exception as error:
            # TLS accepted it, and the library has errors of many classes for what it cannot read.
            raise Unauthenticated("the client certificate cannot be read", _unreadable(error)) from None
        if len(names) > 1:
            raise Unauthenticated("the client certificate has several common names (CN); valid: one, which is the role")
        role = stated_role(names[0] if names else "", "the common name (CN) of the client certificate")
        now_ms = self._clock.now_ms()
        if now_ms >= ends_ms:
            raise Unauthenticated("the client certificate has expired", f"the client certificate of {role} has expired")
        if now_ms < begins_ms:
            raise Unauthenticated(
                "the client certificate is not valid yet", f"the client certificate of {role} is not valid yet"
            )
        return Identity(role, self.method, ends_ms)


def _ms(time: datetime) -> int:
    return int(time.timestamp()) * 1000


def _unreadable(error: Exception) -> str:
    return f"a client certificate cannot be read: {type(error).__name__}"
