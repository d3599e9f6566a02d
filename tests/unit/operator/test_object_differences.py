"""Drift is distinguished from additions that others made."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_operator.decide.object_differences import differences, foreign_fields

CONTAINER = {"name": "broker", "image": "a", "env": [{"name": "X", "value": "1"}]}


def template(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": list(containers)}}}}


def test_defaults_of_the_api_server_are_no_drift() -> None:
    wanted = {"spec": {"replicas": 1, "ports": [{"name": "http", "port": 80}]}}
    found = {"spec": {"replicas": 1, "ports": [{"name": "http", "port": 80, "nodePort": 3}], "more": 1}, "status": {}}
    assert differences(wanted, found) == []
    assert foreign_fields(wanted, found) == {}


def test_what_is_empty_may_be_left_out() -> None:
    assert differences({"data": {}, "list": []}, {}) == []


@pytest.mark.parametrize(
    ("wanted", "found", "where"),
    [
        ({"spec": {"replicas": 1}}, {"spec": {"replicas": 0}}, ["spec.replicas"]),
        ({"spec": {"replicas": 1}}, {}, ["spec"]),
        (template(CONTAINER), template(CONTAINER | {"image": "b"}), ["spec.template.spec.containers[broker].image"]),
        ({"args": ["a", "b"]}, {"args": ["a"]}, ["args"]),
        ({"args": ["a", "b"]}, {"args": ["a", "c"]}, ["args[1]"]),
        ({"labels": {"a": "1"}}, {"labels": {"b": "1"}}, ["labels.a"]),
    ],
)
def test_what_is_missing_or_other_is_named(wanted: Any, found: Any, where: list[str]) -> None:
    assert differences(wanted, found) == where


def test_a_setting_somebody_added_is_drift_and_is_taken_out() -> None:
    wanted, found = {"data": {"A": "1"}}, {"data": {"A": "1", "B": "2"}}
    assert differences(wanted, found) == ["data.B"]
    assert foreign_fields(wanted, found) == {"data": {"B": None}}


def test_a_variable_somebody_added_is_drift_and_is_taken_out() -> None:
    wanted = template(CONTAINER)
    found = template(CONTAINER | {"env": [*CONTAINER["env"], {"name": "Y", "value": "2"}]})
    assert differences(wanted, found) == ["spec.template.spec.containers[broker].env[Y]"]
    patch = foreign_fields(wanted, found)
    assert patch["spec"]["template"]["spec"]["containers"] == [CONTAINER]


def test_a_container_somebody_added_is_drift() -> None:
    found = template(CONTAINER, {"name": "miner"})
    assert differences(template(CONTAINER), found) == ["spec.template.spec.containers[miner]"]


def _with_resources(requests: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    container = {"name": "broker", "resources": {"requests": requests, "limits": limits}}
    return {"spec": {"template": {"spec": {"containers": [container]}}}}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (1, "1"),
        (0.5, "500m"),
        ("0.5", "500m"),
        ("1000m", "1"),
        ("1024Mi", "1Gi"),
        (1073741824, "1Gi"),
        ("1e9", "1G"),
        ("1500M", "1500M"),
    ],
)
def test_a_quantity_in_the_api_servers_own_form_is_no_drift(wanted: object, found: object) -> None:
    ours = _with_resources({"nvidia.com/gpu": wanted}, {"cpu": wanted})
    theirs = _with_resources({"nvidia.com/gpu": found}, {"cpu": found})
    assert differences(ours, theirs) == []
    claim = {"spec": {"resources": {"requests": {"storage": wanted}}}}
    assert differences(claim, {"spec": {"resources": {"requests": {"storage": found}}}}) == []


@pytest.mark.parametrize(("wanted", "found"), [("1", "1m"), ("1Gi", "1G"), (1, "2"), ("x", "y")])
def test_a_quantity_of_another_value_is_drift(wanted: object, found: object) -> None:
    path = "spec.template.spec.containers[broker].resources.limits.cpu"
    assert differences(_with_resources({}, {"cpu": wanted}), _with_resources({}, {"cpu": found})) == [path]


def test_numbers_elsewhere_are_texts() -> None:
    assert differences({"data": {"limits": "1000m"}}, {"data": {"limits": "1"}}) == ["data.limits"]


def test_order_in_lists_of_named_things_is_no_drift() -> None:
    first, second = {"name": "a", "x": 1}, {"name": "b", "x": 2}
    assert differences({"volumes": [first, second]}, {"volumes": [second, first]}) == []


POLICY = {
    "spec": {
        "podSelector": {"matchLabels": {"a": "b"}},
        "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 6650, "protocol": "TCP"}]}],
        "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}],
    }
}


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"podSelector": {"matchLabels": {"a": "b", "c": "d"}}}, "spec.podSelector.matchLabels.c"),
        (
            {"podSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]}},
            "spec.podSelector.matchExpressions",
        ),
        (
            {
                "ingress": [
                    {"from": [{"podSelector": {}}], "ports": [{"port": 6650, "protocol": "TCP", "endPort": 9000}]}
                ]
            },
            "spec.ingress[0].ports[0].endPort",
        ),
        ({"ingress": [{"ports": [{"port": 6650, "protocol": "TCP"}]}]}, "spec.ingress[0].from"),
        (
            {
                "ingress": [
                    {
                        "from": [{"podSelector": {}, "namespaceSelector": {}}],
                        "ports": [{"port": 6650, "protocol": "TCP"}],
                    }
                ]
            },
            "spec.ingress[0].from[0].namespaceSelector",
        ),
        ({"ingress": [*POLICY["spec"]["ingress"], {}]}, "spec.ingress"),
        ({"egress": [{"ports": [{"port": 53, "protocol": "UDP", "endPort": 443}]}]}, "spec.egress[0].ports[0].endPort"),
    ],
)
def test_a_network_policy_that_somebody_opened_is_drift_and_is_closed(changed: dict[str, Any], where: str) -> None:
    found = {"spec": POLICY["spec"] | changed}
    assert differences(POLICY, found) == [where]
    assert foreign_fields(POLICY, found)


def _with(**fields: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"name": "a", **fields}]}}}}


def test_a_volume_that_is_mounted_twice_is_no_drift() -> None:
    mounts = [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b", "subPath": "x"}]
    wanted = _with(volumeMounts=mounts)
    assert differences(wanted, wanted) == []
    assert foreign_fields(wanted, wanted) == {}
    found = _with(volumeMounts=[mounts[1], mounts[0] | {"name": "w"}])
    assert differences(wanted, found) == ["spec.template.spec.containers[a].volumeMounts[/a].name"]
    assert differences(wanted, _with(volumeMounts=mounts[:1])) == ["spec.template.spec.containers[a].volumeMounts[/b]"]


def test_a_variable_that_is_there_twice_is_no_drift() -> None:
    variables = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}, {"name": "A", "value": "2"}]
    wanted = _with(env=variables)
    assert differences(wanted, wanted) == []
    assert foreign_fields(wanted, wanted) == {}
    assert differences(wanted, _with(env=variables[:2])) == ["spec.template.spec.containers[a].env"]
    other = [*variables[:2], {"name": "A", "value": "3"}]
    assert differences(wanted, _with(env=other)) == ["spec.template.spec.containers[a].env[2].value"]
