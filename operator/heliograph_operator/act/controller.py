"""Reconciles queued resources, whatever queued them, and retries with a growing delay after an error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from heliograph_operator import operator_metrics
from heliograph_operator.kube.client import Kube, KubeError, KubeRefused
from heliograph_operator.kube.events import Events
from heliograph_operator.objects.backoff import FAILED
from heliograph_operator.objects.kinds import Key
from heliograph_operator.objects.resource_cache import ResourceCache
from heliograph_operator.operator_settings import Settings

from .resource import Resource
from .resource_memory import ResourceMemories
from .work_queue import WorkQueue

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Context:
    """The objects that every reconciler works with."""

    settings: Settings
    kube: Kube
    cache: ResourceCache
    memories: ResourceMemories
    queue: WorkQueue[Key]
    events: Events

    def resource(self, key: Key) -> Resource | None:
        """Return a resource as the cache has it; None if it is gone."""
        body = self.cache.get(key)
        return Resource(body, key, self.memories.of(key, body)) if body is not None else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a reconcile: ``result`` for the metrics, and the seconds after which to requeue the resource."""

    result: str = "ready"
    requeue_s: float | None = None


#: Reconciles one resource and reports in its status. An unexpected error is raised, and the resource is retried.
Reconciler = Callable[[Context, Resource], Awaitable[Outcome]]


class Controller:
    """Runs the reconcilers, by kind; a resource is never reconciled twice at the same time."""

    def __init__(self, context: Context, reconcilers: Mapping[str, Reconciler]) -> None:
        self._context = context
        self._reconcilers = reconcilers
        self._failures: dict[Key, int] = {}

    async def run(self) -> None:
        """Work until cancelled; the queue limits how many resources are reconciled at the same time."""
        queue = self._context.queue
        async with asyncio.TaskGroup() as group:
            while True:
                key = await queue.take()
                operator_metrics.QUEUE.set(len(queue))
                operator_metrics.WORKING.set(queue.working)
                group.create_task(self._work(key))

    async def _work(self, key: Key) -> None:
        queue = self._context.queue
        try:
            await self._reconcile(key)
        finally:
            queue.done(key)
            operator_metrics.WORKING.set(queue.working)

    async def _reconcile(self, key: Key) -> None:
        resource = self._context.resource(key)
        reconciler = self._reconcilers.get(key.kind)
        if resource is None or reconciler is None:
            self._failures.pop(key, None)
            self._context.queue.forget(key)
            return
        began = time.monotonic()
        try:
            outcome = await reconciler(self._context, resource)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay = FAILED.delay(failures)
            operator_metrics.RECONCILES.labels(key.kind, "failed").inc()
            reason = error.reason if isinstance(error, KubeRefused) else type(error).__name__
            operator_metrics.RECONCILE_ERRORS.labels(key.kind, reason).inc()
            # The API server's message is enough; any other error is a bug here, which needs its traceback.
            unexpected = not isinstance(error, KubeError)
            log.error(
                "reconcile failed",
                resource=str(key),
                error=str(error),
                again_s=delay,
                exc_info=error if unexpected else None,
            )
            self._context.queue.add(key, delay)
            return
        finally:
            operator_metrics.RECONCILE_SECONDS.labels(key.kind).observe(time.monotonic() - began)
        self._failures.pop(key, None)
        operator_metrics.RECONCILES.labels(key.kind, outcome.result).inc()
        if outcome.requeue_s is not None:
            self._context.queue.add(key, outcome.requeue_s)
