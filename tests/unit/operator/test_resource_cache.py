"""Children are found by their parent, and the index of owners is complete after each change in any order."""

from __future__ import annotations

import asyncio
from typing import Any

from heliograph_operator.act.work_queue import WorkQueue
from heliograph_operator.objects.kinds import FINALIZER, Key, key_of
from heliograph_operator.objects.ownership import Claim
from heliograph_operator.objects.resource_cache import ResourceCache
from hypothesis import given
from hypothesis import strategies as st

from tests.support.polling import DEADLINE_S

from .bodies import body, cluster, namespace, tenant, topic

MAIN = Key("BrokerCluster", "team", "main")
CLAIM = Claim(MAIN, "Topic", "persistent://shop/payments/orders")


async def test_users_of_a_slow_broker_do_not_take_the_turn_of_others() -> None:
    cache = ResourceCache()
    queue: WorkQueue[Key] = WorkQueue(1, cache.broker_cluster)
    for name, of in (("a", "slow"), ("b", "slow"), ("c", "main")):
        cache.put(body("User", name, {"clusterRef": {"name": of}}))
        queue.add(Key("User", "team", name))
    cache.put(body("User", "d", {"clusterRef": {"name": "main", "namespace": "team"}}, namespace="other"))
    queue.add(Key("User", "other", "d"))
    taken = [await asyncio.wait_for(queue.take(), DEADLINE_S) for _ in range(2)]
    assert taken == [Key("User", "team", "a"), Key("User", "team", "c")]
    queue.done(taken[1])
    assert await asyncio.wait_for(queue.take(), DEADLINE_S) == Key("User", "other", "d")


def test_children_are_known_before_their_parent_and_after_it() -> None:
    cache = ResourceCache()
    cache.put(topic("a"))
    cache.put(topic("b"))
    parent = Key("Namespace", "team", "payments")
    assert cache.children(parent) == [Key("Topic", "team", "a"), Key("Topic", "team", "b")]
    cache.put(namespace())
    cache.remove(parent)
    cache.put(body("Topic", "a", {"namespaceRef": {"name": "elsewhere"}}, resourceVersion="2"))
    assert cache.children(parent) == [Key("Topic", "team", "b")]
    assert cache.children(Key("Namespace", "team", "elsewhere")) == [Key("Topic", "team", "a")]


def held(name: str, **metadata: Any) -> dict[str, Any]:
    notes = {"heliograph.dev/cluster": "main", "heliograph.dev/broker-object": CLAIM.name}
    return body(
        "Topic", name, {"namespaceRef": {"name": "nowhere"}}, finalizers=[FINALIZER], annotations=notes, **metadata
    )


def test_what_was_recorded_for_a_resource_is_its_own_wherever_its_parents_are() -> None:
    cache = ResourceCache()
    cache.put(held("orders"))
    assert cache.ownership.owner(CLAIM) == Key("Topic", "team", "orders")
    # Copied without the finalizer, the annotations record nothing.
    copied = held("copied")
    copied["metadata"]["finalizers"] = []
    cache.put(copied)
    assert cache.ownership.claimants(CLAIM) == [Key("Topic", "team", "orders")]


def test_a_change_tells_all_that_it_concerns_but_not_itself() -> None:
    cache = ResourceCache()
    heard: list[set[Key]] = []
    cache.ownership_listeners.append(heard.append)
    owner, second = Key("Topic", "team", "orders"), Key("Topic", "team", "second")
    for each in (cluster(), tenant(), namespace(), topic()):
        cache.put(each)
    assert heard == []
    cache.put(body("Topic", "second", {"namespaceRef": {"name": "payments"}, "name": "orders"}))
    assert heard.pop() == {owner}
    cache.remove(owner)
    assert heard.pop() == {second}
    # What it stands for goes with the name of its tenant.
    cache.put(body("Tenant", "shop", {"name": "other"}, resourceVersion="2"))
    assert heard.pop() == {Key("Namespace", "team", "payments"), second}
    cache.remove(MAIN)
    assert heard.pop() == {Key("Tenant", "team", "shop"), Key("Namespace", "team", "payments"), second}
    assert cache.ownership.stake(second) is None


def test_a_parent_that_is_being_deleted_is_told_of_what_is_in_it() -> None:
    cache = ResourceCache()
    heard: list[set[Key]] = []
    for each in (cluster(), tenant(), body("Namespace", "dflt", {"tenantRef": {"name": "shop"}, "name": "payments"})):
        cache.put(each)
    cache.ownership_listeners.append(heard.append)
    in_full = topic("full", "shop/payments")
    cache.put(in_full)
    assert heard == []
    deleted = body("Namespace", "dflt", {"tenantRef": {"name": "shop"}, "name": "payments"}, resourceVersion="2")
    deleted["metadata"]["deletionTimestamp"] = "now"
    cache.put(deleted)
    heard.clear()
    cache.remove(key_of(in_full))
    assert heard == [{key_of(deleted)}]


POOL: list[dict[str, Any]] = [
    cluster(),
    cluster("default"),
    cluster("other"),
    tenant(),
    body("Tenant", "named", {"name": "shop", "clusterRef": {"name": "other"}}),
    body("Tenant", "shop", {"name": "renamed"}, uid="again"),
    namespace(),
    body("Namespace", "dflt", {"tenantRef": {"name": "named"}, "name": "payments"}),
    topic(),
    body("Topic", "again", {"namespaceRef": {"name": "dflt"}, "name": "orders"}),
    body("Topic", "full", {"namespaceRef": {"name": "shop/payments"}, "name": "x", "clusterRef": {"name": "main"}}),
    held("was"),
    held("young", creationTimestamp="2026-03-01T00:00:00Z"),
]
CHANGES: list[dict[str, Any]] = [
    {},
    {"deletionTimestamp": "now"},
    {"annotations": {"heliograph.dev/managed": "false"}},
]


def present(cache: ResourceCache, keys: set[Key]) -> object:
    ownership = cache.ownership
    stakes = {key: ownership.stake(key) for key in keys}
    claims = {stake.claim for stake in stakes.values() if stake is not None}
    return stakes, {claim: (ownership.claimants(claim), ownership.below(claim)) for claim in claims}


@given(st.lists(st.tuples(st.sampled_from(POOL), st.sampled_from(CHANGES), st.booleans())))
def test_the_index_depends_on_what_is_there_and_not_on_how_it_came_to_be(
    history: list[tuple[dict[str, Any], dict[str, Any], bool]],
) -> None:
    cache, keys = ResourceCache(), {key_of(each) for each in POOL}
    for version, (each, change, removed) in enumerate(history, 1):
        metadata = {**each["metadata"], **change, "resourceVersion": str(version), "uid": str(version)}
        cache.put({**each, "metadata": metadata})
        if removed:
            cache.remove(key_of(each))
        rebuilt = ResourceCache()
        for key in sorted(cache.keys(), reverse=True):
            found = cache.get(key)
            assert found is not None
            rebuilt.put(found)
        assert present(cache, keys) == present(rebuilt, keys)
