"""Settings changed at run time: they hold at once and over a restart, or are kept and said to have no effect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from heliograph_broker.http.brokers.dynamic_names import DYNAMIC
from heliograph_broker.messaging.broker.dynamic_policies import EFFECTIVE

from .http_api import HttpApi, running_api

C = "/admin/v2/brokers/configuration"
N = "/admin/v2/namespaces/public/default"
T = "/admin/v2/persistent/public/default/t"
APPLIED = [
    (
        {"maxPublishRatePerTopicInMessages": "5"},
        "publishRate",
        {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1},
    ),
    (
        {"dispatchThrottlingRatePerTopicInMsg": "5", "dispatchThrottlingRatePerTopicInByte": "7"},
        "dispatchRate",
        {
            "dispatchThrottlingRateInMsg": 5,
            "dispatchThrottlingRateInByte": 7,
            "relativeToPublishRate": False,
            "ratePeriodInSecond": 1,
        },
    ),
    (
        {"dispatchThrottlingRatePerSubscriptionInByte": "9"},
        "subscriptionDispatchRate",
        {
            "dispatchThrottlingRateInMsg": -1,
            "dispatchThrottlingRateInByte": 9,
            "relativeToPublishRate": False,
            "ratePeriodInSecond": 1,
        },
    ),
    (
        {"subscribeThrottlingRatePerConsumer": "3", "subscribeRatePeriodPerConsumerInSecond": "10"},
        "subscribeRate",
        {"subscribeThrottlingRatePerConsumer": 3, "ratePeriodInSecond": 10},
    ),
    ({"subscriptionTypesEnabled": "Shared, Failover"}, "subscriptionTypesEnabled", ["Failover", "Shared"]),
    (
        {"brokerDeleteInactiveTopicsEnabled": "true", "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "600"},
        "inactiveTopicPolicies",
        {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 600,
            "deleteWhileInactive": True,
        },
    ),
    (
        {"allowAutoSubscriptionCreation": "false"},
        "autoSubscriptionCreation",
        {"allowAutoSubscriptionCreation": False},
    ),
    ({"isAllowAutoUpdateSchemaEnabled": "false"}, "isAllowAutoUpdateSchema", False),
]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with running_api(tmp_path / "data") as running:
        await running.done("PUT", T)
        yield running


@pytest.mark.parametrize(("settings", "path", "expected"), APPLIED, ids=[path for _, path, _ in APPLIED])
async def test_one_with_an_effect_holds_for_every_topic_until_it_is_reverted(
    api: HttpApi, settings: dict[str, str], path: str, expected: object
) -> None:
    before = await api.get(f"{T}/{path}?applied=true")
    assert before != expected
    for name, value in settings.items():
        answer = await api.request("POST", f"{C}/{name}/{quote(value, safe='')}")
        assert (answer.status, answer.headers.getall("Warning", [])) == (204, []), answer
    assert await api.get(f"{T}/{path}?applied=true") == expected
    assert await api.get(f"{C}/values") == settings
    for name in settings:
        await api.done("DELETE", f"{C}/{name}")
    assert await api.get(f"{T}/{path}?applied=true") == before
    assert await api.get(f"{C}/values") == {}


async def test_missing_topics_are_created_as_the_settings_say(api: HttpApi) -> None:
    await api.done("POST", f"{C}/allowAutoTopicCreationType/partitioned")
    await api.done("POST", f"{C}/defaultNumPartitions/3")
    created = await api.get(f"{T}2/partitions?checkAllowAutoCreation=true")
    assert created["partitions"] == 3
    await api.done("POST", f"{C}/allowAutoTopicCreation/false")
    missing = await api.request("GET", f"{T}3/partitions?checkAllowAutoCreation=true")
    assert missing.status == 404
    await api.done("POST", f"{N}/autoTopicCreation", '{"allowAutoTopicCreation":true,"topicType":"non-partitioned"}')
    assert (await api.get(f"{T}3/partitions?checkAllowAutoCreation=true"))["partitions"] == 0


async def test_a_value_survives_a_restart(tmp_path: Path) -> None:
    async with running_api(tmp_path / "data") as api:
        await api.done("PUT", T)
        await api.done("POST", f"{C}/maxPublishRatePerTopicInMessages/5")
        await api.done("POST", f"{C}/loadBalancerLoadSheddingStrategy/x")
    async with running_api(tmp_path / "data") as api:
        assert await api.get(f"{C}/values") == {
            "maxPublishRatePerTopicInMessages": "5",
            "loadBalancerLoadSheddingStrategy": "x",
        }
        assert (await api.get(f"{T}/publishRate?applied=true"))["publishThrottlingRateInMsg"] == 5
        assert (await api.get(f"{C}/runtime"))["maxPublishRatePerTopicInMessages"] == "5"


@pytest.mark.parametrize("value", ["a/b", '{"a": "b/c", "d": [1]}', "100%", "a b", "/"])
async def test_a_value_may_hold_anything(api: HttpApi, value: str) -> None:
    answer = await api.request("POST", f"{C}/brokerClientAuthenticationParameters/{quote(value, safe='')}")
    assert answer.status == 204, answer
    assert answer.headers["Warning"] == (
        '299 - "brokerClientAuthenticationParameters is kept and shown, but has no effect here"'
    )
    assert await api.get(f"{C}/values") == {"brokerClientAuthenticationParameters": value}


async def test_a_slash_need_not_be_encoded_and_a_plus_is_a_blank(api: HttpApi) -> None:
    await api.done("POST", f"{C}/brokerClientAuthenticationParameters/a/b+c%2Bd")
    assert await api.get(f"{C}/values") == {"brokerClientAuthenticationParameters": "a/b c+d"}


@pytest.mark.parametrize(
    ("method", "path", "part"),
    [
        ("POST", "nope/5", "Can't update non-dynamic configuration"),
        ("POST", "brokerServicePort/5", "Can't update non-dynamic configuration"),
        ("DELETE", "nope", "Can't delete non-dynamic configuration"),
        ("POST", "maxPublishRatePerTopicInMessages/abc", "should be a whole number from 0 to 2147483647, not 'abc'"),
        ("POST", "defaultNumPartitions/0", "from 1 to 10000, not '0'"),
        ("POST", "allowAutoTopicCreation/x", "should be true or false, not 'x'"),
        ("POST", "allowAutoTopicCreationType/x", "partitioned, non-partitioned"),
        ("POST", "subscriptionTypesEnabled/Shared,x", "Key_Shared"),
        ("POST", "brokerDeleteInactiveTopicsMode/x", "delete_when_no_subscriptions"),
    ],
)
async def test_a_wrong_name_or_value_is_refused(api: HttpApi, method: str, path: str, part: str) -> None:
    answer = await api.request(method, f"{C}/{path}")
    assert answer.status == 412, answer
    assert part in answer.body["reason"]
    assert await api.get(f"{C}/values") == {}


async def test_the_names_are_pulsars(api: HttpApi) -> None:
    assert set(await api.get(C)) == DYNAMIC
    assert EFFECTIVE < DYNAMIC


async def test_running_settings_have_pulsars_names_too(api: HttpApi) -> None:
    running = await api.get(f"{C}/runtime")
    assert running["clusterName"] == running["cluster_name"] == "standalone"
    assert running["allowAutoTopicCreation"] == "true"
    assert all(isinstance(value, str) for value in running.values())
