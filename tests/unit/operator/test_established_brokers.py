"""A BrokerConnection that leads to other brokers does nothing there: its resources own nothing of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from heliograph_api.admin.admin_client import AdminUnreachable
from heliograph_operator.act import broker_sessions
from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions, StoreChanged
from heliograph_operator.decide.established_brokers import Brokers, other_brokers, recorded_brokers
from heliograph_operator.objects.conditions import POLICIES_APPLIED, condition
from heliograph_operator.objects.kinds import FINALIZER, Key
from heliograph_operator.objects.targets import broker_address

from .bodies import body, tenant
from .http_server import serve
from .installation import Installation, Operator
from .test_broker_connections import CONNECTION, ON, TENANT, connection
from .test_connection_sessions import Pulsar

A, B = "http://a:8080", "http://b:8080"
PULSAR, HELIOGRAPH = "Apache Pulsar", "Heliograph"
Served = Callable[..., Awaitable[Pulsar]]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """Start brokers without tokens; with a store id, those are a Heliograph."""
    async with AsyncExitStack() as stack:

        async def started(store_id: str = "", **tenants: Any) -> Pulsar:
            brokers = Pulsar()
            brokers.token, brokers.store_id, brokers.heliograph = "", store_id, bool(store_id)
            brokers.tenants = dict(tenants)
            runner = await serve(brokers.answer, tmp_path / "unused")
            stack.push_async_callback(runner.cleanup)
            brokers.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            return brokers

        yield started


@pytest.fixture
async def sessions(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BrokerSessions]:
    # Every check lists again.
    monkeypatch.setattr(broker_sessions, "FRESH_S", 0.0)
    opened = BrokerSessions(0.0)
    yield opened
    await opened.close()


def theirs() -> dict[str, Any]:
    """Return a tenant that somebody else made in other brokers."""
    return {"adminRoles": ["somebody-else"], "allowedClusters": ["standalone"]}


async def established(brokers: Pulsar, sessions: BrokerSessions, **spec: Any) -> tuple[Installation, Operator]:
    """Return an operator whose tenant was made in some brokers."""
    installation = Installation(connection(adminUrl=brokers.url), tenant(**ON, adminRoles=["ours"], **spec))
    operator = installation.started(sessions=sessions)
    await operator.settle()
    assert installation.ready(TENANT) == ("Reconciled", "")
    assert brokers.tenants["shop"]["adminRoles"] == ["ours"]
    return installation, operator


async def moved(installation: Installation, operator: Operator, to: Pulsar) -> None:
    installation.apply(connection(adminUrl=to.url))
    await operator.resync()


def recorded(installation: Installation) -> Brokers | None:
    return recorded_brokers(installation.body(CONNECTION)["status"])


@pytest.mark.parametrize("stores", [("", ""), ("one", "two"), ("", "two"), ("one", "")])
async def test_nothing_is_done_in_the_brokers_of_another_url(
    served: Served, sessions: BrokerSessions, stores: tuple[str, str]
) -> None:
    old, new = await served(stores[0]), await served(stores[1], shop=theirs())
    installation, operator = await established(old, sessions)
    await moved(installation, operator, new)
    reason, message = installation.ready(CONNECTION)
    assert reason == "BrokersChanged"
    assert old.url in message
    assert new.url in message
    assert f"heliograph.dev/same-brokers: {new.url}" in message
    assert installation.ready(TENANT) == ("BrokersChanged", f"BrokerConnection external: {message}")
    assert new.changes == []
    assert recorded(installation) == Brokers(old.url, HELIOGRAPH if stores[0] else PULSAR, stores[0])
    assert ("BrokersChanged", message) in installation.server.events
    # An operator that starts now does nothing there either.
    again = BrokerSessions(0.0)
    await installation.started(sessions=again).resync()
    assert installation.ready(TENANT)[0] == "BrokersChanged"
    assert new.changes == []
    await again.close()


@pytest.mark.parametrize("stores", [("", ""), ("one", "two")])
async def test_a_person_can_say_that_the_brokers_are_the_same(
    served: Served, sessions: BrokerSessions, stores: tuple[str, str]
) -> None:
    old, new = await served(stores[0]), await served(stores[1], shop=theirs())
    installation, operator = await established(old, sessions)
    installation.annotate(CONNECTION, **{"same-brokers": old.url})
    await moved(installation, operator, new)
    assert installation.ready(CONNECTION)[0] == "BrokersChanged"
    installation.annotate(CONNECTION, **{"same-brokers": new.url})
    await operator.settle()
    assert installation.ready(CONNECTION)[0] == "Reconciled"
    assert installation.ready(TENANT) == ("Reconciled", "")
    assert new.tenants["shop"]["adminRoles"] == ["ours"]
    assert recorded(installation) == Brokers(new.url, HELIOGRAPH if stores[1] else PULSAR, stores[1])
    # The annotation for one URL says nothing of the next.
    old.changes.clear()
    await moved(installation, operator, old)
    assert installation.ready(CONNECTION)[0] == "BrokersChanged"
    assert old.changes == []


async def test_the_url_from_before_needs_no_word(served: Served, sessions: BrokerSessions) -> None:
    old, new = await served(), await served()
    installation, operator = await established(old, sessions)
    await moved(installation, operator, new)
    assert installation.ready(TENANT)[0] == "BrokersChanged"
    await moved(installation, operator, old)
    assert installation.ready(CONNECTION)[0] == "Reconciled"
    assert installation.ready(TENANT) == ("Reconciled", "")
    assert new.changes == []


async def test_one_store_behind_another_url_is_the_same(served: Served, sessions: BrokerSessions) -> None:
    old, new = await served("one"), await served("one", shop=theirs())
    installation, operator = await established(old, sessions)
    await moved(installation, operator, new)
    assert installation.ready(TENANT) == ("Reconciled", "")
    assert new.tenants["shop"]["adminRoles"] == ["ours"]
    assert recorded(installation) == Brokers(new.url, HELIOGRAPH, "one")


async def test_another_store_at_the_same_url_is_not_the_same(served: Served, sessions: BrokerSessions) -> None:
    brokers = await served("one")
    installation, operator = await established(brokers, sessions)
    brokers.store_id, brokers.tenants["shop"] = "two", theirs()
    brokers.changes.clear()
    installation.annotate(CONNECTION, **{"same-brokers": brokers.url})
    await operator.resync()
    await operator.resync()
    reason, message = installation.ready(CONNECTION)
    assert reason == "BrokersChanged"
    assert "Heliograph with store one at" in message
    assert "annotation heliograph.dev/same-brokers: two on" in message
    assert installation.ready(TENANT)[0] == "BrokersChanged"
    assert brokers.changes == []
    installation.annotate(CONNECTION, **{"same-brokers": "two"})
    await operator.settle()
    assert installation.ready(TENANT) == ("Reconciled", "")
    assert brokers.tenants["shop"]["adminRoles"] == ["ours"]


async def test_a_store_that_was_lost_gets_its_objects_again(served: Served, sessions: BrokerSessions) -> None:
    brokers = await served("one")
    installation, operator = await established(brokers, sessions)
    brokers.store_id, brokers.tenants = "two", {}
    await operator.resync()
    await operator.resync()
    assert installation.ready(CONNECTION)[0] == "Reconciled"
    assert brokers.tenants["shop"]["adminRoles"] == ["ours"]
    assert recorded(installation) == Brokers(brokers.url, HELIOGRAPH, "two")
    events = [message for reason, message in installation.server.events if reason == "StoreReplaced"]
    assert len(events) == 1
    assert "with store one" in events[0]
    assert "with store two" in events[0]


async def test_brokers_without_any_object_at_another_url_are_not_the_same(
    served: Served, sessions: BrokerSessions
) -> None:
    old, new = await served("one"), await served("two")
    installation, operator = await established(old, sessions)
    await moved(installation, operator, new)
    assert installation.ready(TENANT)[0] == "BrokersChanged"
    assert (new.changes, new.tenants) == ([], {})


@pytest.mark.parametrize("heliograph", [False, True])
async def test_another_product_at_the_same_url_is_not_the_same(
    served: Served, sessions: BrokerSessions, heliograph: bool
) -> None:
    brokers = await served("one" if heliograph else "")
    installation, operator = await established(brokers, sessions)
    brokers.heliograph, brokers.store_id, brokers.version = not heliograph, "one", "9.9"
    brokers.tenants["shop"] = theirs()
    brokers.changes.clear()
    for _ in range(3):
        await operator.resync()
    assert installation.ready(CONNECTION)[0] == "BrokersChanged"
    assert installation.ready(TENANT)[0] == "BrokersChanged"
    assert brokers.changes == []


async def test_a_store_id_that_is_told_for_the_first_time_is_recorded(served: Served, sessions: BrokerSessions) -> None:
    brokers = await served("one")
    brokers.store_id = ""
    installation, operator = await established(brokers, sessions)
    assert recorded(installation) == Brokers(brokers.url, HELIOGRAPH)
    brokers.store_id, brokers.version = "one", "4.3.0"
    await operator.resync()
    assert installation.ready(TENANT) == ("Reconciled", "")
    assert recorded(installation) == Brokers(brokers.url, HELIOGRAPH, "one")


async def test_a_store_id_that_is_not_told_for_a_while_stays_known(served: Served, sessions: BrokerSessions) -> None:
    brokers = await served("one")
    installation, operator = await established(brokers, sessions)
    brokers.tenants["shop"] = theirs()
    for store_id, version in (("", "4.1.0"), ("two", "4.3.0")):
        # Another version ends the session.
        brokers.store_id, brokers.version = store_id, version
        await operator.resync()
        await operator.resync()
        assert recorded(installation) == Brokers(brokers.url, HELIOGRAPH, "one")
    assert installation.ready(CONNECTION)[0] == "BrokersChanged"


async def test_a_deletion_waits_for_its_own_brokers(served: Served, sessions: BrokerSessions) -> None:
    old, new = await served(), await served("", shop=theirs())
    installation, operator = await established(old, sessions, deletionPolicy="Delete")
    await moved(installation, operator, new)
    installation.delete(TENANT)
    await operator.resync()
    reason, message = installation.ready(TENANT)
    assert reason == "BrokersChanged"
    assert old.url in message
    assert "shop is deleted when its own broker answers again" in message
    # With its connection, too.
    installation.delete(CONNECTION)
    await operator.resync()
    reason, message = installation.ready(CONNECTION)
    assert reason == "BrokersChanged"
    assert message.startswith("resources are on it: Tenant shop")
    assert installation.ready(TENANT)[0] == "BrokersChanged"
    assert new.changes == []
    installation.annotate(TENANT, managed="false")
    await operator.resync()
    await operator.resync()
    assert not {TENANT, CONNECTION} & installation.server.objects.keys()
    assert new.changes == []
    assert set(old.tenants) == set(new.tenants) == {"shop"}


async def test_a_deletion_happens_in_its_own_brokers_when_the_url_is_put_right(
    served: Served, sessions: BrokerSessions
) -> None:
    old, new = await served(), await served("", shop=theirs())
    installation, operator = await established(old, sessions, deletionPolicy="Delete")
    await moved(installation, operator, new)
    installation.delete(TENANT)
    await operator.resync()
    await moved(installation, operator, old)
    await operator.resync()
    assert TENANT not in installation.server.objects
    assert (list(old.tenants), list(new.tenants)) == ([], ["shop"])


async def test_orphans_end_their_wait_for_other_brokers(served: Served, sessions: BrokerSessions) -> None:
    old, new = await served(), await served("", shop=theirs())
    spec = {"deletionPolicy": "Delete", "deletionWhenUnreachable": "Orphan"}
    installation, _ = await established(old, sessions, **spec)
    operator = installation.started(sessions=sessions, deletion_wait_s=0.001)
    await moved(installation, operator, new)
    installation.delete(TENANT)
    async with asyncio.timeout(60):
        while TENANT in installation.server.objects:
            await operator.resync()
    assert new.changes == []
    assert set(old.tenants) == set(new.tenants) == {"shop"}
    assert any(reason == "DataRetained" for reason, _ in installation.server.events)


async def test_a_connection_without_objects_follows_its_url_and_its_resources_adopt(
    served: Served, sessions: BrokerSessions
) -> None:
    old, new = await served(), await served("", shop=theirs())
    installation, operator = await established(old, sessions)
    installation.annotate(TENANT, managed="false")
    await operator.settle()
    await moved(installation, operator, new)
    assert installation.ready(CONNECTION)[0] == "Reconciled"
    assert recorded(installation) == Brokers(new.url, PULSAR)
    installation.annotate(TENANT, managed=None)
    await operator.resync()
    assert installation.body(TENANT)["metadata"]["annotations"]["heliograph.dev/adopted"] == "true"
    installation.delete(TENANT)
    await operator.resync()
    assert TENANT not in installation.server.objects
    assert set(old.tenants) == set(new.tenants) == {"shop"}


async def test_resources_made_again_on_another_connection_adopt(served: Served, sessions: BrokerSessions) -> None:
    old, new = await served(), await served("", shop=theirs())
    installation, operator = await established(old, sessions)
    installation.annotate(TENANT, managed="false")
    await operator.settle()
    installation.delete(TENANT)
    await operator.settle()
    installation.apply(connection("second", adminUrl=new.url))
    again = tenant(clusterRef={"name": "second", "kind": "BrokerConnection"}, adminRoles=["ours"])
    again["metadata"]["uid"] = "again"
    installation.apply(again)
    await operator.resync()
    await operator.resync()
    assert installation.body(TENANT)["metadata"]["annotations"]["heliograph.dev/adopted"] == "true"
    adopted = condition(installation.body(TENANT)["status"], "Adopted")
    assert "adminRoles" in adopted["message"]


async def test_a_connection_that_was_created_again_knows_no_brokers(served: Served, sessions: BrokerSessions) -> None:
    old, new = await served(), await served("", shop=theirs())
    installation, operator = await established(old, sessions)
    # Somebody removed its finalizer.
    del installation.server.objects[CONNECTION]
    await operator.settle()
    installation.apply(body("BrokerConnection", "external", {"adminUrl": new.url}, uid="again"))
    await operator.resync()
    reason, message = installation.ready(CONNECTION)
    assert reason == "BrokersChanged"
    assert f"annotation heliograph.dev/same-brokers: {new.url}" in message
    assert installation.ready(TENANT)[0] == "BrokersChanged"
    assert new.changes == []
    installation.apply(body("BrokerConnection", "external", {"adminUrl": old.url}, uid="again"))
    installation.annotate(CONNECTION, **{"same-brokers": old.url})
    await operator.settle()
    assert installation.ready(TENANT) == ("Reconciled", "")


async def test_the_brokers_are_recorded_before_anything_is_done_there(served: Served, sessions: BrokerSessions) -> None:
    brokers = await served()
    installation = Installation(connection(adminUrl=brokers.url), tenant(**ON))

    class Killed(Exception):
        """The operator ends here."""

    async def connect(address: str, session: BrokerSession) -> None:
        await session.close()
        raise Killed

    sessions.connect = connect  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await installation.started(sessions=sessions).settle()
    assert recorded(installation) == Brokers(brokers.url, PULSAR)
    assert FINALIZER in installation.body(CONNECTION)["metadata"]["finalizers"]
    assert brokers.changes == []


async def test_a_session_neither_lists_nor_changes_another_store(served: Served, sessions: BrokerSessions) -> None:
    brokers = await served("one")
    await established(brokers, sessions)
    session = sessions.at(broker_address(connection()))
    brokers.store_id = "two"
    brokers.changes.clear()
    with pytest.raises(StoreChanged, match=f"store two answers at {brokers.url}, not one"):
        await session.recent_listing()
    with pytest.raises(AdminUnreachable):
        await session.delete("Tenant", "shop", force=True)
    assert brokers.changes == []


@pytest.mark.parametrize("before", ["", "one"])
async def test_nothing_is_applied_where_something_else_answers_since_the_listing(
    served: Served, sessions: BrokerSessions, before: str
) -> None:
    brokers = await served(before)
    await established(brokers, sessions)
    session = sessions.at(broker_address(connection()))
    await session.recent_listing_of("Tenant", "shop")
    brokers.store_id, brokers.heliograph = "two", True
    brokers.changes.clear()
    with pytest.raises(StoreChanged):
        await session.apply(tenant(**ON, adminRoles=["ours"]))
    with pytest.raises(StoreChanged):
        await session.check_store()
    assert brokers.changes == []


async def test_resources_follow_the_message_of_their_connection(served: Served, sessions: BrokerSessions) -> None:
    old, new, third = await served(), await served(), await served()
    installation, operator = await established(old, sessions)
    # Their connection is not Ready all the time.
    for url, reason in (("http://127.0.0.1:9", "ClusterNotReady"), (new.url, "BrokersChanged")):
        installation.apply(connection(adminUrl=url))
        await operator.settle()
        assert installation.ready(TENANT)[0] == reason
    installation.apply(connection(adminUrl=third.url))
    await operator.settle()
    assert third.url in installation.ready(TENANT)[1]


async def test_what_is_known_of_the_old_brokers_stays_known(served: Served, sessions: BrokerSessions) -> None:
    old, new = await served(), await served()
    installation, operator = await established(old, sessions)
    before = condition(installation.body(TENANT)["status"], POLICIES_APPLIED)
    await moved(installation, operator, new)
    assert condition(installation.body(TENANT)["status"], POLICIES_APPLIED) == before
    assert installation.body(CONNECTION)["status"]["product"] == PULSAR


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (Brokers(A, PULSAR), Brokers(A, PULSAR)),
        (Brokers(A, HELIOGRAPH, "one"), Brokers(B, HELIOGRAPH, "one")),
        # A broker of an earlier version, before or after.
        (Brokers(A, HELIOGRAPH, "one"), Brokers(A, HELIOGRAPH)),
        (Brokers(A, HELIOGRAPH), Brokers(A, HELIOGRAPH, "one")),
        (Brokers(A, ""), Brokers(A, PULSAR)),
    ],
)
def test_brokers_that_are_the_same(before: Brokers, now: Brokers) -> None:
    assert other_brokers(before, now, "") == ""


@pytest.mark.parametrize(
    ("before", "now", "confirmed"),
    [
        (Brokers(A, PULSAR), Brokers(B, PULSAR), B),
        (Brokers(A, HELIOGRAPH, "one"), Brokers(B, HELIOGRAPH), B),
        (Brokers(A, HELIOGRAPH, "one"), Brokers(B, HELIOGRAPH, "two"), B),
        (Brokers(A, HELIOGRAPH, "one"), Brokers(A, HELIOGRAPH, "two"), "two"),
        (Brokers(A, PULSAR), Brokers(A, HELIOGRAPH, "one"), "one"),
        (Brokers(A, HELIOGRAPH, "one"), Brokers(A, PULSAR), PULSAR),
        (None, Brokers(A, PULSAR), A),
    ],
)
def test_brokers_that_are_others_until_a_person_says_so(before: Brokers | None, now: Brokers, confirmed: str) -> None:
    for text in ("", "true", A, B, "one", "two", PULSAR):
        assert bool(other_brokers(before, now, text)) == (text != confirmed), text
    message = other_brokers(before, now, "")
    assert f"annotation heliograph.dev/same-brokers: {confirmed} on" in message
    assert str(now) in message
    assert before is None or str(before) in message


def test_resources_that_are_about_to_own_an_object_count() -> None:
    installation = Installation(connection(), tenant(**ON))
    ownership = installation.started().context.cache.ownership
    key = Key("BrokerConnection", "team", "external")
    assert ownership.established_on(key) == []
    with ownership.reserved(TENANT):
        assert ownership.established_on(key) == [TENANT]
