"""The permissions the operator needs, each verb with its purpose. The chart grants exactly these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from heliograph_operator.objects.kinds import GROUP, KINDS


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs on a resource (``plural`` or ``plural/subresource``) of an API group ("" is the core)."""

    group: str
    resource: str
    #: Each verb with its purpose.
    verbs: dict[str, str]
    own: bool = False
    """Whether it is for the object of the operator's name only."""


def _kinds() -> list[Permission]:
    found = []
    for kind in KINDS.values():
        plural = kind.plural
        verbs = {
            "get": "read a resource again after a conflict",
            "list": "list all resources at the start and every ten minutes",
            "watch": "learn of changes",
        }
        if plural != "scheduledbackups":
            verbs["patch"] = "write finalizers, and annotations with the broker object of a resource"
        if plural == "backups":
            verbs["create"] = "create it for a ScheduledBackup"
            verbs["delete"] = "delete those that a ScheduledBackup does not keep"
        found.append(Permission(GROUP, plural, verbs))
        found.append(Permission(GROUP, f"{plural}/status", {"patch": "write conditions and statistics"}))
    return found


def _owned(group: str, resource: str, get: str = "compare it with its manifest") -> Permission:
    return Permission(
        group,
        resource,
        {
            "get": get,
            "list": "find the objects of a deleted BrokerCluster by their labels",
            "watch": "learn of changes by others, to repair them",
            "create": "create it for a BrokerCluster",
            "patch": "apply changes of the BrokerCluster, and repair changes by others",
            "delete": "delete it with its BrokerCluster",
        },
    )


PERMISSIONS: Final[tuple[Permission, ...]] = (
    *_kinds(),
    Permission(
        GROUP,
        "brokerclusters/finalizers",
        {"update": "create objects that block their owner's deletion, which some clusters restrict"},
    ),
    _owned("apps", "statefulsets"),
    _owned("", "services"),
    _owned("", "configmaps", "compare it with its manifest, and read the definition of a Topic's schema"),
    _owned("", "serviceaccounts"),
    _owned("policy", "poddisruptionbudgets"),
    _owned("networking.k8s.io", "networkpolicies"),
    Permission(
        "",
        "pods",
        {
            "list": "read why brokers are not ready, and the result of an archive's run or of a preflight",
            "watch": "learn of their changes",
            "create": "ask a new image whether it reads the volumes of the brokers",
            "delete": "remove the pod that asked",
        },
    ),
    Permission(
        "",
        "persistentvolumeclaims",
        {
            "list": "read the sizes of a BrokerCluster's volumes",
            "watch": "learn of their growth",
            "patch": "grow volumes with storage.size",
            "delete": "delete volumes of a BrokerCluster with storage.retainOnDelete: false",
        },
    ),
    Permission(
        "batch",
        "jobs",
        {
            "get": "read the outcome of a Backup's Job",
            "list": "read the outcome of an archive's runs",
            "watch": "learn of its end",
            "create": "create it for a Backup",
            "patch": "create it by an apply, as everything else, and have it deleted a day after its end",
            "delete": "end it with its Backup, or try the deletion of a stored backup again",
        },
    ),
    Permission("", "namespaces", {"get": "tell whether the Kubernetes namespace is being deleted"}),
    Permission("", "events", {"create": "emit Events"}),
)
"""In every watched Kubernetes namespace."""

ARCHIVE_PERMISSIONS: Final[tuple[Permission, ...]] = (
    Permission(
        "batch",
        "cronjobs",
        {
            "get": "compare it with its manifest",
            "list": "find those that exist at the start",
            "watch": "learn of changes by others, to repair them",
            "create": "create it for a Topic with an archive",
            "patch": "apply changes of the Topic, and repair changes by others",
            "delete": "delete it with the archive, or when its BrokerCluster does not allow it",
        },
    ),
)
"""In every watched Kubernetes namespace, for archives: who may create CronJobs may run any pod."""

CONNECTION_PERMISSIONS: Final[tuple[Permission, ...]] = (
    Permission("", "secrets", {"get": "read the token of a BrokerConnection, and the authorities that it trusts"}),
)
"""In every watched Kubernetes namespace, for Secrets of the names that the installation states, and for no others."""

AUTHENTICATION_PERMISSIONS: Final[tuple[Permission, ...]] = (
    Permission(
        "",
        "secrets",
        {
            "get": "read the keys of a BrokerCluster with authentication, and the tokens of Users and programs",
            "update": "rotate keys and tokens, if nobody else changed them meanwhile",
        },
    ),
    Permission("", "secrets", {"create": "create Secrets for keys and tokens"}),
)
"""In the Kubernetes namespaces that the installation names for authentication. It may name the Secrets of the first,
too; none can be listed, watched or deleted."""

TLS_PERMISSIONS: Final[tuple[Permission, ...]] = (
    Permission(
        "",
        "secrets",
        {
            "get": "read the authorities and the certificate of a BrokerCluster with TLS",
            "update": "renew certificates, if nobody else changed them meanwhile",
        },
    ),
    Permission("", "secrets", {"create": "create Secrets for authorities and certificates"}),
)
"""The same for TLS."""

LEADER_PERMISSIONS: Final[tuple[Permission, ...]] = (
    Permission(
        "coordination.k8s.io",
        "leases",
        {"create": "create the Lease"},
    ),
    Permission(
        "coordination.k8s.io",
        "leases",
        {"get": "read the leader", "update": "take, renew and release the Lease"},
        own=True,
    ),
)
"""In the operator's own namespace."""
