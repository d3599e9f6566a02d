"""A session that is closed, or whose operator leads no more, ends no reconcile: to its callers, the broker is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from heliograph_api.admin.admin_client import AdminClient, AdminRefused, AdminUnreachable
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.broker_state import BrokerState
from heliograph_api.resources.role_state import RoleSettings
from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions
from heliograph_operator.act.pulsar_session import PulsarSession
from heliograph_operator.decide.user_grants import SubscriptionRoles

from tests.simulation.operator.virtual_time import VirtualLoop
from tests.support.polling import DEADLINE_S


class Silent(BrokerSession):
    """A session with a broker that does not answer."""

    def __init__(self, batch_s: float, deposed: Callable[[], bool] = lambda: False) -> None:
        super().__init__("http://broker", batch_s, deposed)
        self.asked = asyncio.Event()
        self._client.apply = self._apply  # type: ignore[method-assign, assignment]

    async def _apply(self, text: str) -> None:
        self.asked.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("when", ["before it is collected", "while it is collected", "when it was sent"])
async def test_a_change_that_waits_fails_when_the_session_is_closed(when: str) -> None:
    session = Silent(0.0 if when == "when it was sent" else 60.0)
    changes = [asyncio.create_task(session.apply({"kind": "Tenant", "at": at})) for at in range(40)]
    if when == "when it was sent":
        await session.asked.wait()
    else:
        # The tasks that were created first run first.
        await asyncio.sleep(0)
    if when == "while it is collected":
        await asyncio.sleep(0)
    await session.close()
    for change in changes:
        with pytest.raises(AdminUnreachable, match="the session with http://broker was closed"):
            await asyncio.wait_for(change, DEADLINE_S)


async def test_a_deposed_operator_sends_no_change_to_a_broker() -> None:
    deposed = False
    session = Silent(0.0, lambda: deposed)
    change = asyncio.create_task(session.apply({"kind": "Tenant"}))
    # It is lost while the change is collected with others.
    deposed = True
    with pytest.raises(AdminUnreachable, match="does not lead any more"):
        await asyncio.wait_for(change, DEADLINE_S)
    with pytest.raises(AdminUnreachable, match="does not lead any more"):
        await session.delete("Tenant", "shop", force=True)
    assert not session.asked.is_set()
    assert session.reachable
    await session.close()


def test_who_sleeps_for_the_pause_of_a_session_does_not_wake_before_its_end() -> None:
    async def refuse(namespace: str | None = None) -> BrokerState:
        raise AdminUnreachable("connection refused")

    async def check() -> None:
        session = Silent(0.0)
        session._client.state = refuse  # type: ignore[method-assign]
        with pytest.raises(AdminUnreachable):
            await session.listing(0.0)
        loop = asyncio.get_running_loop()
        # A loop also calls what is due within its clock's resolution.
        for early_s in (0.001 + 1e-10, 1e-10):
            loop.call_at(loop.time() + session.paused_s - early_s, lambda: None)
        await asyncio.sleep(session.paused_s)
        assert session.paused_s == 0
        await session.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(check())


@pytest.mark.parametrize("used", [True, False])
async def test_a_session_that_has_ended_does_nothing_any_more(used: bool) -> None:
    async def state(namespace: str | None = None) -> BrokerState:
        return BrokerState("", Policies(), Policies(), {}, {}, {})

    session = Silent(0.0)
    session._client.state = state  # type: ignore[method-assign]
    if used:
        await session.listing(0.0)
    # Somebody else waits for the same listing, or is about to ask.
    await session.close()
    now = asyncio.get_running_loop().time()
    for request in (session.listing(now), session.delete("Tenant", "shop", force=True)):
        with pytest.raises(AdminUnreachable, match="the session with http://broker was closed"):
            await request


class Subscriptions(BrokerSession):
    """A session with a broker that keeps the roles of subscriptions, and answers one step later."""

    def __init__(self) -> None:
        super().__init__("http://broker", 0.0)
        self.roles: dict[str, list[str]] = {}
        self._client.request = self._request  # type: ignore[method-assign]

    async def _request(self, method: str, path: str, *, body: Any = None, **_: object) -> Any:
        before = {name: list(roles) for name, roles in self.roles.items()}
        await asyncio.sleep(0)
        if method == "POST":
            self.roles[path.rpartition("/")[2]] = body
        elif method == "DELETE":
            name, role = path.rsplit("/", 2)[1:]
            self.roles[name] = [each for each in self.roles[name] if each != role]
        return before


async def test_users_that_state_the_same_subscription_at_once_all_have_it() -> None:
    """Each of them read the roles before the others wrote theirs."""
    session = Subscriptions()
    session.roles = {"archive": ["others", "gone"]}
    roles = [f"user{at}" for at in range(5)]
    stale = [SubscriptionRoles("shop/payments", "archive", ("others", "gone", role)) for role in roles]
    removed = SubscriptionRoles("shop/payments", "archive", ())
    gained = [session.grant(role, [each]) for role, each in zip(roles, stale, strict=True)]
    await asyncio.gather(*gained[:3], session.grant("gone", [removed]), *gained[3:])
    assert session.roles == {"archive": ["others", *roles]}
    # Once more changes nothing.
    await session.grant(roles[0], stale[:1])
    assert session.roles == {"archive": ["others", *roles]}
    await session.close()


@pytest.mark.parametrize("force", [True, False])
async def test_a_subscription_of_a_pulsar_is_not_deleted_as_a_tenant(
    force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def request(method: str, path: str, **_: object) -> None:
        asked.append((method, path))

    client = AdminClient("http://pulsar")
    monkeypatch.setattr(client, "request", request)
    session = PulsarSession("http://pulsar", 0.0, lambda: False, client)
    with pytest.raises(AdminRefused, match="a Subscription is not deleted in an Apache Pulsar") as caught:
        await session.delete("Subscription", "persistent://shop/a/b/subscription/c", force=force)
    # It is neither one that has content, which is left, nor one that is missing, which counts as deleted.
    assert caught.value.status == 405
    assert asked == []


async def test_sessions_that_two_tasks_end_at_once_end_once() -> None:
    sessions = BrokerSessions(0.0)
    addresses = ["connection://team/first", "connection://team/second"]

    class Ending(Silent):
        async def close(self) -> None:
            for address in addresses:
                await sessions.disconnect(address)
            await super().close()

    for address in addresses:
        await sessions.connect(address, Ending(0.0))
    await sessions.keep_only(set())
    assert not any(sessions.has(address) for address in addresses)


class Counted(BrokerSession):
    """A session that counts its listings."""

    def __init__(self) -> None:
        super().__init__("http://broker", 0.0)
        self.listings = 0
        self._opened = True
        self._client.state = self._state  # type: ignore[method-assign, assignment]
        self._client.put_role = self._put_role  # type: ignore[method-assign]

    async def _state(self) -> BrokerState:
        self.listings += 1
        return BrokerState("1", Policies(), Policies(), {}, {}, {})

    async def _put_role(self, role: str, settings: RoleSettings) -> None:
        pass


async def test_a_change_of_one_role_costs_no_listing_for_another() -> None:
    session = Counted()
    await session.recent_listing(role="a")
    for number in range(100):
        await session.set_role(f"role-{number}", RoleSettings())
        await session.recent_listing(role="a")
    assert session.listings == 1
    await session.recent_listing(role="role-7")
    assert session.listings == 2, "its own change is in it"
    await session.recent_listing(role="role-8")
    assert session.listings == 2, "and so are the others before it"
    await session.set_role("a", RoleSettings())
    await session.recent_listing()
    assert session.listings == 3, "a listing for no single role has the changes of all"
