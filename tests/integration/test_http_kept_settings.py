"""Settings that are only kept: over a restart, shown as Pulsar shows them, and named in a warning without effect."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_broker.http.policies.kept_settings import KEPT, KeptSetting
from heliograph_broker.messaging.broker.namespaces import Namespaces
from heliograph_broker.messaging.delivery.subscription import Subscription

from .http_api import HttpApi, running_api

N = "/admin/v2/namespaces/public/default"
T = "/admin/v2/persistent/public/default/t"
NO_AUTHORIZATION = (
    '299 - "permissions are kept and shown, but every client may do everything: authorization is not enabled"'
)
MANIFEST = """
apiVersion: heliograph.dev/v1alpha1
kind: Namespace
metadata: {name: public-default}
spec: {name: default, tenantRef: {name: public}, maxProducers: 3}
---
apiVersion: heliograph.dev/v1alpha1
kind: Tenant
metadata: {name: public}
spec: {}
---
apiVersion: heliograph.dev/v1alpha1
kind: Topic
metadata: {name: t}
spec: {name: t, namespaceRef: {name: public-default}, maxProducers: 2}
"""
LEVELS = [
    *((N, setting.namespace, setting.verbs[0], setting) for setting in KEPT if setting.namespace),
    *((T, setting.topic, setting.verbs[1], setting) for setting in KEPT if setting.topic),
]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with running_api(tmp_path / "data") as running:
        await running.done("PUT", T)
        yield running


def _named(level: tuple[str, str, str, KeptSetting]) -> str:
    return f"{'namespace' if level[0] == N else 'topic'}-{level[1]}"


@pytest.mark.parametrize("level", LEVELS, ids=_named)
async def test_what_is_set_is_shown_with_a_warning_and_removed(
    api: HttpApi, level: tuple[str, str, str, KeptSetting]
) -> None:
    base, path, verb, setting = level
    unset = await api.request("GET", f"{base}/{path}")
    assert (unset.status, unset.body) == (204 if setting.shown is None else 200, setting.shown)
    answer = await api.request(verb, f"{base}/{path}", setting.example)
    warnings = [] if setting.holds else [f'299 - "{setting.warning}"']
    assert (answer.status, answer.headers.getall("Warning", [])) == (204, warnings)
    given = json.loads(setting.example)
    shown = await api.get(f"{base}/{path}")
    assert shown == given or shown.items() >= given.items()
    if base == T:
        assert await api.get(f"{T}/{path}?applied=true") == shown
    elif setting.offload_field:
        assert (await api.get(N))["offload_policies"][setting.offload_field] == shown
    elif setting.in_document:
        in_document = (await api.get(N))[setting.name]
        assert (in_document["standalone"] if setting.per_cluster else in_document) == shown
    await api.done("DELETE", f"{base}/{path}")
    removed = await api.request("GET", f"{base}/{path}")
    assert (removed.status, removed.body) == (unset.status, unset.body)
    missing = N.replace("default", "none") if base == N else f"{T}2"
    assert (await api.request(verb, f"{missing}/{path}", setting.example)).status == 404


@pytest.mark.parametrize("setting", [each for each in KEPT if each.topic], ids=lambda setting: setting.topic)
async def test_a_topic_without_a_setting_has_its_namespaces(api: HttpApi, setting: KeptSetting) -> None:
    before = await api.request("GET", f"{T}/{setting.topic}?applied=true")
    assert before.status == (204 if setting.applied is None and setting.topic != "replication" else 200)
    path = setting.namespace or setting.topic
    await api.done(setting.verbs[0], f"{N}/{path}", setting.example)
    assert await api.get(f"{T}/{setting.topic}?applied=true") == await api.get(f"{N}/{path}")


async def test_all_of_them_survive_a_restart_and_a_manifest(tmp_path: Path) -> None:
    async with running_api(tmp_path / "data") as api:
        await api.done("PUT", T)
        for base, path, verb, setting in LEVELS:
            await api.done(verb, f"{base}/{path}", setting.example)
        await api.done("PUT", "/admin/v2/resourcegroups/rg", '{"publishRateInMsgs": 5}')
        await api.done("POST", f"{N}/resourcegroup/rg")
        await api.done("POST", f"{N}/permissions/ops", '["produce"]')
        before = [await api.get(f"{base}/{path}") for base, path, _, _ in LEVELS], await api.get(N)
    async with running_api(tmp_path / "data") as api:
        assert ([await api.get(f"{base}/{path}") for base, path, _, _ in LEVELS], await api.get(N)) == before
        assert await api.get("/admin/v2/resourcegroups") == ["rg"]
        applied = await api.request("POST", "/heliograph/v1/apply", MANIFEST)
        assert applied.status == 200, applied
        assert [await api.get(f"{base}/{path}") for base, path, _, _ in LEVELS] == before[0]
        assert await api.get(f"{T}/maxProducers") == 2
        again = await api.request("POST", "/heliograph/v1/apply", MANIFEST)
        assert [each["action"] for each in again.body["results"]] == ["unchanged"] * 3
        await api.done("DELETE", f"{T}/policies")
        assert (await api.request("GET", f"{T}/persistence")).status == 204


async def test_a_namespace_is_created_with_them(api: HttpApi) -> None:
    document: dict[str, Any] = {
        setting.name: {"standalone": json.loads(setting.example)}
        if setting.per_cluster
        else json.loads(setting.example)
        for setting in KEPT
        if setting.in_document
    }
    document["auth_policies"] = {"namespace_auth": {"ops": ["produce"]}, "subscription_auth_roles": {"s": ["ops"]}}
    answer = await api.request("PUT", "/admin/v2/namespaces/public/new", json.dumps(document))
    assert answer.status == 204, answer
    assert answer.headers["Warning"].startswith('299 - "kept and shown, but without effect here: persistence, ')
    assert "auth_policies" in answer.headers["Warning"]
    assert not [setting.name for setting in KEPT if setting.holds and setting.name in answer.headers["Warning"]]
    shown = await api.get("/admin/v2/namespaces/public/new")
    for name, value in document.items():
        assert shown[name] == value or shown[name].items() >= value.items() or name == "replicatorDispatchRate", name
    await api.done("PUT", "/admin/v2/namespaces/public/copy", json.dumps(shown))
    assert await api.get("/admin/v2/namespaces/public/copy") == shown


@pytest.mark.parametrize(
    ("verb", "path", "body", "status", "part"),
    [
        ("POST", f"{N}/persistence", "null", 400, "persistence policies should not be null"),
        ("POST", f"{N}/persistence", '{"bookkeeperEnsemble":0}', 400, "Bookkeeper-Ensemble must be <= 5 and > 0."),
        ("POST", f"{N}/persistence", '{"bookkeeperEnsemble":1}', 400, "Bookkeeper Ensemble (1) >= WriteQuorum (2)"),
        ("POST", f"{T}/offloadPolicies", "{}", 412, "The driver is not supported, support value: S3,aws-s3,google"),
        ("POST", f"{T}/offloadPolicies", "null", 412, "must be specified"),
        ("POST", f"{N}/deduplicationSnapshotInterval", "-1", 412, "interval must be"),
        ("POST", f"{N}/subscriptionAuthMode", '"x"', 400, "None, Prefix"),
        ("POST", f"{N}/allowedClusters", '["other"]', 403, "other"),
        ("POST", f"{T}/replication", '["standalone","other"]', 403, "Invalid cluster id: other"),
        ("POST", f"{T}/persistence?isGlobal=true", "{}", 412, "only one cluster"),
        ("POST", f"{N}/entryFilters", '{"entryFilterNames":"x,y"}', 400, "Entry filter 'x' not found"),
        ("POST", f"{T}/entryFilters", "{}", 400, "entryFilterNames can't be empty."),
        ("PUT", f"{T}/shadowTopics", "[]", 412, "Cannot specify empty shadow topics"),
        ("PUT", f"{T}/shadowTopics", '["persistent://public/default/x"]', 412, "shadowTopics cannot be set"),
        ("POST", f"{N}/migration", "true", 412, "no other cluster"),
        ("POST", f"{N}/resourcegroup/none", None, 412, "ResourceGroup does not exist"),
        ("GET", "/admin/v2/resourcegroups/none", None, 404, "ResourceGroup does not exist"),
        ("DELETE", "/admin/v2/resourcegroups/none", None, 404, "ResourceGroup does not exist"),
        ("POST", f"{N}/permissions/ops", "null", 400, "Actions should not be null"),
        ("POST", f"{N}/permissions/ops", '["fly"]', 400, "produce, consume"),
        ("POST", f"{T}2/permissions/ops", '["produce"]', 404, "not found"),
        ("DELETE", f"{N}/permissions/none/ops", None, 404, "none"),
    ],
)
async def test_what_pulsar_refuses_is_refused_and_so_is_what_would_be_untrue(
    api: HttpApi, verb: str, path: str, body: str | None, status: int, part: str
) -> None:
    before = await api.get(N)
    answer = await api.request(verb, path, body)
    assert answer.status == status, answer
    assert part in answer.body["reason"]
    assert await api.get(N) == before


# -- permissions ---------------------------------------------------------------------------------------------------


async def test_permissions_of_namespaces_are_granted_and_revoked(api: HttpApi) -> None:
    answer = await api.request("POST", f"{N}/permissions/ops", '["produce","consume"]')
    assert (answer.status, answer.headers["Warning"]) == (204, NO_AUTHORIZATION)
    assert await api.get(f"{N}/permissions") == {"ops": ["produce", "consume"]}
    await api.done("POST", f"{N}/permissions/ops", "[]")
    assert await api.get(f"{N}/permissions") == {"ops": []}
    await api.done("DELETE", f"{N}/permissions/ops")
    await api.done("DELETE", f"{N}/permissions/ops")
    assert await api.get(f"{N}/permissions") == {}


async def test_permissions_of_topics_are_added_to_those_of_the_namespace(api: HttpApi) -> None:
    await api.done("POST", f"{N}/permissions/ops", '["consume"]')
    await api.done("POST", f"{T}/permissions/ops", '["produce"]')
    await api.done("POST", f"{T}/permissions/billing", '["consume"]')
    assert await api.get(f"{T}/permissions") == {"ops": ["consume", "produce"], "billing": ["consume"]}
    assert (await api.get(N))["auth_policies"]["destination_auth"] == {
        "persistent://public/default/t": {"ops": ["produce"], "billing": ["consume"]}
    }
    await api.done("DELETE", f"{T}/permissions/billing")
    await api.done("DELETE", f"{T}/permissions/ops")
    assert await api.get(f"{T}/permissions") == {"ops": ["consume"]}


async def test_permissions_of_subscriptions_name_roles(api: HttpApi) -> None:
    await api.done("POST", f"{N}/permissions/subscription/s", '["a","b"]')
    assert await api.get(f"{N}/permissions/subscription") == {"s": ["a", "b"]}
    await api.done("DELETE", f"{N}/permissions/s/a")
    assert (await api.get(N))["auth_policies"]["subscription_auth_roles"] == {"s": ["b"]}
    await api.done("DELETE", f"{N}/permissions/s/b")
    assert await api.get(f"{N}/permissions/subscription") == {}


async def test_who_revokes_a_permission_learns_that_clients_may_still_do_everything(api: HttpApi) -> None:
    await api.done("POST", f"{N}/permissions/subscription/s", '["ops"]')
    for verb, path, body in (
        ("DELETE", f"{N}/permissions/ops", None),
        ("DELETE", f"{N}/permissions/s/ops", None),
        ("DELETE", f"{T}/permissions/ops", None),
        ("POST", "/admin/v2/namespaces/revokePermissionsOnTopics", '[{"topic": "t", "role": "ops"}]'),
    ):
        answer = await api.request(verb, path, body)
        assert (answer.status, answer.headers.getall("Warning", [])) == (204, [NO_AUTHORIZATION]), path


async def test_no_body_removes_a_setting_without_a_warning(api: HttpApi) -> None:
    await api.done("POST", f"{N}/deduplicationSnapshotInterval", "120")
    answer = await api.request("POST", f"{N}/deduplicationSnapshotInterval")
    assert (answer.status, "Warning" in answer.headers) == (204, False)
    assert (await api.request("GET", f"{N}/deduplicationSnapshotInterval")).status == 204


async def test_permissions_of_several_topics_are_granted_and_revoked_at_once(api: HttpApi) -> None:
    await api.done("PUT", f"{T}2")
    topics = [f"persistent://public/default/{name}" for name in ("t", "t2")]
    grants = [{"topic": topic, "role": "ops", "actions": ["consume"]} for topic in topics]
    path = "/admin/v2/namespaces"
    missing = await api.request(
        "POST", f"{path}/grantPermissionsOnTopics", json.dumps([*grants, grants[0] | {"topic": "x"}])
    )
    assert missing.status == 404
    assert await api.get(f"{T}/permissions") == {}
    await api.done("POST", f"{path}/grantPermissionsOnTopics", json.dumps(grants))
    assert await api.get(f"{T}/permissions") == await api.get(f"{T}2/permissions") == {"ops": ["consume"]}
    revoked = [{"topic": topic, "role": "ops"} for topic in topics]
    await api.done("POST", f"{path}/revokePermissionsOnTopics", json.dumps(revoked))
    assert await api.get(f"{T}/permissions") == await api.get(f"{T}2/permissions") == {}


async def test_permissions_on_many_topics_are_stored_at_once(api: HttpApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of a namespace concerns all its topics: one for each permission would hold up the broker."""
    changes: list[str] = []
    set_policies = Namespaces.set_policies

    def counted(self: Namespaces, name: str, policies: Policies) -> None:
        changes.append(name)
        set_policies(self, name, policies)

    monkeypatch.setattr(Namespaces, "set_policies", counted)
    given = json.dumps([{"topic": "t", "role": f"r{at}", "actions": ["consume"]} for at in range(1000)])
    await api.done("POST", "/admin/v2/namespaces/grantPermissionsOnTopics", given)
    assert len(await api.get(f"{T}/permissions")) == 1000
    await api.done("POST", "/admin/v2/namespaces/revokePermissionsOnTopics", given)
    assert await api.get(f"{T}/permissions") == {}
    assert changes == ["public/default"] * 2


