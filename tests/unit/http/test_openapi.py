"""The API's description: complete, consistent in itself, and made of the types behind it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from heliograph_broker.http.app import Endpoints, create_app
from heliograph_broker.http.base import openapi
from heliograph_broker.http.base.operations import Media, Operation, Parameter, Refusal

from tests.support.core import Core


class Shelf(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A body for the tests below."""

    shelf_name: str
    places: int | None = None


@pytest.fixture
def app(tmp_path: Path) -> Iterator[web.Application]:
    core = Core(tmp_path)
    yield create_app(core.broker, core.config, Endpoints("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080"))
    core.close()


@pytest.fixture
def description(app: web.Application) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(openapi.document(app))
    return document


def operations(description: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each operation with what it is called in a failure."""
    for path, item in description["paths"].items():
        for method, described in item.items():
            yield f"{method.upper()} {path}", described


def one(method: str, path: str, described: Operation) -> dict[str, Any]:
    """Return the description of a single operation, references resolved one level deep."""
    document = openapi.describe([(method, path, described)])
    found: dict[str, Any] = document["paths"][path][method.lower()]
    return found | {"components": document["components"]["schemas"]}


def test_every_route_says_what_it_takes_and_answers(app: web.Application) -> None:
    silent = [f"{method} {path}" for method, path, found in openapi.described_routes(app) if found is None]
    assert silent == [], "handlers without @operation"


def test_every_operation_has_a_name_of_its_own_and_a_sentence(description: dict[str, Any]) -> None:
    names = [described["operationId"] for _, described in operations(description)]
    assert len(names) == len(set(names))
    assert [name for name in names if not re.fullmatch(r"[a-z][A-Za-z0-9]+", name)] == []
    bare = [name for name, described in operations(description) if not described["summary"].endswith((".", "?"))]
    assert bare == [], "summaries are sentences"


def test_every_parameter_of_a_path_is_described(description: dict[str, Any]) -> None:
    for name, described in operations(description):
        references = [found["$ref"].rpartition("/")[2] for found in described.get("parameters", ()) if "$ref" in found]
        assert references == re.findall(r"\{(\w+)\}", name), name
        queries = [found for found in described.get("parameters", ()) if "$ref" not in found]
        assert [found["name"] for found in queries if not found["description"]] == [], name
    components = description["components"]["parameters"]
    assert [name for name, found in components.items() if not found.get("description")] == []


def test_no_reference_leads_nowhere(description: dict[str, Any]) -> None:
    text = json.dumps(description)
    for kind, components in description["components"].items():
        assert set(re.findall(rf'"#/components/{kind}/([^"]+)"', text)) == set(components), kind


def test_every_operation_answers_something_and_every_refusal_has_a_reason(description: dict[str, Any]) -> None:
    for name, described in operations(description):
        statuses = {int(status) for status in described["responses"]}
        assert statuses, name
        for status in statuses:
            if status >= 400:
                refused = described["responses"][str(status)]["$ref"].rpartition("/")[2]
                content = description["components"]["responses"][refused]["content"]
                assert content == {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}, name


def test_a_body_and_an_answer_are_what_their_types_say() -> None:
    described = Operation("Put up a shelf.", Shelf, True, (), {200: list[Shelf]})
    found = one("PUT", "/admin/v2/shelves/{tenant}", described)
    assert found["operationId"] == "putShelves"
    assert found["tags"] == ["shelves"]
    reference = {"$ref": "#/components/schemas/Shelf"}
    assert found["requestBody"] == {"required": True, "content": {"application/json": {"schema": reference}}}
    answer = found["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer == {"type": "array", "items": reference}
    shelf = found["components"]["Shelf"]
    assert shelf["additionalProperties"] is False
    assert (list(shelf["properties"]), shelf["required"]) == (["shelfName", "places"], ["shelfName"])


def test_examples_fit_what_is_taken(app: web.Application) -> None:
    shown = [found for _, _, found in openapi.described_routes(app) if found is not None and found.example]
    assert len(shown) > 50
    for described in shown:
        kind = described.body.kind if isinstance(described.body, Media) else described.body
        msgspec.json.decode(described.example, type=kind)


def test_what_may_be_refused_follows_from_what_is_taken() -> None:
    def refused(method: str, path: str, **options: Any) -> set[int]:
        found = one(method, path, Operation("Do it.", **options))
        return {int(status) for status in found["responses"]} - {204}

    assert refused("GET", "/health/live") == set()
    assert refused("GET", "/admin/v2/tenants", query=(Parameter("a", bool, "A."),)) == {400}
    assert refused("GET", "/admin/v2/tenants/{tenant}") == {400, 404, 405, 409, 412}
    assert refused("DELETE", "/admin/v2/tenants/{tenant}") == {400, 404, 405, 409, 412, 503}
    assert refused("POST", "/x", body=Shelf) == {400, 409, 412, 413, 422, 503}
    assert refused("GET", "/health/ready", answers={204: None, 503: Refusal}) == {503}


def test_queries_have_types_and_choices() -> None:
    mode = Parameter("mode", str, "Which.", required=True, choices=("ALL", "NONE"))
    found = one("GET", "/x", Operation("List.", query=(mode, Parameter("force", bool, "Also if in use."))))
    assert [(parameter["name"], parameter["required"], parameter["schema"]) for parameter in found["parameters"]] == [
        ("mode", True, {"type": "string", "enum": ["ALL", "NONE"]}),
        ("force", False, {"type": "boolean"}),
    ]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (str, {"text/plain": {"schema": {"type": "string"}}}),
        (bool, {"application/json": {"schema": {"type": "boolean"}}}),
        (bytes, {"application/octet-stream": {"schema": {"type": "string"}}}),
        (
            Media(("text/a", "text/b")),
            {"text/a": {"schema": {"type": "string"}}, "text/b": {"schema": {"type": "string"}}},
        ),
    ],
)
def test_answers_that_are_not_documents(kind: Any, content: dict[str, Any]) -> None:
    found = one("GET", "/x", Operation("Get.", answers={200: kind}))["responses"]["200"]["content"]
    for media in found.values():
        media["schema"].pop("contentMediaType", None)
    assert found == content


def test_operations_that_differ_in_their_parameters_only_have_two_names() -> None:
    listed = [("GET", "/admin/v2/tenants", Operation("A.")), ("GET", "/admin/v2/tenants/{tenant}", Operation("B."))]
    paths = openapi.describe(listed)["paths"]
    names = [paths[path]["get"]["operationId"] for _, path, _ in listed]
    assert names == ["getTenants", "getTenantsByTenant"]
