"""The definition of a Topic's schema in a ConfigMap of a real API server."""

from __future__ import annotations

import json

from heliograph_api.values.schema_digest import schema_digest

from tests.support.broker_process import BrokerProcess
from tests.support.operator_process import OperatorProcess

from .broker_side import topic_state
from .resources import Resources

ORDERS = "persistent://shop/payments/orders"


def _definition(*fields: str) -> str:
    return json.dumps(
        {
            "type": "record",
            "name": "Order",
            "fields": [{"name": name, "type": "string", "default": ""} for name in fields],
        }
    )


def _put(served: Resources, definition: str) -> None:
    metadata = {"name": "schemas", "namespace": served.namespace}
    served.cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"order.avsc": definition}}
    )


def test_a_definition_in_a_config_map_is_waited_for_and_its_changes_are_stored(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.tenant()
    served.hns()
    source = {"configMapKeyRef": {"name": "schemas", "key": "order.avsc"}}
    served.topic(schema={"type": "AVRO", "definitionFrom": source})
    assert "there is no ConfigMap 'schemas'" in served.wait_reason("Topic", "orders", "SchemaMissing")
    definitions = [_definition("customer"), _definition("customer", "amount")]
    for number, definition in enumerate(definitions, 1):
        _put(served, definition)
        stored = [schema_digest("AVRO", each.encode()) for each in definitions[:number]]
        served.wait_ready("Topic", "orders")
        served.wait("the broker has it", lambda wanted=stored: topic_state(broker, ORDERS).schemas == wanted)
    assert served.condition("Topic", "orders")["reason"] == "Reconciled"
