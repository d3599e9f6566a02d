"""Authentication by the client's certificate, which TLS has verified."""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID
from heliograph_api.resources.role_state import COMMON_NAME, HOST_NAME, ProvenIdentity
from heliograph_api.values.quoting import quoted

from heliograph_broker.clock import Clock
from heliograph_broker.security.identity import Identity

from .provider import Credentials, Provider, Unauthenticated
from .roles import stated_role

#: DNS names of a certificate that count; a client may have one with any number of them.
_MAX_HOSTS: Final = 50
_NONE: Final = "the connection has no client certificate: connect to a TLS port with one that this broker trusts"


class CertificateProvider(Provider):
    """Method ``tls``: the role is the common name (CN) of the certificate's subject, as in Pulsar.

    A certificate without one, such as those that cert-manager issues by default, has DNS names instead: these name no
    role by themselves, but one may be set for them. The certificate's chain is the matter of TLS. Its validity is
    checked here again, since a connection may outlast it.
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
            hosts = _hosts(certificate)
            begins_ms, ends_ms = _ms(certificate.not_valid_before_utc), _ms(certificate.not_valid_after_utc)
        except Exception as error:
            # TLS accepted it, and the library has errors of many classes for what it cannot read.
            raise Unauthenticated("the client certificate cannot be read", _unreadable(error)) from None
        if len(names) > 1:
            raise Unauthenticated("the client certificate has several common names (CN); valid: one, which is the role")
        role = ""
        if names or not hosts:
            role = stated_role(names[0] if names else "", "the common name (CN) of the client certificate")
        proven = [ProvenIdentity("certificate", f"{COMMON_NAME}{role}")] if role else []
        proven += [ProvenIdentity("certificate", f"{HOST_NAME}{host.lower()}") for host in hosts]
        now_ms = self._clock.now_ms()
        whose = role or quoted(hosts[0])
        if now_ms >= ends_ms:
            raise Unauthenticated(
                "the client certificate has expired", f"the client certificate of {whose} has expired"
            )
        if now_ms < begins_ms:
            raise Unauthenticated(
                "the client certificate is not valid yet", f"the client certificate of {whose} is not valid yet"
            )
        return Identity(role, self.method, ends_ms, proven=tuple(proven))


def _hosts(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names among the certificate's alternative names."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.DNSName)[:_MAX_HOSTS]


def _ms(time: datetime) -> int:
    return int(time.timestamp()) * 1000


def _unreadable(error: Exception) -> str:
    return f"a client certificate cannot be read: {type(error).__name__}"
