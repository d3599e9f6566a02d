"""The certificate authorities of a BrokerCluster: which there are, which one issues, and which clients trust.

They are in a Secret with their keys, which only the operator reads. Their certificates are published for clients, and
are in the Secret with the brokers' certificate. These are written in this order, so after a crash between two writes
the same plan follows from what is there. An authority issues only after clients have had the time to learn of it, and
stays published until the last certificate that it issued has expired.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from heliograph_operator.objects.conditions import read_timestamp, timestamp

#: Difference of clocks that is allowed for: certificates are valid from a moment before they are made.
SKEW: Final = timedelta(hours=1)
#: Validity of the certificate of an authority.
AUTHORITY_VALID: Final = timedelta(days=730)
#: Age at which the next authority has taken over.
ISSUES: Final = timedelta(days=365)
#: Time that clients have to take over a new authority, also those who copy it by hand.
OVERLAP: Final = timedelta(days=30)
#: The same if there is no other way: twice the period after which kubelets bring a changed ConfigMap into pods.
SETTLE: Final = timedelta(minutes=2)
#: Validity of a certificate of brokers.
CERTIFICATE_VALID: Final = timedelta(days=90)
#: Time before a certificate expires in which an authority issues the next one although clients had little time.
LAST: Final = timedelta(days=10)
#: Authorities that are trusted at the same time; no further one is made while there is a certificate to use.
MAX_AUTHORITIES: Final = 6
#: The times that are read from a Secret; before and after them is no room for what is added.
_FIRST: Final = datetime(2000, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority. Its key is not part of its text."""

    certificate: x509.Certificate
    #: When clients have learned of it, so that it may issue.
    settled: datetime
    #: When another one took over, or its key was lost; None: it may issue.
    retired: datetime | None = None
    #: The key, in PEM; empty if it was lost.
    private: str = field(default="", repr=False)

    @property
    def id(self) -> str:
        """The beginning of its fingerprint."""
        return hashlib.sha256(self.certificate.public_bytes(Encoding.DER)).hexdigest()[:16]

    @property
    def made(self) -> datetime:
        """When it was made."""
        return self.certificate.not_valid_before_utc + SKEW

    @property
    def pem(self) -> str:
        """The certificate, in PEM."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def ended(self, now: datetime) -> bool:
        """Whether no certificate that it issued is valid any more."""
        if self.certificate.not_valid_after_utc <= now:
            return True
        return self.retired is not None and self.retired + CERTIFICATE_VALID + SKEW <= now

    def begins_after(self, now: datetime) -> bool:
        """Whether it is not valid yet."""
        return self.certificate.not_valid_before_utc > now

    def not_retired(self) -> Authority:
        """Return it as it was before it retired; without its key, it stays retired."""
        return replace(self, retired=None) if self.private else self

    def may_issue(self) -> bool:
        """Whether it has its key, and no other one has taken over."""
        return bool(self.private) and self.retired is None


@dataclass(frozen=True, slots=True)
class InUse:
    """The certificate that brokers have, as far as it matters to authorities."""

    certificate: x509.Certificate
    #: Whether its key is there, and it is valid now.
    usable: bool


@dataclass(frozen=True, slots=True)
class AuthorityPlan:
    """The authorities as they are to be stored, before any is published."""

    authorities: tuple[Authority, ...]
    #: The one that issues; None: none may before clients have learned of it.
    issuer: Authority | None

    @property
    def bundle(self) -> str:
        """The certificates that clients are to trust, in PEM."""
        return "".join(each.pem for each in self.authorities)


def new_authority(name: str, now: datetime) -> Authority:
    """Return a new authority, that clients have not learned of."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "Heliograph"),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{name[:40]} {timestamp(now)}"),
        ]
    )
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + AUTHORITY_VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return Authority(made, now + OVERLAP, private=private)


