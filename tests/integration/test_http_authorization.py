"""Authorization by HTTP: grants and their effects, questions about rights, the audit log and the metric."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from heliograph_api.values.names import TopicName
from heliograph_broker.http.app import create_metrics_app
from heliograph_broker.messaging.base.names import COMPACTION
from heliograph_broker.messaging.base.records import NamespaceRecord, TenantRecord
from heliograph_broker.messaging.topic.topic import Topic
from structlog.testing import capture_logs

from .http_api import HttpApi, identified, running_api

NAMESPACE = "/admin/v2/namespaces/shop/payments"
ORDERS = "persistent://shop/payments/orders"
ORDERS_PATH = "/admin/v2/persistent/shop/payments/orders"
STATS = f"{ORDERS_PATH}/stats"
CAN_I = "/heliograph/v1/auth/can-i"


def _furnish(api: HttpApi) -> None:
    for tenant, boss in (("shop", "boss"), ("other", "neighbour")):
        api.broker.tenants.create(tenant, TenantRecord(admin_roles=[boss], allowed_clusters=["standalone"]))
    api.broker.namespaces.create("shop/payments", NamespaceRecord())
    api.broker.namespaces.create("other/things", NamespaceRecord())


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    rights = {"superusers": ["root"], "monitors": ["monitor"], "proxies": ["gate"]}
    async with running_api(tmp_path / "data", authorization=rights) as running:
        _furnish(running)
        await _done(running, "PUT", "/admin/v2/persistent/shop/payments/orders", Role="boss")
        yield running


async def _done(api: HttpApi, method: str, path: str, body: Any = None, **headers: str) -> None:
    answer = await api.request(method, path, None if body is None else json.dumps(body), **headers)
    assert answer.status == 204, answer
    assert "Warning" not in answer.headers, "what is set has an effect"


async def _status(api: HttpApi, path: str, role: str, method: str = "GET", body: Any = None) -> int:
    answer = await api.request(method, path, None if body is None else json.dumps(body), Role=role)
    return answer.status


async def _may(api: HttpApi, action: str, topic: str) -> bool:
    """Return whether the role billing may do something."""
    answer = await api.request("GET", f"{CAN_I}?action={action}&topic={topic}", Role="billing")
    return bool(answer.body["allowed"])


# -- grants --------------------------------------------------------------------------------------------------------


async def test_a_grant_takes_effect_with_the_next_request_and_so_does_its_end(api: HttpApi) -> None:
    assert await _status(api, STATS, "billing") == 403
    await _done(api, "POST", f"{NAMESPACE}/permissions/billing", ["consume"], Role="boss")
    assert await _status(api, STATS, "billing") == 200
    await _done(api, "DELETE", f"{NAMESPACE}/permissions/billing", Role="boss")
    assert await _status(api, STATS, "billing") == 403


async def test_a_grant_of_a_prefix_needs_no_topic_and_is_of_all_topics_that_begin_so(api: HttpApi) -> None:
    await _done(api, "POST", "/admin/v2/persistent/shop/payments/ord*/permissions/billing", ["produce"], Role="boss")
    assert await _status(api, STATS, "billing") == 200
    assert await _status(api, STATS.replace("orders", "bills"), "billing") == 403
    shown = await api.request("GET", "/admin/v2/persistent/shop/payments/ord*/permissions", Role="boss")
    assert shown.body == {"billing": ["produce"]}
    await _done(api, "DELETE", "/admin/v2/persistent/shop/payments/ord*/permissions/billing", Role="boss")
    assert await _status(api, STATS, "billing") == 403


async def test_every_topic_of_a_body_is_checked_before_any_is_looked_for(api: HttpApi) -> None:
    path = "/admin/v2/namespaces/grantPermissionsOnTopics"

    def grants(*topics: str) -> list[dict[str, Any]]:
        return [{"topic": topic, "role": "billing", "actions": ["consume"]} for topic in topics]

    missing = "persistent://shop/payments/missing"
    assert await _status(api, path, "boss", "POST", grants(missing, "persistent://other/things/x")) == 403
    assert await _status(api, path, "neighbour", "POST", grants("persistent://other/things/x", ORDERS)) == 403
    assert await _status(api, path, "boss", "POST", grants(ORDERS, missing)) == 404
    assert await _status(api, STATS, "billing") == 403
    assert await _status(api, path, "boss", "POST", grants(ORDERS)) == 204
    assert await _status(api, STATS, "billing") == 200


async def test_the_roles_of_a_subscription_and_the_prefix_mode_take_effect(api: HttpApi) -> None:
    for role in ("billing", "reports"):
        await _done(api, "POST", f"{NAMESPACE}/permissions/{role}", ["consume"], Role="boss")
    await _done(api, "POST", f"{NAMESPACE}/permissions/subscription/ledger", ["billing"], Role="boss")
    cursor = "/admin/v2/persistent/shop/payments/orders/subscription"
    assert await _status(api, f"{cursor}/ledger", "reports", "PUT") == 403
    # Java's client encodes the name twice.
    assert await _status(api, f"{cursor}/%256c%2565dger", "reports", "PUT") == 403
    assert await _status(api, f"{cursor}/ledger", "billing", "PUT") == 204
    assert await _status(api, f"{NAMESPACE}/unsubscribe/ledger", "reports", "POST") == 403
    assert await _status(api, f"{NAMESPACE}/unsubscribe/%256cedger", "reports", "POST") == 403
    assert await _status(api, f"{NAMESPACE}/clearBacklog", "reports", "POST") == 403
    assert await _status(api, f"{NAMESPACE}/clearBacklog", "billing", "POST") == 204
    await _done(api, "POST", f"{NAMESPACE}/subscriptionAuthMode", "Prefix", Role="boss")
    assert await _status(api, f"{cursor}/ledger", "billing", "DELETE") == 403
    assert await _status(api, f"{cursor}/billing-1", "billing", "PUT") == 204
    assert await _status(api, f"{cursor}/ledger", "boss", "DELETE") == 204


async def test_administration_is_granted_beside_pulsars_actions_and_hidden_from_its_clients(api: HttpApi) -> None:
    kept = {"auth_policies": {"namespace_auth": {"steward": ["admin"], "both": ["produce", "admin"], "old": []}}}
    record = api.broker.directory.namespace("shop/payments")
    api.broker.namespaces.set_policies("shop/payments", type(record.policies)(kept=kept))
    for path in (f"{NAMESPACE}/permissions", "/admin/v2/persistent/shop/payments/orders/permissions"):
        assert (await api.request("GET", path, Role="steward")).body == {"both": ["produce"], "old": []}
    document = await api.request("GET", NAMESPACE, Role="steward")
    assert document.body["auth_policies"]["namespace_auth"] == {"both": ["produce"], "old": []}
    # Another grant does not lose it.
    await _done(api, "POST", f"{NAMESPACE}/permissions/billing", ["produce"], Role="steward")
    assert await _status(api, f"{NAMESPACE}/retention", "steward") in (200, 204)
    refused = await api.request("POST", f"{NAMESPACE}/permissions/billing", '["admin"]', Role="boss")
    assert refused.status == 400


async def test_dead_letters_go_to_topics_that_the_client_may_produce_to(api: HttpApi) -> None:
    foreign = "persistent://other/things/letters"
    for path in (
        f"{NAMESPACE}/deadLetterTopic",
        "/admin/v2/persistent/shop/payments/orders/deadLetterTopic",
        "/heliograph/v1/persistent/shop/payments/orders/subscription/s/deadLetterTopic",
    ):
        assert await _status(api, path, "boss", "POST", foreign) == 403, path
        assert await _status(api, path, "boss", "POST", "persistent://shop/payments/letters") == 204, path
        assert await _status(api, path, "root", "POST", foreign) == 204, path
    document = {"dead_letter_topic": foreign}
    assert await _status(api, "/admin/v2/namespaces/shop/more", "boss", "PUT", document) == 403


# -- questions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "query", "allowed", "rule"),
    [
        ("billing", "action=produce", True, "role billing has produce on namespace shop/payments"),
        ("billing", "action=consume&role=billing", False, "no grant of consume for role billing on"),
        ("boss", "action=produce&role=billing", True, "role billing has produce on"),
        ("boss", "action=admin&role=billing", False, "no grant of administration for role billing"),
        ("boss", "action=admin", True, "role boss administers tenant shop"),
        ("root", "action=produce&role=boss", True, "role boss administers tenant shop"),
        ("root", "action=produce&role=gate", False, "role gate is a proxy"),
        ("root", "action=consume&role=reports&subscription=ledger", False, "subscription ledger"),
        ("root", "action=consume&role=reports&subscription=other", True, "role reports has consume"),
    ],
)
async def test_the_rule_that_decides(api: HttpApi, client: str, query: str, allowed: bool, rule: str) -> None:
    await _done(api, "POST", f"{NAMESPACE}/permissions/billing", ["produce"], Role="boss")
    await _done(api, "POST", f"{NAMESPACE}/permissions/reports", ["consume"], Role="boss")
    await _done(api, "POST", f"{NAMESPACE}/permissions/subscription/ledger", ["billing"], Role="boss")
    answer = await api.request("GET", f"{CAN_I}?topic={ORDERS}&{query}", Role=client)
    assert (answer.status, answer.body["allowed"]) == (200, allowed), answer
    assert rule in answer.body["rule"]


@pytest.mark.parametrize(
    ("client", "query", "status"),
    [
        ("billing", f"action=produce&topic={ORDERS}&role=boss", 403),
        ("neighbour", f"action=produce&topic={ORDERS}&role=billing", 403),
        ("boss", "action=produce&namespace=other/things&role=billing", 403),
        ("boss", "action=produce&namespace=shop/payments&role=billing", 200),
        ("boss", f"action=fly&topic={ORDERS}", 400),
        ("boss", "action=produce", 400),
        ("boss", "action=produce&topic=a/b", 412),
    ],
)
async def test_questions_about_others_are_for_administrators(
    api: HttpApi, client: str, query: str, status: int
) -> None:
    assert (await api.request("GET", f"{CAN_I}?{query}", Role=client)).status == status


async def test_without_authorization_everybody_may_do_everything_and_is_told_so(tmp_path: Path) -> None:
    async with running_api(tmp_path / "data") as open_api:
        _furnish(open_api)
        answer = await open_api.get(f"{CAN_I}?action=admin&topic={ORDERS}&role=anybody")
        assert answer == {"allowed": True, "rule": "authorization is not enabled: every client may do everything"}
        for path, body in (
            (f"{NAMESPACE}/permissions/a", '["consume"]'),
            (f"{NAMESPACE}/subscriptionAuthMode", '"Prefix"'),
        ):
            granted = await open_api.request("POST", path, body)
            assert "authorization is not enabled" in granted.headers["Warning"]
        assert "heliograph_authorization_decisions" not in (await open_api.request("GET", "/metrics")).body


# -- log and metrics -----------------------------------------------------------------------------------------------


async def _logged(api: HttpApi, method: str, path: str, body: str | None = None, **headers: str) -> list[Any]:
    with capture_logs() as logs:
        await api.request(method, path, body, **headers)
    return [each for each in logs if each["event"] == "administration"]


async def test_every_change_is_logged_with_who_what_where_and_outcome(api: HttpApi) -> None:
    path = f"{NAMESPACE}/permissions/billing"
    [line] = await _logged(api, "POST", path, '["consume"]', Role="boss")
    assert line == {
        "event": "administration",
        "log_level": "info",
        "log": "audit",
        "role": "boss",
        "authentication": "token",
        "via": "",
        "method": "POST",
        "path": path,
        "query": {},
        "address": "127.0.0.1",
        "status": 204,
    }


async def test_a_flood_of_refused_requests_is_counted_and_hides_nothing_else(api: HttpApi) -> None:
    path = f"{NAMESPACE}/permissions/billing"
    began = time.monotonic()
    with capture_logs() as logs:
        for _ in range(40):
            for headers in ({}, {"Role": "billing"}):
                await api.request("DELETE", NAMESPACE, **headers)
                await api.request("POST", "/nowhere", **headers)
            # Requests that are answered before any right is asked for.
            await api.request("POST", "/admin/v2/namespaces/shop/no%20name/permissions/billing", Role="billing")
            for body in ("[]", "no JSON", '[{"topic": "a/b", "role": "billing"}]'):
                await api.request("POST", "/admin/v2/namespaces/grantPermissionsOnTopics", body, Role="billing")
        await api.request("DELETE", NAMESPACE, Role="neighbour")
        for _ in range(40):
            await api.request("POST", path, '["consume"]', Role="boss")
            await api.request("POST", path, '["no action"]', Role="boss")
    lines = Counter((each["role"], each["status"]) for each in logs if each["event"] == "administration")
    # Ten in ten seconds.
    most = 10 * (1 + int((time.monotonic() - began) / 10))
    assert 10 <= sum(number for (role, _), number in lines.items() if not role) <= most
    assert 10 <= sum(number for (role, _), number in lines.items() if role == "billing") <= most
    assert lines["neighbour", 403] == 1
    assert lines["boss", 204] == 40
    assert lines["boss", 400] + lines["boss", 412] == 40


@pytest.mark.parametrize(
    ("method", "path", "headers", "expected"),
    [
        ("DELETE", NAMESPACE, {"Role": "billing"}, {"role": "billing", "status": 403}),
        ("DELETE", NAMESPACE, {}, {"role": "", "authentication": "", "status": 401}),
        ("DELETE", NAMESPACE, {"Role": "boss", "Via": "gate"}, {"role": "boss", "via": "gate", "status": 403}),
        ("POST", "/nowhere", {"Role": "root"}, {"status": 404}),
        ("POST", "/metrics", {"Role": "root"}, {"status": 405}),
        ("DELETE", f"{NAMESPACE}?force=true&token=hunter2", {"Role": "root"}, {"query": {"force": "true"}}),
        (
            "PUT",
            f"{NAMESPACE}/property/password/hunter2",
            {"Role": "root"},
            {"path": f"{NAMESPACE}/property/password/..."},
        ),
        ("PUT", f"{NAMESPACE}/property/a/hunter2", {"Role": "billing"}, {"path": f"{NAMESPACE}/property/a/..."}),
        ("POST", f"{NAMESPACE}/permissions/a%0Ab", {"Role": "billing"}, {"path": f"{NAMESPACE}/permissions/a%0Ab"}),
        (
            "POST",
            "/admin/v2/brokers/configuration/x/hunter2",
            {"Role": "root"},
            {"path": "/admin/v2/brokers/configuration/x/..."},
        ),
        (
            "POST",
            "/admin/v2/brokers/configuration/x/hunter2/hunter2",
            {"Role": "root"},
            {"path": "/admin/v2/brokers/configuration/x/...", "status": 412},
        ),
        ("PUT", "/admin/v2/brokers/configuration/x/hunter2", {"Role": "root"}, {"status": 405}),
        ("POST", f"{NAMESPACE}/property/a/hunter2", {"Role": "root"}, {"status": 405}),
    ],
)
async def test_what_is_refused_is_logged_too_and_nothing_secret(
    api: HttpApi, method: str, path: str, headers: dict[str, str], expected: dict[str, Any]
) -> None:
    [line] = await _logged(api, method, path, '{"password": "hunter2"}', **headers)
    assert {name: line[name] for name in expected} == expected
    assert "hunter2" not in repr(line)


async def test_a_subscription_is_searched_by_the_name_that_the_right_was_checked_for(api: HttpApi) -> None:
    await _done(api, "POST", f"{NAMESPACE}/permissions/billing", ["consume"], Role="boss")
    await _done(api, "POST", f"{NAMESPACE}/permissions/subscription/a%252Db", ["auditor"], Role="boss")
    path = "/admin/v2/persistent/shop/payments/orders/subscription/a%25252Db"
    await _done(api, "PUT", path, Role="boss")
    search = "/heliograph/v1/persistent/shop/payments/orders/subscription/{}/messages"
    # Decoded twice, as everywhere else, the first is a-b, which is not there.
    assert (await api.request("GET", search.format("a%252Db"), Role="billing")).status == 404
    assert (await api.request("GET", search.format("a%25252Db"), Role="billing")).status == 403
    assert (await api.request("GET", search.format("a%25252Db"), Role="boss")).status == 200


@pytest.mark.parametrize("partitions", ["", "/partitions"])
async def test_grants_end_with_the_topic_that_is_deleted(api: HttpApi, partitions: str) -> None:
    path = "/admin/v2/persistent/shop/payments/returns"
    for name in (path, f"{path}*"):
        if name == path:
            await _done(api, "PUT", path + partitions, 2 if partitions else None, Role="boss")
        await _done(api, "POST", f"{name}/permissions/billing", ["produce"], Role="boss")
    await _done(api, "POST", f"{path}/permissions/billing", ["consume"], Role="boss")
    assert await _may(api, "consume", "shop/payments/returns")
    await _done(api, "DELETE", path + partitions, Role="boss")
    assert not await _may(api, "consume", "shop/payments/returns")
    # A grant on the beginning of names holds for topics that do not exist yet.
    assert await _may(api, "produce", "shop/payments/returns")


@pytest.mark.parametrize("together", [True, False])
async def test_a_grant_can_be_revoked_once_its_topic_is_gone(api: HttpApi, together: bool) -> None:
    path = "/admin/v2/persistent/shop/payments/orders"
    await _done(api, "POST", f"{path}/permissions/billing", ["produce"], Role="boss")
    # As a topic goes that nobody uses any more.
    api.broker.topics.delete(TopicName.parse(ORDERS))
    if together:
        each = {"topic": ORDERS, "role": "billing"}
        await _done(api, "POST", "/admin/v2/namespaces/revokePermissionsOnTopics", [each], Role="boss")
    else:
        await _done(api, "DELETE", f"{path}/permissions/billing", Role="boss")
    assert not await _may(api, "produce", ORDERS)


async def test_reading_is_not_administration(api: HttpApi) -> None:
    assert await _logged(api, "GET", STATS, Role="root") == []


async def test_changes_without_authorization_are_logged_without_a_role(tmp_path: Path) -> None:
    async with running_api(tmp_path / "data") as open_api:
        _furnish(open_api)
        [line] = await _logged(open_api, "PUT", f"{NAMESPACE}/properties", "{}")
        assert (line["role"], line["status"]) == ("", 204)


async def test_decisions_are_counted_by_need(api: HttpApi) -> None:
    await api.request("GET", STATS, Role="nobody")
    await api.request("GET", STATS, Role="root")
    text = (await api.request("GET", "/metrics", Role="monitor")).body
    assert 'heliograph_authorization_decisions_total{cluster="standalone",need="lookup",allowed="false"} 1' in text
    assert 'heliograph_authorization_decisions_total{cluster="standalone",need="lookup",allowed="true"} 1' in text


async def test_the_port_of_the_metrics_needs_the_same(api: HttpApi) -> None:
    only = create_metrics_app(api.app, api.security)
    only.middlewares.insert(0, identified)
    async with TestClient(TestServer(only)) as client:
        for role, status in (("monitor", 200), ("root", 200), ("boss", 403), (None, 401)):
            headers = {} if role is None else {"Role": role}
            assert (await client.get("/metrics", headers=headers)).status == status


@pytest.mark.parametrize(
    ("method", "rest", "body"),
    [
        ("POST", "/skip_all", None),
        ("POST", "/skip/1", None),
        ("POST", "/expireMessages/1", None),
        ("POST", "/expireMessages", {"ledgerId": -1, "entryId": -1}),
        ("POST", "/resetcursor", {"ledgerId": -1, "entryId": -1}),
        ("POST", "/resetcursor/0", None),
        ("PUT", "/properties", {"owner": "me"}),
    ],
)
async def test_nobody_moves_the_subscription_of_the_compaction(api: HttpApi, method: str, rest: str, body: Any) -> None:
    """Messages that it skips would be in no view, and those that it goes back over would be kept."""
    _compacted(api)
    path = f"{ORDERS_PATH}/subscription/__compaction{rest}"
    answer = await api.request(method, path, None if body is None else json.dumps(body), Role="root")
    assert answer.status == 409
    assert answer.body["reason"] == "__compaction is the broker's own subscription"
    assert await _status(api, f"{NAMESPACE}/clearBacklog/__compaction", "root", "POST") == 409


async def test_compaction_is_ended_by_administrators_only(api: HttpApi) -> None:
    topic = _compacted(api)
    await _done(api, "POST", f"{NAMESPACE}/permissions/billing", ["consume"], Role="boss")
    one, all_of_them = f"{ORDERS_PATH}/subscription/__compaction", f"{NAMESPACE}/unsubscribe/__compaction"
    for path, method in ((one, "DELETE"), (f"{one}?force=true", "DELETE"), (all_of_them, "POST")):
        assert await _status(api, path, "billing", method) == 403
    # It may know of it.
    assert await _status(api, f"{one}/analyzeBacklog", "billing", "POST") == 200
    assert COMPACTION in topic.subscriptions
    await _done(api, "DELETE", one, Role="boss")
    assert COMPACTION not in topic.subscriptions
    topic.create_subscription(COMPACTION)
    await _done(api, "POST", all_of_them, Role="boss")
    assert COMPACTION not in topic.subscriptions


def _compacted(api: HttpApi) -> Topic:
    topic = api.broker.directory.get_topic(TopicName.parse(ORDERS))
    assert isinstance(topic, Topic)
    topic.create_subscription(COMPACTION)
    return topic
