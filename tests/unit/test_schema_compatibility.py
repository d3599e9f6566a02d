"""Single cases of Avro's resolution that drawn schemas do not have: namespaces, aliases and records in themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_broker.messaging.base.records import SchemaRecord
from heliograph_broker.messaging.schemas.schema_compatibility import BACKWARD, Comparisons, find_incompatibility


def problem(writer: object, reader: object) -> str | None:
    old, new = (SchemaRecord("s", wire.Schema.Avro, json.dumps(each).encode()) for each in (writer, reader))
    return find_incompatibility(old, new, BACKWARD, Comparisons())


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": of} for each, of in fields.items()]}


def test_a_record_that_one_branch_has_refused_is_not_accepted_later() -> None:
    writer = record("R", x=["null", record("A")], y="A")
    reader = record("R", x=["null", record("A", more="string"), record("B")], y="A")
    missing = "field 'x'.more has no default and is missing from the other schema"
    assert problem(writer, reader) == f"field 'y': as before, {missing}"
    reader = record("R", x=["null", record("A", more="string"), record("B", more="string")], y="A")
    assert problem(writer, reader) == "field 'x': record is in no branch of the reader's union"
    wide = record("R", x=["null", record("A", more="string"), "string"], y="A")
    assert problem(record("R", x=["null", "string"], y=record("A")), wide) == (
        "field 'y'.more has no default and is missing from the other schema"
    )


def test_a_record_may_get_another_name() -> None:
    """Avro's text asks for the same name; its library for Java, by which Pulsar compares, does not."""
    assert problem(record("A"), record("B")) is None
    assert problem(record("n.A", x=record("A")), record("m.B", x=record("C"))) is None
    assert problem(record("A"), ["null", record("B")]) is None
    assert problem(record("A"), record("B", more="string")) is not None


@pytest.mark.parametrize("of", [{"type": "enum", "symbols": ["P"]}, {"type": "fixed", "size": 2}])
def test_enums_and_fixed_types_of_other_names_do_not_match(of: dict[str, Any]) -> None:
    assert problem(of | {"name": "A"}, of | {"name": "B"}) == f"the schema: {of['type']} A cannot be read as B"
    assert problem(of | {"name": "A"}, ["null", of | {"name": "B"}]) is not None
    assert problem(of | {"name": "A"}, of | {"name": "B", "aliases": ["A"]}) is None
    assert problem(of | {"name": "n.A"}, of | {"name": "m.A"}) is None
    assert problem(of | {"name": "n.A"}, of | {"name": "n.B", "aliases": ["A"]}) is None
    assert problem(of | {"name": "n.A"}, of | {"name": "m.B", "aliases": ["A"]}) is not None


@pytest.mark.parametrize("name", ["A", "n.A"])
def test_a_name_stands_for_its_type_within_its_namespace(name: str) -> None:
    writer = record("n.R", x=record("A"), y=name)
    reader = record("n.R", x="null", y=record("A", more="string"))
    reader["fields"][0]["default"] = None
    reader["fields"][0]["name"] = "z"
    assert problem(writer, reader) == "field 'y'.more has no default and is missing from the other schema"


def test_a_record_may_have_itself_as_a_part() -> None:
    chain = record("R", next=["null", "R"])
    assert problem(chain, chain) is None
    assert problem(chain, record("R", next=["null", "R"], more="string")) is not None
    # The part is taken for compatible until the whole is not.
    writer = record("R", a=record("A", r=["null", "R"]), b="A")
    reader = record("R", a=record("A", r=["null", "R"]), b="A", more="string")
    assert problem(writer, reader) == "field 'more' has no default and is missing from the other schema"


def test_a_type_in_a_type_is_that_type() -> None:
    assert problem({"type": {"type": "int"}}, "long") is None
    assert problem({"type": ["null", "string"]}, {"type": ["null", "int"]}) is not None


@pytest.mark.parametrize(
    "malformed",
    [
        {"type": "record", "name": "A", "fields": [1]},
        {"type": "record", "name": "A", "fields": 1},
        {"type": "record", "name": "A", "fields": [{"type": "int"}]},
        {"type": "record", "name": "A", "fields": [{"name": "x"}], "aliases": 1},
        {"type": "record", "name": "A", "fields": [{"name": ["x"], "type": "int"}]},
        {"type": "enum", "name": "A", "symbols": 1},
        {"type": "enum", "name": "A", "symbols": [{}]},
    ],
)
def test_a_schema_that_is_none_is_refused_by_a_reason(malformed: dict[str, Any]) -> None:
    valid = malformed | {"fields": [{"name": "x", "type": "int"}], "symbols": ["P"], "aliases": []}
    for writer, reader in ((malformed, valid), (valid, malformed)):
        assert problem(writer, reader) == "a definition is no schema of Avro"


@pytest.mark.parametrize("depth", [900, 100_000])
def test_a_schema_that_is_nested_too_deeply_is_refused_by_a_reason(depth: int) -> None:
    text = '{"type":"array","items":' * depth + '"int"' + "}" * depth
    deep, valid = (SchemaRecord("s", wire.Schema.Avro, each.encode()) for each in (text, '"int"'))
    for old, new in ((deep, valid), (valid, deep)):
        assert find_incompatibility(old, new, BACKWARD, Comparisons()) == "a definition is nested too deeply"