# -- use -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), [("POST", "skip/1"), ("POST", "skip_all"), ("GET", "position/1")])
async def test_peek_and_skip_count_as_use(api: HttpApi, method: str, path: str) -> None:
    await api.done("PUT", f"{T}/subscription/s", '"earliest"')
    topic = api.broker.directory.topics["persistent://public/default/t"]
    subscription = topic.subscriptions["s"]
    assert isinstance(subscription, Subscription)
    topic.last_used_ms = subscription.last_used_ms = 1
    # There is no message, so there is nothing to peek at.
    assert (await api.request(method, f"{T}/subscription/s/{path}")).status == (404 if method == "GET" else 204)
    assert topic.last_used_ms > 1
    assert subscription.last_used_ms > 1


# -- resource groups -----------------------------------------------------------------------------------------------


async def test_namespaces_of_an_anti_affinity_group_are_listed(api: HttpApi) -> None:
    await api.done("PUT", "/admin/v2/namespaces/public/other")
    await api.done("POST", f"{N}/antiAffinity", "group")
    listed = "/admin/v2/namespaces/standalone/antiAffinity/group"
    assert await api.get(f"{listed}?tenant=public") == ["public/default"]
    assert await api.get(f"{listed}?tenant=missing") == []
    assert await api.get("/admin/v2/namespaces/standalone/antiAffinity/none?tenant=public") == []
    answer = await api.request("GET", listed)
    assert (answer.status, answer.body["reason"]) == (400, "Tenant should not be null")
    answer = await api.request("GET", f"{listed.replace('standalone', 'elsewhere')}?tenant=public")
    assert (answer.status, answer.body["reason"]) == (412, "Cluster elsewhere does not exist.")


