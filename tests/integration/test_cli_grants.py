"""Grants given, shown and taken away by the command line, and what they allow on a closed broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.administrator import Administrator, administered
from tests.support.broker_process import BrokerProcess
from tests.support.clients import fresh_name
from tests.support.tokens import Signer

#: A role of a User has a slash.
ROLE = "messaging/billing"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Iterator[BrokerProcess]:
    with administered(tmp_path_factory.mktemp("closed"), signer) as running:
        yield running


@pytest.fixture
def run(
    closed: BrokerProcess,
    signer: Signer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Administrator:
    return Administrator(closed.http_url, signer, tmp_path, monkeypatch, capsys)


@pytest.fixture
def namespace(run: Administrator) -> str:
    tenant = fresh_name("acme")
    run(f"tenants create {tenant}")
    run(f"namespaces create {tenant}/shop")
    return f"{tenant}/shop"


def test_grants_on_a_namespace(run: Administrator, namespace: str) -> None:
    topic = f"{namespace}/orders"
    assert run(f"namespaces permissions {namespace}").out == f"nothing is granted on namespace {namespace}\n"
    done = run(f"namespaces grant-permission {namespace} --role {ROLE} --actions produce,consume")
    assert done.out == f"namespace/{namespace} produce,consume granted to {ROLE}\n"
    assert run.may("produce", topic, ROLE)
    assert run.may("consume", topic, ROLE)
    assert not run.may("consume", topic, "audit")
    run(f"namespaces grant-permission {namespace} --role {ROLE} --actions consume")
    run(f"namespaces grant-permission {namespace} --role audit --actions consume")
    assert not run.may("produce", topic, ROLE), "actions are set, not added"
    listed = run(f"namespaces permissions {namespace}").out.splitlines()
    assert [line.split() for line in listed] == [["ROLE", "ACTIONS"], ["audit", "consume"], [ROLE, "consume"]]
    assert run(f"namespaces permissions {namespace} -o json").json == {ROLE: ["consume"], "audit": ["consume"]}
    done = run(f"namespaces revoke-permission {namespace} --role {ROLE}")
    assert done.out == f"namespace/{namespace} revoked from {ROLE}\n"
    assert not run.may("consume", topic, ROLE)
    assert run.may("consume", topic, "audit")


@pytest.mark.parametrize(
    ("granted", "others", "not_these"),
    [("orders", [], ["orders-1", "invoices"]), ("orders-*", ["orders-1", "orders-"], ["orders", "invoices"])],
)
def test_grants_on_topics(
    run: Administrator, namespace: str, granted: str, others: list[str], not_these: list[str]
) -> None:
    run(f"topics create {namespace}/orders")
    topic = f"{namespace}/{granted}"
    done = run(f"topics grant-permission {topic} --role {ROLE} --actions produce")
    assert done.out == f"topic/persistent://{topic} produce granted to {ROLE}\n"
    covered = [*others, *([] if granted.endswith("*") else [granted])]
    assert all(run.may("produce", f"{namespace}/{each}", ROLE) for each in covered)
    assert not any(run.may("produce", f"{namespace}/{each}", ROLE) for each in not_these)
    assert run(f"topics permissions {topic} -o json").json == {ROLE: ["produce"]}
    run(f"topics revoke-permission {topic} --role {ROLE}")
    assert not any(run.may("produce", f"{namespace}/{each}", ROLE) for each in covered)
    assert run(f"topics permissions {topic}").out == f"nothing is granted on topic persistent://{topic}\n"


def test_roles_of_subscriptions(run: Administrator, namespace: str) -> None:
    topic = f"{namespace}/orders"
    for role in (ROLE, "audit"):
        run(f"namespaces grant-permission {namespace} --role {role} --actions consume")
    done = run(f"namespaces grant-subscription-permission {namespace} --subscription a/b --roles {ROLE},ops")
    assert done.out == f"namespace/{namespace} subscription a/b granted to {ROLE},ops\n"
    assert run.may("consume", topic, ROLE, "-s", "a/b")
    assert not run.may("consume", topic, "audit", "-s", "a/b")
    assert run.may("consume", topic, "audit", "-s", "another")
    listed = run(f"namespaces subscription-permission {namespace}").out.splitlines()
    assert [line.split() for line in listed] == [["SUBSCRIPTION", "ROLES"], ["a/b", f"{ROLE},", "ops"]]
    assert run(f"namespaces subscription-permission {namespace} -o json").json == {"a/b": [ROLE, "ops"]}
    run(f"namespaces revoke-subscription-permission {namespace} -s a/b --role ops")
    done = run(f"namespaces revoke-subscription-permission {namespace} -s a/b --role {ROLE}")
    assert done.out == f"namespace/{namespace} subscription a/b revoked from {ROLE}\n"
    assert run.may("consume", topic, "audit", "-s", "a/b")


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        (
            "namespaces grant-permission NAMESPACE --role billing --actions read",
            1,
            "action 'read' is not one of produce,",
        ),
        ("namespaces grant-permission NAMESPACE --role billing --actions ,", 2, "--actions ',' names nothing"),
        ("namespaces grant-permission NAMESPACE --role= --actions consume", 2, "--role '' names nothing"),
        ("namespaces grant-permission NAMESPACE-2 --role billing --actions consume", 1, "shows what there is"),
        ("topics grant-permission NAMESPACE/missing --role billing --actions consume", 1, "shows what there is"),
        ("topics permissions NAMESPACE/missing", 1, "shows what there is"),
        ("namespaces grant-subscription-permission NAMESPACE -s s --roles ,", 2, "--roles ',' names nothing"),
        ("namespaces revoke-subscription-permission NAMESPACE -s s --role= ", 2, "--role '' names nothing"),
        ("namespaces revoke-subscription-permission NAMESPACE -s s --role x", 1, "Subscription s has no permissions"),
    ],
)
def test_what_cannot_be_granted_is_refused_with_a_reason(
    run: Administrator, namespace: str, command: str, code: int, reason: str
) -> None:
    assert reason in run(command.replace("NAMESPACE", namespace), code=code).err
