"""Authentication by certificates: the common name is the role, for as long as the certificate is valid."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from heliograph_api.policies.grants import RESERVED
from heliograph_api.resources.role_state import ProvenIdentity
from heliograph_broker.clock import VirtualClock
from heliograph_broker.security.authentication.certificate import CertificateProvider
from heliograph_broker.security.authentication.provider import Credentials, Unauthenticated
from heliograph_broker.security.authentication.roles import OWN_ROLES
from heliograph_broker.security.identity import Identity
from hypothesis import given
from hypothesis import strategies as st

from tests.support.certificates import Authority

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(int(NOW.timestamp()) * 1000)


def certificate(*names: x509.NameAttribute[str], hosts: tuple[str, ...] = ()) -> bytes:
    """Return a certificate in DER whose subject has these attributes, for these DNS names."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(names)
    day = timedelta(days=1)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, NOW - day, NOW + day)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in hosts]), False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def common_name(value: str) -> x509.NameAttribute[str]:
    with warnings.catch_warnings():
        # The standard allows 64 characters, which nobody enforces.
        warnings.simplefilter("ignore")
        return x509.NameAttribute(NameOID.COMMON_NAME, value, _validate=False)


async def refusal(clock: VirtualClock, der: bytes) -> str:
    with pytest.raises(Unauthenticated) as caught:
        await CertificateProvider(clock).authenticate(Credentials(certificate=der))
    return str(caught.value)


async def test_the_common_name_is_the_role_until_the_certificate_expires(clock: VirtualClock) -> None:
    issued = Authority().issue("billing", hosts=(), ends=NOW + timedelta(days=1), starts=NOW)
    provider = CertificateProvider(clock)
    found = await provider.authenticate(Credentials(certificate=issued.der))
    proven = (ProvenIdentity("certificate", "CN=billing"),)
    assert found == Identity("billing", "tls", issued.expires_at_s * 1000, proven=proven)
    assert provider.method == "tls"
    clock.advance_ms(24 * 3600 * 1000 - 1)
    await provider.authenticate(Credentials(certificate=issued.der))
    clock.advance_ms(1)
    assert await refusal(clock, issued.der) == "the client certificate has expired"


async def test_dns_names_are_proven_beside_the_common_name_or_without_one(clock: VirtualClock) -> None:
    issued = Authority().issue("billing", hosts=["Billing.example.org", "127.0.0.1"], starts=NOW, ends=NOW + DAY)
    found = await CertificateProvider(clock).authenticate(Credentials(certificate=issued.der))
    dns = ProvenIdentity("certificate", "DNS:billing.example.org")
    assert (found.role, found.proven) == ("billing", (ProvenIdentity("certificate", "CN=billing"), dns))
    found = await CertificateProvider(clock).authenticate(
        Credentials(certificate=certificate(hosts=("billing.example.org",)))
    )
    assert (found.role, found.proven) == ("", (dns,))


async def test_a_certificate_of_the_future_is_refused(clock: VirtualClock) -> None:
    issued = Authority().issue("billing", starts=NOW + timedelta(seconds=1), ends=NOW + timedelta(days=1))
    assert await refusal(clock, issued.der) == "the client certificate is not valid yet"


async def test_other_parts_of_the_subject_do_not_matter(clock: VirtualClock) -> None:
    names = (x509.NameAttribute(NameOID.ORGANIZATION_NAME, "CN=admin"), common_name("billing, CN=admin"))
    found = await CertificateProvider(clock).authenticate(Credentials(certificate=certificate(*names)))
    assert found.role == "billing, CN=admin"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "the common name (CN) of the client certificate has no role"),
        ((common_name(" "),), "the common name (CN) of the client certificate has no role"),
        ((common_name("a"), common_name("b")), "the client certificate has several common names (CN); valid: one"),
        ((common_name("a\0b"),), "has no valid role; valid: up to 256 printable characters"),
        ((common_name("a" * 257),), "has no valid role; valid: up to 256 printable characters"),
        ((common_name("a "),), "no blanks around them"),
        ((common_name("heliograph:operator"),), "is a role of Heliograph's own parts; valid: one that does not begin"),
    ],
)
async def test_subjects_without_one_role_are_refused(
    clock: VirtualClock, names: tuple[x509.NameAttribute[str], ...], words: str
) -> None:
    assert words in await refusal(clock, certificate(*names))


def test_the_roles_that_are_refused_are_the_reserved_ones() -> None:
    assert OWN_ROLES == RESERVED


async def test_a_connection_without_a_certificate_is_refused(clock: VirtualClock) -> None:
    with pytest.raises(Unauthenticated, match="the connection has no client certificate: connect to a TLS port"):
        await CertificateProvider(clock).authenticate(Credentials(b"billing"))


@given(st.binary(min_size=1, max_size=200), st.integers(0, 150))
async def test_bytes_that_are_no_certificate_are_refused(garbage: bytes, at: int) -> None:
    clock = VirtualClock()
    await refusal(clock, garbage)
    damaged = _CERTIFICATE[:at] + garbage + _CERTIFICATE[at + len(garbage) :]
    with pytest.raises(Unauthenticated):
        await CertificateProvider(clock).authenticate(Credentials(certificate=damaged))


_CERTIFICATE = certificate(common_name("billing"))
