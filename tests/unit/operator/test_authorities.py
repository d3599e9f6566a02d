"""Authorities and certificates on virtual time: clients that trust the published ones can verify the brokers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from heliograph_operator.decide.authorities import (
    AUTHORITY_VALID,
    CERTIFICATE_VALID,
    ISSUES,
    LAST,
    MAX_AUTHORITIES,
    OVERLAP,
    SETTLE,
    STORED,
    Authority,
    AuthorityPlan,
    InUse,
    certificates_in,
    new_authority,
    plan_authorities,
    private_data,
    read_private,
)
from heliograph_operator.decide.server_certificate import ServerCertificate, in_use, plan_server
from hypothesis import given, settings
from hypothesis import strategies as st

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HOST = "main.team.svc.cluster.local"
NAMES = (HOST, "*.main-brokers.team.svc.cluster.local", "192.0.2.7")


def verifies(bundle: str, server: ServerCertificate, now: datetime, host: str = HOST) -> bool:
    """Whether a client that trusts ``bundle`` accepts a certificate, as a library of its own decides."""
    trusted = certificates_in(bundle)
    if not trusted:
        return False
    verifier = PolicyBuilder().store(Store(trusted)).time(now).build_server_verifier(x509.DNSName(host))
    try:
        verifier.verify(server.leaf, [])
    except VerificationError:
        return False
    return True


class Cluster:
    """The Secrets and the ConfigMap, brokers that mount one, and clients that copied the other, on virtual time."""

    def __init__(self) -> None:
        self.now = START
        self.names: tuple[str, ...] = NAMES
        self.authorities: Sequence[Authority] = ()
        #: The ConfigMap; None: somebody deleted it.
        self.published: str | None = None
        #: The authorities that were published when the certificate was stored, and the certificate.
        self.recorded = ""
        self.server: ServerCertificate | None = None
        #: What clients read last, and what brokers did.
        self.copied = ""
        self.mounted: ServerCertificate | None = None
        #: Whether the API server has the same time.
        self.confirmed = False

    def plan(self) -> AuthorityPlan:
        return plan_authorities(
            self.authorities,
            certificates_in(self.recorded),
            None if self.published is None else certificates_in(self.published),
            in_use(self.server, self.now),
            self.now,
            lambda at: new_authority("team/main", at),
            confirmed=self.confirmed,
        )

    def reconcile(self, *, writes: int = 3) -> AuthorityPlan:
        """Plan and write; ``writes`` fewer than 3: the operator ends before the last of them."""
        plan = self.plan()
        server = plan_server(self.server, plan, self.names, self.now)
        if writes > 0:
            self.authorities = read_private(private_data(plan.authorities))
        if writes > 1:
            self.published = plan.bundle
        if writes > 2:
            self.server, self.recorded = server, plan.bundle
        return plan

    def lose_keys(self) -> None:
        """Delete the Secret with the authorities."""
        self.authorities = ()

    def settle(self) -> None:
        """Bring what is stored into pods, those of brokers and of clients."""
        self.mounted, self.copied = self.server, self.published or ""

    def days(self, count: float, *, clients_copy: bool = True) -> None:
        """Let time pass, with a reconcile a day."""
        left = timedelta(days=count)
        while left > timedelta():
            step = min(left, DAY)
            self.now, left = self.now + step, left - step
            self.reconcile()
            self.mounted = self.server
            if clients_copy:
                self.copied = self.published or ""
            self.check()

    def check(self) -> None:
        assert self.mounted is not None
        assert verifies(self.copied, self.mounted, self.now), f"clients cannot verify the brokers at {self.now}"


def started() -> Cluster:
    cluster = Cluster()
    cluster.reconcile()
    cluster.settle()
    return cluster


def test_the_first_certificate_is_there_at_once_and_for_all_names() -> None:
    cluster = started()
    assert cluster.server is not None
    assert cluster.server.names == frozenset(NAMES)
    assert cluster.server.expires == START + CERTIFICATE_VALID
    for host in (HOST, "main-0.main-brokers.team.svc.cluster.local"):
        assert verifies(cluster.copied, cluster.server, START, host)
        assert cluster.server.is_for(host)
    assert not verifies(cluster.copied, cluster.server, START, "other.team.svc.cluster.local")
    assert not cluster.server.is_for("other.team.svc.cluster.local")


def test_nothing_changes_while_nothing_has_to() -> None:
    cluster = started()
    before, authorities = cluster.server, list(cluster.authorities)
    cluster.days(59)
    assert cluster.server is before
    assert cluster.authorities == authorities
    cluster.days(2)
    assert cluster.server is not before
    assert cluster.authorities == authorities


def test_another_name_is_in_another_certificate_at_once() -> None:
    cluster = started()
    cluster.names = (*NAMES, "broker.example.com")
    cluster.reconcile()
    assert cluster.server is not None
    assert cluster.server.is_for("broker.example.com")
    with_it, cluster.names = cluster.server, NAMES
    cluster.reconcile()
    assert cluster.server is with_it


def test_a_new_authority_is_published_long_before_it_issues() -> None:
    cluster = started()
    [first] = cluster.authorities
    cluster.days((ISSUES - OVERLAP) / DAY + 1)
    assert len(certificates_in(cluster.published or "")) == 2
    following = cluster.authorities[-1]
    assert following.settled >= following.made + OVERLAP
    # Clients that copy by hand have until then.
    cluster.days(OVERLAP / DAY - 2)
    assert cluster.plan().issuer == first
    cluster.days(3)
    assert cluster.plan().issuer == following
    # The old one stays for what it has issued, and no longer.
    cluster.days(CERTIFICATE_VALID / DAY - 2)
    assert first.id in {each.id for each in cluster.authorities}
    cluster.days(3)
    assert [each.id for each in cluster.authorities] == [following.id]


def test_a_client_that_copies_the_authorities_in_time_is_never_left_out() -> None:
    cluster = started()
    for day in range(3 * ISSUES // DAY):
        # Once in the time that it has.
        cluster.days(1, clients_copy=day % (OVERLAP // DAY - 1) == 0)


def test_a_lost_key_leaves_brokers_and_clients_as_they_are() -> None:
    cluster = started()
    before, [first] = cluster.server, cluster.authorities
    cluster.days(20)
    cluster.lose_keys()
    cluster.reconcile()
    assert cluster.server is before
    assert [each.id for each in cluster.authorities if not each.private] == [first.id]
    assert cluster.plan().issuer is None
    cluster.days(OVERLAP / DAY + 1)
    assert cluster.plan().issuer is not None
    cluster.days(2 * CERTIFICATE_VALID / DAY)
    assert first.id not in {each.id for each in cluster.authorities}


def test_a_lost_key_does_not_let_the_certificate_expire() -> None:
    cluster = started()
    cluster.days(59)
    before = cluster.server
    cluster.lose_keys()
    cluster.reconcile()
    cluster.days(CERTIFICATE_VALID / DAY - 59 - LAST / DAY - 1)
    assert cluster.server is before
    cluster.days(2)
    assert cluster.server is not before


def test_a_lost_certificate_is_replaced_at_once() -> None:
    cluster = started()
    cluster.days(400)
    authorities = [each.id for each in cluster.authorities]
    cluster.server, cluster.recorded = None, ""
    cluster.reconcile()
    cluster.mounted = cluster.server
    cluster.check()
    assert [each.id for each in cluster.authorities] == authorities


def test_a_certificate_made_while_the_clock_was_ahead_is_replaced_once_it_is_right() -> None:
    cluster = started()
    cluster.now += 200 * DAY
    cluster.reconcile()
    assert cluster.server is not None
    cluster.now -= 195 * DAY
    assert not verifies(cluster.published or "", cluster.server, cluster.now)
    cluster.reconcile()
    cluster.settle()
    cluster.check()
    before = cluster.server
    cluster.reconcile()
    assert cluster.server == before, "it is replaced once"


def test_a_clock_that_is_behind_changes_nothing() -> None:
    cluster = started()
    before = cluster.server
    cluster.now -= 400 * DAY
    cluster.reconcile()
    assert cluster.server == before


def test_an_authority_made_while_the_clock_was_ahead_is_replaced_once_it_is_right() -> None:
    cluster = Cluster()
    cluster.now += 400 * DAY
    cluster.reconcile()
    [early] = cluster.authorities
    cluster.now = START
    cluster.reconcile()
    assert [each.id for each in cluster.authorities] == [early.id], "this operator's clock may be the wrong one"
    cluster.confirmed = True
    cluster.reconcile()
    cluster.settle()
    cluster.check()
    before, authorities = cluster.server, list(cluster.authorities)
    cluster.reconcile()
    assert cluster.server == before
    assert cluster.authorities == authorities, "it is replaced once"
    # Until its time has come, and beyond it.
    cluster.days(3 * ISSUES / DAY)


def test_authorities_that_the_clock_retired_too_early_issue_again() -> None:
    cluster = started()
    cluster.confirmed = True
    cluster.days(20)
    [first] = cluster.authorities
    before = cluster.now
    # The next authority is made, and takes over.
    for ahead in (500 * DAY, OVERLAP + DAY):
        cluster.now += ahead
        cluster.reconcile()
    assert first.id not in {each.id for each in cluster.authorities if each.may_issue()}
    cluster.now = before
    cluster.reconcile()
    cluster.mounted = cluster.server
    # Clients that know the first one only.
    cluster.check()
    cluster.days(2 * ISSUES / DAY)


def test_a_node_that_starts_with_a_clock_that_is_behind_leaves_nobody_out_later() -> None:
    """Operator and API server agree on a time that is wrong: there is nobody to know better."""
    cluster = started()
    cluster.days(20)
    right, cluster.confirmed = cluster.now, True
    cluster.now -= 3000 * DAY
    cluster.reconcile()
    cluster.settle()
    cluster.check()
    cluster.now = right
    cluster.reconcile()
    cluster.mounted = cluster.server
    cluster.check()
    cluster.days(ISSUES / DAY)


def test_a_configmap_that_was_deleted_changes_nothing() -> None:
    cluster = started()
    before, authorities = cluster.server, list(cluster.authorities)
    cluster.published = None
    cluster.reconcile()
    assert cluster.server is before
    assert cluster.authorities == authorities
    assert cluster.published is not None


def test_without_both_secrets_everything_is_made_anew() -> None:
    cluster = started()
    old = {each.id for each in cluster.authorities}
    cluster.lose_keys()
    cluster.server, cluster.recorded = None, ""
    cluster.reconcile()
    cluster.settle()
    cluster.check()
    assert not old & {each.id for each in cluster.authorities}


def test_an_old_copy_of_the_authorities_keeps_the_later_one_trusted() -> None:
    cluster = started()
    cluster.days(300)
    copy = list(cluster.authorities)
    cluster.days(CERTIFICATE_VALID / DAY + 60)
    cluster.authorities = copy
    cluster.reconcile()
    cluster.check()
    cluster.days(200)


def test_an_old_copy_of_the_certificate_is_not_used_where_clients_have_gone_on() -> None:
    cluster = started()
    cluster.days(ISSUES / DAY - 5)
    old = cluster.server, cluster.recorded
    cluster.days(CERTIFICATE_VALID / DAY + 60)
    cluster.server, cluster.recorded = old
    cluster.reconcile()
    cluster.mounted = cluster.server
    cluster.check()


def test_an_operator_that_comes_back_after_years_serves_at_once() -> None:
    cluster = started()
    cluster.now += 3 * AUTHORITY_VALID
    cluster.reconcile()
    cluster.settle()
    cluster.check()
    assert all(not each.ended(cluster.now) for each in cluster.authorities)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_crash_between_two_writes_leaves_nobody_out(writes: int) -> None:
    cluster = started()
    for _ in range(4 * ISSUES // (10 * DAY)):
        cluster.now += 10 * DAY
        cluster.reconcile(writes=writes)
        cluster.copied = cluster.published or ""
        cluster.days(1)


def test_losing_the_key_again_and_again_does_not_fill_the_bundle() -> None:
    cluster = started()
    for _ in range(3 * MAX_AUTHORITIES):
        cluster.lose_keys()
        cluster.days(1)
    assert len(cluster.authorities) <= MAX_AUTHORITIES


EVENTS = st.sampled_from(["days", "weeks", "half-written", "no key", "no certificate", "no ConfigMap", "a name"])


@settings(max_examples=25, deadline=None)
@given(st.lists(EVENTS, max_size=12))
def test_clients_of_kubernetes_verify_the_brokers_whatever_happens(events: list[str]) -> None:
    cluster = started()
    for number, event in enumerate(events):
        match event:
            case "days":
                cluster.days(3)
            case "weeks":
                cluster.days(45)
            case "half-written":
                cluster.now += DAY
                cluster.reconcile(writes=1 + number % 2)
            case "no key":
                cluster.lose_keys()
            case "no certificate":
                cluster.server, cluster.recorded = None, ""
            case "no ConfigMap":
                cluster.published = None
            case _:
                cluster.names = (*cluster.names, f"broker-{number}.example.com")
        cluster.now += SETTLE
        cluster.reconcile()
        # The authorities reach them, and so does the certificate, within the time in between.
        cluster.settle()
        cluster.check()


def test_what_is_stored_can_be_read_and_has_nothing_else() -> None:
    made = new_authority("team/main", START)
    retired = replace(made, private="", retired=START + DAY)
    assert read_private(private_data([made])) == [made]
    assert read_private(private_data([retired])) == [retired]
    assert "PRIVATE" not in repr(made)
    assert made.private not in json.dumps(private_data([retired]))


@pytest.mark.parametrize(
    "text",
    ["", "nothing", "{}", "[1]", '[{"certificate": "none"}]', '[{"settled": "2026-01-01T00:00:00Z"}]'],
)
def test_what_cannot_be_read_counts_as_lost(text: str) -> None:
    assert read_private({STORED: text}) == []


@pytest.mark.parametrize("field", ["settled", "retired"])
@pytest.mark.parametrize("time", ["9999-12-31T00:00:00Z", "0001-01-01T00:00:00Z"])
def test_a_time_that_somebody_wrote_by_hand_stops_nothing(field: str, time: str) -> None:
    stored = json.loads(private_data([new_authority("team/main", START)])[STORED])
    (authority,) = read_private({STORED: json.dumps([{**stored[0], field: time}])}) or (None,)
    known = [authority] if authority is not None else []
    assert plan_authorities(known, (), (), None, START, lambda at: new_authority("team/main", at)).issuer is not None
    in_use = InUse(known[0].certificate, usable=True) if known else None
    plan_authorities(known, (), None, in_use, START + 729 * DAY, lambda at: new_authority("team/main", at))


def test_a_key_of_another_certificate_counts_as_lost() -> None:
    one, other = new_authority("team/main", START), new_authority("team/main", START)
    assert read_private(private_data([replace(one, private=other.private)])) == []
