"""An operator that is deleted with its own Kubernetes namespace removes its finalizers from what is in it, as no other
operator follows.

Kubernetes ends pods first and everything else after them. A resource that waited for its operator then would wait
forever, and the namespace with it.
"""

from __future__ import annotations

import asyncio

import structlog

from heliograph_operator.kube.client import KubeError
from heliograph_operator.kube.kube_namespaces import namespace_ends

from .controller import Context
from .finalizers import is_held, release

log = structlog.get_logger(__name__)


async def let_go_with_namespace(context: Context, namespace: str) -> None:
    """Release all resources in the operator's own ``namespace`` if that is being deleted; else do nothing.

    The API server may have taken the rights to do so already: then it is logged, and people have to.
    """
    bodies = [context.store.get(key) for key in context.store.keys(namespace=namespace)]
    held = [body for body in bodies if body is not None and is_held(body)]
    try:
        if not held or not await namespace_ends(context.kube, namespace):
            return
        await asyncio.gather(*(release(context, body) for body in held))
        log.info("the operator's Kubernetes namespace is deleted: nothing in it waits", resources=len(held))
    except KubeError as error:
        log.warning("resources wait for an operator that is not there", resources=len(held), error=str(error))
