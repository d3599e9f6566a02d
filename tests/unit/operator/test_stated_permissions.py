"""Permissions that a Namespace or a Topic states: they are all that there are there, but for the roles of Users."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_api.policies.grants import AuthPolicies, auth_policies, keep_grants
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.broker_state import NamespaceState
from heliograph_operator.objects.conditions import POLICIES_APPLIED, condition
from heliograph_operator.objects.kinds import Key

from .bodies import body, cluster, namespace, tenant, topic
from .installation import Installation

PAYMENTS = "shop/payments"
ORDERS = f"persistent://{PAYMENTS}/orders"
PREFIX = f"persistent://{PAYMENTS}/orders-*"
NAMESPACE, TOPIC = Key("Namespace", "team", "payments"), Key("Topic", "team", "orders")
PERMISSIONS: list[dict[str, Any]] = [
    {"role": "etl", "actions": ["consume"], "subscriptions": ["etl"]},
    {"role": "shop", "actions": ["produce"], "topics": "orders-*"},
    {"role": "shop", "actions": ["consume"], "topics": "orders-*"},
]


def user(name: str = "billing") -> dict[str, Any]:
    return body("User", name, {"clusterRef": {"name": "main"}})


def stated(on_namespace: Any = None, on_topic: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a Namespace and a Topic with permissions; None: they state none."""
    return (
        namespace(**({} if on_namespace is None else {"permissions": on_namespace})),
        topic(**({} if on_topic is None else {"permissions": on_topic})),
    )


def installed(*more: dict[str, Any], on_namespace: Any = None, on_topic: Any = None) -> Installation:
    return Installation(cluster(), tenant(), *stated(on_namespace, on_topic), *more)


def found(world: Installation) -> AuthPolicies:
    return auth_policies(world.broker.namespaces[PAYMENTS].policies)


def drift(world: Installation) -> list[str]:
    return [str(event) for event in world.server.events if event[0] == "DriftRepaired"]


def give(world: Installation, grants: AuthPolicies) -> None:
    """Let somebody put other grants into the broker."""
    keep_grants(world.broker.namespaces[PAYMENTS].policies, grants)


async def test_permissions_are_granted_and_what_nobody_grants_is_gone() -> None:
    world = installed(on_namespace=PERMISSIONS, on_topic=[{"role": "audit", "actions": ["admin"]}])
    operator = world.started()
    await operator.settle()
    wanted = AuthPolicies(
        {"etl": ["consume"]}, {PREFIX: {"shop": ["produce", "consume"]}, ORDERS: {"audit": ["admin"]}}, {"etl": ["etl"]}
    )
    assert found(world) == wanted
    assert (world.ready(NAMESPACE)[0], world.ready(TOPIC)[0]) == ("Reconciled", "Reconciled")
    await operator.resync()
    assert not drift(world)
    give(
        world,
        AuthPolicies(
            {"etl": ["consume", "produce"], "foreign": ["produce"]},
            {PREFIX: {"shop": ["consume", "produce"], "foreign": ["consume"]}, ORDERS: {"foreign": ["consume"]}},
            {"etl": ["foreign"], "other": ["foreign"]},
        ),
    )
    await world.started().settle()
    after = found(world)
    # The order in which actions are kept means nothing, so it stays.
    assert after == AuthPolicies(wanted.namespace_auth, after.destination_auth, wanted.subscription_auth_roles)
    assert after.destination_auth == {PREFIX: {"shop": ["consume", "produce"]}, ORDERS: {"audit": ["admin"]}}
    output = " ".join(drift(world))
    for each in (
        "permissions[foreign] was produce, is none",
        "permissions[etl] was consume, produce, is consume",
        "permissions on orders-*[foreign] was consume, is none",
        "permissions: roles of subscription other was foreign, is none",
        "permissions[audit] was none, is admin",
    ):
        assert each in output


