"""Children are found by their parent, and of several resources for one object the oldest counts."""

from __future__ import annotations

from heliograph_operator.objects.kinds import Key, key_of
from heliograph_operator.objects.resource_cache import Store

from .bodies import body, namespace, topic

CLAIM = (Key("BrokerCluster", "team", "main"), "Topic", "persistent://shop/payments/orders")


def test_children_are_known_before_their_parent_and_after_it() -> None:
    store = Store()
    store.put(topic("a"))
    store.put(topic("b"))
    parent = Key("Namespace", "team", "payments")
    assert store.children(parent) == [Key("Topic", "team", "a"), Key("Topic", "team", "b")]
    store.put(namespace())
    store.remove(parent)
    store.put(body("Topic", "a", {"namespaceRef": {"name": "elsewhere"}}, resourceVersion="2"))
    assert store.children(parent) == [Key("Topic", "team", "b")]
    assert store.children(Key("Namespace", "team", "elsewhere")) == [Key("Topic", "team", "a")]


def test_the_oldest_claimant_is_first_and_leaves_the_others_when_it_goes() -> None:
    store = Store()
    young, old = (
        body("Topic", name, creationTimestamp=f"2026-01-01T00:00:0{second}Z") for name, second in (("a", 2), ("b", 1))
    )
    for each in (young, old):
        store.put(each)
        store.claim(key_of(each), CLAIM)
    assert store.claimants(CLAIM) == [old, young]
    assert store.rivals(key_of(old)) == [key_of(young)]
    store.remove(key_of(old))
    assert store.claimants(CLAIM) == [young]
    assert store.rivals(key_of(young)) == []


def test_of_the_same_second_the_one_that_has_it_stays() -> None:
    store = Store()
    has_it = body("Topic", "z", annotations={"heliograph.dev/broker-object": CLAIM[2]})
    for each in (body("Topic", "a"), has_it, body("Topic", "b")):
        store.put(each)
        store.claim(key_of(each), CLAIM)
    assert [each["metadata"]["name"] for each in store.claimants(CLAIM)] == ["z", "a", "b"]


def test_who_claims_something_else_tells_whom_it_left() -> None:
    store = Store()
    for name in ("a", "b"):
        store.put(topic(name))
        assert store.claim(Key("Topic", "team", name), CLAIM) == []
    left = store.claim(Key("Topic", "team", "a"), None)
    assert left == [Key("Topic", "team", "b")]
    assert store.claim(Key("Topic", "team", "a"), None) == []
