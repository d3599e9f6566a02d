"""What the operator asks of the API server: each verb with what it is needed for. The chart grants just these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from heliograph_operator.objects.kinds import GROUP


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs on a resource (``plural`` or ``plural/subresource``) of an API group ("" is the core)."""

    group: str
    resource: str
    #: Each verb with what it is needed for.
    verbs: dict[str, str]


def _kinds() -> list[Permission]:
    found = []
    for plural in ("brokerclusters", "tenants", "namespaces", "topics"):
        found.append(
            Permission(
                GROUP,
                plural,
                {
                    "get": "a resource that somebody else changed at the same time is read again",
                    "list": "what there is when the operator starts, and every ten minutes",
                    "watch": "what changes",
                    "patch": "finalizers, and the notes of what a resource stands for",
                },
            )
        )
        found.append(Permission(GROUP, f"{plural}/status", {"patch": "conditions and figures"}))
    return found


def _owned(group: str, resource: str) -> Permission:
    return Permission(
        group,
        resource,
        {
            "get": "compared with what it has to be",
            "list": "those of a BrokerCluster that is deleted are found by their labels",
            "create": "made for a BrokerCluster",
            "patch": "applied when the BrokerCluster changes, and set right when somebody else changed it",
            "delete": "goes with its BrokerCluster",
        },
    )


PERMISSIONS: Final[tuple[Permission, ...]] = (
    *_kinds(),
    Permission(
        GROUP,
        "brokerclusters/finalizers",
        {"update": "some clusters ask it of whoever makes objects that hold up their owner's deletion"},
    ),
    _owned("apps", "statefulsets"),
    _owned("", "services"),
    _owned("", "configmaps"),
    _owned("", "serviceaccounts"),
    _owned("policy", "poddisruptionbudgets"),
    _owned("networking.k8s.io", "networkpolicies"),
    Permission(
        "batch",
        "cronjobs",
        {
            "get": "compared with what it has to be",
            "list": "those of archives that are in no Topic any more, or were changed by somebody else",
            "create": "made for a Topic with an archive",
            "patch": "applied when the Topic changes, and set right when somebody else changed it",
            "delete": "goes with the archive",
        },
    ),
    Permission("batch", "jobs", {"list": "what became of an archive's runs"}),
    Permission("", "pods", {"list": "why brokers are not ready, and what an archive's run said at its end"}),
    Permission(
        "",
        "persistentvolumeclaims",
        {
            "list": "the sizes of a BrokerCluster's volumes",
            "patch": "storage.size grew",
            "delete": "a BrokerCluster is deleted with storage.retainOnDelete: false",
        },
    ),
    Permission("", "namespaces", {"get": "whether the Kubernetes namespace is being deleted with all that is in it"}),
    Permission("", "events", {"create": "what a person sees under kubectl describe"}),
)
"""In every Kubernetes namespace that is served."""

LEADER_PERMISSIONS: Final[tuple[Permission, ...]] = (
    Permission(
        "coordination.k8s.io",
        "leases",
        {"get": "who leads", "create": "the first operator of all", "update": "taken, renewed and given back"},
    ),
)
"""In the operator's own namespace."""