async def test_a_bundle_is_given_up_only_without_topics(api: HttpApi) -> None:
    bundles = [f"{N}/0x{at:08x}_0x{at + 0x40000000:08x}" for at in (0, 0x40000000, 0x80000000)]
    answers = [await api.request("DELETE", bundle) for bundle in [*bundles, f"{N}/0xc0000000_0xffffffff"]]
    # The topic of the fixture is in one of them.
    assert sorted(answer.status for answer in answers) == [204, 204, 204, 409]
    (refusal,) = (answer for answer in answers if answer.status == 409)
    assert refusal.body["reason"] == "Cannot delete non empty bundle"
    answer = await api.request("DELETE", f"{N}/0x00000000_0x00000001")
    assert (answer.status, "Invalid upper boundary" in answer.body["reason"]) == (412, True)
    assert (await api.request("DELETE", f"{N}/no-bundle")).status == 404


async def test_resource_groups_are_created_changed_used_and_deleted(api: HttpApi) -> None:
    groups = "/admin/v2/resourcegroups"
    answer = await api.request("PUT", f"{groups}/rg", '{"publishRateInMsgs":"5","x":1}')
    assert answer.status == 204
    assert len(answer.headers.getall("Warning")) == 2
    await api.done("PUT", f"{groups}/rg", '{"dispatchRateInBytes":7}')
    assert await api.get(f"{groups}/rg") == {
        "publishRateInMsgs": 5,
        "publishRateInBytes": -1,
        "dispatchRateInMsgs": -1,
        "dispatchRateInBytes": 7,
    }
    await api.done("POST", f"{N}/resourcegroup/rg")
    assert await api.get(f"{N}/resourcegroup") == "rg"
    assert (await api.get(N))["resource_group_name"] == "rg"
    in_use = await api.request("DELETE", f"{groups}/rg")
    assert (in_use.status, in_use.body["reason"]) == (412, "ResourceGroup is in use")
    await api.done("DELETE", f"{N}/resourcegroup")
    await api.done("DELETE", f"{groups}/rg")
    assert await api.get(groups) == []


