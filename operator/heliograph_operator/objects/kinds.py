"""The kinds the operator serves, where the API server has them, and how one object is named here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

GROUP: Final = "heliograph.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

#: What the API server says of one object.
Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind: its API, and its plural in paths."""

    name: str
    plural: str
    api_version: str = API_VERSION

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the path of one object, of its subresource, or (without ``name``) of all in a namespace."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return "/".join(part for part in (f"{root}{scope}/{self.plural}", name, subresource) if part)


BROKER_CLUSTER: Final = Kind("BrokerCluster", "brokerclusters")
TENANT: Final = Kind("Tenant", "tenants")
NAMESPACE: Final = Kind("Namespace", "namespaces")
TOPIC: Final = Kind("Topic", "topics")
KINDS: Final = {kind.name: kind for kind in (BROKER_CLUSTER, TENANT, NAMESPACE, TOPIC)}
"""The kinds by name, parents first."""


class Key(NamedTuple):
    """One object: its kind's name, its Kubernetes namespace and its ``metadata.name``."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def key_of(body: Body) -> Key:
    """Return the key of an object as the API server gives it."""
    metadata = body["metadata"]
    return Key(body["kind"], metadata.get("namespace", ""), metadata["name"])


def annotation(body: Body, name: str) -> str:
    """Return an annotation ``heliograph.dev/<name>``, or an empty text."""
    return str((body["metadata"].get("annotations") or {}).get(f"{GROUP}/{name}", ""))


def is_paused(body: Body) -> bool:
    """Whether the annotation says that nothing is to be changed for now."""
    return annotation(body, "paused") == "true"


def is_managed(body: Body) -> bool:
    """Whether the operator is to look after this object at all."""
    return annotation(body, "managed") != "false"


def is_deleted(body: Body) -> bool:
    """Whether its deletion is asked for: it goes when its finalizers have."""
    return bool(body["metadata"].get("deletionTimestamp"))


def deleted_for_s(body: Body) -> float:
    """Return the seconds since the deletion of an object was asked for; it has to be one that :func:`is_deleted`."""
    asked = datetime.fromisoformat(str(body["metadata"]["deletionTimestamp"]))
    return (datetime.now(UTC) - asked).total_seconds()
