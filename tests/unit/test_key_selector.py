"""The Key_Shared consumer that a key belongs to, with the numbers of Pulsar's guide and an oracle of its rules."""

from __future__ import annotations

import itertools
import random

import mmh3
import pytest
from heliograph_broker.messaging.base.errors import ConsumerAssignError
from heliograph_broker.messaging.clients.consumer import Consumer, KeyRange, KeySharedPolicy, SubscriptionBase
from heliograph_broker.messaging.clients.key_selector import (
    ConsistentHashSelector,
    HashRangeSelector,
    StickyRangeSelector,
)
from heliograph_broker.messaging.messages.key_hash import MAX_HASH, NON_KEY, SLOTS, hash_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.core import Client

ORDER = hash_of("Order-3459134")
AGGREGATOR = "orders-aggregator-pod-2345-consumer"


def consumer(name: str, *ranges: tuple[int, int]) -> Consumer:
    policy = KeySharedPolicy(sticky=bool(ranges), ranges=tuple(KeyRange(*part) for part in ranges))
    return Consumer(SubscriptionBase(), Client(), 1, name, key_shared=policy)


def key_of_slot(slot: int) -> str:
    return next(key for key in map(str, range(2_000_000)) if mmh3.hash(key, 0, False) % SLOTS == slot)


# -- hash ranges ---------------------------------------------------------------------------------------------------


def test_the_guides_key_has_the_index_6067() -> None:
    assert mmh3.hash("Order-3459134", 0, False) == 3112179635
    assert 3112179635 % SLOTS == ORDER % SLOTS == 6067


def test_hash_ranges_are_those_of_the_guides_pictures() -> None:
    selector = HashRangeSelector()
    c1, c2, c3, c4 = each = [consumer(f"C{number}") for number in range(1, 5)]

    def regions() -> dict[str, tuple[int, int]]:
        """Return each one's region as the guide writes it: without its end."""
        return {c.name: (start, end + 1) for c in connected for start, end in selector.ranges(c)}

    connected: list[Consumer] = []
    seen = []
    for one in each:
        selector.add(one)
        connected.append(one)
        seen.append(regions())
    assert seen == [
        {"C1": (0, 65536)},
        {"C2": (0, 32768), "C1": (32768, 65536)},
        {"C3": (0, 16384), "C2": (16384, 32768), "C1": (32768, 65536)},
        {"C3": (0, 16384), "C2": (16384, 32768), "C4": (32768, 49152), "C1": (49152, 65536)},
    ]
    assert selector.select(ORDER) is c3
    connected.remove(c4)
    selector.remove(c4)
    assert regions() == {"C3": (0, 16384), "C2": (16384, 32768), "C1": (32768, 65536)}
    connected.remove(c1)
    selector.remove(c1)
    assert regions() == {"C3": (0, 16384), "C2": (16384, 65536)}
    for name in ("C5", "C6", "C7"):
        connected.append(consumer(name))
        selector.add(connected[-1])
    # As Pulsar 4.2.4 divides them: 49,152 is halved twice, and of two equal regions the lower one is.
    assert regions() == {
        "C3": (0, 16384),
        "C6": (16384, 28672),
        "C5": (28672, 40960),
        "C7": (40960, 53248),
        "C2": (53248, 65536),
    }
    for one in connected[2:]:
        selector.remove(one)
    selector.remove(c3)
    assert selector.select(ORDER) is c2
    selector.remove(c2)
    assert selector.select(ORDER) is None


