"""A Tenant, Namespace or Topic reaches its broker, waits for what is missing, and is deleted as its policy says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from heliograph_api.admin.admin_client import AdminUnreachable
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.broker_state import BrokerState, NamespaceState, TenantState, TopicState
from heliograph_api.resources.model import KINDS, Topic
from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions, Listing
from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.act.controller import Outcome
from heliograph_operator.archive.archive_identity import ArchiveIdentity
from heliograph_operator.archive.archive_reconciler import ArchiveReconciler
from heliograph_operator.decide.archive_cron_job import ArchiveSite
from heliograph_operator.objects.conditions import READY, condition
from heliograph_operator.objects.kinds import FINALIZER, Key, is_held
from heliograph_operator.objects.user_roles import UserRoles
from heliograph_operator.operator_settings import Settings
from heliograph_operator.policies.policy_reconciler import PolicyReconciler

from .api_server import ApiServer, resource_of
from .bodies import body, cluster, namespace, tenant, topic
from .cluster_keys import tokens

TOPIC = Key("Topic", "team", "orders")
NAME = "persistent://shop/payments/orders"
DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
OWNS = {"heliograph.dev/cluster": "main", "heliograph.dev/broker-object": NAME}
HELD = {"finalizers": [FINALIZER], "annotations": OWNS}
AGAIN = Key("Topic", "team", "again")


class Session(BrokerSession):
    """A broker that has tenant shop and namespace shop/payments, and takes topics."""

    def __init__(self) -> None:
        super().__init__("http://broker", 0.0)
        self.topics: dict[str, TopicState] = {}
        self.deleted: list[str] = []
        self.unreachable = False

    async def listing(self, since: float, role: str | None = None) -> Listing:
        if self.unreachable:
            raise AdminUnreachable("connection refused")
        tenants = {"shop": TenantState([], ["standalone"], Policies())}
        namespaces = {"shop/payments": NamespaceState(4, Policies())}
        return Listing(BrokerState("1", Policies(), Policies(), tenants, namespaces, dict(self.topics)), since)

    async def apply(self, manifest: Mapping[str, Any]) -> None:
        model = KINDS[manifest["kind"]].model_validate(manifest)
        assert isinstance(model, Topic)
        assert manifest["spec"]["namespaceRef"] == {"name": "shop/payments"}
        self.topics[NAME] = TopicState(model.spec.partitions, model.spec.policies())

    async def delete(self, kind: str, name: str, *, force: bool) -> None:
        self.deleted.append(name)


class Sessions(BrokerSessions):
    def __init__(self, session: Session) -> None:
        super().__init__(0.0)
        self._session = session

    def at(self, http_url: str) -> BrokerSession:
        return self._session


class World:
    """An API server with some resources, one broker, and the reconciler between them."""

    def __init__(self, *bodies: dict[str, Any]) -> None:
        self.server = ApiServer(*bodies)
        self.context = self.server.context()
        self.session = Session()
        sessions = Sessions(self.session)
        archives = ArchiveReconciler(ArchiveSite("image"), ArchiveIdentity(sessions, tokens(), BrokerTrust()))
        self._reconciler = PolicyReconciler(sessions, archives, UserRoles())

    async def reconcile(self, key: Key = TOPIC) -> Outcome:
        return await self._reconciler.reconcile(self.context, resource_of(self.context, key))

    def ready(self, key: Key = TOPIC) -> tuple[str, str]:
        found = condition(self.server.objects[key]["status"], READY)
        return found["reason"], found["message"]


def younger() -> dict[str, Any]:
    """Return a Topic resource that describes the same topic as ``orders`` and was created later."""
    spec = {"namespaceRef": {"name": "payments"}, "name": "orders"}
    return body("Topic", "again", spec, creationTimestamp="2026-01-02T00:00:00Z")


def parents() -> list[dict[str, Any]]:
    return [cluster(), tenant(), namespace()]


async def test_a_topic_is_held_applied_and_reported_and_then_costs_nothing() -> None:
    world = World(*parents(), topic(messageTTL="1h"))
    outcome = await world.reconcile()
    assert outcome == Outcome("ready", Settings().resync_s)
    assert world.session.topics[NAME].policies.message_ttl_ms == 3_600_000
    written = world.server.objects[TOPIC]
    assert is_held(written)
    assert (written["status"]["name"], world.ready()) == (NAME, ("Reconciled", ""))
    patches = len(world.server.patches)
    await world.reconcile()
    assert len(world.server.patches) == patches


async def test_a_topic_waits_for_the_address_of_its_broker() -> None:
    world = World(cluster(http=""), tenant(), namespace(), topic())
    assert (await world.reconcile()).result == "waiting"
    message = "BrokerCluster main has not published a broker address yet"
    assert world.ready() == ("ClusterNotReady", message)


async def test_an_unreachable_broker_is_named_and_remembered() -> None:
    world = World(*parents(), topic())
    world.session.unreachable = True
    assert (await world.reconcile()).result == "waiting"
    assert world.ready() == ("BrokerUnreachable", "connection refused")
    assert resource_of(world.context, TOPIC).memory.unreachable


async def test_an_invalid_topic_is_not_applied_until_its_spec_changes() -> None:
    world = World(*parents(), topic(messageTTL="soon"))
    assert (await world.reconcile()).requeue_s == Settings().resync_s
    reason, message = world.ready()
    assert reason == "Invalid"
    assert message.startswith("spec.messageTTL: ")
    assert world.session.topics == {}
    world.server.objects[TOPIC]["spec"] = topic(messageTTL="1h")["spec"]
    world.server.change(TOPIC, generation=2)
    world.context.cache.put(world.server.objects[TOPIC])
    assert (await world.reconcile()).result == "ready"


async def test_the_older_of_two_resources_owns_the_object_and_the_other_inherits_it() -> None:
    older = topic()
    older["metadata"] |= HELD | DELETED
    world = World(*parents(), older, younger())
    await world.reconcile(AGAIN)
    assert (await world.reconcile()).result == "gone"
    assert world.server.events[-1] == ("DataRetained", f"ownership of {NAME} passes to Topic again")
    assert world.session.deleted == []
    assert not is_held(world.server.objects[TOPIC])


async def test_a_rival_of_an_older_resource_is_in_conflict() -> None:
    world = World(*parents(), topic(), younger())
    await world.reconcile()
    await world.reconcile(AGAIN)
    assert world.ready(AGAIN) == ("Conflict", f"Topic orders already describes {NAME}; delete one of the two resources")


@pytest.mark.parametrize(
    ("policy", "annotations", "deleted", "event"),
    [
        ("Delete", {}, [NAME], []),
        ("Retain", {}, [], [("DataRetained", f"{NAME} stays in the broker: its deletionPolicy is Retain")]),
        (
            "Delete",
            {"heliograph.dev/paused": "true"},
            [],
            [("DataRetained", f"{NAME} stays in the broker: annotation heliograph.dev/paused is true")],
        ),
    ],
)
async def test_a_deletion_follows_the_policy_and_ends(
    policy: str, annotations: dict[str, str], deleted: list[str], event: list[tuple[str, str]]
) -> None:
    going = topic(deletionPolicy=policy)
    going["metadata"] |= HELD | DELETED | {"annotations": OWNS | annotations}
    world = World(*parents(), going)
    assert await world.reconcile() == Outcome("gone")
    assert world.session.deleted == deleted
    assert world.server.events == event
    assert not is_held(world.server.objects[TOPIC])


async def test_a_parent_waits_until_its_children_are_deleted() -> None:
    above = namespace()
    notes = {"heliograph.dev/cluster": "main", "heliograph.dev/broker-object": "shop/payments"}
    above["metadata"] |= DELETED | {"finalizers": [FINALIZER], "annotations": notes}
    child = topic()
    child["metadata"] |= HELD
    world = World(cluster(), tenant(), above, child)
    payments = Key("Namespace", "team", "payments")
    assert (await world.reconcile(payments)).result == "waiting"
    assert world.ready(payments) == (
        "ChildrenExist",
        "waiting for Topic orders to be deleted; valid: delete topics.heliograph.dev/orders, or set"
        " spec.deletionPolicy to Retain",
    )


async def test_what_changes_while_the_finalizer_is_added_counts() -> None:
    world = World(cluster(), tenant(), namespace(), topic())
    world.server.change(TOPIC, annotations={"heliograph.dev/managed": "false"})
    await world.reconcile()
    assert world.session.topics == {}
    assert world.ready()[0] == "Unmanaged"


async def test_a_spec_that_changes_while_the_one_before_is_applied_is_not_reported_as_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(*parents(), topic(messageTTL="1h"))
    await world.reconcile()
    apply = world.session.apply

    async def and_meanwhile(manifest: Mapping[str, Any]) -> None:
        await apply(manifest)
        monkeypatch.undo()
        world.server.objects[TOPIC]["spec"] = topic(messageTTL="3h")["spec"]
        world.server.change(TOPIC, generation=3)
        world.context.cache.put(world.server.objects[TOPIC])

    world.server.objects[TOPIC]["spec"] = topic(messageTTL="2h")["spec"]
    world.server.change(TOPIC, generation=2)
    world.context.cache.put(world.server.objects[TOPIC])
    monkeypatch.setattr(world.session, "apply", and_meanwhile)
    await world.reconcile()
    status = world.server.objects[TOPIC]["status"]
    assert (status["observedGeneration"], condition(status, READY)["observedGeneration"]) == (2, 2)
    await world.reconcile()
    status = world.server.objects[TOPIC]["status"]
    assert (status["observedGeneration"], condition(status, READY)["observedGeneration"]) == (3, 3)
    assert world.session.topics[NAME].policies.message_ttl_ms == 3 * 3_600_000
    # It was the user, and not somebody past the resource.
    assert [reason for reason, _ in world.server.events] == []


async def test_a_resource_that_was_recreated_meanwhile_does_not_get_the_status_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(*parents(), topic(messageTTL="1h"))
    await world.reconcile()
    apply = world.session.apply

    async def and_meanwhile(manifest: Mapping[str, Any]) -> None:
        await apply(manifest)
        recreated = topic(messageTTL="3h")
        recreated["metadata"] |= {"uid": "another", "resourceVersion": "90"}
        world.server.objects[TOPIC] = recreated

    world.server.objects[TOPIC]["spec"] = topic(messageTTL="2h")["spec"]
    world.server.change(TOPIC, generation=2)
    world.context.cache.put(world.server.objects[TOPIC])
    monkeypatch.setattr(world.session, "apply", and_meanwhile)
    await world.reconcile()
    assert "status" not in world.server.objects[TOPIC]
