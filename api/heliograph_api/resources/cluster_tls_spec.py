"""TLS of the brokers of a BrokerCluster: where their certificate comes from, and which clients come in."""

from __future__ import annotations

from typing import ClassVar, Final, Self

from pydantic import Field, model_validator

from .cel import Rule
from .certificate_source import MountedCertificates
from .fields import MAX_REFERENCE, Contradiction, Model

_NO_AUTHORITY: Final = "needs authorities that certificates of clients are verified by; valid: set clientCA, too"
_LOCKED_OUT: Final = (
    "would lock out the kubelet's probes and the operator, which have no certificate; valid: only or"
    " requireClientCertificate, not both"
)


class ClusterTlsSpec(Model):
    """TLS of the brokers, on port 6651 for the binary protocol and 8443 for HTTP."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.requireClientCertificate) || !self.requireClientCertificate || has(self.clientCA)",
            _NO_AUTHORITY,
            ".requireClientCertificate",
        ),
        Rule(
            "!has(self.requireClientCertificate) || !self.requireClientCertificate || !has(self.only) || !self.only",
            _LOCKED_OUT,
            ".only",
        ),
    )

    enabled: bool = False
    """Whether the brokers have TLS. A change restarts the pods; another certificate does not."""
    secret_name: str | None = Field(default=None, min_length=1, max_length=MAX_REFERENCE)
    """Secret with the brokers' certificate, as cert-manager makes it (`tls.crt`, `tls.key`, `ca.crt`), in the
    Kubernetes namespace of the BrokerCluster; left out: the operator makes an authority and a certificate, and renews
    both."""
    client_ca: MountedCertificates | None = Field(default=None, alias="clientCA")
    """Authorities of clients' certificates; default: clients are not asked for one."""
    require_client_certificate: bool = False
    """Whether clients without a certificate are refused."""
    only: bool = False
    """Whether no port is without TLS. The port of the metrics has it then, too."""

    @model_validator(mode="after")
    def _lets_someone_in(self) -> Self:
        if self.require_client_certificate and self.client_ca is None:
            raise Contradiction([("requireClientCertificate", _NO_AUTHORITY)])
        if self.require_client_certificate and self.only:
            raise Contradiction([("only", _LOCKED_OUT)])
        return self
