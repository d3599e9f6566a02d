"""The spec of a BrokerConnection: where brokers are that somebody else runs, and how to talk to them."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Final, Self

from pydantic import AfterValidator, Field, model_validator

from heliograph_api.values.quoting import quoted

from .cel import InSchema, Rule
from .certificate_source import CertificateReference, CertificateSource, EntryName
from .fields import Contradiction, Model, Reference
from .references import MAX_CONSENTS, Consent

_MAX_URL: Final = 500
_HOST: Final = r"([0-9A-Za-z]([0-9A-Za-z.-]*[0-9A-Za-z])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?"
_HTTP: Final = rf"https?://{_HOST}(/[0-9A-Za-z._~/-]*)?"
_SERVICE: Final = rf"pulsar(\+ssl)?://{_HOST}(,{_HOST})*"
_NO_HTTP: Final = "is not the URL of an admin API; valid: http://host:8080 or https://host:8443, without a query"
_NO_SERVICE: Final = "is not a service URL; valid: pulsar://host:6650 or pulsar+ssl://host:6651"
_ENCRYPTED: Final = "is for https only; valid: leave it out, or an adminUrl with https"


def _matching(expression: str, problem: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(expression, text):
            raise ValueError(f"{quoted(text)} {problem}")
        return text

    return AfterValidator(check)


def _cel(expression: str) -> str:
    """Return a regular expression as a text in CEL."""
    return "'^(" + expression.replace("\\", "\\\\") + ")$'"


class TokenReference(Reference):
    """An entry of a Secret with a token."""

    key: EntryName = "token"
    """The entry that has the token."""


class ConnectionAuthSpec(Model):
    """The operator's credentials."""

    secret_ref: TokenReference
    """Secret with a token, in the Kubernetes namespace of the BrokerConnection. The operator may read only the Secrets
    that its chart names in `connections.secrets`."""


class ConnectionTlsSpec(CertificateSource):
    """Trust in the certificate of an https server."""

    secret_ref: CertificateReference | None = None
    """Secret with the certificates of the authorities to trust, and no others. As for a token, the operator's chart
    has to name it."""


class BrokerConnectionSpec(Model):
    """Addresses of brokers that this operator did not make, and the credentials for them."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule("!has(self.tls) || self.adminUrl.startsWith('https://')", _ENCRYPTED, ".tls"),
    )

    admin_url: Annotated[
        str,
        _matching(_HTTP, _NO_HTTP),
        Rule(f"self.matches({_cel(_HTTP)})", _NO_HTTP),
        InSchema({"maxLength": _MAX_URL}),
    ] = Field(max_length=_MAX_URL)
    """URL of the admin REST API of a Heliograph or an Apache Pulsar, such as http://pulsar.example.com:8080. With
    several brokers and a token: that of a proxy. If it leads to other brokers than those that have the objects of its
    resources, nothing is done there (`BrokersChanged`)."""
    service_url: (
        Annotated[
            str,
            _matching(_SERVICE, _NO_SERVICE),
            Rule(f"self.matches({_cel(_SERVICE)})", _NO_SERVICE),
            InSchema({"maxLength": _MAX_URL}),
        ]
        | None
    ) = Field(default=None, max_length=_MAX_URL)
    """URL for clients, such as pulsar://pulsar.example.com:6650. It is shown in the status and not used otherwise."""
    auth: ConnectionAuthSpec | None = None
    """Credentials of the operator; left out: none."""
    tls: ConnectionTlsSpec | None = None
    """Certificate authorities; default: those of the operator's image."""
    consents: Annotated[list[Consent], Field(max_length=MAX_CONSENTS)] = Field(default_factory=list)
    """Resources of other Kubernetes namespaces that may be on these brokers; default: none. Those of its own may."""

    @model_validator(mode="after")
    def _trusts_only_what_is_encrypted(self) -> Self:
        if self.tls is not None and not self.admin_url.startswith("https://"):
            raise Contradiction([("tls", _ENCRYPTED)])
        return self
