"""Children are found by their parent, and of several resources for one object the oldest counts."""

from __future__ import annotations

from heliograph_operator.objects.kinds import Key, key_of
from heliograph_operator.objects.resource_cache import Claim, ResourceCache

from .bodies import body, namespace, topic

CLAIM = Claim(Key("BrokerCluster", "team", "main"), "Topic", "persistent://shop/payments/orders")


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


def test_the_oldest_claimant_is_first_and_leaves_the_others_when_it_goes() -> None:
    cache = ResourceCache()
    young, old = (
        body("Topic", name, creationTimestamp=f"2026-01-01T00:00:0{second}Z") for name, second in (("a", 2), ("b", 1))
    )
    for each in (young, old):
        cache.put(each)
        cache.claim(key_of(each), CLAIM)
    assert cache.claimants(CLAIM) == [key_of(old), key_of(young)]
    assert cache.rivals(key_of(old)) == [key_of(young)]
    cache.remove(key_of(old))
    assert cache.claimants(CLAIM) == [key_of(young)]
    assert cache.rivals(key_of(young)) == []


def test_of_the_same_second_the_one_that_has_it_stays() -> None:
    cache = ResourceCache()
    has_it = body("Topic", "z", annotations={"heliograph.dev/broker-object": CLAIM.name})
    for each in (body("Topic", "a"), has_it, body("Topic", "b")):
        cache.put(each)
        cache.claim(key_of(each), CLAIM)
    assert [key.name for key in cache.claimants(CLAIM)] == ["z", "a", "b"]


def test_who_claims_something_else_tells_whom_it_left() -> None:
    cache = ResourceCache()
    for name in ("a", "b"):
        cache.put(topic(name))
        assert cache.claim(Key("Topic", "team", name), CLAIM) == []
    left = cache.claim(Key("Topic", "team", "a"), None)
    assert left == [Key("Topic", "team", "b")]
    assert cache.claim(Key("Topic", "team", "a"), None) == []
