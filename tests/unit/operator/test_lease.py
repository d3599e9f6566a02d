"""One of two operators leads, by the clock of each."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from heliograph_operator.kube.kube_namespaces import KUBE_NAMESPACE
from heliograph_operator.kube.lease import LEASE, LeaseLeadership, Observer, Times, held

from tests.simulation.operator.virtual_time import VirtualLoop
from tests.support.polling import DEADLINE_S

TIMES = Times(duration_s=15)
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lease(holder: str, renewed: str = "2026-01-02T03:04:05.000000Z") -> dict[str, Any]:
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15, "leaseTransitions": 3}
    return {"metadata": {"name": "op", "namespace": "here", "resourceVersion": "7"}, "spec": spec}


def test_a_lease_runs_out_by_ones_own_clock_since_it_was_seen_to_change() -> None:
    clock = Clock()
    observer = Observer(clock)
    # Written long ago by a clock that is wrong, but seen only now.
    assert not observer.has_expired(lease("other", "1999-01-01T00:00:00.000000Z"))
    clock.now += 14.9
    assert not observer.has_expired(lease("other", "1999-01-01T00:00:00.000000Z"))
    assert not observer.has_expired(lease("other", "1999-01-01T00:00:02.000000Z"))
    clock.now += 14.9
    assert not observer.has_expired(lease("other", "1999-01-01T00:00:02.000000Z"))
    clock.now += 0.2
    assert observer.has_expired(lease("other", "1999-01-01T00:00:02.000000Z"))


def test_a_lease_that_was_given_back_is_free_at_once() -> None:
    assert Observer(Clock()).has_expired(lease(""))


def test_a_new_lease_says_who_and_since_when() -> None:
    made = held(None, "here", "op", "me", TIMES, NOW)
    assert made["metadata"] == {"name": "op", "namespace": "here"}
    assert made["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-02T03:04:05.678901Z",
        "renewTime": "2026-01-02T03:04:05.678901Z",
        "leaseTransitions": 0,
    }


def test_taking_over_counts_and_renewing_does_not() -> None:
    taken = held(lease("other"), "here", "op", "me", TIMES, NOW)
    assert taken["spec"]["leaseTransitions"] == 4
    # The write fails if another operator changed the Lease since it was read.
    assert taken["metadata"]["resourceVersion"] == "7"
    renewed = held(taken, "here", "op", "me", TIMES, datetime(2026, 1, 2, 3, 4, 9, tzinfo=UTC))
    assert renewed["spec"]["leaseTransitions"] == 4
    assert renewed["spec"]["acquireTime"] == "2026-01-02T03:04:05.678901Z"
    assert renewed["spec"]["renewTime"] == "2026-01-02T03:04:09.000000Z"


class SilentServer:
    """Grants the Lease once and then never answers, like a partitioned network."""

    async def find(self, kind: object, namespace: str, name: str) -> dict[str, Any] | None:
        if self.taken:
            await asyncio.Event().wait()
        return None

    async def create(self, kind: object, body: Any) -> dict[str, Any]:
        self.taken = True
        return dict(body)

    async def replace(self, kind: object, body: Any, subresource: str = "") -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("never set")

    def __init__(self) -> None:
        self.taken = False


def test_who_cannot_renew_stops_before_another_may_begin() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        leadership = LeaseLeadership(SilentServer(), "here", "op", "me", times=TIMES, now=loop.time)
        await leadership.wait()
        began = loop.time()
        assert "could not be renewed" in await leadership.lost()
        assert loop.time() - began < TIMES.duration_s
        # There is nothing to give back.
        await leadership.release()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(check())


async def test_who_stalled_knows_before_its_next_change_that_another_may_lead() -> None:
    clock = Clock()
    leadership = LeaseLeadership(SilentServer(), "here", "op", "me", times=TIMES, now=clock)
    # It has to be able to take the Lease.
    assert not leadership.deposed()
    await asyncio.wait_for(leadership.wait(), DEADLINE_S)
    clock.now += TIMES.renew_within_s - 0.1
    assert not leadership.deposed()
    clock.now += 0.2
    assert leadership.deposed()


class ForgetfulServer(SilentServer):
    """Knows nothing of the Lease it was given, and says that its namespace is being deleted, or not."""

    def __init__(self) -> None:
        super().__init__()
        self.ending = True
        self.asked = asyncio.Semaphore(0)

    async def find(self, kind: object, namespace: str, name: str) -> dict[str, Any] | None:
        if kind == LEASE:
            return None
        assert (kind, name) == (KUBE_NAMESPACE, "here")
        self.asked.release()
        return {"metadata": {"name": name} | ({"deletionTimestamp": "2026-01-02T03:04:05Z"} if self.ending else {})}


async def test_a_lease_that_went_with_its_namespace_is_still_led_by_and_one_that_was_deleted_is_not() -> None:
    server = ForgetfulServer()
    times = Times(duration_s=15, renew_within_s=10.0, retry_s=0.01)
    leadership = LeaseLeadership(server, "here", "op", "me", times=times)
    await asyncio.wait_for(leadership.wait(), DEADLINE_S)
    lost = asyncio.create_task(leadership.lost())
    for _ in range(5):
        await asyncio.wait_for(server.asked.acquire(), DEADLINE_S)
    assert not lost.done()
    server.ending = False
    assert await asyncio.wait_for(lost, DEADLINE_S) == "nobody holds the Lease"


def test_two_lives_of_one_pod_are_two_operators() -> None:
    one, other = (LeaseLeadership(SilentServer(), "here", "op", "pod-0") for _ in range(2))
    assert one.identity != other.identity
    assert one.identity.startswith("pod-0_")


def test_times_leave_room_for_more_than_one_attempt() -> None:
    assert TIMES.retry_s * 3 < TIMES.renew_within_s < TIMES.duration_s
