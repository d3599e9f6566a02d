"""Every policy is set, read, inherited, removed and kept, at namespaces and at topics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from heliograph_api.policies.policies import BacklogQuota, Policies, Rate, Retention, subscription_rate
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.topic.topic import Topic

from .http_api import HttpApi, running_api
from .policy_samples import NAMESPACE_ONLY, SAMPLES, Sample

N = "/admin/v2/namespaces/public/default"
T = "/admin/v2/persistent/public/default"

QUOTA = {"limit": 10485760, "limitSize": 10485760, "limitTime": -1, "policy": "producer_request_hold"}
AGE_QUOTA = {"limit": -1, "limitSize": -1, "limitTime": 3600, "policy": "consumer_backlog_eviction"}
NO_QUOTA = {"limit": -1, "limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with running_api(tmp_path / "data") as running:
        await running.done("PUT", f"{T}/t")
        await running.done("PUT", f"{T}/p/partitions", "2")
        yield running


async def _read(api: HttpApi, path: str) -> Any:
    """Return the document, None for a 204."""
    answer = await api.request("GET", path)
    assert answer.status in (200, 204), answer
    assert (answer.status == 204) == (answer.body is None)
    return answer.body


async def _set_topic(api: HttpApi, topic: str, sample: Sample, document: Any) -> None:
    path = f"{T}/{topic}/{sample.topic}"
    if sample.in_query:
        await api.done(sample.topic_verb, f"{path}?{sample.topic}={document}")
    else:
        await api.done(sample.topic_verb, path, json.dumps(document))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.topic)
async def test_a_namespaces_policy_is_set_replaced_and_removed(api: HttpApi, sample: Sample) -> None:
    path = f"{N}/{sample.namespace}"
    assert await _read(api, path) == sample.namespace_unset
    for document in (sample.one, sample.other):
        await api.done(sample.namespace_verb, path, json.dumps(document))
        assert await api.get(path) == document
    await api.done("DELETE", path)
    assert await _read(api, path) == sample.namespace_unset
    await api.done("DELETE", path)


@pytest.mark.parametrize(("name", "verb", "one", "other", "unset"), NAMESPACE_ONLY)
async def test_what_only_namespaces_have_is_set_replaced_and_removed(
    api: HttpApi, name: str, verb: str, one: Any, other: Any, unset: Any
) -> None:
    path = f"{N}/{name}"
    assert await _read(api, path) == unset
    for document in (one, other):
        await api.done(verb, path, json.dumps(document))
        assert await api.get(path) == document
    await api.done("DELETE", path)
    assert await _read(api, path) == unset
    assert (await api.request("GET", f"{T}/t/{name}")).status == 404


async def test_a_retention_that_nobody_set_is_not_one_of_nothing(api: HttpApi) -> None:
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    for level in (N, f"{T}/t"):
        assert await _read(api, f"{level}/retention") is None
    assert await _read(api, f"{T}/t/retention?applied=true") is None
    assert "retention_policies" not in await api.get(N)
    await api.done("POST", f"{N}/retention", json.dumps(nothing))
    assert await api.get(f"{N}/retention") == (await api.get(N))["retention_policies"] == nothing
    assert await _read(api, f"{T}/t/retention") is None
    assert await api.get(f"{T}/t/retention?applied=true") == nothing
    await api.done("DELETE", f"{N}/retention")
    assert await _read(api, f"{T}/t/retention?applied=true") is None
    # A limit of 0/0 holds where nobody set a retention, too; of any other the counts are not what holds.
    api.broker.policies.set_broker(Policies(), Policies(retention=Retention(3_600_000, -1)))
    assert await _read(api, f"{T}/t/retention?applied=true") is None
    api.broker.policies.set_broker(Policies(), Policies(retention=Retention(0, 0)))
    assert await api.get(f"{T}/t/retention?applied=true") == nothing


@pytest.mark.parametrize("topic", ["t", "p"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.topic)
async def test_a_topics_word_counts_before_its_namespaces(api: HttpApi, topic: str, sample: Sample) -> None:
    path = f"{T}/{topic}/{sample.topic}"
    assert await _read(api, path) == sample.topic_unset
    assert await _read(api, f"{path}?applied=true") == sample.default
    await api.done(sample.namespace_verb, f"{N}/{sample.namespace}", json.dumps(sample.one))
    assert await _read(api, path) == sample.topic_unset
    assert await api.get(f"{path}?applied=true") == sample.one
    await _set_topic(api, topic, sample, sample.other)
    assert await api.get(path) == sample.other
    assert await api.get(f"{path}?applied=false") == sample.other
    assert await api.get(f"{path}?applied=true") == sample.other
    await api.done("DELETE", path)
    assert await _read(api, path) == sample.topic_unset
    assert await api.get(f"{path}?applied=true") == sample.one


@pytest.mark.parametrize(("milliseconds", "seconds"), [(500, 1), (0, 1), (1500, 2), (60_000, 60), (-1, 0)])
async def test_a_ttl_in_milliseconds_is_shown_in_seconds_and_never_as_never(
    api: HttpApi, milliseconds: int, seconds: int
) -> None:
    own = "/heliograph/v1/persistent/public/default/t/subscription/s"
    assert await api.get(f"{T}/t/messageTTLMillis?applied=true") == -1
    for level in (N, f"{T}/t", own):
        await api.done("POST", f"{level}/messageTTLMillis", str(milliseconds))
        assert await api.get(f"{level}/messageTTLMillis") == milliseconds
        assert await api.get(f"{level}/messageTTL") == seconds
    for level in (own, f"{T}/t"):
        await api.done("DELETE", f"{level}/messageTTLMillis")
        assert (await api.request("GET", f"{level}/messageTTL")).status == 204
        assert await api.get(f"{level}/messageTTLMillis?applied=true") == milliseconds
    await api.done("POST", f"{N}/messageTTL", "0")
    assert await api.get(f"{N}/messageTTLMillis") == -1


async def test_a_subscription_that_never_expires_by_its_namespace_is_shown_so(api: HttpApi) -> None:
    path = "/heliograph/v1/persistent/public/default/t/subscription/s/expires?applied=true"
    assert await api.get(path) == -1
    await api.done("POST", f"{N}/subscriptionExpirationTime", "0")
    assert await api.get(path) == -1
    await api.done("POST", f"{N}/subscriptionExpirationTime", "2")
    assert await api.get(path) == 120


async def test_everything_set_is_there_after_a_restart(tmp_path: Path) -> None:
    expected: dict[str, Any] = {}
    async with running_api(tmp_path / "data") as api:
        await api.done("PUT", f"{T}/t")
        await api.done("PUT", f"{T}/p/partitions", "2")
        for sample in SAMPLES:
            await api.done(sample.namespace_verb, f"{N}/{sample.namespace}", json.dumps(sample.one))
            expected[f"{N}/{sample.namespace}"] = sample.one
            for topic in ("t", "p"):
                await _set_topic(api, topic, sample, sample.other)
                expected[f"{T}/{topic}/{sample.topic}"] = sample.other
        for name, verb, one, _, _ in NAMESPACE_ONLY:
            await api.done(verb, f"{N}/{name}", json.dumps(one))
            expected[f"{N}/{name}"] = one
        for level in (N, f"{T}/t", f"{T}/p"):
            await api.done("POST", f"{level}/backlogQuota", '{"limitSize":1000,"policy":"producer_exception"}')
            expected[f"{level}/backlogQuotaMap"] = {
                "destination_storage": {
                    "limit": 1000,
                    "limitSize": 1000,
                    "limitTime": -1,
                    "policy": "producer_exception",
                }
            }
        await api.done("PUT", f"{N}/properties", '{"owner":"me"}')
        expected[f"{N}/properties"] = {"owner": "me"}
        expected[N] = await api.get(N)
    async with running_api(tmp_path / "data") as api:
        for path, document in expected.items():
            assert await api.get(path) == document, path


@pytest.mark.parametrize("topic", ["t", "p"])
async def test_policies_set_at_the_same_time_are_all_kept(api: HttpApi, topic: str) -> None:
    alone = [sample for sample in SAMPLES if not sample.in_query and sample.topic != "deduplication"]
    await asyncio.gather(*(_set_topic(api, topic, sample, sample.one) for sample in alone))
    for sample in alone:
        assert await api.get(f"{T}/{topic}/{sample.topic}") == sample.one


async def test_policies_reach_the_core_in_its_units(api: HttpApi) -> None:
    await api.done("POST", f"{T}/t/messageTTL?messageTTL=3600")
    await api.done("POST", f"{T}/t/subscriptionExpirationTime?subscriptionExpirationTime=2")
    await api.done("POST", f"{T}/t/retention", '{"retentionTimeInMinutes":90,"retentionSizeInMB":2}')
    await api.done("POST", f"{T}/t/expires", "5")
    rate = {"dispatchThrottlingRateInMsg": 9, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 4}
    await api.done("POST", f"{T}/t/dispatchRate", json.dumps(rate))
    policies = api.broker.policies.of_topic(TopicName.parse("t"))
    assert policies is not None
    assert policies.retention is not None
    assert (policies.retention.time_ms, policies.retention.size_bytes) == (90 * 60_000, 2 * 1024**2)
    assert (policies.message_ttl_ms, policies.subscription_expiration_ms) == (3_600_000, 120_000)
    assert policies.expires_ms == 5000
    assert policies.dispatch_rate == Rate(9, -1, 4)


async def test_a_topics_ttl_may_come_as_a_body_too(api: HttpApi) -> None:
    await api.done("POST", f"{T}/t/messageTTL", "60")
    assert await api.get(f"{T}/t/messageTTL") == 60


async def test_a_ttl_of_0_is_none_as_in_pulsar(api: HttpApi) -> None:
    await api.done("POST", f"{N}/messageTTL", "60")
    await api.done("POST", f"{T}/t/messageTTL?messageTTL=0")
    assert api.broker.policies.effective(TopicName.parse("t")).message_ttl_ms is None
    assert await api.get(f"{T}/t/messageTTL?applied=true") == 0


async def test_what_the_core_holds_finer_is_shown_rounded_up(api: HttpApi) -> None:
    policies = Policies(message_ttl_ms=1500, subscription_expiration_ms=61_000, publish_rate=Rate(25, -1, 10))
    api.broker.namespaces.set_policies("public/default", policies)
    assert await api.get(f"{N}/messageTTL") == 2
    assert await api.get(f"{N}/subscriptionExpirationTime") == 2
    shown = {"publishThrottlingRateInMsg": 3, "publishThrottlingRateInByte": -1}
    assert await api.get(f"{N}/publishRate") == shown
    # At once is nearer to a second than to never.
    api.broker.namespaces.set_policies("public/default", Policies(message_ttl_ms=0))
    assert await api.get(f"{N}/messageTTL") == 1


async def test_a_tenants_limits_cap_what_is_applied(api: HttpApi) -> None:
    record = api.broker.directory.tenants["public"]
    api.broker.tenants.update("public", type(record)(record.admin_roles, record.allowed_clusters, _limits()))
    await api.done("POST", f"{T}/t/maxProducers", "50")
    assert await api.get(f"{T}/t/maxProducers") == 50
    assert await api.get(f"{T}/t/maxProducers?applied=true") == 10
    assert await api.get(f"{T}/p/maxProducers?applied=true") == 10
    assert await api.get(f"{T}/t/messageTTL?applied=true") == 7
    assert await api.get(f"{T}/t/messageTTL?applied=true") == 7
    quotas = await api.get(f"{T}/t/backlogQuotaMap?applied=true")
    assert quotas["destination_storage"]["limitSize"] == 5000


def _limits() -> Policies:
    return Policies(max_producers=10, message_ttl_ms=7000, backlog_quota_size=BacklogQuota(5000, "producer_exception"))


# -- backlog quotas ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [N, f"{T}/t", f"{T}/p"])
async def test_both_quotas_are_set_and_removed_by_themselves(api: HttpApi, level: str) -> None:
    assert await api.get(f"{level}/backlogQuotaMap") == {}
    size = '{"limitSize":10485760,"limitTime":-1,"policy":"producer_request_hold"}'
    await api.done("POST", f"{level}/backlogQuota", size)
    age = '{"limitTime":3600,"policy":"consumer_backlog_eviction"}'
    await api.done("POST", f"{level}/backlogQuota?backlogQuotaType=message_age", age)
    both = {"destination_storage": QUOTA, "message_age": AGE_QUOTA}
    assert await api.get(f"{level}/backlogQuotaMap") == both
    await api.done("DELETE", f"{level}/backlogQuota?backlogQuotaType=destination_storage")
    assert await api.get(f"{level}/backlogQuotaMap") == {"message_age": AGE_QUOTA}
    await api.done("DELETE", f"{level}/backlogQuota?backlogQuotaType=message_age")
    assert await api.get(f"{level}/backlogQuotaMap") == {}


async def test_quotas_are_inherited_one_by_one(api: HttpApi) -> None:
    path = f"{T}/t/backlogQuotaMap?applied=true"
    assert await api.get(path) == {"destination_storage": NO_QUOTA, "message_age": NO_QUOTA}
    await api.done("POST", f"{N}/backlogQuota", '{"limitSize":10485760,"policy":"producer_request_hold"}')
    assert await api.get(path) == {"destination_storage": QUOTA}
    age = '{"limitTime":3600,"policy":"consumer_backlog_eviction"}'
    await api.done("POST", f"{T}/t/backlogQuota?backlogQuotaType=message_age", age)
    assert await api.get(path) == {"destination_storage": QUOTA, "message_age": AGE_QUOTA}
    assert await api.get(f"{T}/t/backlogQuotaMap") == {"message_age": AGE_QUOTA}
    # Without limit, against the namespace's.
    await api.done("POST", f"{T}/t/backlogQuota", '{"limitSize":-1,"policy":"producer_exception"}')
    assert (await api.get(path))["destination_storage"] == NO_QUOTA


async def test_a_quota_is_what_javas_client_sends(api: HttpApi) -> None:
    size = '{"limit":36,"limitSize":36,"limitTime":-1,"policy":"producer_exception"}'
    await api.done("POST", f"{T}/t/backlogQuota?backlogQuotaType=destination_storage", size)
    age = '{"limit":-1,"limitSize":-1,"limitTime":3600,"policy":"producer_exception"}'
    await api.done("POST", f"{T}/t/backlogQuota?backlogQuotaType=message_age", age)
    policies = api.broker.policies.of_topic(TopicName.parse("t"))
    assert policies is not None
    assert policies.backlog_quota_size == BacklogQuota(36, "producer_exception")
    assert policies.backlog_quota_age == BacklogQuota(3_600_000, "producer_exception")


# -- single subscriptions: what Pulsar has not ---------------------------------------------------------------------

_OWN = [("messageTTL", 60, 0), ("deadLetterTopic", "persistent://public/default/dead", ""), ("expires", 3600, -1)]


@pytest.mark.parametrize("topic", ["t", "p"])
@pytest.mark.parametrize(("policy", "value", "unset"), _OWN)
async def test_a_subscription_sets_a_policy_of_its_own(
    api: HttpApi, topic: str, policy: str, value: Any, unset: Any
) -> None:
    path = f"/heliograph/v1{T.removeprefix('/admin/v2')}/{topic}/subscription/a%2Fb/{policy}"
    assert await _read(api, path) is None
    assert await api.get(f"{path}?applied=true") == unset
    await api.done("POST", path, json.dumps(value))
    assert await api.get(path) == value
    assert await api.get(f"{path}?applied=true") == value
    assert await _read(api, path.replace("a%2Fb", "other")) is None
    await api.done("DELETE", path)
    await api.done("DELETE", path)
    assert await _read(api, path) is None
    assert api.broker.policies.of_topic(TopicName.parse(topic)) == Policies()


async def test_a_subscription_inherits_its_topics_policy_and_keeps_its_other_settings(api: HttpApi) -> None:
    path = f"/heliograph/v1{T.removeprefix('/admin/v2')}/t/subscription/s"
    await api.done("POST", f"{T}/t/messageTTL?messageTTL=5")
    await api.done("POST", f"{path}/expires", "60")
    assert await api.get(f"{path}/messageTTL?applied=true") == 5
    await api.done("POST", f"{path}/messageTTL", "9")
    assert await api.get(f"{path}/messageTTL?applied=true") == 9
    own = Policies(message_ttl_ms=9000, subscription_expiration_ms=60_000)
    policies = api.broker.policies.of_topic(TopicName.parse("t"))
    assert policies is not None
    assert policies.subscription_policies == {"s": own}
    await api.done("DELETE", f"{path}/messageTTL")
    assert await api.get(f"{path}/expires") == 60


@pytest.mark.parametrize(("policy", "body"), [("expires", "0"), ("expires", "-2"), ("messageTTL", "-1")])
async def test_a_subscription_refuses_values_that_mean_nothing(api: HttpApi, policy: str, body: str) -> None:
    path = f"/heliograph/v1{T.removeprefix('/admin/v2')}/t/subscription/s/{policy}"
    assert (await api.request("POST", path, body)).status == 412
    assert await _read(api, path) is None


# -- single subscriptions ------------------------------------------------------------------------------------------


def _rate(messages: int) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": -1,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    }


@pytest.mark.parametrize("topic", ["t", "p"])
async def test_a_subscriptions_own_rate_counts_before_that_of_all(api: HttpApi, topic: str) -> None:
    await api.done("POST", f"{T}/{topic}/subscriptionDispatchRate", json.dumps(_rate(100)))
    path = f"{T}/{topic}/a%2Fb/dispatchRate"
    assert await _read(api, path) is None
    assert await api.get(f"{path}?applied=true") == _rate(100)
    await api.done("POST", path, json.dumps(_rate(5)))
    assert await api.get(path) == _rate(5)
    assert await api.get(f"{path}?applied=true") == _rate(5)
    assert await api.get(f"{T}/{topic}/other/dispatchRate?applied=true") == _rate(100)
    assert await api.get(f"{T}/{topic}/subscriptionDispatchRate") == _rate(100)
    await api.done("DELETE", path)
    await api.done("DELETE", path)
    assert await _read(api, path) is None
    assert await api.get(f"{path}?applied=true") == _rate(100)


async def test_a_subscriptions_own_rate_is_capped_and_reaches_its_gate(api: HttpApi) -> None:
    await api.done("PUT", f"{T}/t/subscription/s")
    await api.done("PUT", f"{T}/t/subscription/free")
    await api.done("POST", f"{T}/t/subscriptionDispatchRate", json.dumps(_rate(100)))
    await api.done("POST", f"{T}/t/s/dispatchRate", json.dumps(_rate(50)))
    await api.done("POST", f"{T}/t/free/dispatchRate", json.dumps(_rate(-1)))
    topic = api.broker.directory.topics["persistent://public/default/t"]
    effective = api.broker.policies.effective(topic.name)
    assert subscription_rate(effective, "s") == Rate(50, -1, 1)
    assert subscription_rate(effective, "free") is None
    assert subscription_rate(effective, "other") == Rate(100, -1, 1)
    assert isinstance(topic, Topic)
    assert topic.subscriptions["s"].dispatch_gate is not None
    free = topic.subscriptions["free"].dispatch_gate
    assert free is not None
    assert (free.own, free.shared) == (None, None)
    record = api.broker.directory.tenants["public"]
    limits = Policies(subscription_dispatch_rate=Rate(10, -1, 1))
    api.broker.tenants.update("public", type(record)(record.admin_roles, record.allowed_clusters, limits))
    assert await api.get(f"{T}/t/s/dispatchRate?applied=true") == _rate(10)
    assert await api.get(f"{T}/t/free/dispatchRate?applied=true") == _rate(10)
    assert await api.get(f"{T}/t/s/dispatchRate") == _rate(50)


# -- all of them ---------------------------------------------------------------------------------------------------


async def test_a_topics_policies_are_removed_all_at_once(api: HttpApi) -> None:
    await api.done("POST", f"{T}/t/maxProducers", "5")
    await api.done("POST", f"{T}/t/retention", '{"retentionTimeInMinutes":1,"retentionSizeInMB":1}')
    await api.done("DELETE", f"{T}/t/policies")
    assert await _read(api, f"{T}/t/maxProducers") is None
    assert await _read(api, f"{T}/t/retention") is None
    assert (await api.request("DELETE", f"{T}/none/policies")).status == 404
