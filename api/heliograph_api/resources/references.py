"""References between resources, also of other Kubernetes namespaces, and the consent that these need."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from .cel import InSchema, Rule
from .fields import MAX_REFERENCE, Model, Part, Reference, Unique
from .metadata import MAX_NAMESPACE, check_namespace_name

MAX_CONSENTS: Final = 50
_MAX_NAMES: Final = 50

KubeNamespace = Annotated[
    str,
    AfterValidator(check_namespace_name),
    InSchema({"maxLength": MAX_NAMESPACE}),
    Rule(
        "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "not a name of a namespace in Kubernetes; valid: small letters, digits and - (a letter or digit at both ends)",
    ),
]
"""The name of a Kubernetes namespace."""


class ResourceReference(Reference):
    """A reference to another resource."""

    name: str = Field(min_length=1, max_length=MAX_REFERENCE)
    """Its `metadata.name`, or the name of an existing object of the broker."""
    namespace: KubeNamespace | None = None
    """Its Kubernetes namespace; default: that of the resource that refers to it."""


class ClusterReference(ResourceReference):
    """A reference to the brokers that a resource is on."""

    kind: Literal["BrokerCluster", "BrokerConnection"] = "BrokerCluster"
    """Kind of the resource that has the brokers."""


class Consent(Model):
    """Kubernetes namespaces whose resources may be in some tenants of the brokers."""

    kubernetes_namespaces: Annotated[Unique[KubeNamespace], Field(max_length=_MAX_NAMES)]
    """Kubernetes namespaces of the resources."""
    tenants: Annotated[Unique[Part], Field(max_length=_MAX_NAMES)]
    """Names of the tenants in the broker. The resources may describe objects in them, and nothing else."""
    kinds: Unique[Literal["Tenant", "Namespace", "Topic", "Subscription", "User"]] = Field(
        default=["Namespace", "Topic", "Subscription"]
    )
    """Kinds of the resources. A Tenant sets the tenant's limits and roles, and deletes it; a User gives itself rights
    in the tenants."""
