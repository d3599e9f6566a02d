"""Ways to the brokers of a BrokerCluster beside its own Service: listeners, each for the clients of one network."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from heliograph_api.values.quoting import quoted

from .cel import InSchema, Rule
from .fields import Contradiction, Model
from .network_spec import Cidr, Peers

INTERNAL: Final = "internal"
"""Name of the listener that every broker has: its address in the pods' network."""
_RESERVED: Final = (INTERNAL, "admin", "brokers", "http", "metrics", "pulsar")
_MAX_SOURCES: Final = 50
_MAX_HOST_LENGTH: Final = 253

_NAME: Final = "[a-z]([a-z0-9]|-[a-z0-9])*"
_HOST: Final = r"([0-9A-Za-z.:-]|\{pod\}|\{ordinal\})+"
_NO_NAME: Final = "cannot be the name of a port; valid: lower-case letters, digits and single -, a letter first"
_TAKEN: Final = f"is a name of the brokers' own; valid: any but {', '.join(_RESERVED)}"
_NO_HOST: Final = (
    "is not a host; valid: a name or an address, in which {pod} and {ordinal} stand for the name and the number of the"
    " broker's pod"
)
_NO_NODE_PORT: Final = "a ClusterIP Service has no port of the nodes; valid: leave it out, or another type"
_NOT_OUTSIDE: Final = "a ClusterIP Service has no traffic from outside; valid: leave it out, or another type"
_NO_BALANCER: Final = "is for a load balancer; valid: leave it out, or the type LoadBalancer"


def _name(text: str) -> str:
    if not re.fullmatch(_NAME, text):
        raise ValueError(f"{quoted(text)} {_NO_NAME}")
    if text in _RESERVED:
        raise ValueError(f"{quoted(text)} {_TAKEN}")
    return text


def _host(text: str) -> str:
    if not re.fullmatch(_HOST, text):
        raise ValueError(f"{quoted(text)} {_NO_HOST}")
    return text


Port = Annotated[int, Field(ge=1, le=65535), InSchema({"format": "int32"})]


class ListenerSpec(Model):
    """A Service with the binary protocol and nothing else, and the address that lookups answer to its clients."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self.type != 'ClusterIP' || !has(self.nodePort)", _NO_NODE_PORT, ".nodePort"),
        Rule("self.type != 'ClusterIP' || !has(self.externalTrafficPolicy)", _NOT_OUTSIDE, ".externalTrafficPolicy"),
        Rule("self.type == 'LoadBalancer' || !has(self.loadBalancerClass)", _NO_BALANCER, ".loadBalancerClass"),
        Rule(
            "self.type == 'LoadBalancer' || !has(self.loadBalancerSourceRanges)"
            " || size(self.loadBalancerSourceRanges) == 0",
            _NO_BALANCER,
            ".loadBalancerSourceRanges",
        ),
    )

    name: Annotated[
        str,
        Field(min_length=1, max_length=15),
        AfterValidator(_name),
        Rule(f"self.matches('^{_NAME}$')", _NO_NAME),
        Rule(f"!(self in [{', '.join(repr(name) for name in _RESERVED)}])", _TAKEN),
    ]
    """Name by which clients ask for it (`listenerName`); its Service is NAME-LISTENER."""
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"]
    """Type of its Service."""
    port: Port = 6650
    """Port of its Service."""
    node_port: Port | None = None
    """Port of the nodes; default: one that Kubernetes chooses."""
    advertised_host: (
        Annotated[
            str,
            Field(min_length=1, max_length=_MAX_HOST_LENGTH),
            AfterValidator(_host),
            Rule(f"self.matches('^{_HOST.replace(chr(92), chr(92) * 2)}$')", _NO_HOST),
        ]
        | None
    ) = None
    """Host that lookups answer; `{pod}` and `{ordinal}` stand for the name and the number of the broker's pod. Default:
    the Service's name (ClusterIP), the address of the broker's node (NodePort), or the load balancer's address."""
    advertised_port: Port | None = None
    """Port that lookups answer; default: `port`, or that of the nodes (NodePort)."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of its Service."""
    load_balancer_class: str | None = Field(default=None, min_length=1, max_length=253)
    """Class of the load balancer, as in a Service."""
    load_balancer_source_ranges: Annotated[list[Cidr], Field(max_length=_MAX_SOURCES)] = Field(default_factory=list)
    """Addresses that the load balancer lets in, as in a Service; default: all."""
    external_traffic_policy: Literal["Cluster", "Local"] | None = None
    """Whether traffic from outside may pass through other nodes, as in a Service; Local keeps the client's address."""
    clients: Peers | None = None
    """Peers that the NetworkPolicy lets in; left out: all (NodePort, LoadBalancer) or those of `networkPolicy.clients`
    (ClusterIP), an empty list: none. Without `Local`, traffic from outside may come from the address of a node."""

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        found = []
        if self.type == "ClusterIP":
            if self.node_port is not None:
                found.append(("nodePort", _NO_NODE_PORT))
            if self.external_traffic_policy is not None:
                found.append(("externalTrafficPolicy", _NOT_OUTSIDE))
        if self.type != "LoadBalancer":
            if self.load_balancer_class is not None:
                found.append(("loadBalancerClass", _NO_BALANCER))
            if self.load_balancer_source_ranges:
                found.append(("loadBalancerSourceRanges", _NO_BALANCER))
        if found:
            raise Contradiction(found)
        return self
