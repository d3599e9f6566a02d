"""Decisions: deny by default, superusers, administrators of tenants, grants, subscriptions and proxies."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.records import NamespaceRecord, TenantRecord
from heliograph_broker.messaging.topic.directory import Directory
from heliograph_broker.security.authorization.authorizer import Authorizer
from heliograph_broker.security.authorization.needs import (
    NOWHERE,
    Need,
    Resource,
    on_namespace,
    on_tenant,
    on_topic,
)
from heliograph_broker.security.identity import Identity

NAMESPACE = "shop/payments"
ORDERS = "persistent://shop/payments/orders"
EVERYTHING = (Need.LOOKUP, Need.PRODUCE, Need.CONSUME, Need.ADMIN)


def _record(mode: str | None = None, **grants: Any) -> NamespaceRecord:
    kept: dict[str, Any] = {"auth_policies": grants}
    if mode is not None:
        kept["subscription_auth_mode"] = mode
    return NamespaceRecord(policies=Policies(kept=kept))


@pytest.fixture
def directory() -> Directory:
    found = Directory()
    found.tenants["shop"] = TenantRecord(admin_roles=["boss"])
    found.tenants["other"] = TenantRecord(admin_roles=["neighbour"])
    found.namespaces[NAMESPACE] = _record(
        namespace_auth={"billing": ["produce"], "reports": ["consume"], "steward": ["admin"], "old": []},
        destination_auth={
            ORDERS: {"packer": ["consume"], "keeper": ["admin"]},
            "persistent://shop/payments/audit-*": {"auditor": ["consume"], "writer": ["produce"]},
            "persistent://shop/payments/audit-eu-*": {"writer": ["consume"]},
        },
    )
    found.namespaces["shop/empty"] = NamespaceRecord()
    return found


@pytest.fixture
def authorizer(directory: Directory) -> Authorizer:
    return Authorizer(directory, superusers=["root"], proxies=["gate", "wide-gate"])


def _allowed(authorizer: Authorizer, role: str, on: Resource, via: str = "") -> set[Need]:
    identity = Identity(role, "token", via=via)
    return {need for need in Need if authorizer.decide(identity, need, on).allowed}


def _topic(local: str, subscription: str = "", domain: str = "persistent") -> Resource:
    return on_topic(TopicName.parse(f"{domain}://{NAMESPACE}/{local}"), subscription)


BASE = {Need.NOTHING, Need.IDENTITY}
PRODUCES = BASE | {Need.LOOKUP, Need.PRODUCE}
CONSUMES = BASE | {Need.LOOKUP, Need.CONSUME}
BOTH = PRODUCES | CONSUMES
ADMINISTERS = BASE | set(EVERYTHING)


@pytest.mark.parametrize(
    ("role", "on", "expected"),
    [
        ("nobody", _topic("orders"), BASE),
        ("nobody", on_namespace(NAMESPACE), BASE),
        ("nobody", on_tenant("shop"), BASE),
        ("nobody", NOWHERE, BASE),
        ("root", NOWHERE, set(Need)),
        ("root", on_topic(TopicName.parse("persistent://no/such/topic")), set(Need)),
        ("boss", _topic("orders"), ADMINISTERS),
        ("boss", on_namespace(NAMESPACE), ADMINISTERS),
        ("boss", on_namespace("shop/missing"), ADMINISTERS),
        ("boss", on_tenant("shop"), ADMINISTERS),
        ("boss", on_tenant("other"), BASE),
        ("boss", on_namespace("other/things"), BASE),
        ("boss", NOWHERE, BASE),
        ("neighbour", _topic("orders"), BASE),
        ("billing", _topic("orders"), PRODUCES),
        ("billing", _topic("anything"), PRODUCES),
        ("billing", on_namespace(NAMESPACE), PRODUCES),
        ("billing", on_namespace("shop/empty"), BASE),
        ("billing", on_namespace("shop/missing"), BASE),
        ("billing", on_tenant("shop"), BASE),
        ("reports", _topic("orders", domain="non-persistent"), CONSUMES),
        ("old", _topic("orders"), BASE),
        ("packer", _topic("orders"), CONSUMES),
        ("packer", _topic("orders-partition-3"), CONSUMES),
        ("packer", _topic("orders", domain="non-persistent"), BASE),
        ("packer", _topic("orders2"), BASE),
        ("packer", on_namespace(NAMESPACE), BASE),
        ("keeper", _topic("orders"), ADMINISTERS),
        ("keeper", _topic("others"), BASE),
        ("keeper", on_namespace(NAMESPACE), BASE),
        ("steward", _topic("orders"), ADMINISTERS),
        ("steward", on_namespace(NAMESPACE), ADMINISTERS),
        ("steward", on_namespace("shop/empty"), BASE),
        ("steward", on_tenant("shop"), BASE),
        ("auditor", _topic("audit-2026"), CONSUMES),
        ("auditor", _topic("audit-"), CONSUMES),
        ("auditor", _topic("audit-2026-partition-0"), CONSUMES),
        ("auditor", _topic("audit"), BASE),
        ("auditor", _topic("audit-x", domain="non-persistent"), BASE),
        ("writer", _topic("audit-us-1"), PRODUCES),
        ("writer", _topic("audit-eu-1"), BOTH),
        ("", _topic("orders"), {Need.NOTHING}),
    ],
)
def test_what_a_role_may(authorizer: Authorizer, role: str, on: Resource, expected: set[Need]) -> None:
    assert _allowed(authorizer, role, on) == expected


@pytest.mark.parametrize(
    ("role", "subscription", "allowed"),
    [
        ("a", "open", True),
        ("a", "", True),
        ("a", "closed", True),
        ("b", "closed", False),
        ("b", "emptied", True),
        ("producer", "closed", False),
        ("producer", "open", False),
        ("listed", "closed", False),
        ("steward", "closed", True),
        ("both", "closed", True),
        ("boss", "closed", True),
        ("root", "closed", True),
    ],
)
def test_a_subscription_with_roles_is_for_these_and_for_administrators(
    directory: Directory, authorizer: Authorizer, role: str, subscription: str, allowed: bool
) -> None:
    directory.namespaces[NAMESPACE] = _record(
        namespace_auth={
            "a": ["consume"],
            "b": ["consume"],
            "producer": ["produce"],
            "steward": ["admin"],
            "both": ["consume"],
        },
        destination_auth={ORDERS: {"both": ["admin"]}},
        # "listed" has no grant of its own: these roles narrow grants, they are none.
        subscription_auth_roles={"closed": ["a", "listed"], "emptied": []},
    )
    decision = authorizer.decide(Identity(role, "token"), Need.CONSUME, _topic("orders", subscription))
    assert decision.allowed is allowed


@pytest.mark.parametrize(
    ("role", "subscription", "allowed"),
    [
        ("billing", "billing", True),
        ("billing", "billing-1", True),
        ("billing", "x-billing", False),
        ("billing", "", True),
        ("bill", "billing", True),
        ("steward", "anything", True),
        ("boss", "anything", True),
    ],
)
def test_in_prefix_mode_a_subscription_begins_with_the_role(
    directory: Directory, authorizer: Authorizer, role: str, subscription: str, allowed: bool
) -> None:
    directory.namespaces[NAMESPACE] = _record(
        "Prefix", namespace_auth={"billing": ["consume"], "bill": ["consume"], "steward": ["admin"]}
    )
    on = _topic("orders", subscription)
    assert authorizer.decide(Identity(role, "token"), Need.CONSUME, on).allowed is allowed
    # The name of a subscription matters to consumers only.
    assert not authorizer.decide(Identity("billing", "token"), Need.PRODUCE, on).allowed


@pytest.mark.parametrize(
    ("role", "via", "allowed"),
    [
        ("billing", "wide-gate", True),
        ("billing", "gate", False),
        ("nobody", "wide-gate", False),
        # Its right to speak for others is not a right of its own.
        ("wide-gate", "", False),
        ("gate", "wide-gate", False),
        ("billing", "reports", False),
        ("root", "wide-gate", True),
        ("root", "gate", False),
        ("billing", "root", False),
        ("", "wide-gate", False),
    ],
)
def test_a_proxy_and_its_client_must_both_be_allowed(
    directory: Directory, authorizer: Authorizer, role: str, via: str, allowed: bool
) -> None:
    directory.namespaces[NAMESPACE] = _record(namespace_auth={"billing": ["produce"], "wide-gate": ["produce"]})
    assert (Need.PRODUCE in _allowed(authorizer, role, _topic("orders"), via)) is allowed


def test_a_proxy_without_a_client_has_not_even_an_identity(authorizer: Authorizer) -> None:
    assert not authorizer.decide(Identity("gate", "token"), Need.IDENTITY, NOWHERE).allowed


@pytest.mark.parametrize(
    ("role", "need", "on", "rule"),
    [
        ("root", Need.PRODUCE, _topic("orders"), "role root is a superuser"),
        ("boss", Need.PRODUCE, _topic("orders"), "role boss administers tenant shop"),
        ("billing", Need.PRODUCE, _topic("orders"), "role billing has produce on namespace shop/payments"),
        ("steward", Need.PRODUCE, _topic("orders"), "role steward has admin on namespace shop/payments"),
        ("packer", Need.CONSUME, _topic("orders-partition-1"), f"role packer has consume on topic {ORDERS}"),
        (
            "auditor",
            Need.LOOKUP,
            _topic("audit-1"),
            "role auditor has consume on topics persistent://shop/payments/audit-*",
        ),
        (
            "nobody",
            Need.CONSUME,
            _topic("orders"),
            f"no grant of consume for role nobody on {ORDERS} or its namespace;"
            " administrators of tenant shop and superusers can grant it",
        ),
        (
            "nobody",
            Need.ADMIN,
            _topic("orders"),
            f"no grant of administration for role nobody on {ORDERS} or its namespace;"
            " administrators of tenant shop and superusers have it, and roles with the action admin",
        ),
        ("nobody", Need.ADMIN, on_tenant("shop"), "role nobody does not administer tenant shop"),
        ("nobody", Need.SUPERUSER, NOWHERE, "role nobody is not a superuser"),
        (
            "nobody",
            Need.MONITOR,
            NOWHERE,
            "role nobody may not read metrics and statistics of the whole broker;"
            " superusers may, and the roles in the setting monitors",
        ),
        (
            "nobody",
            Need.BACKUP,
            NOWHERE,
            "role nobody may not fetch backups and read the state of the broker;"
            " superusers may, and the roles in the setting backups",
        ),
    ],
)
def test_the_rule_is_named(authorizer: Authorizer, role: str, need: Need, on: Resource, rule: str) -> None:
    assert authorizer.decide(Identity(role, "token"), need, on).rule == rule


def test_a_denial_does_not_tell_what_exists(authorizer: Authorizer) -> None:
    nobody = Identity("nobody", "token")

    def rule(topic: str) -> str:
        name = TopicName.parse(topic)
        denied = authorizer.decide(nobody, Need.CONSUME, on_topic(name, "closed"))
        return denied.rule.replace(str(name), "TOPIC").replace(name.tenant, "TENANT")

    assert rule(ORDERS) == rule("persistent://shop/missing/orders") == rule("persistent://missing/payments/orders")


def test_changes_take_effect_with_the_next_decision(directory: Directory, authorizer: Authorizer) -> None:
    late = Identity("late", "token")
    on = _topic("audit-1")
    assert not authorizer.decide(late, Need.PRODUCE, on).allowed
    directory.namespaces[NAMESPACE] = _record(
        destination_auth={"persistent://shop/payments/audit*": {"late": ["produce"]}}
    )
    assert authorizer.decide(late, Need.PRODUCE, on).allowed
    directory.namespaces[NAMESPACE] = _record()
    assert not authorizer.decide(late, Need.PRODUCE, on).allowed
    directory.tenants["shop"] = TenantRecord(admin_roles=["late"])
    assert authorizer.decide(late, Need.PRODUCE, on).allowed
    del directory.tenants["shop"], directory.namespaces[NAMESPACE]
    assert not authorizer.decide(late, Need.PRODUCE, on).allowed


def test_deleted_tenants_and_namespaces_are_forgotten(directory: Directory, authorizer: Authorizer) -> None:
    client = Identity("nobody", "token")
    for number in range(50):
        tenant, namespace = f"t{number}", f"t{number}/n"
        directory.tenants[tenant], directory.namespaces[namespace] = TenantRecord(), NamespaceRecord()
        authorizer.decide(client, Need.PRODUCE, on_namespace(namespace))
        del directory.tenants[tenant], directory.namespaces[namespace]
    assert len(authorizer._admins) <= len(directory.tenants) + 1
    assert len(authorizer._grants) <= len(directory.namespaces) + 1
    assert sys.getsizeof(authorizer._grants) < 2_000


def test_decisions_are_counted_by_what_was_needed(authorizer: Authorizer) -> None:
    authorizer.decide(Identity("billing", "token"), Need.PRODUCE, _topic("orders"))
    authorizer.decide(Identity("billing", "token"), Need.CONSUME, _topic("orders"))
    authorizer.explain(Identity("billing", "token"), Need.PRODUCE, _topic("orders"))
    assert (authorizer.allowed[Need.PRODUCE], authorizer.denied[Need.PRODUCE]) == (1, 0)
    assert (authorizer.allowed[Need.CONSUME], authorizer.denied[Need.CONSUME]) == (0, 1)
