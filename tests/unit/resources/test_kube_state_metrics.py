"""The configuration for kube-state-metrics: every kind, every path, and the metrics of a resource."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from heliograph_api.crds import kube_state_metrics
from heliograph_api.crds.definitions import definitions

_ROOT = Path(__file__).resolve().parents[3]


def _resources() -> dict[str, dict[str, Any]]:
    document = yaml.safe_load((_ROOT / kube_state_metrics.PATH).read_text())
    assert document["kind"] == "CustomResourceStateMetrics"
    return {each["groupVersionKind"]["kind"]: each for each in document["spec"]["resources"]}


def _schemas() -> dict[str, dict[str, Any]]:
    return {
        each["spec"]["names"]["kind"]: each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for each in definitions()
    }


def _at(schema: dict[str, Any], path: list[str]) -> dict[str, Any]:
    for name in path:
        schema = schema["properties"][name]
    return schema


def _value(text: str) -> float:
    """Return the number that kube-state-metrics reads from a text, as its documentation says."""
    known = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0, "unknown": 0.0}
    return known[text.lower()] if text.lower() in known else datetime.fromisoformat(text).timestamp()


def _samples(resource: dict[str, Any], body: dict[str, Any]) -> set[tuple[str, tuple[tuple[str, str], ...], float]]:
    """Return what kube-state-metrics makes of a resource."""

    def find(found: Any, path: list[str]) -> Any:
        for name in path:
            found = found[name]
        return found

    made = set()
    of_all = {name: find(body, path) for name, path in resource["labelsFromPath"].items()}
    for metric in resource["metrics"]:
        gauge = metric["each"]["gauge"]
        for item in find(body, gauge["path"]):
            labels = of_all | {name: find(item, path) for name, path in gauge["labelsFromPath"].items()}
            name = f"{resource['metricNamePrefix']}_{metric['name']}"
            made.add((name, tuple(sorted(labels.items())), _value(find(item, gauge["valueFrom"]))))
    return made


def test_every_kind_with_conditions_is_in_it() -> None:
    with_conditions = {
        kind for kind, schema in _schemas().items() if "conditions" in _at(schema, ["status"])["properties"]
    }
    assert {"BrokerCluster", "Tenant", "Namespace", "Topic"} <= with_conditions
    assert set(_resources()) == with_conditions


@pytest.mark.parametrize("kind", sorted(_resources()))
def test_every_path_is_a_field_of_the_definition(kind: str) -> None:
    resource, schema = _resources()[kind], _schemas()[kind]
    assert resource["groupVersionKind"] == {"group": "heliograph.dev", "version": "v1alpha1", "kind": kind}
    for metric in resource["metrics"]:
        gauge = metric["each"]["gauge"]
        conditions = _at(schema, gauge["path"])
        assert conditions["type"] == "array"
        for path in [gauge["valueFrom"], *gauge["labelsFromPath"].values()]:
            assert _at(conditions["items"], path)["type"] == "string"


def test_a_condition_becomes_two_metrics() -> None:
    condition = {"type": "Ready", "status": "False", "reason": "Conflict", "lastTransitionTime": "2026-01-02T00:00:00Z"}
    body = {"metadata": {"namespace": "team", "name": "orders"}, "status": {"conditions": [condition]}}
    labels = (("name", "orders"), ("namespace", "team"))
    assert _samples(_resources()["Topic"], body) == {
        (
            "heliograph_topic_status_condition",
            (*labels, ("reason", "Conflict"), ("status", "False"), ("type", "Ready")),
            0.0,
        ),
        ("heliograph_topic_status_condition_last_transition_time", (*labels, ("type", "Ready")), 1767312000.0),
    }
