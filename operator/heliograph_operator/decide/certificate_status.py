"""The brokers' certificate in the status of a BrokerCluster: its condition TLSReady, and its fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from heliograph_api.resources.cluster_tls_spec import ClusterTlsSpec

from heliograph_operator.objects.conditions import TLS_READY, Truth, Verdict, timestamp

from .cluster_status import ClusterReason, Problem
from .server_certificate import ServerCertificate

_MAX_NAMES: Final = 5
#: Reasons for which a certificate cannot be given to brokers at all.
_REFUSALS: Final = frozenset(
    {
        ClusterReason.CERTIFICATE_MISSING,
        ClusterReason.CERTIFICATE_UNUSABLE,
        ClusterReason.CERTIFICATE_NAMES_MISSING,
    }
)


@dataclass(frozen=True, slots=True)
class CertificateState:
    """The certificate that brokers mount."""

    #: The Secret with it.
    secret: str
    server: ServerCertificate
    #: The ConfigMap with the authorities; empty: clients need none.
    authorities: str
    #: Names that clients verify and that it does not have.
    lacking: tuple[str, ...] = ()
    #: When the operator replaces it; None: somebody else does.
    renewed: datetime | None = None

    def verdict(self, now: datetime) -> Verdict:
        """Return the condition TLSReady."""
        server = self.server
        ends = f"the certificate of Secret {self.secret} expires at {timestamp(server.expires)}"
        if server.expires <= now:
            message = f"the certificate of Secret {self.secret} expired at {timestamp(server.expires)}"
            return _verdict("False", ClusterReason.CERTIFICATE_EXPIRED, message)
        if now < server.leaf.not_valid_before_utc:
            begins = timestamp(server.leaf.not_valid_before_utc)
            message = f"the certificate of Secret {self.secret} is not valid before {begins}"
            return _verdict("False", ClusterReason.CERTIFICATE_UNUSABLE, message)
        if self.lacking:
            more = f" and {len(self.lacking) - _MAX_NAMES} more" if len(self.lacking) > _MAX_NAMES else ""
            names = ", ".join(self.lacking[:_MAX_NAMES])
            message = f"the certificate of Secret {self.secret} is not for {names}{more}, which clients verify"
            return _verdict("False", ClusterReason.CERTIFICATE_NAMES_MISSING, message)
        if server.late <= now:
            return _verdict("False", ClusterReason.CERTIFICATE_EXPIRING, f"{ends}, and nobody has replaced it")
        again = f"; it is replaced at {timestamp(self.renewed)}" if self.renewed is not None else ""
        return _verdict("True", ClusterReason.CERTIFICATE_VALID, f"{ends}{again}")

    def fields(self) -> dict[str, Any]:
        """Return the field ``tls`` of the status."""
        found: dict[str, Any] = {"secret": self.secret, "expires": timestamp(self.server.expires)}
        if self.authorities:
            found["authorities"] = self.authorities
        if self.renewed is not None:
            found["renewed"] = timestamp(self.renewed)
        return found


@dataclass(frozen=True, slots=True)
class TlsReport:
    """The part of a BrokerCluster's status about TLS: its condition, or that it has none, and its field."""

    verdicts: tuple[Verdict, ...] = ()
    without: tuple[str, ...] = ()
    state: CertificateState | None = None

    def fields(self, status: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the field ``tls``, which stays as it was while there is nothing new to say."""
        return self.state.fields() if self.state is not None else None if self.without else status.get("tls")


def tls_report(
    tls: ClusterTlsSpec, state: CertificateState | None, refused: Problem | None, now: datetime
) -> TlsReport:
    """Return what to report; ``refused`` is why the spec was not applied."""
    if not tls.enabled:
        return TlsReport(without=(TLS_READY,))
    if state is not None:
        return TlsReport((state.verdict(now),), state=state)
    if refused is not None and refused[0] in _REFUSALS:
        return TlsReport((Verdict(TLS_READY, "False", refused[0], refused[1]),))
    return TlsReport()


def missing_names(server: ServerCertificate, names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the names that a certificate is not for."""
    return tuple(each for each in names if not server.is_for(each))


def _verdict(status: Truth, reason: ClusterReason, message: str) -> Verdict:
    return Verdict(TLS_READY, status, reason, message)
