"""The spec of a User: a role, how its clients prove it, and what it may do."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from heliograph_api.values.durations import format_duration
from heliograph_api.values.names import InvalidName, NamespaceName, TopicName

from .authentication_spec import IssuerUrl, Role, Validity
from .cel import DURATION, Rule, where_both
from .fields import Contradiction, Count, Duration, Model, SubscriptionText, Unique
from .patterns import WITHOUT_DOTS, matching
from .policy_parts import RateSpec
from .references import ResourceReference
from .role_state import RoleLimits
from .unchanged import unchanged

_DAY_MS: Final = 24 * 3600 * 1000
_MAX_NAME: Final = 253
_MAX_TOPIC: Final = 512
_MAX_PERMISSIONS: Final = 50
_OBJECT: Final = "[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_NAMESPACE: Final = "[-=:.0-9A-Za-z_]+/[-=:.0-9A-Za-z_]+"
_TOPICS: Final = "[^/\\\\s*]+[*]?|[*]"
_TOPIC: Final = f"((non-)?persistent://)?{_NAMESPACE}/[^/\\\\s*]+"
_SUBJECT: Final = "CN=[^,=+]+"
_HOST: Final = "([a-z0-9]([-a-z0-9]*[a-z0-9])?[.])*[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NO_OBJECT: Final = "not a name of an object; valid: small letters, digits, - and . (a letter or digit at both ends)"
_NO_NAMESPACE: Final = "not the name of a namespace; valid: tenant/namespace"
_NO_TOPICS: Final = "not a topic's own name; valid: a name, or the beginning of names with a * at its end"
_NO_TOPIC: Final = "not the name of a topic; valid: tenant/namespace/topic or persistent://tenant/namespace/topic"
_NO_SUBJECT: Final = "not a common name; valid: CN= and the name, such as CN=billing"
_NO_HOST: Final = "not a DNS name; valid: small letters, digits, - and ., such as billing.example.org"
_ONE_NAME: Final = "a certificate is known by one name; valid: subject, or dnsName"
_ONE_PROOF: Final = "has one way to prove the role; valid: token, serviceAccount, certificate or oidc"
_ONE_PLACE: Final = "a permission is for one place; valid: namespace (with or without topics), or topic"
_TOO_EARLY: Final = "is not shorter than validity; valid: less"
_NOT_BEFORE: Final = "a token is replaced before its end; valid: above 0, and not infinite"
_NO_CONSUMER: Final = "are for those that consume; valid: leave it out, or consume among actions"


def _above(duration_ms: int) -> int:
    if duration_ms <= 0:
        raise ValueError(_NOT_BEFORE)
    return duration_ms


ObjectName = Annotated[str, *matching(_OBJECT, _NO_OBJECT, _MAX_NAME)]
"""The name of an object in Kubernetes."""


class TokenProof(Model):
    """A token that the operator issues and replaces in time."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            where_both(DURATION, "self.rotateBefore", DURATION, "self.validity", "v < other"),
            _TOO_EARLY,
            ".rotateBefore",
        ),
    )

    secret_name: ObjectName | None = None
    """Secret that gets the token, in the Kubernetes namespace of the User; default: `metadata.name` and `-token`. One
    that exists and is not of this User is not touched. After a change, the one before is deleted."""
    validity: Validity = 30 * _DAY_MS
    """Time for which a token is valid; at most `authentication.maxTokenValidity` of the BrokerCluster."""
    rotate_before: Annotated[Duration, AfterValidator(_above), Rule(DURATION.where("self", "v > 0"), _NOT_BEFORE)] = (
        7 * _DAY_MS
    )
    """Time before its end at which a token is replaced. The one before stays valid until its end."""

    @model_validator(mode="after")
    def _is_replaced_in_time(self) -> Self:
        if self.rotate_before >= self.validity:
            raise Contradiction([("rotateBefore", f"{format_duration(self.rotate_before)} {_TOO_EARLY}")])
        return self


class ServiceAccountProof(Model):
    """Tokens of a ServiceAccount in Kubernetes, which pods get without any Secret."""

    name: ObjectName
    """Its name, in the Kubernetes namespace of the User."""


class CertificateProof(Model):
    """Client certificates of an authority that the brokers trust."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (Rule("has(self.subject) != has(self.dnsName)", _ONE_NAME),)

    subject: Annotated[str, *matching(_SUBJECT, _NO_SUBJECT, _MAX_NAME)] | None = None
    """Common name of the certificate's subject, such as CN=billing."""
    dns_name: Annotated[str, *matching(_HOST, _NO_HOST, _MAX_NAME)] | None = None
    """DNS name among its alternative names, such as billing.example.org."""

    @model_validator(mode="after")
    def _by_one_name(self) -> Self:
        if (self.subject is None) == (self.dns_name is None):
            raise Contradiction([("", _ONE_NAME)])
        return self


class OidcProof(Model):
    """Tokens of an issuer of OpenID Connect."""

    issuer: IssuerUrl
    """URL of the issuer, as the BrokerCluster has it in `authentication.oidc.issuers`."""
    subject: str = Field(min_length=1, max_length=_MAX_NAME)
    """Value of the claim that names the client: sub, or `authentication.oidc.roleClaim` of the BrokerCluster."""


class ProofSpec(Model):
    """One way to prove the role."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.token), has(self.serviceAccount), has(self.certificate), has(self.oidc)].filter(x, x).size()"
            " == 1",
            _ONE_PROOF,
        ),
    )

    token: TokenProof | None = None
    """A token that the operator issues."""
    service_account: ServiceAccountProof | None = None
    """Tokens of a ServiceAccount; the BrokerCluster needs `authentication.serviceAccounts`."""
    certificate: CertificateProof | None = None
    """Client certificates. Not in effect while the brokers do not ask for any: the status says so."""
    oidc: OidcProof | None = None
    """Tokens of an issuer of OpenID Connect, which is one of the BrokerCluster's."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(each is not None for each in (self.token, self.service_account, self.certificate, self.oidc)) != 1:
            raise Contradiction([("", _ONE_PROOF)])
        return self


