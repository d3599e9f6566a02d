"""The pod template of a BrokerCluster on a real API server: merged as by kubectl, refused before anything changes."""

from __future__ import annotations

import json
from typing import Any

from heliograph_api.resources.model import BrokerCluster
from heliograph_operator.decide.cluster_objects import manifests
from heliograph_operator.decide.stateful_set import Site

from tests.support.cluster import Cluster
from tests.support.operator_process import OperatorProcess

from .resources import Resources

_PATCHES: list[dict[str, Any]] = [
    {
        "metadata": {"labels": {"team": "shop"}, "annotations": {"a": "b"}},
        "spec": {
            "securityContext": {"fsGroup": 7, "seccompProfile": None},
            "serviceAccountName": "mine",
            "priorityClassName": "high",
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "volumes": [
                {"name": "extra", "configMap": {"name": "x"}},
                {"name": "tmp", "emptyDir": {"medium": "Memory"}},
            ],
            "initContainers": [{"name": "wait", "image": "wait:1"}],
        },
    },
    {
        "spec": {
            "containers": [
                {
                    "name": "broker",
                    "env": [{"name": "TZ", "value": "UTC"}],
                    "ports": [{"containerPort": 9000, "name": "more", "protocol": "TCP"}],
                    "volumeMounts": [{"mountPath": "/extra", "name": "tmp"}],
                    "readinessProbe": {"periodSeconds": 7},
                    "startupProbe": None,
                },
                {"name": "logs", "image": "logs:1", "args": ["-f"]},
            ],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
            ],
        }
    },
    {"spec": {"securityContext": {"$patch": "replace", "runAsNonRoot": True}, "enableServiceLinks": None}},
]


def _template(**spec: Any) -> dict[str, Any]:
    body = {"kind": "BrokerCluster", "metadata": {"name": "main", "namespace": "shop", "uid": "1"}, "spec": spec}
    cluster = BrokerCluster.model_validate({"apiVersion": "heliograph.dev/v1alpha1", **body})
    template: dict[str, Any] = manifests(cluster, body, Site("broker:1"))[-1]["spec"]["template"]
    return template


def _by_name(value: Any) -> Any:
    """Return a value with its lists in one order: kubectl puts new items first."""
    if isinstance(value, dict):
        return {key: _by_name(each) for key, each in value.items()}
    if isinstance(value, list):
        return sorted(map(_by_name, value), key=lambda each: json.dumps(each, sort_keys=True))
    return value


def test_a_pod_template_is_merged_as_kubectl_merges_it(cluster: Cluster) -> None:
    for patch in _PATCHES:
        pod = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "x"}}
        base = json.dumps({**pod, "spec": {"template": _template()}})
        options = ("--local", "-f", "-", "--type=strategic", "-o", "json")
        text = cluster.kubectl("patch", *options, "-p", json.dumps({"spec": {"template": patch}}), input=base)
        expected = json.loads(text)["spec"]["template"]
        assert _by_name(_template(podTemplate=patch)) == _by_name(expected)


_CHECKED_SINCE = 34
"""The minor version of the first Kubernetes tested here that checks the pod template of a StatefulSet."""
_REFUSED_BY_KUBERNETES: tuple[dict[str, Any], str] = (
    {"containers": [{"name": "logs"}]},
    "spec.template.spec.containers[1].image: Required value",
)
_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"containers": [{"name": "broker", "image": "x"}]}, "spec.podTemplate.spec.containers[broker].image: is the"),
    ({"nosuchfield": 1}, ".spec.template.spec.nosuchfield: field not declared"),
]


def test_a_pod_template_that_is_refused_changes_nothing(resources: Resources, operator: OperatorProcess) -> None:
    cluster, namespace = resources.cluster, resources.namespace

    def pods_are_made_of() -> tuple[Any, Any]:
        kinds = (cluster.kubectl_json("get", kind, "main", "-n", namespace) for kind in ("statefulset", "configmap"))
        stateful_set, settings = kinds
        return stateful_set["spec"], settings.get("data", {})

    sidecar = {"name": "logs", "image": "logs:1", "resources": {"requests": {"cpu": 1, "memory": "1024Mi"}}}
    spec: dict[str, Any] = {"storage": {"size": "1Gi"}, "podTemplate": {"spec": {"containers": [sidecar]}}}
    resources.apply("BrokerCluster", "main", spec)
    before = resources.wait("the StatefulSet exists", pods_are_made_of)
    assert [each["name"] for each in before[0]["template"]["spec"]["containers"]] == ["broker", "logs"]
    changed = {**spec, "config": {"metrics_level": "broker"}}
    minor = int(cluster.kubectl_json("version")["serverVersion"]["minor"].rstrip("+"))
    for template, problem in [*([_REFUSED_BY_KUBERNETES] if minor >= _CHECKED_SINCE else []), *_REFUSED]:
        resources.apply("BrokerCluster", "main", {**changed, "podTemplate": {"spec": template}})

        def is_named(problem: str = problem) -> bool:
            ready = resources.condition("BrokerCluster", "main")
            assert ready["reason"] == "Invalid", ready
            return problem in ready["message"]

        resources.wait(f"{problem} is named", is_named)
        assert pods_are_made_of() == before
    resources.apply("BrokerCluster", "main", {**changed, "podTemplate": {}})

    def is_corrected() -> bool:
        stateful_set, settings = pods_are_made_of()
        assert settings == {"HELIOGRAPH_INSECURE": "true", "HELIOGRAPH_METRICS_LEVEL": "broker"}
        return len(stateful_set["template"]["spec"]["containers"]) == 1

    resources.wait("the pod template is corrected", is_corrected)
