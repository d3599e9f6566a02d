"""Workers that look at what is queued: the same look whatever the trigger was, and later again if it failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from heliograph_operator import operator_metrics
from heliograph_operator.kube.client import Kube, KubeError
from heliograph_operator.kube.events import Events
from heliograph_operator.objects.backoff import FAILED
from heliograph_operator.objects.kinds import Body, Key
from heliograph_operator.objects.resource_cache import Store
from heliograph_operator.operator_settings import Settings

from .work_queue import WorkQueue

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Context:
    """What every reconciler works with."""

    settings: Settings
    kube: Kube
    store: Store
    queue: WorkQueue[Key]
    events: Events


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a look ended: ``result`` for the metrics, and the seconds after which to look again at the latest."""

    result: str = "ready"
    again_s: float | None = None


#: Makes an object what it says, reports in its status, and returns; raises what it did not expect.
Reconciler = Callable[[Context, Body], Awaitable[Outcome]]


class Controller:
    """Runs the reconcilers, by kind; one object is never looked at twice at the same time."""

    def __init__(self, context: Context, reconcilers: Mapping[str, Reconciler]) -> None:
        self._context = context
        self._reconcilers = reconcilers
        self._failures: dict[Key, int] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._context.settings.workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        queue = self._context.queue
        while True:
            key = await queue.take()
            operator_metrics.QUEUE.set(len(queue))
            operator_metrics.WORKING.set(queue.working)
            try:
                await self._look(key)
            finally:
                queue.done(key)
                operator_metrics.WORKING.set(queue.working)

    async def _look(self, key: Key) -> None:
        body = self._context.store.get(key)
        reconciler = self._reconcilers.get(key.kind)
        if body is None or reconciler is None:
            self._failures.pop(key, None)
            self._context.queue.forget(key)
            return
        began = time.monotonic()
        try:
            outcome = await reconciler(self._context, body)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay = FAILED.delay(failures)
            operator_metrics.RECONCILES.labels(key.kind, "failed").inc()
            # What the API server says is enough; anything else is a mistake here, to be found by its trace.
            unexpected = not isinstance(error, KubeError)
            log.error(
                "a look failed",
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
        if outcome.again_s is not None:
            self._context.queue.add(key, outcome.again_s)
