"""A change of one resource concerns others: children, rivals, a parent that waits to be deleted."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_operator.act.watch import Watcher
from heliograph_operator.act.work_queue import WorkQueue
from heliograph_operator.objects.kinds import Key, key_of
from heliograph_operator.objects.resource_cache import ResourceCache

from .bodies import body, cluster, namespace, tenant, topic


class Seen:
    """A watcher, and whom it has put into the queue since it was asked last."""

    def __init__(self, *bodies: dict[str, Any]) -> None:
        self.cache = ResourceCache()
        self.queue: WorkQueue[Key] = WorkQueue()
        self.watcher = Watcher(self.cache, self.queue)
        for each in bodies:
            self.watcher.seen(each)

    async def names(self) -> set[str]:
        found = set()
        while len(self.queue):
            key = await self.queue.take()
            self.queue.done(key)
            found.add(key.name)
        return found


def changed(before: dict[str, Any], **fields: Any) -> dict[str, Any]:
    version = str(int(before["metadata"]["resourceVersion"]) + 1)
    return {**before, **fields, "metadata": {**before["metadata"], "resourceVersion": version}}


def ready(status: str) -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": status}]}


async def test_a_new_parent_brings_its_children_and_the_same_news_again_nobody() -> None:
    seen = Seen(topic("a"), topic("b"), topic("c", "elsewhere"))
    await seen.names()
    seen.watcher.seen(namespace())
    assert await seen.names() == {"payments", "a", "b"}
    seen.watcher.seen(namespace())
    assert await seen.names() == set()


async def test_what_the_operator_wrote_itself_is_news_to_others_and_not_to_itself() -> None:
    seen = Seen(namespace(), topic())
    await seen.names()
    written = changed(namespace(), status=ready("True"))
    seen.cache.put(written)
    assert await seen.names() == {"orders"}
    # The watch tells of it, too, and of the version before it.
    seen.watcher.seen(written)
    seen.watcher.seen(namespace())
    assert await seen.names() == set()
    assert seen.cache.get(key_of(written)) == written


async def test_an_answer_to_a_write_that_comes_after_newer_news_takes_nothing_back() -> None:
    seen = Seen(tenant())
    await seen.names()
    written = changed(tenant(), status=ready("True"))
    deleted = changed(written)
    deleted["metadata"]["deletionTimestamp"] = "now"
    seen.watcher.seen(deleted)
    assert seen.cache.put(written) == deleted
    assert seen.cache.get(key_of(deleted)) == deleted
    assert await seen.names() == {"shop"}


@pytest.mark.parametrize(
    "others",
    [
        {"deletionTimestamp": "now"},
        {"generation": 2},
        {"annotations": {"heliograph.dev/paused": "true"}},
        {"annotations": {"heliograph.dev/managed": "false"}},
    ],
)
async def test_what_somebody_else_changed_is_looked_at_though_the_answer_to_a_write_tells_it_first(
    others: dict[str, Any],
) -> None:
    seen = Seen(topic())
    await seen.names()
    wanted = changed(topic())
    wanted["metadata"] |= others
    answer = changed(wanted, status=ready("False"))
    seen.cache.put(answer)
    assert await seen.names() == {"orders"}
    # The watch has nothing new to tell then.
    seen.watcher.seen(wanted)
    seen.watcher.seen(answer)
    assert await seen.names() == set()


async def test_what_is_gone_does_not_come_back_by_late_answers_and_listings_but_anew_it_does() -> None:
    above = namespace()
    above["metadata"]["deletionTimestamp"] = "now"
    seen = Seen(above, topic())
    seen.watcher.deleted(Key("Topic", "team", "orders"))
    await seen.names()
    seen.cache.put(changed(topic(), status=ready("False")))
    seen.watcher.seen(topic())
    assert seen.cache.get(Key("Topic", "team", "orders")) is None
    assert seen.cache.children(key_of(above)) == []
    assert await seen.names() == set()
    again = topic()
    again["metadata"]["uid"] = "another"
    seen.watcher.seen(again)
    # That of the first one.
    seen.watcher.deleted(key_of(again), topic()["metadata"]["uid"])
    seen.watcher.seen(topic())
    assert seen.cache.get(key_of(again)) == again


async def test_a_status_that_somebody_else_wrote_is_looked_at() -> None:
    seen = Seen(topic())
    await seen.names()
    seen.watcher.seen(changed(topic(), status=ready("True")))
    assert await seen.names() == {"orders"}


async def test_endpoints_of_a_cluster_concern_all_of_its_kubernetes_namespace() -> None:
    seen = Seen(cluster(http=""), tenant(), namespace(), topic(), body("Tenant", "far", namespace="other"))
    await seen.names()
    seen.cache.put(changed(cluster(http=""), status={"endpoints": {"http": "http://b"}}))
    assert await seen.names() == {"shop", "payments", "orders"}


async def test_the_end_of_a_child_is_news_to_a_parent_that_is_being_deleted() -> None:
    for deleted, expected in (({}, {"orders"}), ({"deletionTimestamp": "now"}, {"orders", "payments"})):
        above = namespace()
        above["metadata"] |= deleted
        seen = Seen(above, topic())
        await seen.names()
        seen.watcher.deleted(Key("Topic", "team", "orders"))
        assert await seen.names() == expected


def named_x(name: str) -> dict[str, Any]:
    return body("Topic", name, {"namespaceRef": {"name": "payments"}, "name": "x"})


async def test_the_end_of_one_brings_those_that_name_the_same() -> None:
    seen = Seen(cluster(), tenant(), namespace(), named_x("a"), named_x("b"))
    await seen.names()
    seen.watcher.deleted(Key("Topic", "team", "a"))
    assert await seen.names() == {"a", "b"}


async def test_who_has_an_object_hears_of_another_that_wants_it() -> None:
    seen = Seen(cluster(), tenant(), namespace(), named_x("a"))
    await seen.names()
    seen.watcher.seen(named_x("b"))
    assert await seen.names() == {"a", "b"}
