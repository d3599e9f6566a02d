"""Tells whether a Kubernetes namespace is being deleted."""

from __future__ import annotations

from typing import Any, Final, Protocol

import structlog

from heliograph_operator.objects.kinds import Kind, is_deleted

from .client import KubeRefused

log = structlog.get_logger(__name__)

KUBE_NAMESPACE: Final = Kind("Namespace", "namespaces", "v1")


class Finder(Protocol):
    """The one method of :class:`.client.Kube` that is needed."""

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the object, or ``None`` if there is none."""


async def namespace_ends(kube: Finder, name: str) -> bool:
    """Whether a Kubernetes namespace is being deleted or is gone; False if the operator may not read namespaces.

    Raises :class:`.client.KubeError`.
    """
    try:
        namespace = await kube.find(KUBE_NAMESPACE, "", name)
    except KubeRefused as error:
        if error.status != 403:
            raise
        log.warning("the operator may not read Kubernetes namespaces", namespace=name, error=str(error))
        return False
    return namespace is None or is_deleted(namespace)