C = "/admin/v2/clusters/standalone"
ISOLATION = (
    '{"namespaces": ["public/.*"], "primary": ["127.*"], "secondary": [], "auto_failover_policy":'
    ' {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "80"}}}'
)
#: The documents about the cluster that are kept: path, body, and words of the warning, empty where there is none.
DOCUMENTS = [
    (C, '{"serviceUrl": "http://b:8080", "brokerServiceUrl": "pulsar://b:6650"}', "the broker's settings"),
    (f"{C}/failureDomains/d", '{"brokers": ["b:8080"]}', "one broker serves all namespaces"),
    (f"{C}/namespaceIsolationPolicies/p", ISOLATION, ""),
    ("/admin/v2/resource-quotas", '{"msgRateIn": 7.0, "dynamic": false}', "no load to balance"),
    ("/admin/v2/resource-quotas/public/default/0x00000000_0x40000000", '{"memory": 7.0}', "no load to balance"),
]


async def test_documents_about_the_cluster_survive_a_restart(tmp_path: Path) -> None:
    async with running_api(tmp_path / "data") as api:
        for path, body, warning in DOCUMENTS:
            answer = await api.request("POST", path, body)
            assert answer.status == 204, path
            assert [warning in each for each in answer.headers.getall("Warning", [])] == [True] * bool(warning), path
    async with running_api(tmp_path / "data") as api:
        for path, body, _ in DOCUMENTS:
            assert (await api.get(path)).items() >= json.loads(body).items(), path


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        (C, '{"serviceUrl": "b:8080"}', 400, "service url should"),
        (C, '{"brokerServiceUrl": "http://b:8080"}', 400, "should begin with pulsar://"),
        (C, '{"peerClusterNames": ["other"]}', 412, "Peer cluster other does not exist"),
        (f"{C}/peers", '["other"]', 412, "Peer cluster other does not exist"),
        (f"{C}/peers", '["standalone"]', 412, "itself can't be part"),
        (f"{C}/namespaceIsolationPolicies/p", ISOLATION.replace("127", "10"), 412, "names no broker of this cluster"),
        (f"{C}/namespaceIsolationPolicies/p", ISOLATION.replace("127.*", "("), 400, "Invalid format of input policy"),
        (f"{C}/namespaceIsolationPolicies/p", ISOLATION.replace("80", "x"), 400, "min_limit and usage_threshold"),
        (f"{C}/namespaceIsolationPolicies/p", "{}", 400, "namespaces should be patterns"),
        ("/admin/v2/resource-quotas/public/default/0x00000000_0x1", "{}", 412, "Invalid bundle range"),
        ("/admin/v2/clusters/other/failureDomains/d", "{}", 404, "Cluster does not exist"),
    ],
)
async def test_what_would_be_untrue_of_the_cluster_is_refused(
    api: HttpApi, path: str, body: str, status: int, reason: str
) -> None:
    answer = await api.request("POST", path, body)
    assert answer.status == status
    assert reason in answer.body["reason"]


