"""Changes of objects enqueue the resources they belong to, once a second at most; every kind may be watched."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import kopf
import pytest
from heliograph_operator.act.owned_watch import OwnedWatch
from heliograph_operator.act.resource_memory import ResourceMemories
from heliograph_operator.act.watch import Watcher, kopf_settings, register
from heliograph_operator.act.work_queue import WorkQueue
from heliograph_operator.decide.archive_cron_job import CRON_JOB, JOB, OF, cron_job_name
from heliograph_operator.decide.cluster_objects import POD, SERVICE
from heliograph_operator.decide.owned_objects import resources_of, watched
from heliograph_operator.decide.stateful_set import labels, metadata
from heliograph_operator.kube.permissions import ARCHIVE_PERMISSIONS, PERMISSIONS
from heliograph_operator.objects.kinds import KINDS, Key, key_of
from heliograph_operator.objects.resource_cache import ResourceCache

from tests.simulation.operator.virtual_time import VirtualLoop

from .bodies import cluster, topic

MAIN = Key("BrokerCluster", "team", "main")
LONG = "a" * 60


def pod(**more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "main-0", "namespace": "team", "labels": labels("main"), **more}}


def of_archive(name: str) -> dict[str, Any]:
    return {"metadata": {"name": "x", "namespace": "team", "labels": {OF: cron_job_name(name)}}}


def test_an_object_belongs_to_its_owner_and_to_the_one_of_its_labels() -> None:
    own = {"metadata": metadata(cluster(), "main-admin")}
    assert resources_of(own) == {MAIN}
    assert resources_of(pod()) == {MAIN}
    del own["metadata"]["labels"]
    assert resources_of(own) == {MAIN}
    moved = {"metadata": metadata(cluster(), "main-admin", labels={"app.kubernetes.io/instance": "other"})}
    assert resources_of(moved) == {MAIN, MAIN._replace(name="other")}
    foreign = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "main", "uid": "1"}
    assert resources_of({"metadata": {"name": "x", "namespace": "team", "ownerReferences": [foreign]}}) == set()


@pytest.mark.parametrize("archives", [False, True])
def test_every_kind_is_watched_by_its_labels_in_pages_and_may_be(archives: bool) -> None:
    kinds = watched(archives=archives)
    cache: ResourceCache = ResourceCache()
    queue: WorkQueue[Key] = WorkQueue()
    registry = register(Watcher(cache, queue), OwnedWatch(cache, ResourceMemories(), queue), kinds)
    settings = kopf_settings(kinds)
    assert settings.watching.chunk_size
    permissions = (*PERMISSIONS, *ARCHIVE_PERMISSIONS) if archives else PERMISSIONS
    granted = {(each.group, each.resource): each.verbs for each in permissions}
    handled = {str(handler.selector) for handler in registry._watching.get_all_handlers()}
    assert len(handled) == len(kinds) + len(KINDS)
    for kind, selector in kinds.items():
        group, _, version = kind.api_version.rpartition("/")
        resource = kopf.Resource(group, version, kind.plural, namespaced=True)
        assert settings.watching.label_selectors.collect(resource) == [selector]
        assert granted[group, kind.plural].keys() >= {"list", "watch"}


class Watched:
    """An owned watch on virtual time, and when each resource was due."""

    def __init__(self) -> None:
        self.cache = ResourceCache()
        self.memories = ResourceMemories()
        self.queue: WorkQueue[Key] = WorkQueue()
        self.watch = OwnedWatch(self.cache, self.memories, self.queue)
        for body in (cluster(), topic("orders"), topic(LONG)):
            self.cache.put(body)
        self.due: list[tuple[str, float]] = []

    async def run(self) -> None:
        while True:
            key = await self.queue.take()
            self.due.append((key.name, round(asyncio.get_running_loop().time(), 3)))
            self.queue.done(key)


@pytest.mark.parametrize("gap_s", [0.01, 0.1, 0.3])
def test_many_changes_are_one_reconcile_a_second_and_the_last_one_is_seen(gap_s: float) -> None:
    async def check() -> None:
        seen = Watched()
        running = asyncio.create_task(seen.run())
        last = 0.0
        while last < 10:
            seen.watch.seen(POD, pod())
            last = asyncio.get_running_loop().time()
            await asyncio.sleep(gap_s)
        await asyncio.sleep(60)
        running.cancel()
        times = [at for _, at in seen.due]
        assert times[0] <= 0.25
        assert all(later - sooner >= 0.99 for sooner, later in pairwise(times))
        assert 10 <= len(times) <= 12
        assert round(last, 3) <= times[-1] <= last + 1.25

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(check())


def test_a_job_and_its_pod_are_of_the_topic_with_the_archive_whatever_its_name() -> None:
    async def check() -> None:
        seen = Watched()
        running = asyncio.create_task(seen.run())
        for kind, name in ((JOB, "orders"), (POD, LONG), (JOB, "nobody")):
            seen.watch.seen(kind, of_archive(name))
        await asyncio.sleep(1)
        assert {name for name, _ in seen.due} == {"orders", LONG}
        orders = topic("orders")
        seen.watch.seen(CRON_JOB, of_archive("orders"))
        assert seen.memories.of(key_of(orders), orders).has_cron_job
        seen.watch.seen(CRON_JOB, of_archive("orders"), deleted=True)
        assert not seen.memories.of(key_of(orders), orders).has_cron_job
        seen.cache.remove(key_of(orders))
        seen.watch.forget(key_of(orders))
        seen.watch.seen(JOB, of_archive("orders"))
        assert len(seen.queue) == 0
        running.cancel()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(check())


def test_nobody_is_enqueued_for_what_belongs_to_none_that_exists() -> None:
    async def check() -> None:
        seen = Watched()
        other = {"metadata": {"name": "x", "namespace": "team", "labels": labels("gone")}}
        seen.watch.seen(SERVICE, other)
        assert len(seen.queue) == 0

    asyncio.run(check())
