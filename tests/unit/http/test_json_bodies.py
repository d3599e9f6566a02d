"""Bodies as Pulsar's clients and people send them: read as Jackson reads them, and what is wrong stays wrong."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from heliograph_broker.http.base.json_bodies import decode, is_scalar

Small = Annotated[int, msgspec.Meta(le=100, extra_json_schema={"minimum": 0})]


class Inner(msgspec.Struct, rename="camel", frozen=True):
    max_age: int = 7


class Document(msgspec.Struct, rename="camel"):
    size_in_mb: Small
    rate: float = 1.0
    active: bool = False
    name: str = "none"
    note: str | None = None
    limit: int | None = None
    inner: Inner = Inner()
    properties: dict[str, str] = {}
    inners: list[Inner] = []


def document(**fields: Any) -> Document:
    return Document(**({"size_in_mb": 1} | fields))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"sizeInMb": "5"}', document(size_in_mb=5)),
        ('{"sizeInMb": " 5 "}', document(size_in_mb=5)),
        ('{"sizeInMb": 5.9}', document(size_in_mb=5)),
        ('{"sizeInMb": 1, "rate": "2.5"}', document(rate=2.5)),
        ('{"sizeInMb": 1, "rate": 3}', document(rate=3.0)),
        ('{"sizeInMb": 1, "active": "true"}', document(active=True)),
        ('{"sizeInMb": 1, "active": "FALSE"}', document()),
        ('{"sizeInMb": 1, "active": 1}', document(active=True)),
        ('{"sizeInMb": 1, "active": null, "name": null, "rate": null, "inner": null, "inners": null}', document()),
        ('{"sizeInMb": 1, "rate": "", "active": "", "inner": ""}', document()),
        ('{"sizeInMb": 1, "name": ""}', document(name="")),
        ('{"sizeInMb": 1, "name": 5, "note": true}', document(name="5", note="true")),
        ('{"sizeInMb": 1, "limit": "12"}', document(limit=12)),
        ('{"sizeInMb": 1, "inner": {"maxAge": "3"}}', document(inner=Inner(3))),
        ('{"sizeInMb": 1, "inners": [{"maxAge": "3"}]}', document(inners=[Inner(3)])),
        (
            '{"sizeInMb": 1, "properties": {"a": 5, "b": false, "c": "x"}}',
            document(properties={"a": "5", "b": "false", "c": "x"}),
        ),
    ],
)
def test_values_of_neighbouring_types_are_converted(body: str, expected: Document) -> None:
    assert decode(body.encode(), Document) == (expected, [])


@pytest.mark.parametrize("body", ["", "  \n", "null", '""'])
@pytest.mark.parametrize("kind", [Document, int, bool, Small, list[str], dict[str, str], int | Document])
def test_nothing_is_no_value(body: str, kind: Any) -> None:
    assert decode(body.encode(), kind) == (None, [])


def test_an_empty_text_is_a_value_of_a_text() -> None:
    assert decode(b'""', str) == ("", [])
    assert decode(b"null", str) == (None, [])


def test_unknown_fields_are_named_by_their_paths() -> None:
    body = b'{"sizeInMb": 1, "colour": {"r": 1}, "inner": {"maxAge": 3, "minAge": 2}, "inners": [{"x": 1}]}'
    value, ignored = decode(body, Document)
    assert value == document(inner=Inner(3), inners=[Inner()])
    assert ignored == ["colour", "inner.minAge", "inners.x"]


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "5",
        "[]",
        "{}",
        '{"sizeInMb": null}',
        '{"sizeInMb": ""}',
        '{"sizeInMb": "many"}',
        '{"sizeInMb": "1_0"}',
        '{"sizeInMb": "0x10"}',
        '{"sizeInMb": "4.5"}',
        '{"sizeInMb": "101"}',
        '{"sizeInMb": 1e300}',
        '{"sizeInMb": true}',
        '{"sizeInMb": 1, "active": "yes"}',
        '{"sizeInMb": 1, "active": "tRue"}',
        '{"sizeInMb": 1, "rate": "nan"}',
        '{"sizeInMb": 1, "rate": "inf"}',
        '{"sizeInMb": 1, "name": {}}',
        '{"sizeInMb": 1, "inners": {}}',
        '{"sizeInMb": 1, "properties": {"a": null}}',
        "\xff",
    ],
)
def test_what_has_no_meaning_is_refused(body: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        decode(body.encode("latin-1"), Document)


def test_a_body_may_be_a_number_or_a_document() -> None:
    kind: Any = int | Inner
    assert decode(b'"4"', kind) == (4, [])
    assert decode(b'{"maxAge": "4"}', kind) == (Inner(4), [])


def test_scalars_are_told_from_documents() -> None:
    kinds: list[Any] = [int, bool, Small, Annotated[int, msgspec.Meta(ge=0)] | None]
    assert all(is_scalar(kind) for kind in kinds)
    others: list[Any] = [str, Document, list[int], dict[str, int], int | Document]
    assert not any(is_scalar(kind) for kind in others)
