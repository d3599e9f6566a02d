"""Every route of the HTTP port as every kind of role: denied is 401 or 403, allowed anything else.

What a route needs and what a role has comes from :mod:`tests.support.rights_matrix.routes`; neither is read from the
code.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_api.values.names import TopicName
from heliograph_broker.http.base.operations import operation_of
from heliograph_broker.messaging.base.records import NamespaceRecord, TenantRecord
from heliograph_broker.messaging.broker.broker import Broker

from tests.support.rights_matrix.routes import GRANTS, HAS, ROUTES, TOPIC, request_of

from .http_api import HttpApi, running_api


def _furnish(broker: Broker) -> None:
    """Create what requests have deleted, and set back what they have changed."""
    tenant = TenantRecord(admin_roles=["boss"], allowed_clusters=["standalone"])
    existing = broker.directory.tenants.get("shop")
    if existing is None:
        broker.tenants.create("shop", tenant)
    elif existing != tenant:
        broker.tenants.update("shop", tenant)
    policies = Policies(kept={"auth_policies": GRANTS})
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
    assert len(ROUTES) * (len(HAS) + 2) >= 1_000


@pytest.mark.parametrize("role", HAS)
async def test_a_role_may_make_the_requests_that_its_rights_allow(api: HttpApi, role: str) -> None:
    wrong = []
    for route in ROUTES:
        path, body = request_of(route)
        answer = await api.request(route.method, path, body, Role=role)
        allowed = route.needs in {"nothing", "identity", *HAS[role]}
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
        path, body = request_of(route)
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
            path, body = request_of(route, tenant=tenant, namespace=namespace, topic=topic, subscription="open")
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