async def test_a_broker_is_in_one_failure_domain(api: HttpApi) -> None:
    await api.done("POST", f"{C}/failureDomains/d", '{"brokers": ["b:8080", "c:8080"]}')
    answer = await api.request("POST", f"{C}/failureDomains/e", '{"brokers": ["c:8080"]}')
    assert (answer.status, answer.body) == (409, {"reason": "[c:8080] already exists in d"})
    await api.done("DELETE", f"{C}/failureDomains/d")
    await api.done("POST", f"{C}/failureDomains/e", '{"brokers": ["c:8080"]}')
    assert await api.get(f"{C}/failureDomains") == {"e": {"brokers": ["c:8080"]}}


async def test_a_threshold_of_offloading_is_in_the_offload_policies(api: HttpApi) -> None:
    await api.done("PUT", f"{N}/offloadThreshold", "7")
    assert (await api.get(f"{N}/offloadPolicies"))["managedLedgerOffloadThresholdInBytes"] == 7
    policies = '{"managedLedgerOffloadDriver": "aws-s3", "managedLedgerOffloadThresholdInBytes": 8}'
    await api.done("POST", f"{N}/offloadPolicies", policies)
    assert await api.get(f"{N}/offloadThreshold") == 8
    # As on Pulsar, the old field of the namespace's document stays.
    assert (await api.get(N))["offload_threshold"] == -1


