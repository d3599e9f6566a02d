"""Permissions in manifests, applied to a closed broker: what they allow, and that nothing else is left."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.administrator import Administrator, administered
from tests.support.broker_process import BrokerProcess
from tests.support.clients import fresh_name
from tests.support.ran import Ran
from tests.support.tokens import Signer


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
def tenant() -> str:
    return fresh_name("acme")


Apply = Callable[..., Ran]


@pytest.fixture
def apply(run: Administrator, tenant: str, tmp_path: Path) -> Apply:
    """Apply a tenant with a namespace ``shop`` and a topic ``orders``, of two partitions."""

    def applied(namespace: Any = None, topic: Any = None, *, code: int = 0, name: str = "orders") -> Ran:
        head = {"apiVersion": "heliograph.dev/v1alpha1", "metadata": {"name": "x"}}
        of_namespace = {"tenantRef": {"name": "x"}, "name": "shop"}
        of_topic = {"namespaceRef": {"name": "x"}, "name": name, "partitions": 2}
        documents = [
            {**head, "kind": "Tenant", "spec": {"name": tenant}},
            {
                **head,
                "kind": "Namespace",
                "spec": of_namespace | ({} if namespace is None else {"permissions": namespace}),
            },
            {**head, "kind": "Topic", "spec": of_topic | ({} if topic is None else {"permissions": topic})},
        ]
        manifest = tmp_path / "manifest.yaml"
        manifest.write_text("\n---\n".join(map(json.dumps, documents)))
        return run(f"apply -f {manifest}", code=code)

    return applied


def test_what_manifests_state_is_all_that_is_granted(run: Administrator, apply: Apply, tenant: str) -> None:
    namespace, topic, other = f"{tenant}/shop", f"{tenant}/shop/orders", f"{tenant}/shop/invoices"
    on_namespace = [
        {"role": "etl@example.org", "actions": ["consume"], "subscriptions": ["etl"]},
        {"role": "audit", "actions": ["consume"]},
        {"role": "shop", "actions": ["produce"], "topics": "invo*"},
    ]
    on_topic = [{"role": "CN=till, O=shop", "actions": ["produce"]}, {"role": "steward", "actions": ["admin"]}]
    assert "namespace" in apply(on_namespace, on_topic).out.lower()
    assert run.may("consume", topic, "etl@example.org", "-s", "etl")
    assert not run.may("consume", topic, "audit", "-s", "etl")
    assert run.may("consume", topic, "audit", "-s", "own")
    assert run.may("produce", f"{topic}-partition-1", "CN=till, O=shop")
    assert not run.may("produce", other, "CN=till, O=shop")
    assert run.may("produce", other, "shop")
    assert not run.may("produce", topic, "shop")
    assert run.may("admin", topic, "steward")
    assert not run.may("admin", other, "steward")
    assert apply(on_namespace, on_topic).out.count("unchanged") == 3
    # What others grant is gone with the next apply.
    run(f"namespaces grant-permission {namespace} --role foreign --actions consume")
    run(f"namespaces grant-permission {namespace} --role audit --actions consume,produce")
    run(f"topics grant-permission '{namespace}/*' --role foreign --actions produce")
    run(f"topics grant-permission {topic} --role foreign --actions produce")
    run(f"namespaces grant-subscription-permission {namespace} -s etl --roles foreign")
    assert run.may("produce", topic, "foreign")
    assert apply(on_namespace, on_topic).out.count("configured") == 2
    assert not run.may("produce", topic, "foreign")
    assert not run.may("produce", topic, "audit")
    assert run(f"namespaces subscription-permission {namespace} -o json").json == {"etl": ["etl@example.org"]}
    assert run(f"namespaces permissions {namespace} -o json").json == {
        "etl@example.org": ["consume"],
        "audit": ["consume"],
    }
    # A resource that states none leaves all alone, and one that states no entries takes all.
    assert apply().out.count("unchanged") == 3
    assert run.may("admin", topic, "steward")
    assert apply([], None).out.count("configured") == 1
    assert not run.may("consume", topic, "audit")
    assert run.may("admin", topic, "steward"), "grants on a topic are the topic's"
    apply([], [])
    assert not run.may("admin", topic, "steward")
    assert run(f"namespaces policies {namespace}").json["auth_policies"] == {
        "namespace_auth": {},
        "destination_auth": {},
        "subscription_auth_roles": {},
    }


def test_a_resource_of_a_topic_changes_nothing_beside_it(run: Administrator, apply: Apply, tenant: str) -> None:
    apply()
    topic, other = f"{tenant}/shop/orders", f"{tenant}/shop/invoices"
    run(f"topics create {other}")
    run(f"topics grant-permission {other} --role a --actions consume")
    run(f"namespaces grant-permission {tenant}/shop --role b --actions consume")
    apply(None, [{"role": "c", "actions": ["consume"]}])
    assert [run.may("consume", topic, role) for role in "abc"] == [False, True, True]
    assert [run.may("consume", other, role) for role in "abc"] == [True, True, False]


def test_requests_of_pulsars_api_leave_the_right_to_administer_that_they_do_not_show(
    run: Administrator, apply: Apply, tenant: str
) -> None:
    namespace, topic = f"{tenant}/shop", f"{tenant}/shop/orders"
    steward = [{"role": "steward", "actions": ["admin"]}]
    apply(steward, steward)
    for place, name in (("topics", topic), ("namespaces", namespace)):
        assert run(f"{place} permissions {name} -o json").json == {}
        run(f"{place} grant-permission {name} --role steward --actions consume")
        assert run.may("admin", topic, "steward")
        # Nothing is left of what is revoked.
        run(f"{place} revoke-permission {name} --role steward")
    assert not run.may("admin", topic, "steward")
    assert not run.may("consume", topic, "steward")


@pytest.mark.parametrize(
    ("namespace", "topic", "reason"),
    [
        ([{"role": "a", "actions": ["read"]}], None, "spec.permissions[0].actions[0]"),
        ([{"role": "a", "actions": []}], None, "spec.permissions[0].actions"),
        ([{"role": "", "actions": ["consume"]}], None, "spec.permissions[0].role: Invalid role name: it is empty"),
        ([{"role": "heliograph:operator", "actions": ["consume"]}], None, "Heliograph's own"),
        ([{"role": "a", "actions": ["consume"], "topics": "orders"}], None, "go into its Topic"),
        ([{"role": "a", "actions": ["consume"], "topics": "*"}], None, "not the beginning of topics' names"),
        ([{"role": "a", "actions": ["produce"], "subscriptions": ["s"]}], None, "are for those that consume"),
        (None, [{"role": "a", "actions": ["consume"], "subscriptions": ["s"]}], "spec.permissions[0].subscriptions"),
    ],
)
def test_what_cannot_be_stated_is_refused(apply: Apply, namespace: Any, topic: Any, reason: str) -> None:
    assert reason in apply(namespace, topic, code=1).err


def test_permissions_of_a_topic_whose_name_stands_for_many_are_refused(apply: Apply) -> None:
    assert "the permissions in spec.permissions of the Namespace" in apply(None, [], code=1, name="orders-*").err
    apply(None, None, name="orders-*")
