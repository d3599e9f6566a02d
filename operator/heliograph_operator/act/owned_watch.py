"""Enqueues a resource when one of its Kubernetes objects is changed by anybody, the operator itself too."""

from __future__ import annotations

import asyncio
from typing import Final

from heliograph_operator.decide.archive_cron_job import CRON_JOB, OF, cron_job_name
from heliograph_operator.decide.owned_objects import resources_of
from heliograph_operator.objects.kinds import TOPIC, Body, Key, Kind, key_of
from heliograph_operator.objects.resource_cache import ResourceCache

from .resource_memory import ResourceMemories
from .work_queue import WorkQueue

#: Time (s) in which changes of one resource's objects are collected: each reconcile reads all of them.
_SETTLE_S: Final = 0.2
#: Time (s) between two reconciles of one resource for such changes, however often its objects change.
_SPACING_S: Final = 1.0


class OwnedWatch:
    """Takes in what watches tell of the objects; it keeps none of them."""

    def __init__(self, cache: ResourceCache, memories: ResourceMemories, queue: WorkQueue[Key]) -> None:
        self._cache = cache
        self._memories = memories
        self._queue = queue
        #: When (s, of the loop's clock) the last reconcile was due.
        self._due: dict[Key, float] = {}
        #: Each Topic by its Kubernetes namespace and the name that its CronJob has or would have.
        self._topics: dict[tuple[str, str], Key] = {}
        cache.listeners.append(self._cached)

    def seen(self, kind: Kind, body: Body, *, deleted: bool = False) -> None:
        """Take in an object of a watch or of its listing."""
        for key in sorted(resources_of(body) | self._with_archive(body)):
            owner = self._cache.get(key)
            if owner is None:
                continue
            if kind == CRON_JOB:
                self._memories.of(key, owner).has_cron_job = not deleted
            self._enqueue(key)

    def forget(self, key: Key) -> None:
        """Take in that a resource is gone."""
        self._due.pop(key, None)
        if key.kind == TOPIC.name:
            self._topics.pop((key.namespace, cron_job_name(key.name)), None)

    def _cached(self, before: Body | None, body: Body) -> None:
        key = key_of(body)
        if before is None and key.kind == TOPIC.name:
            self._topics[key.namespace, cron_job_name(key.name)] = key

    def _with_archive(self, body: Body) -> set[Key]:
        metadata = body["metadata"]
        cron_job = (metadata.get("labels") or {}).get(OF, "")
        topic = self._topics.get((metadata.get("namespace", ""), cron_job))
        return {topic} if topic is not None else set()

    def _enqueue(self, key: Key) -> None:
        now = asyncio.get_running_loop().time()
        last = self._due.get(key, -_SPACING_S)
        if last <= now:
            last = self._due[key] = max(now + _SETTLE_S, last + _SPACING_S)
        # The one that is due already sees this change, too.
        self._queue.add(key, last - now)