@pytest.mark.parametrize("base", [N, T])
async def test_offload_policies_show_pulsars_defaults_of_what_they_leave_out(api: HttpApi, base: str) -> None:
    policies = {"managedLedgerOffloadDriver": "filesystem", "managedLedgerOffloadMaxThreads": 3}
    await api.done("POST", f"{base}/offloadPolicies", json.dumps(policies))
    shown = await api.get(f"{base}/offloadPolicies")
    assert shown.items() >= policies.items()
    assert (shown["offloadersDirectory"], shown["managedLedgerOffloadReadThreads"]) == ("./offloaders", 2)
    assert shown["s3ManagedLedgerOffloadRoleSessionName"] == "pulsar-s3-offload"


@pytest.mark.parametrize("path", ["v2/worker/cluster", "v2/worker-stats/metrics", "v3/functions/public/default"])
async def test_functions_are_refused_as_by_a_pulsar_without_them(api: HttpApi, path: str) -> None:
    answer = await api.request("GET", f"/admin/{path}")
    assert (answer.status, answer.body) == (409, {"reason": "Functions, sources and sinks are not run here"})


async def test_split_bundles_stay_split_over_a_restart(tmp_path: Path) -> None:
    async with running_api(tmp_path / "data") as api:
        await api.done("PUT", f"{N}/0x00000000_0x40000000/split")
        await api.done("PUT", f"{N}/LARGEST/split?unload=true")
        refused = await api.request("PUT", f"{N}/0x00000000_0xffffffff/split")
        assert (refused.status, "6 bundles: name one" in refused.body["reason"]) == (412, True)
    async with running_api(tmp_path / "data") as api:
        edges = ["0x00000000", "0x10000000", "0x20000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]
        assert await api.get(f"{N}/bundles") == {"boundaries": edges, "numBundles": 6}
