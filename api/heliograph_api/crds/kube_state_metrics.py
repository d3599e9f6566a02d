"""The configuration with which kube-state-metrics turns every condition of every kind into a metric.

It is a ``CustomResourceStateMetrics`` document for ``--custom-resource-state-config-file``. The operator's own metrics
are fewer: with ten thousand Topics this configuration makes tens of thousands of series.
"""

from __future__ import annotations

from typing import Any, Final

from .definitions import GROUP, VERSION, definitions

PATH: Final = "charts/heliograph/kube-state-metrics.yaml"
_CONDITIONS: Final = ["status", "conditions"]


def configuration() -> dict[str, Any]:
    """Return the document, with a resource for each kind that has conditions, in the order of the definitions."""
    kinds = [
        definition["spec"]["names"]["kind"]
        for definition in definitions()
        if "conditions" in _status(definition)["properties"]
    ]
    return {"kind": "CustomResourceStateMetrics", "spec": {"resources": [_resource(kind) for kind in kinds]}}


def _status(definition: dict[str, Any]) -> dict[str, Any]:
    (version,) = definition["spec"]["versions"]
    status: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    return status


def _resource(kind: str) -> dict[str, Any]:
    return {
        "groupVersionKind": {"group": GROUP, "version": VERSION, "kind": kind},
        "metricNamePrefix": f"heliograph_{kind.lower()}",
        "labelsFromPath": {"namespace": ["metadata", "namespace"], "name": ["metadata", "name"]},
        "metrics": [
            _gauge(
                "status_condition",
                f"Whether a condition of the {kind} is True (1), or False or Unknown (0)",
                ["status"],
                {"type": ["type"], "status": ["status"], "reason": ["reason"]},
            ),
            _gauge(
                "status_condition_last_transition_time",
                f"When the status of a condition of the {kind} last changed, in seconds since 1970",
                ["lastTransitionTime"],
                {"type": ["type"]},
            ),
        ],
    }


def _gauge(name: str, text: str, value: list[str], labels: dict[str, list[str]]) -> dict[str, Any]:
    gauge = {"path": _CONDITIONS, "labelsFromPath": labels, "valueFrom": value}
    return {"name": name, "help": text, "each": {"type": "Gauge", "gauge": gauge}}
