"""The certificate of the brokers of a BrokerCluster: whether it can be used and for how long, and a new one."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from .authorities import (
    CERTIFICATE_VALID,
    SKEW,
    Authority,
    AuthorityPlan,
    InUse,
    certificates_in,
    has_key,
    is_trusted,
)

#: The entries of a Secret as cert-manager makes it.
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITIES: Final = "ca.crt"


class CertificateUnusable(Exception):
    """A certificate or its key cannot be used; the text says which entry, what is wrong with it, and what is valid."""


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """The brokers' certificate with those of intermediate authorities, and its key. The key is not part of its text."""

    chain: str = field(repr=False)
    private: str = field(repr=False)
    leaf: x509.Certificate

    @property
    def expires(self) -> datetime:
        """When the first certificate of the chain expires."""
        return min(each.not_valid_after_utc for each in certificates_in(self.chain))

    @property
    def renewed(self) -> datetime:
        """When the operator replaces it, if it made it: after two thirds of its validity."""
        since = self.leaf.not_valid_before_utc + SKEW
        return since + (self.leaf.not_valid_after_utc - since) * 2 / 3

    @property
    def late(self) -> datetime:
        """When anybody's certificate should have been replaced: a sixth of its validity before its end."""
        return self.leaf.not_valid_after_utc - (self.leaf.not_valid_after_utc - self.leaf.not_valid_before_utc) / 6

    @property
    def names(self) -> frozenset[str]:
        """The host names and addresses that it is for."""
        try:
            found = self.leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return frozenset()
        addresses = (str(each) for each in found.get_values_for_type(x509.IPAddress))
        return frozenset([*found.get_values_for_type(x509.DNSName), *addresses])

    def is_for(self, host: str) -> bool:
        """Whether a client accepts it for a host name."""
        return host in self.names or f"*.{host.partition('.')[2]}" in self.names


def read_server(data: Mapping[str, str]) -> ServerCertificate:
    """Return the certificate in a Secret's entries. Raises :class:`CertificateUnusable`."""
    for entry in (CERTIFICATE, KEY):
        if not data.get(entry, "").strip():
            raise CertificateUnusable(
                f"it has no entry {entry}; valid: {CERTIFICATE} and {KEY}, as cert-manager has them"
            )
    chain = certificates_in(data[CERTIFICATE])
    if not chain:
        raise CertificateUnusable(f"its entry {CERTIFICATE} has no certificate; valid: certificates in PEM")
    if not has_key(chain[0], data[KEY]):
        raise CertificateUnusable(
            f"its entry {KEY} is not the key of the certificate in {CERTIFICATE}; valid: that key in PEM, without a"
            " passphrase"
        )
    return ServerCertificate(data[CERTIFICATE], data[KEY], chain[0])


def server_data(server: ServerCertificate, bundle: str) -> dict[str, str]:
    """Return the entries of the Secret."""
    return {CERTIFICATE: server.chain, KEY: server.private, AUTHORITIES: bundle}


def in_use(server: ServerCertificate | None, now: datetime) -> InUse | None:
    """Return what authorities are planned by."""
    if server is None:
        return None
    return InUse(server.leaf, server.leaf.not_valid_before_utc <= now < server.leaf.not_valid_after_utc)


def plan_server(
    server: ServerCertificate | None, plan: AuthorityPlan, names: Iterable[str], now: datetime
) -> ServerCertificate | None:
    """Return the certificate that brokers are to have: the one they have, as long as it is right.

    While no authority may issue, they keep what they have. None: they have none, either.
    """
    wanted, issuer = frozenset(names), plan.issuer
    if issuer is None:
        return server
    is_right = (
        server is not None
        # Names that nobody needs any more go with the next one: an address may come back.
        and server.names >= wanted
        and now < server.renewed
        and is_trusted(server.leaf, plan.authorities, now)
        # Brokers do not take one made while the clock was ahead. If the issuer begins later, too, the clock is behind.
        and (server.leaf.not_valid_before_utc <= now or now < issuer.certificate.not_valid_before_utc)
    )
    return server if is_right else _issue(issuer, wanted, now)


def _issue(issuer: Authority, names: frozenset[str], now: datetime) -> ServerCertificate:
    key = ec.generate_private_key(ec.SECP256R1())
    signing = load_pem_private_key(issuer.private.encode(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    ends = min(now + CERTIFICATE_VALID, issuer.certificate.not_valid_after_utc)
    certificate = (
        x509.CertificateBuilder()
        # Clients go by the alternative names alone.
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Heliograph broker")]))
        .issuer_name(issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(now - SKEW, issuer.certificate.not_valid_before_utc))
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name(each) for each in sorted(names)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()),
            critical=False,
        )
        .sign(signing, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return ServerCertificate(certificate.public_bytes(Encoding.PEM).decode(), private, certificate)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
