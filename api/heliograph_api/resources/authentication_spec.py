"""Authentication of the clients of a BrokerCluster: by tokens that the operator signs, and those of others."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Final, Self

from pydantic import AfterValidator, Field, model_validator

from heliograph_api.policies.grants import RESERVED
from heliograph_api.values.durations import format_duration
from heliograph_api.values.quoting import quoted

from .cel import DURATION, InSchema, Rule
from .certificate_source import MountedCertificates
from .fields import Contradiction, Duration, Model, Unique, unique
from .patterns import matching

MAX_ROLE: Final = 253
OPERATOR_ROLE: Final = "heliograph:operator"
"""The role of the operator, a superuser of each BrokerCluster with authentication."""
METRICS_ROLE: Final = "heliograph:metrics"
"""The role of Prometheus, which may read metrics and nothing else."""
BACKUP_ROLE: Final = "heliograph:backup"
"""The role of the Jobs of Backups, which may fetch backups and nothing else."""
ARCHIVE_ROLES: Final = "heliograph:archive/"
"""Begins the roles of archives, each of which may consume its topic and nothing else."""

_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS
_MAX_VALIDITY_MS: Final = 366 * _DAY_MS
_ROLE: Final = "[0-9A-Za-z]([0-9A-Za-z._:/@-]*[0-9A-Za-z])?"
_NO_ROLE: Final = "not a role; valid: letters, digits and the characters . _ : / @ -, a letter or digit at both ends"
_IS_RESERVED: Final = f"roles that begin with {RESERVED} are Heliograph's own; valid: another name"
_NO_PERIOD: Final = "not a period of keys; valid: 1d or more, or -1 or infinite for no rotation"
_ISSUER: Final = "https://[^ ?#@,]+"
_NO_ISSUER: Final = "not an issuer; valid: a URL with https"
_AUDIENCE: Final = "[^ ,]+"
_NO_AUDIENCE: Final = "not an audience; valid: a name without blanks and commas"
_NEEDS_AUDIENCE: Final = "needs audiences: an issuer's tokens for other services would do otherwise; valid: one or more"
_NOT_TRUSTED: Final = "is for an issuer that is not among issuers; valid: one of them"
_NO_ISSUERS: Final = "needs issuers, whose servers it is for; valid: issuers, too"
_NO_VALIDITY: Final = "not the validity of a token; valid: from 10m to 366d"
_BY_ISSUER: Final = InSchema({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["issuer"]})


def _role(text: str) -> str:
    if re.fullmatch(_ROLE, text, re.ASCII) is None:
        raise ValueError(f"{quoted(text)} is {_NO_ROLE}")
    if text.startswith(RESERVED):
        raise ValueError(f"{quoted(text)}: {_IS_RESERVED}")
    return text


def _period(duration_ms: int) -> int:
    if 0 <= duration_ms < _DAY_MS:
        raise ValueError(f"{format_duration(duration_ms)} is {_NO_PERIOD}")
    return duration_ms


def _validity(duration_ms: int) -> int:
    if not 10 * _MINUTE_MS <= duration_ms <= _MAX_VALIDITY_MS:
        raise ValueError(f"{format_duration(duration_ms)} is {_NO_VALIDITY}")
    return duration_ms


Role = Annotated[
    str,
    AfterValidator(_role),
    InSchema({"maxLength": MAX_ROLE}),
    Field(max_length=MAX_ROLE),
    Rule(f"self.matches('^{_ROLE}$')", _NO_ROLE),
    Rule(f"!self.startsWith('{RESERVED}')", _IS_RESERVED),
]
"""The name that a client has proven."""
IssuerUrl = Annotated[str, *matching(_ISSUER, _NO_ISSUER, 500)]
"""An issuer of tokens (OpenID Connect)."""
Audience = Annotated[str, *matching(_AUDIENCE, _NO_AUDIENCE, 253)]
"""Whom a token is for, by its claim aud."""
Validity = Annotated[
    Duration,
    AfterValidator(_validity),
    Rule(DURATION.where("self", f"v >= {10 * _MINUTE_MS} && v <= {_MAX_VALIDITY_MS}"), _NO_VALIDITY),
]
"""Milliseconds for which a token is valid."""


class KeyRotationSpec(Model):
    """Replacement of the key that signs tokens."""

    every: Annotated[
        Duration,
        AfterValidator(_period),
        Rule(DURATION.where("self", f"v < 0 || v >= {_DAY_MS}"), _NO_PERIOD),
    ] = 90 * _DAY_MS
    """Time for which a key signs; -1: indefinitely. Tokens of the key before stay valid until they expire."""


class ServiceAccountsSpec(Model):
    """Tokens of Kubernetes' service accounts."""

    enabled: bool = False
    """Whether brokers accept tokens of service accounts of their Kubernetes cluster, which they verify by the keys that
    its API server publishes. A change restarts the pods."""
    audience: Audience = "heliograph"
    """Audience that these tokens must be for, as pods have it in their projected volume."""