async def test_a_resource_without_the_field_leaves_grants_alone_and_an_empty_list_takes_all() -> None:
    world = installed()
    await world.started().settle()
    given = AuthPolicies({"a": ["produce"]}, {PREFIX: {"b": ["consume"]}, ORDERS: {"c": ["consume"]}}, {"s": ["a"]})
    give(world, given)
    await world.started().resync()
    assert found(world) == given
    assert not drift(world)
    for each in stated(on_namespace=[]):
        world.apply(each)
    await world.started().settle()
    assert found(world) == AuthPolicies({}, {ORDERS: {"c": ["consume"]}}, {})
    for each in stated(on_topic=[]):
        world.apply(each)
    await world.started().settle()
    assert found(world) == AuthPolicies()


async def test_a_user_elsewhere_that_may_not_have_a_role_keeps_no_permissions_from_it() -> None:
    thief = body(
        "User", "thief", {"clusterRef": {"name": "main", "namespace": "team"}, "role": "etl"}, namespace="evil"
    )
    world = installed(thief, on_namespace=PERMISSIONS, on_topic=[])
    await world.started().settle()
    assert found(world).namespace_auth == {"etl": ["consume"]}
    assert world.ready(NAMESPACE)[0] == "Reconciled"


async def test_the_roles_of_users_are_left_to_these() -> None:
    world = installed(user(), on_namespace=[], on_topic=[])
    await world.started().settle()
    given = AuthPolicies(
        {"team/billing": ["consume"], "gone": ["consume"]},
        {PREFIX: {"team/billing": ["produce"]}, ORDERS: {"team/billing": ["consume"], "gone": ["consume"]}},
        {"s": ["team/billing", "gone"]},
    )
    give(world, given)
    await world.started().settle()
    assert found(world) == AuthPolicies(
        {"team/billing": ["consume"]},
        {PREFIX: {"team/billing": ["produce"]}, ORDERS: {"team/billing": ["consume"]}},
        {"s": ["team/billing"]},
    )
    assert (world.ready(NAMESPACE)[0], world.ready(TOPIC)[0]) == ("Reconciled", "Reconciled")


@pytest.mark.parametrize("key", [NAMESPACE, TOPIC], ids=str)
async def test_a_role_that_a_user_has_is_named_and_the_rest_is_applied(key: Key) -> None:
    both = [{"role": "team/billing", "actions": ["produce"]}, {"role": "etl", "actions": ["consume"]}]
    of_namespace = key == NAMESPACE
    world = installed(user(), on_namespace=both if of_namespace else None, on_topic=None if of_namespace else both)
    await world.started().settle()
    reason, message = world.ready(key)
    assert (reason, "a User has the role team/billing" in message) == ("RoleOwned", True)
    assert condition(world.body(key)["status"], POLICIES_APPLIED)["status"] == "False"
    grants = found(world)
    assert (grants.namespace_auth if of_namespace else grants.destination_auth[ORDERS]) == {"etl": ["consume"]}
    # The role is its own once no User has it.
    del world.server.objects[Key("User", "team", "billing")]
    operator = world.started()
    await operator.settle()
    await operator.resync()
    assert world.ready(key)[0] == "Reconciled"
    grants = found(world)
    assert "team/billing" in (grants.namespace_auth if of_namespace else grants.destination_auth[ORDERS])


async def test_grants_on_what_existed_before_are_reviewed() -> None:
    world = Installation(cluster(), tenant())
    await world.started().settle()
    world.broker.namespaces[PAYMENTS] = NamespaceState(4, Policies())
    give(world, AuthPolicies({"foreign": ["consume"]}))
    world.apply(namespace(permissions=[]))
    await world.started().settle()
    reason, message = world.ready(NAMESPACE)
    assert (reason, "permissions[foreign] consume" in message) == ("AdoptionPending", True)
    assert found(world).namespace_auth == {"foreign": ["consume"]}
