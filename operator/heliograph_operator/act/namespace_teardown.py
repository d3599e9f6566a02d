"""Releases the resources in the operator's own Kubernetes namespace when that is deleted with the operator in it.

Kubernetes deletes pods first and everything else after them. A resource that still had its finalizer then would never
go, and neither would the namespace.
"""

from __future__ import annotations

import asyncio

import structlog

from heliograph_operator.kube.client import KubeError
from heliograph_operator.kube.kube_namespaces import namespace_ends
from heliograph_operator.objects.kinds import is_held

from .controller import Context
from .finalizers import release

log = structlog.get_logger(__name__)


async def release_with_namespace(context: Context, namespace: str) -> None:
    """Release all resources in the operator's own ``namespace`` if that is being deleted; else do nothing.

    The API server may have revoked the right to do so already: that is logged, and a person has to remove them.
    """
    resources = [context.resource(key) for key in context.cache.keys(namespace=namespace)]
    held = [resource for resource in resources if resource is not None and is_held(resource.body)]
    try:
        if not held or not await namespace_ends(context.kube, namespace):
            return
        await asyncio.gather(*(release(context, resource) for resource in held))
        log.info("released all resources: the operator's namespace is being deleted", resources=len(held))
    except KubeError as error:
        log.warning("resources keep the finalizer of a stopped operator", resources=len(held), error=str(error))