def plan_authorities(
    authorities: Iterable[Authority],
    recorded: Iterable[x509.Certificate],
    published: Iterable[x509.Certificate] | None,
    in_use: InUse | None,
    now: datetime,
    make: Callable[[datetime], Authority],
    *,
    confirmed: bool = False,
) -> AuthorityPlan:
    """Return what is to become of the stored ``authorities``, when brokers have the certificate ``in_use``.

    ``recorded`` are those that were published when it was issued, and ``published`` those that clients find now; None:
    these find nothing. ``confirmed``: another clock agrees, so what was made or retired later than now was so by a
    clock that was ahead. Raises nothing: whatever is missing is made.
    """
    stored = list(authorities)
    kept, known = [each for each in stored if not each.ended(now)], {each.id for each in stored}
    # Whose keys are lost: the certificates that they issued stay valid.
    lost = [Authority(each, now, retired=now) for each in recorded]
    kept += [each for each in lost if each.id not in known and not each.ended(now)]
    first = not kept
    if published is not None:
        found = set(published)
        # Clients that were to learn of it have not: something is an old copy, or the write before did not happen.
        kept = [each if each.certificate in found else replace(each, settled=now + OVERLAP) for each in kept]
    if confirmed:
        kept = [each.not_retired() if each.retired is not None and each.retired > now + SKEW else each for each in kept]
    is_served = in_use is not None and in_use.usable and is_trusted(in_use.certificate, kept, now)
    # One that is not valid yet stays published: all clocks may be behind.
    able = [each for each in kept if each.may_issue() and not (confirmed and each.begins_after(now))]
    newest = max(able, key=_age, default=None)
    is_due = newest is None or newest.made + ISSUES - OVERLAP <= now
    if is_due and (len(kept) < MAX_AUTHORITIES or not is_served):
        made = make(now)
        made = replace(made, settled=now) if first else made
        kept.append(made)
        able.append(made)
    issuer = max((each for each in able if each.settled <= now), key=_age, default=None)
    if issuer is None and able and (not is_served or (in_use is not None and _must_issue(able, in_use, now))):
        # The one that clients have known for longest.
        issuer = min(able, key=lambda each: (each.settled, _age(each)))
        kept = [replace(each, settled=now) if each.id == issuer.id else each for each in kept]
    if issuer is not None:
        since, chosen = _age(issuer), issuer.id
        kept = [replace(each, retired=now) if each.may_issue() and _age(each) < since else each for each in kept]
        issuer = next(each for each in kept if each.id == chosen)
    return AuthorityPlan(tuple(kept), issuer)


def is_trusted(certificate: x509.Certificate, authorities: Iterable[Authority], now: datetime) -> bool:
    """Whether a certificate is by one of the authorities that clients have learned of."""
    return any(each.settled <= now and _issued(certificate, each) for each in authorities)


def _must_issue(able: Iterable[Authority], in_use: InUse, now: datetime) -> bool:
    """Whether the certificate in use is at its end, and clients of Kubernetes know an authority that may issue."""
    is_last = in_use.certificate.not_valid_after_utc - LAST <= now
    return is_last and any(each.settled - OVERLAP + SETTLE <= now for each in able)


def _issued(certificate: x509.Certificate, authority: Authority) -> bool:
    """Whether an authority issued a certificate."""
    try:
        certificate.verify_directly_issued_by(authority.certificate)
    except Exception:
        # Not only InvalidSignature: a certificate of somebody else may have a key of another type.
        return False
    return True


def _age(authority: Authority) -> tuple[datetime, str]:
    return authority.made, authority.id


# -- the content of the Secret -------------------------------------------------------------------------------------

STORED: Final = "authorities.json"
"""The entry of the Secret with the authorities and their keys."""


def private_data(authorities: Iterable[Authority]) -> dict[str, str]:
    """Return the entries of the Secret."""
    fields = [
        {
            "certificate": each.pem,
            "settled": timestamp(each.settled),
            **({"private": each.private} if each.private else {}),
            **({"retired": timestamp(each.retired)} if each.retired else {}),
        }
        for each in authorities
    ]
    return {STORED: json.dumps(fields, indent=1, sort_keys=True) + "\n"}


def read_private(data: Mapping[str, str]) -> list[Authority]:
    """Return the authorities in a Secret's entries; those that cannot be read are left out, as if they were lost."""
    try:
        listed = json.loads(data.get(STORED, "[]"))
    except ValueError:
        return []
    found = (_authority(each) for each in listed if isinstance(each, dict)) if isinstance(listed, list) else ()
    return [each for each in found if each is not None]


def _authority(fields: Mapping[str, Any]) -> Authority | None:
    try:
        certificate = x509.load_pem_x509_certificate(str(fields["certificate"]).encode())
        settled = _time(fields["settled"])
        retired = _time(fields["retired"]) if fields.get("retired") else None
        private = str(fields.get("private") or "")
        if private and not has_key(certificate, private):
            private = ""
    except (ValueError, KeyError):
        return None
    return Authority(certificate, settled, retired, private) if private or retired else None


def _time(text: object) -> datetime:
    return max(_FIRST, min(read_timestamp(text), _LAST))


def has_key(certificate: x509.Certificate, private: str) -> bool:
    """Whether ``private`` (PEM) is the key of a certificate."""
    try:
        key = load_pem_private_key(private.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(*form) == certificate.public_key().public_bytes(*form)


def certificates_in(text: str) -> list[x509.Certificate]:
    """Return the certificates of a text in PEM; none if it cannot be read."""
    try:
        return x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        return []
