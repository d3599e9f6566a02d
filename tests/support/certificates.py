"""Certificate authorities of a test, and the certificates they issue, as files in PEM.

Keys are of the curve P-256, which is quick to draw and which all of Pulsar's clients know.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .secret_watch import WATCH

#: The names by which tests reach a broker on this machine.
LOCAL: Final = ("localhost", "127.0.0.1")
_DAY = timedelta(days=1)


class CertificateFiles(NamedTuple):
    """The files of a certificate and its private key."""

    certificate: Path
    key: Path


class Certificate(NamedTuple):
    """A certificate with its private key, both in PEM."""

    certificate: bytes
    key: bytes

    @property
    def parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate)

    @property
    def der(self) -> bytes:
        return self.parsed.public_bytes(serialization.Encoding.DER)

    @property
    def expires_at_s(self) -> int:
        """When it expires, seconds since the Unix epoch."""
        return int(self.parsed.not_valid_after_utc.timestamp())

    def write(self, directory: Path, name: str = "tls") -> CertificateFiles:
        """Write ``name.crt`` and ``name.key`` into a directory, which is created if missing."""
        directory.mkdir(parents=True, exist_ok=True)
        files = CertificateFiles(directory / f"{name}.crt", directory / f"{name}.key")
        files.certificate.write_bytes(self.certificate)
        files.key.touch(mode=0o600)
        files.key.write_bytes(self.key)
        return files


class MountedCertificate:
    """The files of a certificate behind a link, as in a Secret that is mounted: both are replaced at once."""

    def __init__(self, directory: Path, certificate: Certificate) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._versions = itertools.count()
        self.files = CertificateFiles(directory / "tls.crt", directory / "tls.key")
        self.replace(certificate)
        for path in self.files:
            path.symlink_to(f"..data/{path.name}")

    def replace(self, certificate: Certificate) -> None:
        """Put another certificate and key in the place of those that are there."""
        version = f"..version-{next(self._versions)}"
        certificate.write(self._directory / version)
        link = self._directory / "..swap"
        link.symlink_to(version)
        link.rename(self._directory / "..data")


class Authority:
    """A certificate authority with a certificate of its own in :attr:`pem`."""

    def __init__(self, name: str = "test authority", *, starts: datetime | None = None, ends: datetime | None = None):
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        builder = _builder(self._name, self._name, self._key, starts, ends or datetime.now(UTC) + 3650 * _DAY)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        self._certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def write(self, directory: Path, name: str = "ca") -> Path:
        """Write ``name.crt`` into a directory, which is created if missing, and return its path."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{name}.crt"
        path.write_bytes(self.pem)
        return path

    def issue(
        self,
        common_name: str = "broker",
        *,
        hosts: Sequence[str] = LOCAL,
        starts: datetime | None = None,
        ends: datetime | None = None,
    ) -> Certificate:
        """Issue a certificate for servers and clients, by default valid since two days ago and for 30 days.

        An empty ``common_name`` is left out. ``hosts`` are the names and IP addresses that clients may verify it for.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(common_name), self._name, key, starts, ends or datetime.now(UTC) + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(each) for each in hosts]), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        WATCH.secret(f"the private key of {common_name}", private)
        return Certificate(certificate.public_bytes(serialization.Encoding.PEM), private)

    def identify(self, directory: Path, *, ends: datetime | None = None) -> CertificateFiles:
        """Return the files of a certificate for a client, whose name is ``client``."""
        return self.issue("client", hosts=(), ends=ends).write(directory, "client")


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else [])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    starts: datetime | None,
    ends: datetime,
) -> x509.CertificateBuilder:
    # Valid for a while already, also for a machine whose clock is behind, and even if it has expired.
    begins = starts or min(datetime.now(UTC), ends) - 2 * _DAY
    return x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), begins, ends)
