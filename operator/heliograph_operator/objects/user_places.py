"""The role of a User: its name, and the BrokerCluster that has it."""

from __future__ import annotations

from .kinds import BROKER_CLUSTER, Body, Key


def role_of(body: Body) -> str:
    """Return the role of a User."""
    metadata = body["metadata"]
    stated = (body.get("spec") or {}).get("role")
    return str(stated or f"{metadata['namespace']}/{metadata['name']}")


def is_own_role(body: Body) -> bool:
    """Whether the role of a User begins with its Kubernetes namespace, so that it cannot be that of another one."""
    return role_of(body).startswith(f"{body['metadata']['namespace']}/")


def cluster_of(body: Body) -> Key:
    """Return the key of the BrokerCluster that a User names."""
    reference = (body.get("spec") or {}).get("clusterRef") or {}
    namespace = reference.get("namespace") or body["metadata"]["namespace"]
    return Key(BROKER_CLUSTER.name, str(namespace), str(reference.get("name", "")))
