"""Schemas by REST: versions, their lists, and whether a schema would be compatible, as a real Pulsar 4.2.4 answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from .http_api import HttpApi, running_api

S = "/admin/v2/schemas/public/default/t"
N = "/admin/v2/namespaces/public/default"
T = "/admin/v2/persistent/public/default/t"
STRING = '{"type":"STRING","schema":"","properties":{"a":"b"}}'


def avro(*fields: str, default: bool = False) -> str:
    named = [{"name": field, "type": "int"} | ({"default": 0} if default else {}) for field in fields]
    definition = {"type": "record", "name": "A", "fields": named}
    return json.dumps({"type": "AVRO", "schema": json.dumps(definition), "properties": {}})


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with running_api(tmp_path / "data") as running:
        await running.done("PUT", "/admin/v2/persistent/public/default/t")
        yield running


async def _post(api: HttpApi, path: str, body: str, status: int) -> Any:
    answer = await api.request("POST", f"{S}/{path}", body)
    assert answer.status == status, answer
    return answer.body


async def test_a_topic_without_a_schema_has_an_empty_list(api: HttpApi) -> None:
    assert await api.get(f"{S}/schemas") == {"getSchemaResponses": []}
    for path in ("schema", "schema/0", "metadata"):
        assert (await api.request("GET", f"{S}/{path}")).status == 404


async def test_versions_are_found_by_the_schema(api: HttpApi) -> None:
    assert await _post(api, "version", STRING, 200) == {"version": -1}
    assert await _post(api, "schema", STRING, 200) == {"version": {"version": 0}}
    # Its properties are not part of what is compared.
    assert await _post(api, "version", STRING.replace("b", "c"), 200) == {"version": 0}
    assert await _post(api, "version", '{"type":"JSON","schema":"{}"}', 200) == {"version": -1}
    place = {"version": 0, "ledgerId": -1, "entryId": -1}
    assert await api.get(f"{S}/metadata") == {"info": place, "index": [place]}


async def test_compatibility_is_told_and_nothing_is_added(api: HttpApi) -> None:
    assert await _post(api, "compatibility", avro("a"), 202) == {
        "compatibility": True,
        "schemaCompatibilityStrategy": "FULL",
    }
    await _post(api, "schema", avro("a"), 200)
    assert (await _post(api, "compatibility", avro("a"), 202))["compatibility"] is True
    assert "incompatible with version 0" in (await _post(api, "compatibility", avro("b"), 409))["reason"]
    assert "incompatible with version 0" in (await _post(api, "compatibility", STRING, 409))["reason"]
    await api.done("PUT", f"{N}/schemaCompatibilityStrategy", '"ALWAYS_COMPATIBLE"')
    assert await _post(api, "compatibility", avro("b"), 202) == {
        "compatibility": True,
        "schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE",
    }
    assert len((await api.get(f"{S}/schemas"))["getSchemaResponses"]) == 1


async def test_the_namespaces_setting_for_updates_is_the_strategy_where_none_is_set(api: HttpApi) -> None:
    await _post(api, "schema", avro("a"), 200)
    await api.done("PUT", f"{N}/schemaAutoUpdateCompatibilityStrategy", '"AlwaysCompatible"')
    assert await api.get(f"{T}/schemaCompatibilityStrategy?applied=true") == "ALWAYS_COMPATIBLE"
    assert await api.get(f"{N}/schemaCompatibilityStrategy") == "UNDEFINED"
    assert (await _post(api, "compatibility", avro("b"), 202))["schemaCompatibilityStrategy"] == "ALWAYS_COMPATIBLE"
    await api.done("PUT", f"{N}/schemaAutoUpdateCompatibilityStrategy", '"AutoUpdateDisabled"')
    assert "incompatible" in (await _post(api, "schema", avro("a", "b", default=True), 409))["reason"]
    await api.done("PUT", f"{N}/schemaCompatibilityStrategy", '"FULL"')
    await _post(api, "schema", avro("a", "b", default=True), 200)
    await api.done("PUT", f"{N}/schemaCompatibilityStrategy", '"UNDEFINED"')
    await api.done("DELETE", f"{N}/schemaAutoUpdateCompatibilityStrategy")
    assert await api.get(f"{T}/schemaCompatibilityStrategy?applied=true") == "FULL"


@pytest.mark.parametrize(
    ("path", "body", "status", "part"),
    [
        ("compatibility", "null", 400, "needs a JSON body"),
        ("compatibility", '{"type":"NOPE","schema":""}', 422, "NOPE"),
        ("schema", '{"type":"AUTO_CONSUME","schema":""}', 422, "AUTO_CONSUME"),
        ("schema", '{"type":"NONE","schema":""}', 422, "NONE"),
        ("version", '{"schema":""}', 400, "type"),
    ],
)
async def test_what_is_no_schema_is_refused(api: HttpApi, path: str, body: str, status: int, part: str) -> None:
    assert part in (await _post(api, path, body, status))["reason"]
