"""Every route of the HTTP port as every kind of role: denied is 401 or 403, allowed anything else.

What a route needs comes from ``http_rights.yaml``, what a role has from ``_HAS``; neither is read from the code.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from heliograph_api.policies.policies import Policies
from heliograph_api.values.names import TopicName
from heliograph_broker.http.base.operations import operation_of
from heliograph_broker.messaging.base.records import NamespaceRecord, TenantRecord
from heliograph_broker.messaging.broker.broker import Broker

from .http_api import HttpApi, running_api

_TABLE: Final = Path(__file__).with_name("http_rights.yaml")
TOPIC: Final = "persistent://shop/payments/orders"

#: What stands for each parameter of a path.
_NAMES: Final = {
    "domain": "persistent",
    "tenant": "shop",
    "namespace": "payments",
    "topic": "orders",
    "subscription": "closed",
    "role": "somebody",
    "cluster": "standalone",
    "bundle": "0x00000000_0x40000000",
    "broker": "127.0.0.1:8080",
    "messages": "1",
    "seconds": "1",
    "timestamp": "1",
    "ledger": "0",
    "entry": "0",
    "position": "1",
    "version": "0",
}

_CONSUMES: Final = {"lookup on the topic", "consume on the topic", "consume with the subscription of the topic"}
_ALL_OF_TOPIC: Final = {
    *_CONSUMES,
    "produce on the topic",
    "consume with every subscription of the topic",
    "admin of the topic",
    "admin of every topic in the body",
}
_ALL_OF_NAMESPACE: Final = {
    *_ALL_OF_TOPIC,
    "lookup on the namespace",
    "consume with the subscription of the namespace",
    "consume with every subscription of the namespace",
    "admin of the namespace",
}
_EVERYTHING: Final = {
    *_ALL_OF_NAMESPACE,
    "admin of the tenant",
    "admin of the tenant in the query",
    "monitor",
    "backup",
    "superuser",
}

#: What each role has beside an identity. The subscription "closed" is granted to "reader" and "owner" only.
_HAS: Final[dict[str, set[str]]] = {
    "foreign": set(),
    "neighbour": set(),
    "writer": {"lookup on the topic", "produce on the topic"},
    "producer": {"lookup on the topic", "lookup on the namespace", "produce on the topic"},
    "reader": {*_CONSUMES, "consume with every subscription of the topic"},
    "outsider": _CONSUMES - {"consume with the subscription of the topic"},
    "consumer": {*_CONSUMES, "lookup on the namespace"} - {"consume with the subscription of the topic"},
    "owner": {
        *_CONSUMES,
        "lookup on the namespace",
        "consume with the subscription of the namespace",
        "consume with every subscription of the topic",
        "consume with every subscription of the namespace",
    },
    "keeper": _ALL_OF_TOPIC,
    "steward": _ALL_OF_NAMESPACE,
    "boss": _EVERYTHING - {"monitor", "backup", "superuser"},
    "monitor": {"monitor"},
    "saver": {"backup"},
    "root": _EVERYTHING,
}
_GRANTS: Final = {
    "namespace_auth": {
        "producer": ["produce"],
        "consumer": ["consume"],
        "owner": ["consume"],
        "steward": ["admin"],
    },
    "destination_auth": {
        TOPIC: {"writer": ["produce"], "reader": ["consume"], "outsider": ["consume"]},
        f"{TOPIC[:-3]}*": {"keeper": ["admin"]},
    },
    "subscription_auth_roles": {"closed": ["reader", "owner"]},
}


class Route(NamedTuple):
    """A route, and the right that it needs."""

    method: str
    path: str
    needs: str


def _routes() -> Iterator[Route]:
    for needs, paths in yaml.safe_load(_TABLE.read_text(encoding="utf-8")).items():
        for path, methods in paths.items():
            for method in methods.split(", "):
                yield Route(method, path, needs)


ROUTES: Final = tuple(_routes())


def _request(route: Route, **names: str) -> tuple[str, str | None]:
    """Return the path and the body that ask for a route of the objects with these names."""
    known = _NAMES | names
    # The bundles of a namespace's non-persistent topics have a path of their own.
    path = re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], "x"), route.path)
    if route.needs == "admin of the tenant in the query":
        return f"{path}?tenant={known['tenant']}", None
    if route.needs == "admin of every topic in the body":
        topic = f"persistent://{known['tenant']}/{known['namespace']}/{known['topic']}"
        return path, json.dumps([{"topic": topic, "role": "somebody", "actions": ["consume"]}])
    return path, None


def _furnish(broker: Broker) -> None:
    """Create what requests have deleted, and set back what they have changed."""
    tenant = TenantRecord(admin_roles=["boss"], allowed_clusters=["standalone"])
    existing = broker.directory.tenants.get("shop")
    if existing is None:
        broker.tenants.create("shop", tenant)
    elif existing != tenant:
        broker.tenants.update("shop", tenant)
    policies = Policies(kept={"auth_policies": _GRANTS})
    namespace = broker.directory.namespaces.get("shop/payments")
    if namespace is None:
        broker.namespaces.create("shop/payments", NamespaceRecord(policies=policies))
    elif namespace.policies != policies:
        broker.namespaces.set_policies("shop/payments", policies)
    name = TopicName.parse(TOPIC)
    if not broker.directory.exists(name):
        broker.topics.create(name)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    rights = {"superusers": ["root"], "monitors": ["monitor"], "backups": ["saver"], "proxies": ["gate"]}
    async with running_api(tmp_path / "data", authorization=rights) as running:
        broker = running.broker
        broker.tenants.create("other", TenantRecord(admin_roles=["neighbour"], allowed_clusters=["standalone"]))
        grants = {"namespace_auth": {"foreign": ["produce", "consume", "admin"], "gate": ["produce"]}}
        broker.namespaces.create("other/things", NamespaceRecord(policies=Policies(kept={"auth_policies": grants})))
        _furnish(broker)
        yield running


async def test_every_route_is_in_the_table_and_states_what_it_needs(api: HttpApi) -> None:
    there = set()
    silent = []
    for route in api.app.router.routes():
        if route.method != "HEAD" and route.resource is not None:
            there.add((route.method, route.resource.canonical))
            described = operation_of(route.handler)
            if described is None or described.needs is None:
                silent.append(f"{route.method} {route.resource.canonical}")
    assert silent == [], "operations without needs"
    listed = [(route.method, route.path) for route in ROUTES]
    assert sorted(there) == sorted(listed), "the routes, and those of http_rights.yaml"
    assert len(ROUTES) * (len(_HAS) + 2) >= 1_000


@pytest.mark.parametrize("role", _HAS)
async def test_a_role_may_make_the_requests_that_its_rights_allow(api: HttpApi, role: str) -> None:
    wrong = []
    for route in ROUTES:
        path, body = _request(route)
        answer = await api.request(route.method, path, body, Role=role)
        allowed = route.needs in {"nothing", "identity", *_HAS[role]}
        # Without a timer, a slow machine makes the broker of this test unready (503).
        if (answer.status not in (401, 403)) is not allowed or answer.status == 500:
            wrong.append((route, answer.status, answer.body))
        if route.method != "GET" and answer.status < 400:
            _furnish(api.broker)
    assert wrong == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"Role": "gate"}, 403), ({"Role": "root", "Via": "boss"}, 403), ({"Role": ""}, 403)],
    ids=["no identity", "a proxy for itself", "no proxy", "no role"],
)
async def test_others_may_only_ask_whether_the_broker_lives(api: HttpApi, headers: dict[str, str], status: int) -> None:
    for route in ROUTES:
        path, body = _request(route)
        answer = await api.request(route.method, path, body, **headers)
        expected = answer.status not in (401, 403) if route.needs == "nothing" else answer.status == status
        assert expected, (route, answer)
    assert (await api.request("GET", "/nowhere", **headers)).status == status
    assert (await api.request("POST", "/metrics", **headers)).status == status
    assert (await api.request("HEAD", "/metrics", **headers)).status == status


@pytest.mark.parametrize("role", ["foreign", "neighbour", "producer", "keeper", "steward"])
async def test_a_denial_is_the_same_whether_the_object_exists(api: HttpApi, role: str) -> None:
    for route in ROUTES:
        answers: list[Any] = []
        # The names that exist, and those that do not, one after the other.
        for tenant, namespace, topic in (
            ("shop", "payments", "orders"),
            ("shop", "payments", "nothing"),
            ("shop", "nothing", "orders"),
            ("nothing", "payments", "orders"),
        ):
            # A subscription that is granted to others is denied for another reason.
            path, body = _request(route, tenant=tenant, namespace=namespace, topic=topic, subscription="open")
            answer = await api.request(route.method, path, body, Role=role)
            if route.method != "GET" and answer.status < 400:
                _furnish(api.broker)
            if answer.status == 403:
                text = json.dumps(answer.body)
                for name, stands_for in ((topic, "TOPIC"), (namespace, "NAMESPACE"), (tenant, "TENANT")):
                    text = re.sub(rf"(?<=[/ ]){name}\b", stands_for, text)
                answers.append(text)
        assert len(set(answers)) <= 1, (route, answers)


async def test_a_proxy_needs_the_right_too(api: HttpApi) -> None:
    stats = "/admin/v2/persistent/shop/payments/orders/stats"
    assert (await api.request("GET", stats, Role="producer")).status == 200
    assert (await api.request("GET", stats, Role="producer", Via="gate")).status == 403
    policies = Policies(kept={"auth_policies": {"namespace_auth": {"producer": ["produce"], "gate": ["consume"]}}})
    api.broker.namespaces.set_policies("shop/payments", policies)
    assert (await api.request("GET", stats, Role="producer", Via="gate")).status == 200