def _one_token(proofs: list[ProofSpec]) -> list[ProofSpec]:
    if sum(each.token is not None for each in proofs) > 1:
        raise ValueError("has more than one token; valid: one, of which the one before stays valid until its end")
    return proofs


class PermissionSpec(Model):
    """Actions that a role may take in one place."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.namespace) != has(self.topic)", _ONE_PLACE, ".topic"),
        Rule("!has(self.topics) || has(self.namespace)", _ONE_PLACE, ".topics"),
        Rule(
            "!has(self.subscriptions) || size(self.subscriptions) == 0 || 'consume' in self.actions",
            _NO_CONSUMER,
            ".subscriptions",
        ),
    )

    namespace: Annotated[str, *matching(_NAMESPACE, _NO_NAMESPACE, _MAX_TOPIC), *WITHOUT_DOTS] | None = None
    """Namespace in the broker: tenant/namespace."""
    topics: Annotated[str, *matching(_TOPICS, _NO_TOPICS, _MAX_TOPIC), *WITHOUT_DOTS] | None = None
    """Topic of the namespace by its own name, or all whose names begin so: orders-*. Default: all of the namespace."""
    topic: Annotated[str, *matching(_TOPIC, _NO_TOPIC, _MAX_TOPIC), *WITHOUT_DOTS] | None = None
    """Topic by its full name, which has to exist."""
    subscriptions: Annotated[Unique[Annotated[SubscriptionText, *WITHOUT_DOTS]], Field(max_length=20)] = Field(
        default_factory=list
    )
    """Subscriptions of the namespace that only this role, and others that name them, may use; default: none. A role
    that may consume may use all others, too."""
    actions: Annotated[
        Unique[Literal["produce", "consume"]],
        Field(min_length=1, max_length=2),
        Rule("size(self) > 0", "names no action; valid: produce, consume"),
    ]
    """Actions: produce, consume."""

    @model_validator(mode="after")
    def _in_one_place(self) -> Self:
        if (self.namespace is None) == (self.topic is None) or (self.topics is not None and self.namespace is None):
            raise Contradiction([("topic" if self.namespace is not None else "namespace", _ONE_PLACE)])
        if self.subscriptions and "consume" not in self.actions:
            raise Contradiction([("subscriptions", _NO_CONSUMER)])
        try:
            _ = self.in_namespace, self.on_topic
        except InvalidName as error:
            raise Contradiction([("topic", str(error))]) from None
        return self

    @property
    def in_namespace(self) -> str:
        """The namespace of what it is for."""
        if self.namespace is not None:
            return str(NamespaceName.parse(self.namespace))
        return TopicName.parse(str(self.topic)).namespace_name

    @property
    def on_topic(self) -> str:
        """The full name of the topic, or of all topics that begin so, with a ``*``; empty: the whole namespace."""
        if self.topic is not None:
            return str(TopicName.parse(self.topic).base)
        if self.topics in (None, "*"):
            return ""
        return f"persistent://{self.in_namespace}/{self.topics}"


class UserLimitsSpec(Model):
    """Limits of all clients of a role together, on each broker; left out: no limit but those of the broker."""

    connections: Count | None = None
    """Connections to the binary ports; the lower of this and the broker's `max_connections_per_role` holds."""
    producers: Count | None = None
    """Open producers."""
    consumers: Count | None = None
    """Open consumers."""
    publish_rate: RateSpec | None = None
    """Messages and bytes that are published; above it the broker reads no more from the role's producers until there is
    room."""
    dispatch_rate: RateSpec | None = None
    """Messages and bytes that consumers get; above it they wait until there is room."""

    def core(self) -> RoleLimits:
        """Return the limits as the broker enforces them."""
        return RoleLimits(
            self.connections,
            self.producers,
            self.consumers,
            self.publish_rate.core() if self.publish_rate is not None else None,
            self.dispatch_rate.core() if self.dispatch_rate is not None else None,
        )


class UserSpec(Model):
    """A role on the brokers of a BrokerCluster."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        unchanged("clusterRef"),
        Rule(
            "has(self.role) == has(oldSelf.role) && (!has(self.role) || self.role == oldSelf.role)",
            "cannot be changed; valid: the previous value, or a new resource",
            ".role",
        ),
    )

    cluster_ref: ResourceReference
    """The BrokerCluster, which has `authentication.enabled`. Cannot be changed."""
    role: Role | None = None
    """Name of the role in the broker; default: the Kubernetes namespace, a slash, and `metadata.name`. Has to begin
    with the Kubernetes namespace and a slash. Cannot be changed."""
    authentication: Annotated[list[ProofSpec], AfterValidator(_one_token), Field(max_length=10)] = Field(
        default_factory=list
    )
    """Ways to prove the role."""
    permissions: Annotated[list[PermissionSpec], Field(max_length=_MAX_PERMISSIONS)] = Field(default_factory=list)
    """Grants of the role. They are all that it has: the operator removes others of this role from the broker."""

    limits: UserLimitsSpec = UserLimitsSpec()
    """Limits of the role's clients. A change takes effect within a second, and closes nothing that is open."""

    @property
    def token(self) -> TokenProof | None:
        """The token that the operator issues; None: it issues none."""
        return next((each.token for each in self.authentication if each.token is not None), None)