def test_hash_ranges_end_with_one_slot_each() -> None:
    selector = HashRangeSelector()
    selector._starts = list(range(SLOTS))
    selector._owners = [consumer("c")] * SLOTS
    with pytest.raises(ConsumerAssignError, match="can be split for another consumer"):
        selector.add(consumer("one too many"))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_hash_ranges_cover_every_slot_once_and_move_one_consumers_keys(history: list[tuple[bool, int]]) -> None:
    selector = HashRangeSelector()
    connected: list[Consumer] = []
    probes = [hash_of(str(number)) for number in range(50)]
    for joins, choice in history:
        before = [selector.select(probe) for probe in probes]
        if joins or not connected:
            connected.append(consumer(f"c{choice}"))
            selector.add(connected[-1])
            gone = None
        else:
            gone = connected.pop(choice % len(connected))
            selector.remove(gone)
        regions = sorted(region for one in connected for region in selector.ranges(one))
        if connected:
            assert regions[0][0] == 0
            assert regions[-1][1] == SLOTS - 1
            assert all(left[1] + 1 == right[0] for left, right in itertools.pairwise(regions))
            assert len(regions) == len(connected)
        moved = {
            (old, new)
            for probe, old in zip(probes, before, strict=True)
            if old is not None and (new := selector.select(probe)) is not old
        }
        assert len(moved) <= 1, "the keys of more than one consumer have moved"
        if gone is None:
            assert all(new is connected[-1] for _, new in moved)
        else:
            assert all(old is gone for old, _ in moved)
        for probe in probes:
            owner = selector.select(probe)
            assert (owner is None) == (not connected)
            if owner is not None:
                ((start, end),) = selector.ranges(owner)
                assert start <= probe % SLOTS <= end


# -- consistent hashing ------------------------------------------------------------------------------------------


def test_the_guides_points_are_on_the_ring() -> None:
    points = {point & MAX_HASH for point in ConsistentHashSelector.points_of(AGGREGATOR)}
    assert len(points) == 100
    assert {1003084738, 373317202, 320276078} <= points
    for index, point in ((1, 1003084738), (2, 373317202), (100, 320276078)):
        assert mmh3.hash(f"{AGGREGATOR}{index}", 0, False) == point


class Oracle:
    """Says whose a key is by the guide, by looking at every point of a ring of 32-bit integers up to MAX_INT."""

    def __init__(self, names: list[str]) -> None:
        self.at_point: dict[int, list[str]] = {}
        for name in sorted(names):
            for number in range(1, 101):
                owners = self.at_point.setdefault(mmh3.hash(f"{name}{number}", 0, False) % 2**31, [])
                if name not in owners:
                    owners.append(name)
        self.points = sorted(self.at_point)

    def owner(self, key: str) -> str:
        position = mmh3.hash(key, 0, False) % 2**31
        point = next((point for point in self.points if point >= position), self.points[0])
        return self.at_point[point][position % len(self.at_point[point])]


def test_the_ring_agrees_with_an_oracle() -> None:
    """400 keys on the ring of 1 to 50 consumers each: 20,000 altogether."""
    rng = random.Random(1)
    for consumers in range(1, 51):
        names = [f"consumer-{rng.randrange(10**9)}" for _ in range(consumers)]
        oracle = Oracle(names)
        selector = ConsistentHashSelector()
        for name in rng.sample(names, len(names)):
            selector.add(consumer(name))
        for key in (f"key-{rng.randrange(10**9)}" for _ in range(400)):
            owner = selector.select(hash_of(key))
            assert owner is not None
            assert owner.name == oracle.owner(key)


def test_consumers_at_one_point_share_its_keys_by_the_hash() -> None:
    """Names of which one continues the other's mark points of the same text: "c" + "11" and "c1" + "1"."""
    names = ["c1", "c", "d"]
    shared = ConsistentHashSelector.points_of("c") & ConsistentHashSelector.points_of("c1")
    assert len(shared) == 9
    selector = ConsistentHashSelector()
    consumers = [consumer(name) for name in names]
    for one in consumers:
        selector.add(one)
    for point in shared:
        position = point & MAX_HASH
        for offset in range(2):
            owner = selector.select(point - offset)
            assert owner is not None
            assert owner.name == sorted(["c", "c1"])[(position - offset) % 2]
    oracle = Oracle(names)
    for number in range(500):
        owner = selector.select(hash_of(f"k{number}"))
        assert owner is not None
        assert owner.name == oracle.owner(f"k{number}")
    selector.remove(consumers[0])
    for point in shared:
        assert selector.select(point) is consumers[1]


