"""A session with a real Pulsar 4.2.4, replayed: the same requests get the same statuses and documents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from .http_api import HttpApi, running_api

_T = "/admin/v2/persistent/acme/ns1"
_N = "/admin/v2/namespaces/acme/ns1"
_QUOTAS = {
    "destination_storage": {
        "limit": 10485760,
        "limitSize": 10485760,
        "limitTime": -1,
        "policy": "producer_request_hold",
    },
    "message_age": {"limit": -1, "limitSize": -1, "limitTime": 3600, "policy": "consumer_backlog_eviction"},
}
_ACME = '{"adminRoles":["admin"],"allowedClusters":["standalone"]}'


def _reason(text: str) -> dict[str, str]:
    return {"reason": text}


#: method, path, body, expected status, expected document
SESSION: list[tuple[str, str, str | None, int, Any]] = [
    ("GET", "/admin/v2/clusters", None, 200, ["standalone"]),
    (
        "GET",
        "/admin/v2/clusters/standalone",
        None,
        200,
        {
            "serviceUrl": "http://127.0.0.1:8080",
            "brokerServiceUrl": "pulsar://127.0.0.1:6650",
            "brokerClientTlsEnabled": False,
            "tlsAllowInsecureConnection": False,
            "brokerClientTlsEnabledWithKeyStore": False,
            "brokerClientTlsTrustStoreType": "JKS",
            "brokerClientTlsKeyStoreType": "JKS",
            "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
        },
    ),
    ("PUT", "/admin/v2/tenants/acme", _ACME, 204, None),
    ("PUT", "/admin/v2/tenants/acme", _ACME, 409, _reason("Tenant already exist")),
    (
        "PUT",
        "/admin/v2/tenants/bad",
        '{"adminRoles":[],"allowedClusters":["nope"]}',
        412,
        _reason("Clusters do not exist"),
    ),
    ("GET", "/admin/v2/tenants/acme", None, 200, {"adminRoles": ["admin"], "allowedClusters": ["standalone"]}),
    ("PUT", _N, '{"bundles":{"numBundles":4}}', 204, None),
    ("PUT", _N, None, 409, _reason("Namespace already exists")),
    ("PUT", "/admin/v2/namespaces/none/ns1", None, 404, _reason("Tenant does not exist")),
    ("POST", f"{_N}/retention", '{"retentionTimeInMinutes":60,"retentionSizeInMB":512}', 204, None),
    ("GET", f"{_N}/retention", None, 200, {"retentionTimeInMinutes": 60, "retentionSizeInMB": 512}),
    (
        "POST",
        f"{_N}/backlogQuota?backlogQuotaType=destination_storage",
        '{"limitSize":10485760,"limitTime":-1,"policy":"producer_request_hold"}',
        204,
        None,
    ),
    (
        "POST",
        f"{_N}/backlogQuota",
        '{"limit":1073741824,"policy":"producer_exception"}',
        412,
        _reason(
            "Backlog Quota exceeds configured retention quota for namespace. Please increase retention quota and retry"
        ),
    ),
    (
        "POST",
        f"{_N}/backlogQuota?backlogQuotaType=message_age",
        '{"limitTime":3600,"policy":"consumer_backlog_eviction"}',
        204,
        None,
    ),
    ("GET", f"{_N}/backlogQuotaMap", None, 200, _QUOTAS),
    ("POST", f"{_N}/messageTTL", "3600", 204, None),
    (
        "GET",
        _N,
        None,
        200,
        {
            "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
            "replication_clusters": ["standalone"],
            "allowed_clusters": [],
            "bundles": {
                "boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"],
                "numBundles": 4,
            },
            "backlog_quota_map": _QUOTAS,
            "clusterDispatchRate": {},
            "topicDispatchRate": {},
            "subscriptionDispatchRate": {},
            "replicatorDispatchRate": {},
            "clusterSubscribeRate": {},
            "publishMaxMessageRate": {},
            "latency_stats_sample_rate": {},
            "message_ttl_in_seconds": 3600,
            "retention_policies": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 512},
            "deleted": False,
            "encryption_required": False,
            "subscription_auth_mode": "None",
            "offload_threshold": -1,
            "offload_threshold_in_seconds": -1,
            "schema_compatibility_strategy": "UNDEFINED",
            "is_allow_auto_update_schema": True,
            "schema_validation_enforced": False,
            "subscription_types_enabled": [],
            "properties": {},
            "migrated": False,
        },
    ),
    ("GET", "/admin/v2/namespaces/acme", None, 200, ["acme/ns1"]),
    ("GET", "/admin/v2/namespaces/acme/none", None, 404, _reason("Namespace does not exist")),
    ("PUT", f"{_T}/t1", None, 204, None),
    ("PUT", f"{_T}/t1", None, 409, _reason("This topic already exists")),
    ("PUT", f"{_T}/p4/partitions", "4", 204, None),
    ("GET", f"{_T}/p4/partitions", None, 200, {"partitions": 4, "deleted": False}),
    (
        "GET",
        _T,
        None,
        200,
        [*(f"persistent://acme/ns1/p4-partition-{index}" for index in range(4)), "persistent://acme/ns1/t1"],
    ),
    ("GET", f"{_T}/partitioned", None, 200, ["persistent://acme/ns1/p4"]),
    ("PUT", f"{_T}/t1/subscription/sub1", None, 204, None),
    ("PUT", f"{_T}/t1/subscription/sub1", None, 409, _reason("Subscription already exists for topic")),
    ("GET", f"{_T}/nope/stats", None, 404, _reason("Topic persistent://acme/ns1/nope not found")),
    (
        "GET",
        "/lookup/v2/topic/persistent/acme/ns1/t1",
        None,
        200,
        {
            "brokerUrl": "pulsar://127.0.0.1:6650",
            "httpUrl": "http://127.0.0.1:8080",
            "nativeUrl": "pulsar://127.0.0.1:6650",
            "brokerUrlSsl": "",
        },
    ),
    ("GET", "/admin/v2/brokers/standalone", None, 200, ["127.0.0.1:8080"]),
    ("GET", "/admin/v2/brokers/health", None, 200, "ok"),
    ("GET", "/admin/v2/brokers/ready", None, 200, "ok"),
    ("GET", "/admin/v2/bogus", None, 404, _reason("/admin/v2/bogus is not a path of this API")),
]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with running_api(tmp_path / "data") as running:
        yield running


async def test_the_answers_are_pulsars(api: HttpApi) -> None:
    for method, path, body, status, document in SESSION:
        answer = await api.request(method, path, body)
        assert (answer.status, answer.body) == (status, document), f"{method} {path}"


async def test_what_was_answered_204_is_there_after_a_restart(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    async with running_api(data_dir) as first:
        for method, path, body, status, _ in SESSION:
            if method != "GET" and status == 204:
                await first.done(method, path, body)
        before = [await first.get(path) for path in (_N, _T, f"{_T}/partitioned", f"{_T}/t1/subscriptions")]
    async with running_api(data_dir) as second:
        after = [await second.get(path) for path in (_N, _T, f"{_T}/partitioned", f"{_T}/t1/subscriptions")]
    assert after == before
    assert after[3] == ["sub1"]
