"""Manifests posted to a running broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from heliograph_api.resources.schema_spec import schema_digest

from .http_api import HttpApi, running_api

MANIFESTS = """
apiVersion: heliograph.dev/v1alpha1
kind: Topic
metadata: {name: orders}
spec:
  namespaceRef: {name: payments}
  partitions: PARTITIONS
  messageTTL: 2h
  subscriptions: [billing]
---
apiVersion: heliograph.dev/v1alpha1
kind: Tenant
metadata: {name: shop}
spec: {limits: {messageTTL: 1h}}
---
apiVersion: heliograph.dev/v1alpha1
kind: Namespace
metadata: {name: payments}
spec:
  tenantRef: {name: shop}
  retention: {time: 1d, size: 1Gi}
"""


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with running_api(tmp_path / "data") as running:
        yield running


async def _actions(api: HttpApi, text: str) -> list[tuple[str, str, str]]:
    answer = await api.request("POST", "/heliograph/v1/apply", text)
    assert answer.status == 200, answer
    return [(one["kind"], one["name"], one["action"]) for one in answer.body["results"]]


async def test_resources_are_created_then_unchanged_then_configured(api: HttpApi) -> None:
    names = [("Tenant", "shop"), ("Namespace", "shop/payments"), ("Topic", "persistent://shop/payments/orders")]
    two = MANIFESTS.replace("PARTITIONS", "2")
    assert await _actions(api, two) == [(*name, "created") for name in names]
    assert await _actions(api, two) == [(*name, "unchanged") for name in names]
    grown = await _actions(api, MANIFESTS.replace("PARTITIONS", "3"))
    assert [action for _, _, action in grown] == ["unchanged", "unchanged", "configured"]
    topic = "/admin/v2/persistent/shop/payments/orders"
    assert (await api.get(f"{topic}/partitions"))["partitions"] == 3
    assert await api.get(f"{topic}-partition-2/subscriptions") == ["billing"]
    retention = await api.get("/admin/v2/namespaces/shop/payments/retention")
    assert retention == {"retentionTimeInMinutes": 1440, "retentionSizeInMB": 1024}


async def test_a_retention_that_is_left_out_is_not_one_of_nothing(api: HttpApi) -> None:
    manifests = MANIFESTS.replace("PARTITIONS", "2")
    path = "/admin/v2/namespaces/shop/payments/retention"
    for written, output in (
        ("", None),
        ("retention: {time: 0, size: 0}", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
        ("", None),
    ):
        text = manifests.replace("retention: {time: 1d, size: 1Gi}", written)
        assert [action for *_, action in await _actions(api, text)] in (
            ["created"] * 3,
            ["unchanged", "configured", "unchanged"],
        )
        assert (await api.request("GET", path)).body == output
        assert [action for *_, action in await _actions(api, text)] == ["unchanged"] * 3


@pytest.mark.parametrize(
    ("text", "status", "part"),
    [
        ("kind: Topic", 422, "apiVersion"),
        ("{", 422, "YAML"),
        (
            MANIFESTS.replace("PARTITIONS", "2").replace("tenantRef: {name: shop}", "tenantRef: {name: gone}"),
            412,
            "gone",
        ),
        (
            MANIFESTS.replace("PARTITIONS", "2").replace("{name: payments}\n  part", "{name: x}\n  part"),
            412,
            "Namespace 'x'",
        ),
    ],
)
async def test_anything_wrong_changes_nothing(api: HttpApi, text: str, status: int, part: str) -> None:
    answer = await api.request("POST", "/heliograph/v1/apply", text)
    assert answer.status == status, answer
    assert part in answer.body["reason"]
    assert await api.get("/admin/v2/tenants") == ["public"]


async def test_partitions_never_shrink(api: HttpApi) -> None:
    await _actions(api, MANIFESTS.replace("PARTITIONS", "3"))
    answer = await api.request("POST", "/heliograph/v1/apply", MANIFESTS.replace("PARTITIONS", "2"))
    assert answer.status == 412
    assert "3 or more" in answer.body["reason"]


async def test_a_partition_that_was_deleted_is_made_again_with_the_subscriptions_of_the_others(api: HttpApi) -> None:
    text = MANIFESTS.replace("PARTITIONS", "3")
    await _actions(api, text)
    topic = "/admin/v2/persistent/shop/payments/orders"
    await api.request("PUT", f"{topic}/subscription/audit")
    for partition in (0, 2):
        assert (await api.request("DELETE", f"{topic}-partition-{partition}")).status == 204
    assert [action for _, _, action in await _actions(api, text)] == ["unchanged", "unchanged", "configured"]
    for partition in range(3):
        assert sorted(await api.get(f"{topic}-partition-{partition}/subscriptions")) == ["audit", "billing"]
    assert [action for _, _, action in await _actions(api, text)] == ["unchanged"] * 3


async def test_a_topics_properties_and_a_namespaces_bundles_are_those_of_the_manifest(api: HttpApi) -> None:
    text = MANIFESTS.replace("PARTITIONS", "2")
    await _actions(api, text)
    changed = text.replace("{name: shop}\n  ret", "{name: shop}\n  bundles: 8\n  ret")
    changed = changed.replace("  messageTTL: 2h", "  properties: {owner: ann, tier: gold}")
    assert [action for _, _, action in await _actions(api, changed)] == ["unchanged", "configured", "configured"]
    topic = "/admin/v2/persistent/shop/payments/orders"
    assert await api.get(f"{topic}/properties") == {"owner": "ann", "tier": "gold"}
    assert (await api.get("/admin/v2/namespaces/shop/payments/bundles"))["numBundles"] == 8
    await _actions(api, changed.replace(", tier: gold", ""))
    assert await api.get(f"{topic}/properties") == {"owner": "ann"}


_FLIGHT = '{"type":"record","name":"Flight","fields":[{"name":"carrier","type":"string"}]}'
_OTHER = '{"type":"record","name":"Flight","fields":[{"name":"distance","type":"int"}]}'


def _with_schema(definition: str, kind: str = "AVRO", more: str = "") -> str:
    schema = f"schema: {{type: {kind}, definition: '{definition}'{more}}}" if definition else ""
    return MANIFESTS.replace("PARTITIONS", "2").replace("messageTTL: 2h", f"messageTTL: 2h\n  {schema}")


async def test_a_schema_of_a_resource_is_stored_once_and_one_that_clients_could_not_read_is_refused(
    api: HttpApi,
) -> None:
    path = "/admin/v2/schemas/shop/payments/orders"
    await _actions(api, _with_schema(_FLIGHT, more=", properties: {owner: ann}"))
    stored = await api.get(f"{path}/schema")
    assert (stored["version"], stored["type"], stored["data"]) == (0, "AVRO", _FLIGHT)
    assert stored["properties"] == {"owner": "ann"}
    for same in (_with_schema(_FLIGHT), _with_schema("")):
        assert [action for _, _, action in await _actions(api, same)] == ["unchanged"] * 3
    refused = await api.request("POST", "/heliograph/v1/apply", _with_schema(_OTHER))
    assert refused.status == 412
    assert (
        "Topic orders: spec.schema: Schema of topic persistent://shop/payments/orders is incompatible"
        in (refused.body["reason"])
    )
    # A strategy that is applied with it counts.
    allowed = _with_schema(_OTHER).replace(
        "  messageTTL: 2h", "  messageTTL: 2h\n  schemaCompatibility: ALWAYS_COMPATIBLE"
    )
    assert [action for _, _, action in await _actions(api, allowed)] == ["unchanged", "unchanged", "configured"]
    topics = (await api.get("/heliograph/v1/status"))["topics"]
    own = [schema_digest("AVRO", definition.encode()) for definition in (_FLIGHT, _OTHER)]
    assert topics["persistent://shop/payments/orders"]["schemas"] == own
    # Deleted by somebody, it is stored again.
    await api.request("DELETE", f"{path}/schema")
    assert [action for _, _, action in await _actions(api, allowed)] == ["unchanged", "unchanged", "configured"]
    assert (await api.get(f"{path}/schema"))["data"] == _OTHER
