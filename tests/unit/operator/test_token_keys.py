"""Keys that sign tokens: brokers have a key before it signs, and keep it until its last token has expired."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from heliograph_api.tokens.keys import public_keys
from heliograph_operator.decide.token_keys import (
    KEYS,
    MAX_KEYS,
    PUBLIC,
    SETTLE,
    SKEW,
    KeyPlan,
    Period,
    PublishedKey,
    SigningKey,
    new_key,
    plan_keys,
    private_data,
    public_data,
    read_private,
    read_public,
)
from hypothesis import given, settings
from hypothesis import strategies as st

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
PERIOD = Period(every=90 * DAY, longest=30 * DAY)


class Cluster:
    """Both Secrets, brokers that have what was published, and the tokens that are out, on virtual time."""

    def __init__(self, period: Period = PERIOD) -> None:
        self.now = START
        self.period = period
        self.keys: Sequence[SigningKey] = ()
        self.published: Sequence[PublishedKey] = ()
        #: The public halves that the brokers read last.
        self.mounted: set[str] = set()
        self.accepted: set[str] = set()
        #: The key and the end of each token.
        self.tokens: list[tuple[str, datetime]] = []
        self._names = itertools.count(1)

    def make(self, longest: timedelta) -> SigningKey:
        name = f"K{next(self._names)}"
        return SigningKey(name, f"public of {name}", longest, private=f"private of {name}")

    def plan(self) -> KeyPlan:
        return plan_keys(
            self.keys, self.published, self.period, self.now, accepted=frozenset(self.accepted), make=self.make
        )

    def reconcile(self, *, writes: int = 2) -> KeyPlan:
        """Plan and write; ``writes`` fewer than 2: the operator ends before the last of them."""
        plan = self.plan()
        if writes > 0:
            self.keys = plan.keys
        if writes > 1:
            self.published = plan.published
            if plan.signer is not None:
                self.tokens.append((plan.signer.id, self.now + self.period.longest))
            if plan.to_ask is not None and plan.to_ask.id in self.mounted:
                self.accepted.add(plan.to_ask.id)
        return plan

    def mount(self) -> None:
        """Bring what is published into the pods, as the kubelet does."""
        self.mounted = {each.id for each in self.published}

    def check(self) -> None:
        valid = {key for key, end in self.tokens if end > self.now}
        stated = {each.id for each in self.published}
        assert valid <= stated, "each valid token has its key with the brokers"
        assert len(stated) <= MAX_KEYS + 1

    @property
    def ids(self) -> list[str]:
        return [each.id for each in self.published]


def test_the_first_key_signs_at_once() -> None:
    cluster = Cluster()
    plan = cluster.reconcile()
    assert plan.signer is not None
    assert cluster.ids == [plan.signer.id]
    assert plan.due == START + 90 * DAY


def test_nothing_changes_before_the_period_ends() -> None:
    cluster = Cluster()
    plan = cluster.reconcile()
    cluster.now += 89 * DAY
    assert cluster.plan() == replace(plan, due=START + 90 * DAY)


def test_a_new_key_signs_when_the_brokers_accept_it_and_the_old_one_leaves_after_its_last_token() -> None:
    cluster = Cluster()
    cluster.reconcile()
    cluster.now += 90 * DAY
    plan = cluster.reconcile()
    assert cluster.ids == ["K1", "K2"]
    assert plan.signer is not None
    assert (plan.signer.id, plan.to_ask, plan.due) == ("K1", None, cluster.now + SETTLE)
    cluster.now += SETTLE
    plan = cluster.reconcile()
    assert plan.to_ask is not None, "it was published long enough to be asked for"
    assert (plan.to_ask.id, plan.signer and plan.signer.id) == ("K2", "K1")
    cluster.now += DAY
    assert cluster.reconcile().to_ask is not None, "no broker accepts it, however long that takes"
    cluster.mount()
    cluster.reconcile()
    plan = cluster.reconcile()
    assert plan.signer is not None
    assert (plan.signer.id, cluster.ids) == ("K2", ["K1", "K2"])
    retired = cluster.now
    assert plan.due == retired + 30 * DAY + SKEW
    cluster.now = plan.due - timedelta(seconds=1)
    cluster.reconcile()
    assert cluster.ids == ["K1", "K2"]
    cluster.now = plan.due
    cluster.reconcile()
    assert cluster.ids == ["K2"]
    assert [each.id for each in cluster.keys] == ["K2"]


def test_keys_are_not_rotated_if_the_spec_says_so() -> None:
    cluster = Cluster(Period(None, 30 * DAY))
    assert cluster.reconcile().due is None
    cluster.now += 10_000 * DAY
    cluster.reconcile()
    assert cluster.ids == ["K1"]


def test_of_more_keys_than_are_verified_cheaply_none_is_made() -> None:
    cluster = Cluster(Period(DAY, 365 * DAY))
    for _ in range(100):
        cluster.reconcile()
        cluster.mount()
        cluster.now += DAY / 2
    assert len(cluster.ids) == MAX_KEYS


def test_a_signing_key_that_was_deleted_by_accident_leaves_its_tokens_valid() -> None:
    cluster = Cluster()
    cluster.reconcile()
    cluster.mount()
    cluster.keys = ()
    cluster.now += DAY
    plan = cluster.reconcile()
    assert plan.signer is None, "the brokers do not have the new key yet"
    assert cluster.ids == ["K1", "K2"]
    assert cluster.plan().keys == plan.keys, "what is lost is known from the private Secret, too"
    cluster.mount()
    cluster.now += SETTLE
    cluster.reconcile()
    plan = cluster.reconcile()
    assert plan.signer is not None
    assert plan.signer.id == "K2"
    cluster.now += 31 * DAY
    cluster.reconcile()
    assert cluster.ids == ["K2"]


def test_the_deletion_of_both_secrets_revokes_all_keys() -> None:
    cluster = Cluster()
    cluster.reconcile()
    cluster.keys = cluster.published = ()
    plan = cluster.reconcile()
    assert cluster.ids == ["K2"]
    assert plan.signer is not None


def test_without_its_published_half_a_key_pauses_until_the_brokers_have_it_again() -> None:
    cluster = Cluster()
    cluster.reconcile()
    cluster.published = ()
    assert cluster.reconcile().signer is None
    cluster.now += SETTLE
    assert cluster.reconcile().signer is not None
    assert cluster.ids == ["K1"]


def test_an_old_copy_of_the_private_secret_keeps_the_keys_that_it_does_not_have() -> None:
    cluster = Cluster()
    cluster.reconcile()
    old = cluster.keys
    cluster.now += 90 * DAY
    for _ in range(4):
        cluster.reconcile()
        cluster.mount()
        cluster.now += SETTLE
    assert [each.retired is None for each in cluster.keys] == [False, True]
    cluster.keys = old
    cluster.reconcile()
    assert cluster.ids[:2] == ["K1", "K2"]
    cluster.check()


def test_an_old_copy_whose_key_the_brokers_do_not_have_any_more_does_not_sign_at_once() -> None:
    cluster = Cluster()
    cluster.reconcile()
    old = cluster.keys
    cluster.now += 90 * DAY
    for _ in range(4):
        cluster.reconcile()
        cluster.mount()
        cluster.now += SETTLE
    cluster.now += 31 * DAY
    cluster.reconcile()
    assert cluster.ids == ["K2"]
    cluster.keys = old
    plan = cluster.reconcile()
    assert plan.signer is None
    assert set(cluster.ids) >= {"K1", "K2"}


def test_a_longer_validity_holds_before_the_first_token_of_it() -> None:
    cluster = Cluster()
    cluster.reconcile()
    cluster.period = replace(PERIOD, longest=60 * DAY)
    plan = cluster.reconcile()
    assert plan.keys[0].longest == plan.published[0].longest == 60 * DAY
    cluster.period = PERIOD
    assert cluster.reconcile().keys[0].longest == 60 * DAY, "tokens of the longer one may be out"


@pytest.mark.parametrize("writes", [0, 1])
def test_a_crash_between_the_writes_leads_to_the_same_keys(writes: int) -> None:
    cluster = Cluster()
    cluster.reconcile()
    cluster.now += 90 * DAY
    cluster.reconcile(writes=writes)
    cluster.reconcile()
    made = cluster.ids
    cluster.reconcile()
    assert cluster.ids == made
    assert len(made) == 2
    cluster.check()


def test_a_clock_that_was_ahead_stops_no_signature() -> None:
    """An operator on a node whose clock is ahead writes times that come later; the next one has the right clock."""
    cluster = Cluster()
    cluster.now += 400 * DAY
    cluster.reconcile()
    cluster.now = START
    cluster.reconcile()
    cluster.now += SETTLE
    plan = cluster.reconcile()
    assert plan.signer is not None
    cluster.now += 90 * DAY
    cluster.reconcile()
    assert cluster.ids == ["K1", "K2"], "the period counts from when the clock was right"


def test_a_key_whose_last_token_has_expired_is_not_published_again_after_a_crash() -> None:
    cluster = Cluster()
    cluster.reconcile()
    cluster.now += 90 * DAY
    cluster.reconcile()
    cluster.mount()
    cluster.now += SETTLE
    cluster.reconcile()
    # K1 has the end of its trust in one of the Secrets only, and the operator comes back long after that.
    cluster.reconcile(writes=1)
    assert [each.retired for each in cluster.published if each.id == "K1"] == [None]
    cluster.now += 60 * DAY
    cluster.reconcile()
    assert "K1" not in cluster.ids


@pytest.mark.parametrize(
    "changed",
    [{"longestSeconds": 10**12}, {"retired": "9999-12-31T00:00:00Z"}, {"since": "9999-12-31T00:00:00Z"}],
)
def test_numbers_that_somebody_wrote_into_a_secret_stop_nothing(changed: dict[str, object]) -> None:
    key = replace(new_key(30 * DAY), since=START, retired=START + DAY)
    stored = json.loads(private_data([key, replace(new_key(30 * DAY), since=START)])[KEYS])
    edited = json.dumps([{**stored[0], **changed}, stored[1]])
    plan = plan_keys(read_private({KEYS: edited}), (), PERIOD, START + 2 * DAY)
    assert len(plan.keys) == 2
    stated = json.loads(public_data(plan.published)[KEYS])
    edited = json.dumps([{**stored[0], "public": key.public, "settled": "9999-12-31T00:00:00Z", **changed}, *stated])
    assert plan_keys(plan.keys, read_public({KEYS: edited}), PERIOD, START + 3 * DAY).signer is not None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(1, 60 * 24 * 40)),
        st.tuples(st.just("crash"), st.integers(0, 1)),
        st.sampled_from([("reconcile", 0), ("mount", 0), ("lose private", 0), ("lose public", 0), ("old copy", 0)]),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_whatever_happens_to_one_secret_no_valid_token_loses_its_key(steps: list[tuple[str, int]]) -> None:
    cluster = Cluster(Period(every=20 * DAY, longest=10 * DAY))
    cluster.reconcile()
    cluster.mount()
    copies = [cluster.keys]
    for what, number in steps:
        if what == "pass":
            cluster.now += timedelta(minutes=number)
            cluster.reconcile()
        elif what == "crash":
            cluster.reconcile(writes=number)
        elif what == "mount":
            cluster.mount()
        elif what == "lose private":
            cluster.keys = ()
        elif what == "old copy":
            cluster.keys = copies[len(copies) // 2]
        elif what == "lose public" and {each.id for each in cluster.published} <= {each.id for each in cluster.keys}:
            # The loss of both at the same time revokes what is only in the other one.
            cluster.published = ()
        plan = cluster.reconcile()
        copies.append(cluster.keys)
        if plan.signer is not None and len(cluster.ids) > 1:
            assert plan.signer.id in cluster.ids
        valid = {key for key, end in cluster.tokens if end > cluster.now}
        assert valid <= set(cluster.ids)
    # In the end there is a signer again.
    for _ in range(4):
        cluster.mount()
        cluster.now += SETTLE
        cluster.reconcile()
    assert cluster.plan().signer is not None


def test_the_secrets_hold_the_plan() -> None:
    first, lost, waiting = new_key(30 * DAY), new_key(10 * DAY), new_key(30 * DAY)
    keys = (
        replace(first, since=START),
        replace(lost, private="", since=START, retired=START + DAY),
        waiting,
    )
    read = read_private(private_data(keys))
    assert [replace(each, since=None) for each in read] == [replace(each, since=None) for each in keys]
    assert read[0] == keys[0]
    published = (
        PublishedKey(first.id, first.public, 30 * DAY, START),
        PublishedKey(lost.id, lost.public, 10 * DAY, START, START + DAY),
    )
    data = public_data(published)
    assert tuple(read_public(data)) == published
    assert data[PUBLIC] == first.public + lost.public
    assert "PRIVATE" not in json.dumps(data)
    assert first.private not in repr(keys)


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "{}", "[1]", '[{"id": "x"}]', '[{"private": "x", "longestSeconds": 1}]', '[{"public": 5}]'],
)
def test_what_cannot_be_read_counts_as_lost(text: str) -> None:
    assert read_private({KEYS: text}) == []
    assert read_public({KEYS: text}) == []
    assert read_private({}) == []
    assert read_public({}) == []


def test_the_brokers_read_all_public_halves_of_one_file() -> None:
    keys = [new_key(DAY) for _ in range(3)]
    stated = [PublishedKey(each.id, each.public, DAY, START) for each in keys]
    assert len(public_keys(public_data(stated)[PUBLIC].encode())) == 3
