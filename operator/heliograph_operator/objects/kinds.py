"""The kinds the operator watches, their API paths, the keys of objects, and the fields every object has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from . import clock

GROUP: Final = "heliograph.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
#: Holds a resource until its data is taken care of.
FINALIZER: Final = f"{GROUP}/broker-data"

#: An object as the API server returns it.
Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind: its API version, and its plural in paths."""

    name: str
    plural: str
    api_version: str = API_VERSION

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the API path of an object or its subresource or, without ``name``, of all objects in a namespace."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return "/".join(part for part in (f"{root}{scope}/{self.plural}", name, subresource) if part)


BROKER_CLUSTER: Final = Kind("BrokerCluster", "brokerclusters")
BROKER_CONNECTION: Final = Kind("BrokerConnection", "brokerconnections")
TENANT: Final = Kind("Tenant", "tenants")
NAMESPACE: Final = Kind("Namespace", "namespaces")
TOPIC: Final = Kind("Topic", "topics")
SUBSCRIPTION: Final = Kind("Subscription", "subscriptions")
BACKUP: Final = Kind("Backup", "backups")
SCHEDULED_BACKUP: Final = Kind("ScheduledBackup", "scheduledbackups")
USER: Final = Kind("User", "users")
OF_BROKERS: Final = (TENANT.name, NAMESPACE.name, TOPIC.name, SUBSCRIPTION.name)
"""The kinds that stand for objects of a broker, parents first."""
KINDS: Final = {
    kind.name: kind
    for kind in (
        BROKER_CLUSTER,
        BROKER_CONNECTION,
        TENANT,
        NAMESPACE,
        TOPIC,
        SUBSCRIPTION,
        BACKUP,
        SCHEDULED_BACKUP,
        USER,
    )
}
"""The kinds by name, parents first."""
CLUSTER_KINDS: Final = (BROKER_CLUSTER.name, BROKER_CONNECTION.name)
"""The kinds that Tenants, Namespaces and Topics are on."""


def full_name(kind: str) -> str:
    """Return the name of a kind that no other API has: ``namespaces.heliograph.dev``, and not Kubernetes' own."""
    return f"{KINDS[kind].plural}.{GROUP}"


class Key(NamedTuple):
    """Identifies an object: kind, Kubernetes namespace and ``metadata.name``."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def key_of(body: Body) -> Key:
    """Return the key of an object."""
    metadata = body["metadata"]
    return Key(body["kind"], metadata.get("namespace", ""), metadata["name"])


def own_annotations(body: Body) -> dict[str, str]:
    """Return the annotations of a resource that are Heliograph's, by their whole names."""
    notes = body["metadata"].get("annotations") or {}
    return {name: text for name, text in notes.items() if name.startswith(f"{GROUP}/")}


def annotation(body: Body, name: str) -> str:
    """Return the annotation ``heliograph.dev/<name>``, or an empty text."""
    return str((body["metadata"].get("annotations") or {}).get(f"{GROUP}/{name}", ""))


def is_paused(body: Body) -> bool:
    """Whether an annotation suspends all changes."""
    return annotation(body, "paused") == "true"


def is_managed(body: Body) -> bool:
    """Whether the operator reconciles this object, which an annotation can prevent."""
    return annotation(body, "managed") != "false"


def is_held(body: Body) -> bool:
    """Whether the resource has the operator's finalizer."""
    return FINALIZER in (body["metadata"].get("finalizers") or ())


def owned(body: Body) -> tuple[str, str]:
    """Return the (cluster, full name) that was recorded for a resource with the finalizer; empty texts for none."""
    return (annotation(body, "cluster"), annotation(body, "broker-object")) if is_held(body) else ("", "")


def cluster_note(cluster: Key, body: Body) -> str:
    """Return the annotation of a resource that records what it is on; see :func:`cluster_key`."""
    own = body["metadata"].get("namespace", "")
    name = cluster.name if cluster.namespace == own else f"{cluster.namespace}/{cluster.name}"
    return f"{cluster.kind}:{name}" if cluster.kind == BROKER_CONNECTION.name else name


def cluster_key(body: Body, note: str) -> Key:
    """Return the key that a note stands for: ``main`` in the Kubernetes namespace of the resource, or ``other/main``.

    That is a BrokerCluster; a BrokerConnection has its kind before it: ``BrokerConnection:main``.
    """
    prefix = f"{BROKER_CONNECTION.name}:"
    kind = BROKER_CONNECTION if note.startswith(prefix) else BROKER_CLUSTER
    namespace, _, name = note.removeprefix(prefix).rpartition("/")
    return Key(kind.name, namespace or body["metadata"].get("namespace", ""), name)


def shown(key: Key, namespace: str) -> str:
    """Return a key for people who look from a Kubernetes namespace, which is named only if it is another one."""
    return f"{key.kind} {key.name}" if key.namespace == namespace else str(key)


def is_adopted(body: Body) -> bool:
    """Whether its object existed in the broker before the resource was held."""
    return annotation(body, "adopted") == "true"


def is_deleted(body: Body) -> bool:
    """Whether its deletion was requested; it is deleted when its last finalizer is removed."""
    return bool(body["metadata"].get("deletionTimestamp"))


def deleted_for_s(body: Body) -> float:
    """Return the seconds since the deletion of an object was requested; only for one that :func:`is_deleted`."""
    requested = datetime.fromisoformat(str(body["metadata"]["deletionTimestamp"]))
    return (clock.now() - requested).total_seconds()