def test_consumers_of_one_name_share_every_point() -> None:
    first, second = consumer("same"), consumer("same")
    selector = ConsistentHashSelector()
    selector.add(first)
    selector.add(second)
    hashes = [hash_of(str(number)) for number in range(200)]
    assert [selector.select(each) for each in hashes] == [(first, second)[each % 2] for each in hashes]
    selector.remove(first)
    assert {selector.select(each) for each in hashes} == {second}
    selector.remove(second)
    assert selector.select(NON_KEY) is None


@given(st.lists(st.sampled_from(["c0", "c1", "c2", "c3", "c4"]), max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_join_or_leave_moves_the_keys_of_that_consumer_only(toggled: list[str]) -> None:
    """Each name joins, or leaves if it is connected."""
    selector = ConsistentHashSelector()
    connected: dict[str, Consumer] = {}
    probes = [hash_of(str(number)) for number in range(30)]
    for name in toggled:
        before = [selector.select(probe) for probe in probes]
        changed = connected.pop(name, None)
        if changed is None:
            changed = connected[name] = consumer(name)
            selector.add(changed)
        else:
            selector.remove(changed)
        after = [selector.select(probe) for probe in probes]
        assert all(changed in (old, new) for old, new in zip(before, after, strict=True) if None is not old is not new)
        assert (None in after) == (not connected)
        _check_ranges(selector, list(connected.values()))
        for probe, owner in zip(probes, after, strict=True):
            if owner is not None:
                assert any(start <= probe & MAX_HASH <= end for start, end in selector.ranges(owner))


def _check_ranges(selector: ConsistentHashSelector, connected: list[Consumer]) -> None:
    """See that every hash is in a range, and in one only: the names here share no point."""
    ranges = sorted(part for one in connected for part in selector.ranges(one))
    if connected:
        assert ranges[0][0] == 0
        assert ranges[-1][1] == MAX_HASH
    assert all(left[1] + 1 == right[0] for left, right in itertools.pairwise(ranges))
    for one in connected:
        own = selector.ranges(one)
        assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(own)), "adjoining ranges"


# -- ranges that clients declare -----------------------------------------------------------------------------------


def test_a_consumer_may_declare_every_slot_by_itself() -> None:
    """Comparing each of the ranges with each would hold up the broker for a minute."""
    selector = StickyRangeSelector()
    slots = [(slot, slot) for slot in range(0, SLOTS, 2)]
    one = consumer("one", *slots)
    selector.add(one)
    assert selector.ranges(one) == slots
    with pytest.raises(ConsumerAssignError, match=r"consumer one: \[3, 5\] overlaps \[4, 4\]"):
        selector.add(consumer("two", (1, 1), (3, 5)))
    assert selector.select(1) is None


def test_ranges_of_one_consumer_that_overlap_are_refused_in_any_order() -> None:
    for parts in itertools.permutations([(0, 9), (20, 29), (5, 22)]):
        with pytest.raises(ConsumerAssignError, match="overlaps"):
            StickyRangeSelector().add(consumer("one", *parts))


def test_the_guides_sticky_ranges() -> None:
    c1 = consumer("C1", (0, 16383), (32768, 49151))
    c2 = consumer("C2", (16384, 32767), (49152, 65535))
    selector = StickyRangeSelector()
    selector.add(c1)
    selector.add(c2)
    assert selector.select(ORDER) is c1
    for slot, owner in ((0, c1), (16383, c1), (16384, c2), (32767, c2), (32768, c1), (49152, c2), (65535, c2)):
        assert selector.select(hash_of(key_of_slot(slot))) is owner


def test_index_0_belongs_to_the_range_that_has_it() -> None:
    zero, rest = consumer("zero", (0, 0)), consumer("rest", (1, 65535))
    selector = StickyRangeSelector()
    selector.add(rest)
    at_zero = hash_of(key_of_slot(0))
    assert selector.select(at_zero) is None
    selector.add(zero)
    assert selector.select(at_zero) is zero
    assert selector.select(hash_of(key_of_slot(1))) is rest
