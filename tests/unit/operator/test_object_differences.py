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


def test_order_in_lists_of_named_things_is_no_drift() -> None:
    first, second = {"name": "a", "x": 1}, {"name": "b", "x": 2}
    assert differences({"volumes": [first, second]}, {"volumes": [second, first]}) == []
