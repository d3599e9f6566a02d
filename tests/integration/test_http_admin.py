"""Admin REST beyond the recorded session: names, refusals, partitions, subscriptions, schemas, manifests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from heliograph_api.admin.admin_paths import encoded_subscription
from heliograph_broker.messaging.topic.directory import Directory

from .http_api import HttpApi, running_api

_T = "/admin/v2/persistent/public/default"
_N = "/admin/v2/namespaces/public/default"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with running_api(tmp_path / "data") as running:
        yield running


@pytest.mark.parametrize(
    ("encoded", "local"),
    [("a%2Fb", "a/b"), ("a%2fb", "a/b"), ("a%20b", "a b"), ("%C3%BCber", "über"), ("a:b=c", "a:b=c")],
)
async def test_a_topics_own_name_is_url_decoded_once(api: HttpApi, encoded: str, local: str) -> None:
    await api.done("PUT", f"{_T}/{encoded}")
    assert await api.get(_T) == [f"persistent://public/default/{local}"]
    await api.done("PUT", f"{_T}/{encoded}/subscription/s%2F1")
    assert await api.get(f"{_T}/{encoded}/subscriptions") == ["s/1"]
    stats = await api.get(f"{_T}/{encoded}/stats")
    assert list(stats["subscriptions"]) == ["s/1"]
    await api.done("DELETE", f"{_T}/{encoded}?force=true")
    assert await api.get(_T) == []


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("a-persistent%253A%252F%252Fpublic%252Fdefault%252Fwords", "a-persistent://public/default/words"),
        ("a%252Bb", "a+b"),
        ("a%252Bb%2Bc%2520d", "a+b c d"),
        ("a%25b%25", "a%b%"),
        ("a%2Bb", "a+b"),
        ("a+b", "a+b"),
        ("a%252541", "a%41"),
    ],
)
async def test_a_subscriptions_name_is_url_decoded_twice_as_javas_admin_client_encodes_it(
    api: HttpApi, part: str, name: str
) -> None:
    await api.done("PUT", f"{_T}/t")
    await api.done("PUT", f"{_T}/t/subscription/{part}")
    assert await api.get(f"{_T}/t/subscriptions") == [name]
    # Ours encode it so that it is the same for both.
    await api.done("DELETE", f"{_T}/t/subscription/{encoded_subscription(name)}")
    assert await api.get(f"{_T}/t/subscriptions") == []
    assert (await api.request("PUT", f"{_T}/t/subscription/a%25ff")).status == 412


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "part"),
    [
        (
            "POST",
            f"{_N}/retention",
            '{"retentionTimeInMinutes":0,"retentionSizeInMB":5}',
            400,
            "a single time or size limit to 0",
        ),
        ("POST", f"{_N}/retention", '{"retentionTimeInMinutes":-2,"retentionSizeInMB":5}', 400, ">= -1"),
        ("POST", f"{_N}/retention", '{"retentionTimeInMinutes":"x"}', 400, "retentionTimeInMinutes"),
        ("POST", f"{_N}/retention", "{", 400, "not JSON"),
        ("POST", f"{_N}/messageTTL", None, 400, "needs a JSON body"),
        ("POST", f"{_N}/messageTTL", "-1", 412, "message TTL"),
        ("POST", f"{_N}/messageTTL", '"soon"', 400, "the body does not fit"),
        ("POST", f"{_N}/backlogQuota", '{"limitSize":1,"policy":"drop"}', 400, "producer_exception"),
        ("POST", f"{_N}/backlogQuota?backlogQuotaType=age", '{"limitSize":1,"policy":"x"}', 400, "message_age"),
        ("PUT", "/admin/v2/namespaces/public/a%20b", None, 412, "a b"),
        ("PUT", "/admin/v2/tenants/t", None, 412, "TenantInfo is null"),
        (
            "PUT",
            f"/admin/v2/tenants/{'t' * 600}",
            '{"allowedClusters":["standalone"]}',
            412,
            "it has 600 bytes; valid: at most 225",
        ),
        ("PUT", f"/admin/v2/namespaces/public/{'n' * 500}", None, 412, "it has 507 bytes; valid: at most 225"),
        ("PUT", "/admin/v2/tenants/t", "[]", 400, "the body does not fit"),
        ("DELETE", "/admin/v2/tenants/public", None, 409, "active namespaces"),
        ("PUT", f"{_T}/p/partitions", "0", 406, "more than 0"),
        ("PUT", f"{_T}/p/partitions", '"four"', 400, "the body does not fit"),
        ("PUT", f"{_T}/p/partitions", "null", 406, "more than 0"),
        ("PUT", f"{_T}/p/partitions", None, 400, "needs a JSON body"),
        ("PUT", f"{_T}/x-partition-0", None, 412, "partition"),
        ("GET", f"{_T}/nothing/partitions", None, 404, "not found"),
        ("GET", f"{_T}/nothing/subscriptions", None, 404, "not found"),
        ("GET", f"{_N}/topics?mode=SOME", None, 400, "NON_PERSISTENT"),
        ("DELETE", f"{_T}/nothing?force=maybe", None, 400, "true or false"),
        ("GET", "/admin/v2/clusters/other", None, 404, "Cluster does not exist"),
        ("GET", "/lookup/v2/topic/persistent/public/none/t", None, 404, "Namespace does not exist"),
        ("GET", "/admin/v2/schemas/public/default/t/schema", None, 404, "Schema not found"),
    ],
)
async def test_a_refusal_has_its_status_and_a_reason(
    api: HttpApi, method: str, path: str, body: str | None, status: int, part: str
) -> None:
    answer = await api.request(method, path, body)
    assert answer.status == status, answer
    assert list(answer.body) == ["reason"]
    assert part in answer.body["reason"]


async def test_a_wrong_verb_is_405_and_names_the_right_ones(api: HttpApi) -> None:
    answer = await api.request("PATCH", "/admin/v2/tenants/public")
    assert answer.status == 405
    assert answer.headers["Allow"] == "DELETE, GET, HEAD, POST, PUT"
    assert "PATCH" in answer.body["reason"]


async def test_a_fault_of_ours_is_500_without_its_text(api: HttpApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(directory: Directory, namespace: str, mode: str = "") -> list[str]:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(Directory, "list_topics", broken)
    answer = await api.request("GET", _T)
    assert answer.status == 500
    assert "secret" not in str(answer.body)


async def test_policies_can_be_taken_back(api: HttpApi) -> None:
    await api.done("POST", f"{_N}/retention", '{"retentionTimeInMinutes":-1,"retentionSizeInMB":-1}')
    await api.done("POST", f"{_N}/messageTTL", "60")
    await api.done("POST", f"{_N}/backlogQuota", '{"limitSize":1000,"policy":"producer_exception"}')
    assert await api.get(f"{_N}/messageTTL") == 60
    for path in ("retention", "messageTTL", "backlogQuota"):
        await api.done("DELETE", f"{_N}/{path}")
    assert (await api.request("GET", f"{_N}/retention")).status == 204
    assert (await api.request("GET", f"{_N}/messageTTL")).status == 204
    assert await api.get(f"{_N}/backlogQuotaMap") == {}


async def test_retention_below_the_quota_is_refused(api: HttpApi) -> None:
    await api.done("POST", f"{_N}/backlogQuota", '{"limitSize":10485760,"policy":"producer_exception"}')
    answer = await api.request("POST", f"{_N}/retention", '{"retentionTimeInMinutes":5,"retentionSizeInMB":5}')
    assert answer.status == 412
    assert answer.body == {"reason": "Retention Quota must exceed configured backlog quota for namespace."}
    await api.done("POST", f"{_N}/retention", '{"retentionTimeInMinutes":5,"retentionSizeInMB":10}')


async def test_partitions_grow_with_their_subscriptions_and_never_shrink(api: HttpApi) -> None:
    await api.done("PUT", f"{_T}/p/partitions", '{"partitions":2,"properties":{"owner":"me"}}')
    await api.done("PUT", f"{_T}/p/subscription/s")
    await api.done("POST", f"{_T}/p/partitions", "3")
    expected = {"partitions": 3, "deleted": False, "properties": {"owner": "me"}}
    assert await api.get(f"{_T}/p/partitions") == expected
    assert await api.get(f"{_T}/p-partition-2/subscriptions") == ["s"]
    refused = await api.request("POST", f"{_T}/p/partitions", "2")
    assert refused.status == 422
    await api.done("DELETE", f"{_T}/p/partitions")
    assert await api.get(_T) == []


async def test_the_look_up_of_a_missing_topic_follows_the_rules_of_automatic_creation(api: HttpApi) -> None:
    path = f"{_T}/new/partitions?checkAllowAutoCreation=true"
    assert await api.get(path) == {"partitions": 0, "deleted": False}
    odd = await api.request("GET", f"{_T}/new-partition-7/partitions?checkAllowAutoCreation=true")
    assert odd.status == 404


async def test_both_domains_are_listed_by_mode(api: HttpApi) -> None:
    await api.done("PUT", f"{_T}/kept")
    await api.done("PUT", "/admin/v2/non-persistent/public/default/passing")
    kept, passing = "persistent://public/default/kept", "non-persistent://public/default/passing"
    assert await api.get(f"{_N}/topics") == [kept]
    assert await api.get(f"{_N}/topics?mode=NON_PERSISTENT") == [passing]
    assert await api.get(f"{_N}/topics?mode=ALL") == [passing, kept]
    assert await api.get("/admin/v2/non-persistent/public/default") == [passing]
    stats = await api.get("/admin/v2/non-persistent/public/default/passing/stats")
    assert stats["storageSize"] == 0
    internal = await api.get("/admin/v2/non-persistent/public/default/passing/internalStats")
    assert (internal["cursors"], "ledgers" in internal) == ({}, False)


async def test_subscriptions_are_deleted_by_name(api: HttpApi) -> None:
    await api.done("PUT", f"{_T}/t")
    await api.done("PUT", f"{_T}/t/subscription/s", '{"ledgerId":-1,"entryId":-1}')
    await api.done("POST", f"{_T}/t/subscription/s/skip_all")
    await api.done("POST", f"{_T}/t/subscription/s/resetcursor/0")
    await api.done("DELETE", f"{_T}/t/subscription/s")
    assert (await api.request("DELETE", f"{_T}/t/subscription/s")).status == 404
    await api.done("PUT", f"{_T}/t/subscription/s2")
    await api.done("DELETE", f"{_T}/t")
    assert await api.get(_T) == []


async def test_schemas_have_versions(api: HttpApi) -> None:
    path = "/admin/v2/schemas/public/default/t/schema"
    text = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
    wrapped = '{"type":"AVRO","schema":' + repr(text).replace('"', '\\"').replace("'", '"') + ',"properties":{"k":"v"}}'
    posted = await api.request("POST", path, wrapped)
    assert (posted.status, posted.body) == (200, {"version": {"version": 0}})
    schema = await api.get(path)
    assert (schema["version"], schema["type"], schema["data"]) == (0, "AVRO", text)
    assert schema["properties"] == {"k": "v"}
    assert await api.get(f"{path}/0") == schema
    assert (await api.request("GET", f"{path}/1")).status == 404
    wrong = await api.request("POST", path, '{"type":"XML"}')
    assert wrong.status == 422
    assert "AVRO" in wrong.body["reason"]
    assert (await api.request("DELETE", path)).status == 200
    assert (await api.request("GET", path)).status == 404


async def test_tenants_are_changed_and_deleted_with_what_they_hold(api: HttpApi) -> None:
    await api.done("PUT", "/admin/v2/tenants/shop", '{"adminRoles":[],"allowedClusters":["standalone"]}')
    await api.done("POST", "/admin/v2/tenants/shop", '{"adminRoles":["me"],"allowedClusters":["standalone"]}')
    assert (await api.get("/admin/v2/tenants/shop"))["adminRoles"] == ["me"]
    await api.done("PUT", "/admin/v2/namespaces/shop/orders", '{"message_ttl_in_seconds": 5}')
    assert await api.get("/admin/v2/namespaces/shop/orders/messageTTL") == 5
    await api.done("PUT", "/admin/v2/persistent/shop/orders/t")
    assert (await api.request("DELETE", "/admin/v2/namespaces/shop/orders")).status == 409
    await api.done("DELETE", "/admin/v2/tenants/shop?force=true")
    assert await api.get("/admin/v2/tenants") == ["public"]
    assert not [name for name in api.broker.directory.topics if "shop" in name]


async def test_health_says_what_is_wrong(api: HttpApi) -> None:
    assert (await api.get("/health/live"))["status"] == "live"
    assert (await api.get("/health/ready"))["status"] == "ready"
    api.broker.store.space.full = True
    answer = await api.request("GET", "/health/ready")
    assert answer.status == 503
    assert "disk is full" in answer.body["reason"]
    assert (await api.request("GET", "/health/live")).status == 200