class IssuerAudiencesSpec(Model):
    """The audiences of one issuer's tokens."""

    issuer: IssuerUrl
    """URL of the issuer, as `issuers` has it."""
    audiences: Annotated[Unique[Audience], Field(min_length=1, max_length=10), Rule("size(self) > 0", _NEEDS_AUDIENCE)]
    """Audiences of its tokens: each must be for one of them."""


def _each_once(items: list[IssuerAudiencesSpec]) -> list[IssuerAudiencesSpec]:
    unique([each.issuer for each in items])
    return items


class OidcSpec(Model):
    """Tokens of identity providers (OpenID Connect)."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.issuers) || size(self.issuers) == 0 || (has(self.audiences) && size(self.audiences) > 0)"
            " || (has(self.audiencesByIssuer)"
            " && self.issuers.all(issuer, self.audiencesByIssuer.exists(x, x.issuer == issuer)))",
            _NEEDS_AUDIENCE,
            ".issuers",
        ),
        Rule(
            "!has(self.audiencesByIssuer) || self.audiencesByIssuer.all(x, has(self.issuers) && x.issuer in"
            " self.issuers)",
            _NOT_TRUSTED,
            ".audiencesByIssuer",
        ),
        Rule("!has(self.ca) || (has(self.issuers) && size(self.issuers) > 0)", _NO_ISSUERS, ".ca"),
    )

    issuers: Annotated[Unique[IssuerUrl], Field(max_length=10)] = Field(default_factory=list)
    """URLs of the issuers whose tokens brokers accept; default: none. A change restarts the pods."""
    audiences: Annotated[Unique[Audience], Field(max_length=10)] = Field(default_factory=list)
    """Audiences of their tokens: each must be for one of them, unless `audiencesByIssuer` names its issuer."""
    audiences_by_issuer: Annotated[
        list[IssuerAudiencesSpec], AfterValidator(_each_once), _BY_ISSUER, Field(max_length=10)
    ] = Field(default_factory=list)
    """Audiences of single issuers, whose tokens must be for one of these and not of `audiences`: so that an issuer
    cannot issue tokens for the audience of another one."""
    role_claim: str = Field(default="sub", min_length=1, max_length=100)
    """Claim of their tokens that names the client."""
    ca: MountedCertificates | None = None
    """Certificate authorities of the issuers' servers, of all of them; default: those of the system. Brokers follow a
    change of the certificates without a restart."""

    @model_validator(mode="after")
    def _for_an_audience(self) -> Self:
        named = {each.issuer for each in self.audiences_by_issuer}
        if not self.audiences and not named.issuperset(self.issuers):
            raise Contradiction([("issuers", _NEEDS_AUDIENCE)])
        if not named.issubset(self.issuers):
            raise Contradiction([("audiencesByIssuer", _NOT_TRUSTED)])
        if self.ca is not None and not self.issuers:
            raise Contradiction([("ca", _NO_ISSUERS)])
        return self


class ClusterAuthenticationSpec(Model):
    """Authentication of clients by tokens that the operator signs, and by those of others."""

    enabled: bool = False
    """Whether clients need credentials. The operator makes a pair of keys, whose public half the brokers get, and signs
    tokens with the other. A client without grants may do nothing. A change restarts the pods."""
    superusers: Annotated[Unique[Role], Field(max_length=50)] = Field(default_factory=list)
    """Roles that may do everything, beside the operator's own."""
    max_token_validity: Validity = 90 * _DAY_MS
    """Longest validity of a token. A key that was replaced is trusted for this time after its last signature."""
    key_rotation: KeyRotationSpec = KeyRotationSpec()
    """Replacement of the key that signs tokens."""
    service_accounts: ServiceAccountsSpec = ServiceAccountsSpec()
    """Tokens of Kubernetes' service accounts; default: brokers do not accept them."""
    oidc: OidcSpec = Field(default_factory=OidcSpec)
    """Tokens of identity providers; default: brokers accept those of none."""
