"""One answer for everything a broker has: what is set, what is stored, who is behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from heliograph_api.policies.policies import BacklogQuota, Policies, Retention
from heliograph_api.resources.broker_state import BrokerState, SubscriptionState

from .http_api import HttpApi, running_api

MANIFESTS = """
apiVersion: heliograph.dev/v1alpha1
kind: Tenant
metadata: {name: shop}
spec: {limits: {messageTTL: 1h}, adminRoles: [boss]}
---
apiVersion: heliograph.dev/v1alpha1
kind: Namespace
metadata: {name: payments}
spec:
  tenantRef: {name: shop}
  retention: {time: 1d, size: 1Gi}
---
apiVersion: heliograph.dev/v1alpha1
kind: Topic
metadata: {name: orders}
spec:
  namespaceRef: {name: payments}
  partitions: 2
  messageTTL: 2h
  backlogQuota: {destinationStorage: {limit: 1Mi}}
  subscriptions: [billing]
---
apiVersion: heliograph.dev/v1alpha1
kind: Topic
metadata: {name: live}
spec: {namespaceRef: {name: payments}, persistent: false}
"""


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with running_api(tmp_path / "data") as running:
        answer = await running.request("POST", "/heliograph/v1/apply", MANIFESTS)
        assert answer.status == 200, answer
        yield running


async def _state(api: HttpApi, query: str = "") -> BrokerState:
    answer = await api.request("GET", f"/heliograph/v1/status{query}")
    assert answer.status == 200, answer
    return msgspec.convert(answer.body, BrokerState)


async def test_it_lists_what_is_set_at_each_level_and_no_more(api: HttpApi) -> None:
    state = await _state(api)
    assert state.tenants["shop"].limits == Policies(message_ttl_ms=3_600_000)
    assert state.tenants["shop"].admin_roles == ["boss"]
    assert state.namespaces["shop/payments"].policies == Policies(retention=Retention(86_400_000, 1 << 30))
    orders = state.topics["persistent://shop/payments/orders"]
    assert orders.policies == Policies(
        message_ttl_ms=7_200_000, backlog_quota_size=BacklogQuota(1 << 20, "producer_request_hold")
    )
    assert (orders.partitions, orders.subscriptions) == (2, ["billing"])
    assert (orders.backlog_messages, orders.oldest_age_ms, orders.size_used, orders.age_used) == (0, -1, 0.0, -1.0)
    live = state.topics["non-persistent://shop/payments/live"]
    assert (live.partitions, live.policies, live.size_limit) == (0, Policies(), -1)


async def test_a_subscription_that_one_partition_lacks_is_only_among_the_states(api: HttpApi) -> None:
    path = "/admin/v2/persistent/shop/payments/orders"
    await api.request("DELETE", f"{path}-partition-0/subscription/billing")
    await api.request("PUT", f"{path}/subscription/audit")
    state = await _state(api)
    orders = state.topics["persistent://shop/payments/orders"]
    assert orders.subscriptions == ["audit"]
    # It has no properties, policies or backlog, but it exists.
    assert orders.subscription_states == {"billing": SubscriptionState()}


async def test_it_tells_the_id_of_the_store(api: HttpApi, tmp_path: Path) -> None:
    state = await _state(api)
    assert (tmp_path / "data/FORMAT").read_text() == f"{state.store_format}\nstore {state.store_id}\n"


async def test_one_namespace_can_be_asked_for(api: HttpApi) -> None:
    state = await _state(api, "?namespace=shop/payments")
    assert set(state.tenants) == {"shop"}
    assert set(state.namespaces) == {"shop/payments"}
    assert len(state.topics) == 2
    other = await _state(api, "?namespace=shop/pay")
    assert (other.namespaces, other.topics) == ({}, {})


async def test_partitions_that_were_deleted_and_properties_are_told(api: HttpApi) -> None:
    path = "/admin/v2/persistent/shop/payments/orders"
    await api.request("PUT", f"{path}/properties", '{"owner": "ann"}', Content_Type="application/json")
    await api.request("DELETE", f"{path}-partition-1")
    orders = (await _state(api)).topics["persistent://shop/payments/orders"]
    assert (orders.partitions, orders.missing_partitions, orders.properties) == (2, [1], {"owner": "ann"})
