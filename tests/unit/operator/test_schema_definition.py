"""The definition of a schema may be in a ConfigMap, whose changes are followed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from heliograph_api.values.schema_digest import schema_digest
from heliograph_operator.kube.permissions import PERMISSIONS
from heliograph_operator.objects.kinds import Key
from heliograph_operator.policies.schema_definition import REREAD_S

from .bodies import cluster, namespace, tenant, topic
from .installation import Installation

ORDERS = "persistent://shop/payments/orders"
TOPIC = Key("Topic", "team", "orders")
SCHEMAS = Key("ConfigMap", "team", "schemas")
FLIGHT = json.dumps({"type": "record", "name": "Flight", "fields": []})
ORDER = json.dumps({"type": "record", "name": "Order", "fields": []})
SOURCE = {"type": "AVRO", "definitionFrom": {"configMapKeyRef": {"name": "schemas", "key": "order.avsc"}}}


def digest(definition: str) -> str:
    return schema_digest("AVRO", definition.encode())


def installed() -> Installation:
    return Installation(cluster(), tenant(), namespace(), topic(schema=SOURCE))


def put(world: Installation, **data: str) -> None:
    """Create or replace the ConfigMap."""
    metadata = {"name": "schemas", "namespace": "team", "uid": "schemas", "resourceVersion": "1"}
    named = {name.replace("_", "."): definition for name, definition in data.items()}
    world.server.objects[SCHEMAS] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": named}


async def test_a_definition_is_taken_from_a_config_map_and_followed() -> None:
    world = installed()
    put(world, order_avsc=ORDER)
    operator = world.started()
    await operator.settle()
    assert world.ready(TOPIC)[0] == "Reconciled"
    assert world.broker.topics[ORDERS].schemas == [digest(ORDER)]
    put(world, order_avsc=FLIGHT)
    await operator.resync()
    assert world.broker.topics[ORDERS].schemas == [digest(ORDER), digest(FLIGHT)]
    assert world.ready(TOPIC)[0] == "Reconciled"


async def test_it_is_read_again_in_time() -> None:
    world = installed()
    operator = world.started()
    await operator.settle()
    assert world.ready(TOPIC)[0] == "SchemaMissing"
    put(world, order_avsc=ORDER)
    resource = operator.context.resource(TOPIC)
    assert resource is not None
    outcome = await operator.reconcile(resource)
    assert (outcome.result, outcome.requeue_s) == ("ready", REREAD_S)


@pytest.mark.parametrize(
    ("data", "reason", "message"),
    [
        (None, "SchemaMissing", "there is no ConfigMap 'schemas' in Kubernetes namespace team"),
        ({"other": ORDER}, "SchemaMissing", "ConfigMap 'schemas' has no entry 'order.avsc' in its data"),
        ({"order_avsc": "{"}, "Invalid", "spec.schema.definition: is not a definition of this type; valid: an Avro"),
        ({"order_avsc": "1" * 70_000}, "Invalid", "with entry 'order.avsc' of ConfigMap 'schemas': spec.schema.def"),
    ],
)
async def test_what_is_missing_or_wrong_is_named(data: dict[str, Any] | None, reason: str, message: str) -> None:
    world = installed()
    if data is not None:
        put(world, **data)
    await world.started().settle()
    assert world.ready(TOPIC)[0] == reason
    assert message in world.ready(TOPIC)[1]
    assert ORDERS not in world.broker.topics
    put(world, order_avsc=ORDER)
    await world.started().settle()
    assert world.ready(TOPIC)[0] == "Reconciled"


async def test_a_config_map_that_goes_changes_nothing_in_the_broker() -> None:
    world = installed()
    put(world, order_avsc=ORDER)
    await world.started().settle()
    del world.server.objects[SCHEMAS]
    await world.started().settle()
    assert world.ready(TOPIC)[0] == "SchemaMissing"
    assert world.broker.topics[ORDERS].schemas == [digest(ORDER)]
    world.delete(TOPIC)
    await world.started().settle()
    assert (TOPIC in world.server.objects, ORDERS in world.broker.topics) == (False, False)


def test_reading_needs_no_more_permissions_than_the_operators_own_config_maps() -> None:
    (granted,) = (each for each in PERMISSIONS if each.resource == "configmaps")
    assert "schema" in granted.verbs["get"]
