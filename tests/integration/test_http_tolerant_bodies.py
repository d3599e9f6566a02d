"""Bodies as tools send them: read as a real Pulsar 4.2.4 reads them, and answered with its statuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from .http_api import HttpApi, running_api

N = "/admin/v2/namespaces/public/default"
T = "/admin/v2/persistent/public/default/t"
SCHEMA = "/admin/v2/schemas/public/default/t/schema"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with running_api(tmp_path / "data") as running:
        await running.done("PUT", T)
        yield running


#: the path behind the level's, a body, and what GET answers afterwards (None: 204)
READ: list[tuple[str, str, Any]] = [
    (
        "retention",
        '{"retentionTimeInMinutes":"60","retentionSizeInMB":"5"}',
        {"retentionTimeInMinutes": 60, "retentionSizeInMB": 5},
    ),
    (
        "retention",
        '{"retentionTimeInMinutes":1.5,"retentionSizeInMB":5}',
        {"retentionTimeInMinutes": 1, "retentionSizeInMB": 5},
    ),
    ("delayedDelivery", '{"tickTime":1000}', {"active": False, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}),
    (
        "inactiveTopicPolicies",
        '{"inactiveTopicDeleteMode":null,"maxInactiveDurationSeconds":"6","deleteWhileInactive":"true"}',
        {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 6,
            "deleteWhileInactive": True,
        },
    ),
    ("messageTTL", '"30"', 30),
    ("messageTTL", "30.7", 30),
    ("deduplicationEnabled", '"TRUE"', True),
    ("deduplicationEnabled", "0", False),
]


@pytest.mark.parametrize(("path", "body", "expected"), READ)
@pytest.mark.parametrize("level", [N, T], ids=["namespace", "topic"])
async def test_a_policy_is_read_as_pulsar_reads_it(
    api: HttpApi, level: str, path: str, body: str, expected: Any
) -> None:
    if level == N:
        path = path.removesuffix("Enabled")
    answer = await api.request("POST", f"{level}/{path}", body)
    assert (answer.status, answer.headers.getall("Warning", [])) == (204, [])
    assert await api.get(f"{level}/{path}") == expected


@pytest.mark.parametrize("nothing", ["null", '""', ""])
@pytest.mark.parametrize("level", [N, T], ids=["namespace", "topic"])
async def test_a_policy_set_to_nothing_is_removed(api: HttpApi, level: str, nothing: str) -> None:
    await api.done("POST", f"{level}/retention", '{"retentionTimeInMinutes":60,"retentionSizeInMB":5}')
    await api.done("POST", f"{level}/retention", nothing)
    assert (await api.request("GET", f"{level}/retention")).status == 204
    await api.done("POST", f"{level}/backlogQuota", '{"limitSize":"1000","policy":"producer_exception"}')
    assert await api.get(f"{level}/backlogQuotaMap") != {}
    await api.done("POST", f"{level}/backlogQuota", nothing)
    assert await api.get(f"{level}/backlogQuotaMap") == {}


async def test_unknown_fields_are_ignored_and_named(api: HttpApi) -> None:
    answer = await api.request(
        "POST", f"{N}/retention", '{"retentionTimeInMinutes":5,"retentionSizeInMB":5,"size":1,"a\\nb":2}'
    )
    assert (answer.status, answer.headers["Warning"]) == (204, '299 - "unknown fields are ignored: size, a?b"')
    refused = await api.request("POST", f"{N}/retention", '{"retentionTimeInMinutes":0,"retentionSizeInMB":5,"size":1}')
    assert (refused.status, "Warning" in refused.headers) == (400, False)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/admin/v2/tenants/new", '{"adminRoles":null,"allowedClusters":["standalone"],"x":1}'),
        ("PUT", "/admin/v2/namespaces/public/new", "null"),
        ("PUT", "/admin/v2/namespaces/public/new", '{"retention_policies":null,"x":1}'),
        ("PUT", "/admin/v2/namespaces/public/new", '{"message_ttl_in_seconds":"30","max_producers_per_topic":null}'),
        ("PUT", f"{T}1/partitions", '"4"'),
        ("PUT", f"{T}1/partitions", "4.7"),
        ("PUT", f"{T}1/partitions", '{"partitions":"4","properties":null}'),
        ("PUT", f"{T}1", "null"),
        ("PUT", f"{T}1", '{"a":5}'),
        ("PUT", f"{T}/properties", "null"),
        ("PUT", f"{T}/properties", '{"a":5,"b":true}'),
        ("PUT", f"{N}/properties", '{"a":5}'),
        ("PUT", f"{T}/subscription/s", "null"),
        ("PUT", f"{T}/subscription/s", '"latest"'),
        ("PUT", f"{T}/subscription/s", '"earliest"'),
        ("PUT", f"{T}/subscription/s", '{"ledgerId":"-1","entryId":"-1","properties":null}'),
        ("PUT", f"{T}/subscription/s", ""),
    ],
)
async def test_a_change_is_read_as_pulsar_reads_it(api: HttpApi, method: str, path: str, body: str) -> None:
    answer = await api.request(method, path, body)
    assert answer.status == 204, answer


async def test_properties_are_texts_whatever_they_are_sent_as(api: HttpApi) -> None:
    await api.done("PUT", f"{T}/properties", '{"a":5,"b":true}')
    await api.done("PUT", f"{T}/properties", "null")
    assert await api.get(f"{T}/properties") == {"a": "5", "b": "true"}


async def test_a_schema_may_have_no_properties(api: HttpApi) -> None:
    answer = await api.request("POST", SCHEMA, '{"type":"STRING","schema":"","properties":null,"x":1}')
    assert (answer.status, answer.body) == (200, {"version": {"version": 0}})
    assert answer.headers["Warning"] == '299 - "unknown fields are ignored: x"'
    assert (await api.get(SCHEMA))["properties"] == {}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "part"),
    [
        ("PUT", "/admin/v2/tenants/new", "null", 412, "TenantInfo is null"),
        ("PUT", "/admin/v2/tenants/new", "{}", 412, "Clusters cannot be null"),
        ("PUT", "/admin/v2/tenants/new", '{"allowedClusters":null}', 412, "Clusters cannot be null"),
        ("PUT", f"{T}1/partitions", "null", 406, "Number of partitions should be more than 0"),
        ("PUT", f"{T}1/partitions", '""', 406, "Number of partitions should be more than 0"),
        ("PUT", f"{T}/subscription/s", '"first"', 400, "Allowed values are [latest, earliest]"),
        ("POST", f"{N}/replication", "null", 412, "ClusterIds should not be null or empty"),
        ("POST", f"{N}/messageTTL", "true", 400, "Expected `int`, got `bool`"),
        ("POST", f"{N}/deduplication", '"yes"', 400, "Expected `bool`"),
        ("POST", SCHEMA, "null", 400, "needs a JSON body"),
    ],
)
async def test_what_says_nothing_where_something_is_needed_is_refused(
    api: HttpApi, method: str, path: str, body: str, status: int, part: str
) -> None:
    answer = await api.request(method, path, body)
    assert answer.status == status, answer
    assert part in answer.body["reason"]
