"""The owner of an object keeps it; age decides only among equals; and what is in an object is known by its name."""

from __future__ import annotations

from heliograph_operator.objects.kinds import Key
from heliograph_operator.objects.ownership import Claim, OwnershipIndex, Stake
from hypothesis import given
from hypothesis import strategies as st

MAIN, OTHER = Key("BrokerCluster", "team", "main"), Key("BrokerCluster", "team", "other")
CLAIM = Claim(MAIN, "Topic", "persistent://shop/payments/orders")
A, B, C = (Key("Topic", "team", name) for name in "abc")

CLAIMS = [
    Claim(cluster, kind, name)
    for cluster in (MAIN, OTHER)
    for kind, name in (
        ("Tenant", "shop"),
        ("Tenant", "shop2"),
        ("Namespace", "shop/payments"),
        ("Namespace", "shop/pay"),
        ("Topic", "persistent://shop/payments/orders"),
        ("Topic", "non-persistent://shop/pay/a/b"),
    )
]
KEYS = [Key("Topic", "team", name) for name in "abcdef"]
STAKES = st.builds(
    Stake,
    claim=st.sampled_from(CLAIMS),
    created=st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
    established=st.booleans(),
    managed=st.booleans(),
    deleted=st.booleans(),
)
HISTORIES = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | STAKES), max_size=30)


def test_the_established_owner_comes_before_an_older_one_and_age_decides_among_equals() -> None:
    index = OwnershipIndex()
    index.put(A, Stake(CLAIM, "2026-01-01T00:00:00Z"))
    index.put(B, Stake(CLAIM, "2026-01-02T00:00:00Z", established=True))
    index.put(C, Stake(CLAIM, "2026-01-03T00:00:00Z", established=True))
    assert index.claimants(CLAIM) == [B, C, A]
    index.put(B, Stake(CLAIM, "2026-01-02T00:00:00Z", established=True, managed=False))
    assert (index.owner(CLAIM), index.heir(C)) == (C, A)
    assert index.rivals(A) == [C, B]


def test_one_that_was_released_wants_nothing_however_long_another_finalizer_keeps_it() -> None:
    index = OwnershipIndex()
    index.put(A, Stake(CLAIM, "2026-01-01T00:00:00Z", established=True, deleted=True))
    index.put(B, Stake(CLAIM, "2026-01-02T00:00:00Z"))
    assert index.owner(CLAIM) == A
    index.put(A, Stake(CLAIM, "2026-01-01T00:00:00Z", deleted=True))
    assert index.owner(CLAIM) == B
    # The same holds for two without a record.
    index.put(C, Stake(CLAIM, "2026-01-03T00:00:00Z", managed=False))
    assert index.claimants(CLAIM) == [B, A, C]


def test_what_is_being_recorded_is_had_already() -> None:
    index = OwnershipIndex()
    index.put(B, Stake(CLAIM, "2026-01-02T00:00:00Z"))
    with index.reserved(B):
        index.put(A, Stake(CLAIM, "2026-01-01T00:00:00Z"))
        assert index.owner(CLAIM) == B
    assert index.owner(CLAIM) == A


def test_one_that_is_not_managed_is_an_heir_only_if_there_is_no_other() -> None:
    index = OwnershipIndex()
    index.put(A, Stake(CLAIM, established=True, deleted=True))
    assert index.heir(A) is None
    index.put(B, Stake(CLAIM, managed=False))
    assert (index.owner(CLAIM), index.heir(A)) == (A, B)
    index.put(C, Stake(CLAIM, deleted=True))
    assert index.heir(A) == B


def test_a_topic_is_in_its_namespace_and_in_its_tenant() -> None:
    names = [(each.kind, each.name) for each in Claim(MAIN, "Topic", "non-persistent://shop/pay/a/b").containers()]
    assert names == [("Namespace", "shop/pay"), ("Tenant", "shop")]
    assert list(Claim(MAIN, "Tenant", "shop").containers()) == []


def test_a_topic_with_a_scheme_in_its_own_name_is_where_its_domain_puts_it() -> None:
    claim = Claim(MAIN, "Topic", "persistent://shop/payments/a://bank/x")
    assert claim.tenant == "shop"
    assert [each.name for each in claim.containers()] == ["shop/payments", "shop"]


@given(HISTORIES)
def test_every_answer_follows_from_the_last_stake_of_each(history: list[tuple[Key, Stake | None]]) -> None:
    index, last = OwnershipIndex(), dict[Key, Stake]()
    for key, stake in history:
        before = last.pop(key, None)
        concerned = index.put(key, stake)
        if stake is not None:
            last[key] = stake
        changed = {each.claim for each in (before, stake) if each is not None} if before != stake else set()
        rivals = {other for other, its in last.items() if its.claim in changed}
        above = {container for claim in changed for container in claim.containers()}
        waiting = {other for other, its in last.items() if its.claim in above and its.deleted}
        assert concerned == (rivals | waiting) - {key}
        for claim in CLAIMS:
            claimants = [other for other, its in last.items() if its.claim == claim]
            owners = [other for other in claimants if last[other].managed]
            has_it = [other for other in owners if last[other].established] or owners
            oldest = min(has_it, key=lambda other: (last[other].created, other.name), default=None)
            assert index.owner(claim) == oldest
            assert sorted(index.claimants(claim)) == sorted(claimants)
            assert index.below(claim) == sorted(o for o, its in last.items() if claim in its.claim.containers())
        for cluster in (MAIN, OTHER):
            assert index.on_cluster(cluster) == sorted(o for o, its in last.items() if its.claim.cluster == cluster)
