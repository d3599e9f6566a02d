"""Schemas that a client makes so that comparing them takes long: they are refused, and those of people are not."""

from __future__ import annotations

import json

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_broker.messaging.base.errors import IncompatibleSchema
from heliograph_broker.messaging.base.records import SchemaRecord
from heliograph_broker.messaging.schemas.schema_compatibility import MAX_COMPARISONS
from heliograph_broker.messaging.schemas.schema_registry import SchemaRegistry

TOPIC = "persistent://public/default/orders"
TRANSITIVE = "FULL_TRANSITIVE"


def avro(schema: object) -> SchemaRecord:
    return SchemaRecord("orders", wire.Schema.Avro, json.dumps(schema).encode())


def record(fields: int, of_type: object = "string") -> object:
    named = [{"name": f"f{index}", "type": of_type, "default": None} for index in range(fields)]
    return {"type": "record", "name": "Order", "fields": named}


@pytest.fixture
def registry() -> SchemaRegistry:
    return SchemaRegistry(lambda key, value: None, lambda key: None)


def test_unions_that_take_long_to_compare_are_refused(registry: SchemaRegistry) -> None:
    # 14 kB each, and millions of pairs.
    registry.add(TOPIC, avro(["string"] * 1500 + ["int"]))
    for add in (registry.add, registry.check_reader):
        with pytest.raises(IncompatibleSchema, match="takes too long"):
            add(TOPIC, avro(["int"] * 1500 + ["string"]), "FULL")
    assert len(registry.versions(TOPIC)) == 1


def test_versions_that_take_long_together_are_refused(registry: SchemaRegistry) -> None:
    # Both ways, and each part with the first of the other union: a little more than a tenth of what is allowed.
    union = json.dumps(["int"] * (MAX_COMPARISONS // 40)).encode()

    def add(version: int) -> None:
        registry.add(TOPIC, SchemaRecord("orders", wire.Schema.Avro, union + b" " * version), TRANSITIVE)

    for version in range(10):
        add(version)
    with pytest.raises(IncompatibleSchema, match="takes too long"):
        add(10)


def test_schemas_of_people_are_compared(registry: SchemaRegistry) -> None:
    for version in range(1, 40):
        registry.add(TOPIC, avro(record(version * 10, ["null", "string"])), TRANSITIVE)
    assert len(registry.versions(TOPIC)) == 39
