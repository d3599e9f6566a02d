"""Access to the brokers of a BrokerCluster by network: the peers of its NetworkPolicy."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from heliograph_api.values.quoting import quoted

from .cel import InSchema, Rule
from .fields import Contradiction, Model

_MAX_PEERS: Final = 50
_MAX_EXPRESSIONS: Final = 20
_MAX_CIDR_LENGTH: Final = 49

_VALID_CIDR = "an address range such as 10.0.0.0/8 or fd00::/8"
_NO_SOURCE = "names nobody; valid: namespaceSelector, podSelector, both, or ipBlock"
_TWO_SOURCES = "cannot be together with namespaceSelector or podSelector; valid: a peer of its own"
_VALUES_NEEDED = "In and NotIn compare with values; valid: one value or more"
_NO_VALUES = "Exists and DoesNotExist compare with no values; valid: leave it out"


def _cidr(text: str) -> str:
    try:
        # Python would take a netmask, too, and the zone of an address.
        if not re.fullmatch("[0-9A-Fa-f.:]+/[0-9]{1,3}", text):
            raise ValueError
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{quoted(text)} is not a range of addresses; valid: {_VALID_CIDR}") from None
    return text


Cidr = Annotated[str, AfterValidator(_cidr), InSchema({"format": "cidr", "maxLength": _MAX_CIDR_LENGTH})]


class LabelExpression(Model):
    """A condition on a label, as in a selector of Kubernetes."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule("!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)", _VALUES_NEEDED),
        Rule("self.operator in ['In', 'NotIn'] || !has(self.values) || size(self.values) == 0", _NO_VALUES, ".values"),
    )

    key: str = Field(min_length=1, max_length=317)
    """Name of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """Comparison of the label with `values`."""
    values: Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=100)] = Field(default_factory=list)
    """Values of In and NotIn."""

    @model_validator(mode="after")
    def _has_values_for_what_compares(self) -> Self:
        if self.operator in ("In", "NotIn"):
            if not self.values:
                raise ValueError(_VALUES_NEEDED)
        elif self.values:
            raise Contradiction([("values", _NO_VALUES)])
        return self


class LabelSelector(Model):
    """A selector of objects by their labels; an empty one selects all."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    """Labels that they have."""
    match_expressions: Annotated[list[LabelExpression], Field(max_length=_MAX_EXPRESSIONS)] = Field(
        default_factory=list
    )
    """Conditions that their labels meet."""


class IPBlock(Model):
    """A range of addresses."""

    cidr: Cidr
    """The range, such as 10.0.0.0/8 or fd00::/8."""


class Peer(Model):
    """Pods or addresses that may connect, as in a NetworkPolicy."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.namespaceSelector) || has(self.podSelector) || has(self.ipBlock)", _NO_SOURCE),
        Rule("!has(self.ipBlock) || !(has(self.namespaceSelector) || has(self.podSelector))", _TWO_SOURCES, ".ipBlock"),
    )

    namespace_selector: LabelSelector | None = None
    """Kubernetes namespaces of the pods, by their labels; left out: the BrokerCluster's own."""
    pod_selector: LabelSelector | None = None
    """Pods, by their labels; left out: all of the Kubernetes namespaces."""
    ip_block: IPBlock | None = None
    """Addresses outside the pods' network."""

    @model_validator(mode="after")
    def _is_pods_or_addresses(self) -> Self:
        pods = self.namespace_selector is not None or self.pod_selector is not None
        if self.ip_block is None and not pods:
            raise ValueError(_NO_SOURCE)
        if self.ip_block is not None and pods:
            raise Contradiction([("ipBlock", _TWO_SOURCES)])
        return self

    def manifest(self) -> dict[str, Any]:
        """Return the peer as a NetworkPolicy has it."""
        return self.model_dump(by_alias=True, exclude_defaults=True)


Peers = Annotated[list[Peer], Field(max_length=_MAX_PEERS)]


class NetworkPolicySpec(Model):
    """Peers that may connect to a broker, port by port. It refuses all others, and connects to DNS only."""

    enabled: bool = True
    """Whether there is a NetworkPolicy. Without one, every pod of the Kubernetes cluster may connect."""
    clients: Peers | None = None
    """Peers that may use the binary protocol (ports 6650 and 6651); left out: all, an empty list: archives only."""
    admin: Peers = Field(default_factory=list)
    """Peers that may use the admin API, backups and lookups by HTTP (ports 8080 and 8443), beside the operator and
    archives."""
    metrics: Peers | None = None
    """Peers that may read the metrics (port 8081); left out: pods labelled `app.kubernetes.io/name: prometheus` in any
    Kubernetes namespace, an empty list: none."""
