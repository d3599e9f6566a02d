"""Schemas that can read each other's data, compared with a library of Avro that resolves values of every branch."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
from fastavro.read import SchemaResolutionError
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_broker.messaging.base.records import SchemaRecord
from heliograph_broker.messaging.schemas.schema_compatibility import BACKWARD, Comparisons, find_incompatibility
from hypothesis import given, note
from hypothesis import strategies as st

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "string", "bytes")
VALUES: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "int": 1,
    "long": 1,
    "float": 1.0,
    "double": 1.0,
    "string": "x",
    "bytes": b"x",
}
#: Names are of one kind, as the library does not ask whether a name is of another one.
KINDS = {"A": "record", "B": "record", "C": "record", "D": "enum", "E": "fixed"}
NAMES = tuple(KINDS)


def avro(schema: object) -> SchemaRecord:
    return SchemaRecord("s", wire.Schema.Avro, json.dumps(schema).encode())


def problem(writer: object, reader: object) -> str | None:
    return find_incompatibility(avro(writer), avro(reader), BACKWARD, Comparisons())


@st.composite
def definitions(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what each name is in one schema; records may have parts of the names after theirs."""
    drawn: dict[str, Any] = {}
    for at, name in reversed(list(enumerate(NAMES))):
        later = NAMES[at + 1 :]
        kind = KINDS[name]
        if kind == "record":
            fields = draw(st.lists(st.sampled_from("xyz"), unique=True, max_size=3))
            drawn[name] = ("record", [(field, draw(types(later)), draw(st.booleans())) for field in fields])
        elif kind == "enum":
            symbols = draw(st.lists(st.sampled_from("PQR"), unique=True, min_size=1))
            drawn[name] = ("enum", symbols, draw(st.booleans()))
        else:
            drawn[name] = ("fixed", draw(st.integers(1, 2)))
    return drawn


def types(names: tuple[str, ...]) -> st.SearchStrategy[Any]:
    single = st.one_of(st.sampled_from(PRIMITIVES), *([st.sampled_from(names)] if names else []))
    several = st.lists(single, unique=True, min_size=1, max_size=3)
    return st.one_of(single, several, single.map(lambda of: {"array": of}), single.map(lambda of: {"map": of}))


def built(of: Any, defined: dict[str, Any], done: set[str]) -> Any:
    """Return the schema of a drawn type; a name is defined where it comes first."""
    if isinstance(of, list):
        return [built(each, defined, done) for each in of]
    if isinstance(of, dict):
        ((kind, inner),) = of.items()
        return {"type": kind, "items" if kind == "array" else "values": built(inner, defined, done)}
    if of in PRIMITIVES or of in done:
        return of
    done.add(of)
    kind, *rest = defined[of]
    if kind == "fixed":
        return {"type": "fixed", "name": of, "size": rest[0]}
    if kind == "enum":
        symbols, has_default = rest
        return {"type": "enum", "name": of, "symbols": symbols} | ({"default": symbols[0]} if has_default else {})
    # Pulsar compares no names of records, the library does: this field tells records of different names apart.
    fields: list[Any] = [{"name": f"is{of}", "type": "null"}]
    for name, field, has_default in rest[0]:
        schema = built(field, defined, done)
        first = schema[0] if isinstance(schema, list) else schema
        default = {"default": None} if first == "null" else {"default": 1} if first in ("int", "long") else {}
        fields.append({"name": name, "type": schema} | (default if has_default else {}))
    return {"type": "record", "name": of, "fields": fields}


def samples(of: Any, defined: dict[str, Any]) -> Iterator[Any]:
    """Yield values of a drawn type that take each branch of each union, and each symbol, at least once."""
    if isinstance(of, list):
        for each in of:
            for value in samples(each, defined):
                yield (each, value) if each not in PRIMITIVES else value
    elif isinstance(of, dict):
        ((kind, inner),) = of.items()
        yield from ([value] if kind == "array" else {"k": value} for value in samples(inner, defined))
    elif of in PRIMITIVES:
        yield VALUES[of]
    else:
        kind, *rest = defined[of]
        if kind == "fixed":
            yield b"x" * rest[0]
        elif kind == "enum":
            yield from rest[0]
        else:
            each = {name: list(samples(field, defined)) for name, field, _ in rest[0]}
            usual = {name: values[0] for name, values in each.items()} | {f"is{of}": None}
            yield usual
            for name, values in each.items():
                yield from (usual | {name: value} for value in values[1:])


def reads_all(writer: Any, reader: Any, values: Iterator[Any]) -> bool:
    parsed, wanted = fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    for value in values:
        written = io.BytesIO()
        fastavro.schemaless_writer(written, parsed, value)
        written.seek(0)
        try:
            fastavro.schemaless_reader(written, parsed, wanted)
        except SchemaResolutionError:
            return False
    return True


@given(st.data())
def test_schemas_are_compatible_if_every_value_can_be_read(data: st.DataObject) -> None:
    root = data.draw(types(NAMES))
    written, read = data.draw(definitions()), data.draw(definitions())
    other = data.draw(st.one_of(st.just(root), types(NAMES)))
    writer, reader = built(root, written, set()), built(other, read, set())
    note(f"writer: {json.dumps(writer)}")
    note(f"reader: {json.dumps(reader)}")
    assert (problem(writer, reader) is None) == reads_all(writer, reader, samples(root, written)), problem(
        writer, reader
    )
